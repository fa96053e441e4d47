//! Tests `kiln doctor`: its findings are true, and have a remedy where something is wrong.

use crate::support::{self, Kiln, authority::Authority};
use serde_json::Value;

fn finding<'a>(findings: &'a Value, what: &str) -> &'a Value {
    let all = findings.as_array().unwrap();
    let found = all.iter().find(|finding| finding["what"] == what);
    found.unwrap_or_else(|| panic!("nothing is said of {what}: {findings:#}"))
}

/// Asks for little free space, like a site with small images: the host's free space is not under test.
const LITTLE_DISK: (&str, &str) = ("KILN__CAPACITY__FIRST_DISK", "64MiB");

#[test]
fn a_host_that_can_build_is_told_so() {
    needs!(support::no_namespaces());
    let kiln = Kiln::new();
    let mut command = kiln.command(["doctor", "--json"]);
    command.env(LITTLE_DISK.0, LITTLE_DISK.1);
    let ran = support::run(command);
    let findings: Value = serde_json::from_str(&ran.ok().stdout).unwrap();
    for what in [
        "ids of sandboxes",
        "user namespaces",
        "overlay in user namespaces",
        "binfmt_misc in user namespaces",
        "network",
        "disk",
        "S3",
    ] {
        assert_eq!(finding(&findings, what)["state"], "ok", "{findings:#}");
    }
    for finding in findings.as_array().unwrap() {
        assert_eq!(finding["state"] == "ok", finding["next"].is_null(), "{finding:#}");
    }
    // It changes nothing.
    let left: Vec<_> = fs_err::read_dir(kiln.data())
        .unwrap()
        .map(|entry| entry.unwrap().file_name())
        .collect();
    assert!(!left.iter().any(|name| name == "doctor"), "{left:?}");
}

#[test]
fn what_is_missing_comes_with_the_next_command() {
    needs!(support::no_namespaces());
    let kiln = Kiln::new();
    // Nothing listens there, and nothing is installed.
    let empty = tempfile::tempdir().unwrap();
    let with = [
        LITTLE_DISK,
        ("KILN__S3__ENDPOINT", "http://127.0.0.1:9"),
        ("KILN__S3__ACCESS_KEY", "a"),
        ("KILN__S3__SECRET_KEY", "b"),
        ("PATH", empty.path().to_str().unwrap()),
    ];
    let mut command = kiln.command(["doctor"]);
    command.envs(with);
    let ran = support::run(command);
    assert_eq!(ran.code, Some(1), "{}", ran.stdout);
    let said = ran.failed();
    assert!(said.contains("2 requirements of every job"), "{said}");
    for (what, next) in [
        ("network", "apt install slirp4netns"),
        ("QEMU", "apt install qemu-system"),
        ("S3", "S3 endpoint"),
    ] {
        let line = ran
            .stdout
            .lines()
            .position(|line| line.split_whitespace().nth(1) == Some(what));
        let next_line = ran.stdout.lines().nth(line.unwrap() + 1).unwrap();
        assert!(next_line.contains(next), "{what}: {next_line}");
    }
}

/// The files that kata/README.md tells users to copy are valid.
#[test]
fn the_files_for_kata_are_well_formed() {
    let read = |name: &str| fs_err::read_to_string(support::source_dir().join("kata").join(name)).unwrap();
    let drop_in: toml::Table = read("config.d/50-kiln.toml").parse().unwrap();
    let agent = &drop_in["agent"]["kata"];
    // Kata's own guest has no modprobe, and does not start where a module is named.
    assert!(agent.get("kernel_modules").is_none());
    assert!(agent["reconnect_timeout_ms"].as_integer().unwrap() >= 30_000);

    let daemon: Value = serde_json::from_str(&read("docker-daemon.json")).unwrap();
    assert_eq!(daemon["runtimes"]["kata"]["runtimeType"], "io.containerd.kata.v2");

    let overhead = drop_in["hypervisor"]["qemu"]["overhead_memory"].as_integer().unwrap();
    let classes = read("runtimeclass.yaml");
    let names: Vec<_> = classes
        .split("\n---\n")
        .map(|class| {
            let class: Value = serde_saphyr::from_str(class).unwrap();
            assert_eq!(class["kind"], "RuntimeClass");
            let fixed = class["overhead"]["podFixed"]["memory"].as_str().unwrap();
            let mib = fixed.strip_suffix("Gi").map(|gib| gib.parse::<i64>().unwrap() * 1024);
            let mib = mib.unwrap_or_else(|| fixed.strip_suffix("Mi").unwrap().parse().unwrap());
            assert!(mib > overhead, "a machine costs more outside than inside");
            class["metadata"]["name"].as_str().unwrap().to_owned()
        })
        .collect();
    assert_eq!(names, ["kata-qemu", "kata-qemu-runtime-rs"]);

    // The doctor looks for the options that the fragment sets.
    let fragment = read("kernel.conf");
    for option in ["CONFIG_BINFMT_MISC=y", "CONFIG_OVERLAY_FS=y", "CONFIG_SQUASHFS=y"] {
        assert!(fragment.lines().any(|line| line == option), "{option}");
    }
}

/// A user who follows kata/README.md from its top has, after each block of configuration, one that is valid.
#[test]
fn the_configuration_in_katas_readme_is_valid_as_it_stands() {
    let kiln = Kiln::bare();
    let (certificate, key) = (kiln.data().join("tls.pem"), kiln.data().join("tls.key"));
    Authority::new().write(&certificate, &key);
    let readme = fs_err::read_to_string(support::source_dir().join("kata/README.md")).unwrap();
    let mut blocks = 0;
    let mut text = String::new();
    let mut is_inside = false;
    for line in readme.lines().map(str::trim) {
        match line {
            "```toml" => is_inside = true,
            "```" if is_inside => {
                is_inside = false;
                blocks += 1;
                let file = kiln.data().join("kiln.toml");
                // The site's own files are the test's.
                fs_err::write(
                    &file,
                    text.replace("/etc/kiln/", &format!("{}/", kiln.data().display())),
                )
                .unwrap();
                let mut command = kiln.command(["config", "check"]);
                command.env("KILN_CONFIG", &file);
                let ran = support::run(command);
                assert_eq!(ran.code, Some(0), "{text}\n{}", ran.stderr);
            }
            _ if is_inside => text += &format!("{line}\n"),
            _ => {}
        }
    }
    assert!(blocks >= 2, "the page has no configuration");
    for needed in ["agent_url", "vm_runtime", "engine", "mode", "drivers"] {
        assert!(text.contains(&format!("{needed} = ")), "{needed}");
    }
}
