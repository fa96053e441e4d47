//! `kiln toolbox export` and `kiln toolbox import`: a toolbox moves to another host as a file.

use std::process::Command;

use crate::support::{self, Kiln, Ran, tool};

#[track_caller]
fn failed(ran: &Ran, with: &str) {
    assert_eq!(ran.code, Some(1), "{}", ran.stderr);
    assert!(ran.stderr.contains(with), "{}", ran.stderr);
}

#[test]
fn a_toolbox_moves_to_a_host_without_a_network_as_a_file_of_known_content() {
    let from = Kiln::new();
    let place = tempfile::tempdir().unwrap();
    let file = place.path().join("toolbox.tar");
    let path = file.to_str().unwrap();
    let said = from.run(["toolbox", "export", path]).ok().stdout;
    let sha256 = said
        .lines()
        .find_map(|line| line.strip_prefix("sha256 "))
        .unwrap()
        .trim()
        .to_owned();
    assert_eq!(
        tool("sha256sum", &[path]).split_whitespace().next(),
        Some(sha256.as_str())
    );

    let to = Kiln::bare();
    let import = |digest: &str| to.run(["toolbox", "import", "--sha256", digest, path]);
    failed(&import(&"0".repeat(64)), "its SHA-256 is");
    assert_eq!(
        Command::new("ls")
            .arg(to.data().join("toolboxes"))
            .output()
            .unwrap()
            .stdout,
        b"building\n"
    );
    let there = import(&sha256).ok().stdout;
    assert_eq!(
        there.lines().next(),
        from.run(["toolbox", "show"]).ok().stdout.lines().next()
    );
    let show = to.run(["toolbox", "show"]).ok().stdout;
    assert_eq!(show, there);
    to.assert_clean();
}

#[test]
fn no_image_is_made_that_could_go_nowhere() {
    let kiln = Kiln::bare();
    let ran = kiln.run(["toolbox", "push"]);
    assert_eq!(ran.code, Some(2), "{}", ran.stderr);
    assert!(ran.stderr.contains("set `image` in [kubernetes]"), "{}", ran.stderr);
    assert!(!ran.stderr.contains("Building"), "{}", ran.stderr);
    // A registry that is away is found out before the toolbox is packed.
    let kiln = Kiln::new();
    let mut command = kiln.command(["toolbox", "push", "--insecure"]);
    command.env("KILN__KUBERNETES__IMAGE", "127.0.0.1:1/kiln-toolbox");
    let ran = support::run(command);
    assert_eq!(ran.code, Some(1), "{}", ran.stderr);
    assert!(ran.stderr.contains("127.0.0.1:1 cannot be reached"), "{}", ran.stderr);
    assert!(!ran.stderr.contains("packing"), "{}", ran.stderr);
}
