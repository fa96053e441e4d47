//! Tests `kiln check recipe`: what is understood of recipes, and why others are refused, by the agent in a real sandbox.

use std::net::{Ipv4Addr, TcpListener};

use nix::sys::signal::Signal;
use serde_json::{Value, json};

use crate::support::{self, HOST, Kiln, Ran, Recipe, Started, eventually, repository::Repository, tool};

/// A description of an old schema, with a part of its own, profiles, and a template.
const OLD: &str = r#"<?xml version="1.0" encoding="utf-8"?>
<image schemaversion="6.8" name="old">
  <description type="system"><author>a</author><contact>a@example.org</contact><specification>s</specification></description>
  <profiles><profile name="Compute" description="c"/><profile name="Disk" description="d"/></profiles>
  <preferences profiles="Compute"><type image="tbz"/></preferences>
  <preferences profiles="Disk" arch="aarch64"><type image="oem" filesystem="ext4"/></preferences>
  <preferences><version>1.0.0</version><packagemanager>apt-get</packagemanager></preferences>
  <repository type="apt-deb" alias="tiny" distribution="tiny" components="main" repository_gpgcheck="false">
    <source path="{{ deb_repo }}"/>
  </repository>
  <include from="this://parts/packages.xml"/>
  <packages type="bootstrap"/>
</image>
"#;

const PART: &str = r#"<image schemaversion="6.8" name="part">
  <packages type="image"><package name="tiny-note"/><package name="other" arch="riscv64"/></packages>
</image>
"#;

const SCRIPT: &str = "#!/bin/bash -e\n# suseConfig is not called here\nbaseMount\necho\n";

fn old() -> Recipe {
    Recipe::copy_of("deb-tiny")
        .with("config.xml", OLD)
        .with("parts/packages.xml", PART)
        .with("config.sh", SCRIPT)
        .with("disk.sh", "echo\n")
        .with("kiln-recipe.toml", "[checks]\nroot_modes = \"off\"\n")
}

fn check(kiln: &Kiln, recipe: &str, options: &[&str]) -> Ran {
    support::run(kiln.command([&["check", "recipe", recipe], options].concat()))
}

/// The reading of a recipe, with the command's exit code and messages.
fn read(kiln: &Kiln, recipe: &str, options: &[&str]) -> (Value, Ran) {
    let ran = check(kiln, recipe, &[&["--json"], options].concat());
    let reading = serde_json::from_str(&ran.stdout).unwrap_or_else(|error| panic!("{error}: {ran:?}"));
    (reading, ran)
}

#[track_caller]
fn assert_nothing_left(kiln: &Kiln) {
    for dir in ["sandboxes", "runners", "readings", "downloads"] {
        if let Ok(left) = fs_err::read_dir(kiln.data().join(dir)) {
            let left: Vec<_> = left.map(|entry| entry.unwrap().file_name()).collect();
            assert!(left.is_empty(), "{dir}: {left:?}");
        }
    }
    kiln.assert_clean();
}

#[test]
fn all_that_is_understood_is_said() {
    needs!(support::no_namespaces());
    let (kiln, recipe, repository) = (Kiln::new(), old(), Repository::debian());
    let address = repository.url();
    let set = format!("--set=deb_repo={address}");
    let options = ["--profile=Compute", "--arch=x86_64", &set];
    let ran = check(&kiln, recipe.path(), &options).ok();
    let said = format!("{}---\n{}", ran.stdout, ran.stderr).replace(&address, "http://REPOSITORY");
    insta::assert_snapshot!(said, @r"
        recipe        old, read for x86_64
        description   config.xml, schema 6.8, converted to 8.5
        includes      parts/packages.xml
        template      deb_repo has a value
        names         aarch64, riscv64
        profile       Compute, in force
        profile       Disk
        type          tbz, of Compute, in force
        type          oem, for aarch64, of Disk
        manager       apt, written as apt-get
        packages      0 for the beginning, 1 after them, and 0 patterns, groups and products
        repository    http://REPOSITORY, apt-deb, ready, not signed
        script        config.sh, #!/bin/bash -e, executable, run by /bin/bash -e, obsolete in it: baseMount
        script        disk.sh, names no interpreter, executable, not run
        layer         the packages can be kept for later builds
        checks        fail: root_loader
        checks        warn: root_devices, root_links, root_modules, root_initrd, root_initrd_unread, root_accounts, root_packages, root_setuid, root_attributes, root_identity
        checks        off: root_modes (by the recipe)
        ---
        warnings   2
        warning: config.sh calls functions of kiwi that are obsolete and do nothing: baseMount (obsolete_function)
        warning: disk.sh is not run: kiwi runs it for disks, live images and overlays, and not for a root file system (script_not_run)
    ");
    // Nothing is said that is not in the document, and no record is made.
    let (reading, _) = read(&kiln, recipe.path(), &options);
    assert_eq!(reading["schema"]["version"], "6.8");
    assert_eq!(reading["archs"], json!(["aarch64", "riscv64"]));
    assert_eq!(reading["repositories"][0]["signed"], false);
    assert_eq!(reading["scripts"][0]["obsolete"], json!(["baseMount"]));
    assert_eq!(reading["values"], json!([{"name": "deb_repo", "given": true}]));
    assert!(!kiln.data().join("records.sqlite").exists());
    assert_nothing_left(&kiln);
}

#[test]
fn an_archive_is_read_as_its_directory_is() {
    needs!(support::no_namespaces());
    let (kiln, recipe) = (Kiln::new(), old());
    let options = ["--profile=Compute", "--set=deb_repo=dir:///x"];
    let (reading, _) = read(&kiln, recipe.path(), &options);
    let archive = kiln.data().join("old.tar.xz");
    tool("tar", &["-cJf", archive.to_str().unwrap(), "-C", recipe.path(), "."]);
    let (packed, _) = read(&kiln, archive.to_str().unwrap(), &options);
    assert_eq!(packed, reading);
    assert_eq!(reading["failure"], Value::Null);
    assert_nothing_left(&kiln);
}

#[test]
fn what_a_build_refuses_is_refused_with_its_words() {
    needs!(support::no_namespaces());
    let kiln = Kiln::new();
    let refused = |recipe: &Recipe, options: &[&str]| {
        let (reading, ran) = read(&kiln, recipe.path(), options);
        assert_eq!(ran.code, Some(1), "{ran:?}");
        let failure = &reading["failure"];
        let detail = failure["detail"].as_str().unwrap();
        assert!(ran.stderr.contains(detail), "{detail}: {}", ran.stderr);
        (failure["code"].as_str().unwrap().to_owned(), detail.to_owned(), reading)
    };
    let closed = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))
        .unwrap()
        .local_addr()
        .unwrap();
    let set = format!("--set=deb_repo=http://{closed}/debian");

    let (code, detail, reading) = refused(&old(), &[]);
    assert_eq!(
        (code.as_str(), detail.as_str()),
        ("template_undefined", "config.xml:9: `deb_repo` has no value")
    );
    assert_eq!(reading["values"], json!([{"name": "deb_repo", "given": false}]));
    assert_eq!(reading["description"], "config.xml");

    let (code, detail, reading) = refused(&old(), &[&set]);
    assert_eq!(code, "no_image_type");
    assert!(detail.contains("the recipe has the profiles Compute, Disk"), "{detail}");
    assert_eq!(reading["types"].as_array().unwrap().len(), 2);

    let (code, ..) = refused(&old(), &[&set, "--profile=compute"]);
    assert_eq!(code, "profile_unknown");

    let unknown = old().with(
        "config.xml",
        &OLD.replace("image=\"tbz\"", "image=\"tbz\" unheard=\"x\""),
    );
    let (code, detail, _) = refused(&unknown, &[&set, "--profile=Compute"]);
    assert_eq!(code, "recipe_config_invalid");
    assert!(
        detail.starts_with("KiwiDescriptionInvalid: ") && detail.contains("unheard"),
        "{detail}"
    );

    let lacking = old().with("config.xml", &OLD.replace("apt-get", "pacman"));
    let (code, detail, _) = refused(&lacking, &[&set, "--profile=Compute"]);
    assert_eq!(code, "build_failed");
    assert!(detail.contains("Command \"pacman\" not found"), "{detail}");

    let gone = old().with("config.xml", &OLD.replace("parts/packages", "parts/gone"));
    let (code, detail, _) = refused(&gone, &[&set]);
    assert_eq!(code, "recipe_config_invalid");
    assert!(
        detail.contains("parts/gone.xml, which the recipe does not have"),
        "{detail}"
    );
    assert_nothing_left(&kiln);
}

#[test]
fn a_repository_that_is_away_is_said_and_forbids_nothing() {
    needs!(support::no_namespaces());
    let (kiln, recipe) = (Kiln::new(), Recipe::copy_of("rpm-minimal"));
    let closed = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))
        .unwrap()
        .local_addr()
        .unwrap();
    let set = format!("--set=rpm_repo=http://me:secret-word@{closed}/rpm");
    let (reading, ran) = read(&kiln, recipe.path(), &[&set]);
    let repository = &reading["repositories"][0];
    assert_eq!(ran.code, Some(0), "{ran:?}");
    assert_eq!(repository["state"], "unreachable");
    assert_eq!(
        (&repository["signed"], &repository["has_arch"]),
        (&Value::Null, &Value::Null)
    );
    assert_eq!(
        reading["packages"],
        json!({"bootstrap": 4, "image": 0, "collections": 0})
    );
    assert!(
        ran.stderr.contains("is not reachable") && ran.stderr.contains("(repo_unreachable)"),
        "{ran:?}"
    );
    assert!(!format!("{ran:?}").contains("secret-word"), "{ran:?}");
    assert_nothing_left(&kiln);
}

#[test]
fn a_recipe_of_the_records_is_read_and_warned_of_when_it_is_made() {
    needs!(support::no_namespaces());
    let (kiln, recipe) = (Kiln::new(), old());
    let mut command = kiln.command(["recipes", "create", "--server=local", "--name=kept", "--format=json"]);
    command.args([
        "--linux-distribution=debian",
        "--arch=x86_64",
        "--template-dictionary-key=deb_repo",
    ]);
    command.args(["--template-dictionary-value=http://127.0.0.1:9/", "--from"]);
    command.arg(recipe.path());
    let ran = support::run(command).ok();
    let record: Value = serde_json::from_str(&ran.stdout).unwrap();
    let warning =
        "each of its image types belongs to a profile, and none is in force by itself: choose one of Compute, Disk";
    assert!(ran.stderr.contains(warning), "{}", ran.stderr);
    for name in ["kept", record["id"].as_str().unwrap()] {
        let (reading, ran) = read(&kiln, name, &["--server=local", "--profile=Compute"]);
        assert_eq!(ran.code, Some(0), "{ran:?}");
        assert_eq!((&reading["name"], &reading["arch"]), (&json!("old"), &json!("x86_64")));
    }
    // Without an option, the profiles of the record count, as for its jobs.
    let (_, ran) = read(&kiln, "kept", &["--server=local"]);
    assert_eq!(ran.code, Some(1), "{ran:?}");
    let update = ["recipes", "update", "kept", "--server=local", "--profile=Compute"];
    kiln.run(update).ok();
    let (reading, ran) = read(&kiln, "kept", &["--server=local"]);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    assert_eq!(reading["profiles"][0]["in_force"], true, "{reading}");
    let ran = check(&kiln, "nothing", &["--server=local"]);
    assert!(
        ran.code == Some(2) && ran.stderr.contains("there is no recipe"),
        "{ran:?}"
    );
    assert_nothing_left(&kiln);
}

#[test]
fn what_a_killed_command_leaves_is_cleared_away_by_the_next() {
    needs!(support::no_namespaces());
    let (kiln, recipe) = (Kiln::new(), Recipe::copy_of("rpm-minimal"));
    let options = ["check", "recipe", recipe.path(), "--set=rpm_repo=dir:///x"];
    let killed = Started::new(kiln.command(options));
    let sandboxes = kiln.data().join("sandboxes");
    eventually(|| {
        let found = fs_err::read_dir(&sandboxes).is_ok_and(|mut found| found.next().is_some());
        if found {
            Ok(())
        } else {
            Err("there is no sandbox".to_owned())
        }
    });
    killed.signal(Signal::SIGKILL);
    killed.end();
    support::run(kiln.command(options)).ok();
    assert_nothing_left(&kiln);
}

#[test]
fn what_is_not_there_and_what_kiwi_lacks_for_other_images_are_warnings() {
    needs!(support::no_namespaces());
    let container = r#"<type image="docker"><containerconfig name="x"/></type>"#;
    let source = r#"<source path="{{ rpm_repo }}"/>"#;
    let signed = r#"<source path="{{ rpm_repo }}"><signing key="this://keys/site.asc"/></source>"#;
    let recipe = Recipe::copy_of("rpm-minimal")
        .with_config(r#"<type image="tbz"/>"#, container)
        .with_config(source, signed);
    let kiln = Kiln::new();
    let ran = check(&kiln, recipe.path(), &["--set=rpm_repo=dir:///x"]).ok();
    let warning = "warning: Kiln makes no such image of the root, so kiwi goes on: Required tool umoci not found";
    assert!(ran.stderr.contains(warning), "{}", ran.stderr);
    let lost = "warning: the signing key this://keys/site.asc is not there (recipe_config_invalid)";
    assert!(ran.stderr.contains(lost), "{}", ran.stderr);
    assert!(
        ran.stdout.contains("type          docker, in force\n"),
        "{}",
        ran.stdout
    );
}

#[test]
fn several_architectures_are_read_one_after_the_other() {
    needs!(support::no_namespaces());
    let (kiln, recipe) = (Kiln::new(), Recipe::copy_of("rpm-minimal"));
    let archs = format!("--arch={HOST},{}", support::foreign());
    let (readings, ran) = read(&kiln, recipe.path(), &[&archs, "--set=rpm_repo=dir:///x"]);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    let archs: Vec<_> = readings
        .as_array()
        .unwrap()
        .iter()
        .map(|reading| &reading["arch"])
        .collect();
    assert_eq!(archs, [HOST, support::foreign()]);
    assert_eq!(readings[1]["repositories"][0]["state"], "unknown");
}
