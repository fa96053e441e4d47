//! Changes without a user: commands, scripts, playbooks.

use std::path::{Path, PathBuf};

use super::site::{Site, changed, paths, rootfs};
use crate::support;

/// A playbook with a role, which has to come along.
const PLAYBOOK: &str = "- hosts: all\n  gather_facts: false\n  roles: [mark]\n";
const ROLE: &str = r#"
- command: uname -m
  register: machine
- copy:
    dest: /root/by-ansible
    content: "{{ machine.stdout }}\n"
    mode: "0640"
"#;

/// Writes a playbook into a directory: the image says in `/root/by-ansible` which machine it is.
pub fn playbook(dir: &Path) -> PathBuf {
    fs_err::create_dir_all(dir.join("play/roles/mark/tasks")).unwrap();
    fs_err::write(dir.join("play/site.yml"), PLAYBOOK).unwrap();
    fs_err::write(dir.join("play/roles/mark/tasks/main.yml"), ROLE).unwrap();
    dir.join("play/site.yml")
}

#[test]
fn commands_scripts_and_playbooks_are_run_in_their_order() {
    needs!(support::no_namespaces(), support::not_root());
    let site = Site::start(&[]);
    let home = site.home.path();
    fs_err::write(
        home.join("mark.sh"),
        "#!/bin/sh\necho \"script $IMS_ARCH\" >> /root/order\n",
    )
    .unwrap();
    let (script, playbook) = (home.join("mark.sh"), playbook(home));
    let ran = site.run(&[
        "customize",
        "base",
        "--format",
        "json",
        "--run",
        "echo first >> /root/order",
        "--script",
        script.to_str().unwrap(),
        "--ansible",
        playbook.to_str().unwrap(),
        "--run",
        "cat /root/by-ansible >> /root/order; rm -r /root/.ansible",
    ]);
    let record: serde_json::Value = serde_json::from_str(&ran.ok().stdout).unwrap();
    let job = record["id"].as_str().unwrap();
    let (image, after) = site.succeeded(job);
    assert_eq!(
        changed(rootfs(), &after),
        paths(&["/root", "/root/by-ansible", "/root/order", "/tmp"])
    );
    let order = support::tool("unsquashfs", &["-cat", after.to_str().unwrap(), "root/order"]);
    assert_eq!(order, format!("first\nscript {0}\n{0}\n", support::HOST));

    assert_eq!(image["name"], "base-customized");
    let metadata = &image["metadata"];
    assert_eq!(metadata["kiln.image"], site.image.as_str());
    let of = |number: u32| metadata[format!("kiln.change.{number}")].as_str().unwrap().to_owned();
    let digest = |content: &[u8]| hex::encode(<sha2::Sha256 as sha2::Digest>::digest(content));
    assert_eq!(of(1), format!("run sha256:{}", digest(b"echo first >> /root/order")));
    assert_eq!(
        of(2),
        format!("script mark.sh sha256:{}", digest(&fs_err::read(script).unwrap()))
    );
    assert!(of(3).starts_with("ansible site.yml sha256:") && of(4).starts_with("run sha256:"));
    // No login was possible.
    assert!(site.record(job)["ssh_containers"].is_null());

    // The same again, from the record.
    let again = site.json(&["jobs", "retry", job]);
    let again = again["id"].as_str().unwrap().to_owned();
    site.run(&["jobs", "delete", job]).ok();
    let (_, after) = site.succeeded(&again);
    let order = support::tool("unsquashfs", &["-cat", after.to_str().unwrap(), "root/order"]);
    assert!(order.starts_with("first\nscript"), "{order}");
    site.stop();
}

#[test]
fn the_first_change_that_fails_ends_the_job_and_says_why() {
    needs!(support::no_namespaces(), support::not_root());
    let site = Site::start(&[]);
    let home = site.home.path();
    fs_err::create_dir(home.join("play")).unwrap();
    fs_err::write(
        home.join("play/site.yml"),
        "- hosts: all\n  gather_facts: false\n  tasks: [{command: \"false\"}]\n",
    )
    .unwrap();
    let playbook = home.join("play/site.yml").display().to_string();
    for (change, said) in [
        (
            ["--run", "echo reason >&2; exit 3"],
            "`echo reason >&2; exit 3` ended with code 3; its last line: reason",
        ),
        (["--run", "/no/such/program"], "ended with code 127"),
        (["--ansible", &playbook], "ansible `site.yml` ended with code 2"),
    ] {
        let ran = site.run(&[&["customize", "base"], &change[..], &["--run", "echo never"]].concat());
        assert!(ran.failed().contains(said), "{}", ran.stderr);
        let jobs = site.json(&["jobs", "list"]);
        let job = jobs.as_array().unwrap().last().unwrap()["id"]
            .as_str()
            .unwrap()
            .to_owned();
        assert_eq!(site.failed(&job), "change_failed");
        assert!(!site.log(&job).contains("never"));
    }
    let images = site.json(&["images", "list"]);
    assert_eq!(images.as_array().unwrap().len(), 1);

    let ran = site.run(&["customize", "base"]);
    assert_eq!(ran.code, Some(2));
    assert!(ran.stderr.contains("nothing is to be changed"), "{}", ran.stderr);
    let ran = site.run(&["customize", "base", "--script", "/no/such/file"]);
    assert!(ran.failed().contains("/no/such/file"), "{}", ran.stderr);
    let ran = site.run(&["customize", "bsae", "--run", "true"]);
    assert!(ran.stderr.contains("base"), "{}", ran.stderr);
    site.stop();
}
