//! What a job adds to a description: repositories and packages, as kiwi's options do.

use serde_json::{Value, json};

use super::reading;
use crate::support::{self, HOST, Kiln, Recipe, repository::Repository, serve::Server, squashfs};

#[test]
fn a_build_has_the_repositories_and_packages_that_are_added_and_says_no_secret() {
    needs!(support::no_namespaces());
    let (kiln, repository) = (Kiln::new(), Repository::shell().of(HOST));
    let place = tempfile::Builder::new().prefix("kiln-test-").tempdir().unwrap();
    let into = place.path().join("out");
    let login = place.path().join("login");
    fs_err::write(&login, "me:hunter-added-42\n").unwrap();
    let recipe = Recipe::copy_of("rpm-shell").with_config("<package name=\"shell-release\"/>", "");
    let url = repository.url();
    // The recipe's own repository is not there.
    let arguments = [
        "--set=rpm_repo=http://127.0.0.1:9/none",
        &format!("--set-repo={url}"),
        &format!("--add-repo={url},rpm-md,again,50"),
        &format!("--add-repo-credentials={}", login.display()),
        "--add-bootstrap-package=shell-release",
        "--output",
        into.to_str().unwrap(),
    ];
    reading::build(&kiln, &recipe, &arguments).ok();

    let job = &kiln.jobs()[0];
    let log = kiln.log(job);
    let bare = url.split_once("://").unwrap().1;
    for said in [
        format!("the description has as well: set-repo {url}"),
        format!("the description has as well: add-repo http://***@{bare},rpm-md,again,50"),
        "the description has as well: add-bootstrap-package shell-release".to_owned(),
        format!("ready: {url}"),
    ] {
        assert!(log.contains(&said), "`{said}` is missing: {log}");
    }
    assert!(!log.contains("hunter-added-42"), "{log}");
    assert!(!log.contains("127.0.0.1:9/none"), "{log}");
    let rootfs = into.join(HOST).join("rootfs");
    assert!(squashfs::read(&rootfs, "etc/os-release").contains("NAME"));
    let provenance = fs_err::read_to_string(into.join(HOST).join("provenance.json")).unwrap();
    assert!(
        provenance.contains("add-bootstrap-package shell-release"),
        "{provenance}"
    );
    let status = kiln.run(["jobs", "status", job["id"].as_str().unwrap()]).ok().stdout;
    assert!(status.contains("add-repo http://***@"), "{status}");
    for text in [&provenance, &status] {
        assert!(!text.contains("hunter-added-42"), "{text}");
    }
}

#[test]
fn what_kiwi_does_not_expect_is_refused_before_anything_is_built() {
    let kiln = Kiln::bare();
    let recipe = Recipe::copy_of("rpm-shell");
    for (option, said) in [
        (
            "--add-repo=http://me:hunter2@h/,yum",
            "type must be one of apk, apt-deb",
        ),
        ("--add-repo=http://me:hunter2@h/", "it needs a source and a type"),
        ("--set-repo=me:hunter2@h", "an address begins with one of"),
        ("--add-package=--vim", "is no name of a package"),
    ] {
        let ran = reading::build(&kiln, &recipe, &[option]);
        assert_eq!(ran.code, Some(2), "{}", ran.stderr);
        assert!(ran.stderr.contains(said), "{option}: {}", ran.stderr);
        assert!(!ran.stderr.contains("hunter2"), "{}", ran.stderr);
    }
}

#[test]
async fn a_server_refuses_the_same_with_the_name_of_the_member() {
    let server = Server::start(&[]);
    let ask = async |more: Value| {
        let mut job = json!({
            "job_type": "customize", "artifact_id": "77777777-0000-4000-8000-000000000003",
            "public_key_id": "77777777-0000-4000-8000-000000000003", "image_root_archive_name": "a",
        });
        for (name, value) in more.as_object().unwrap() {
            job[name] = value.clone();
        }
        server.ask("", "POST", "/v3/jobs", Some(job)).await
    };
    for (member, value, said) in [
        ("add_repos", json!(["http://h/,yum"]), "type must be one of"),
        ("set_repo", json!("http://h/,,,high"), "the priority must be a number"),
        ("add_packages", json!(["-o"]), "is no name of a package"),
    ] {
        let answer = ask(json!({ member: value })).await;
        assert!([400, 422].contains(&answer.status), "{answer:?}");
        assert!(
            answer.text.contains(member) && answer.text.contains(said),
            "{}",
            answer.text
        );
    }
    // Only a recipe has a description.
    let answer = ask(json!({ "add_packages": ["vim"] })).await;
    assert_eq!(answer.status, 400, "{}", answer.text);
    assert!(answer.text.contains("are for create jobs"), "{}", answer.text);
}
