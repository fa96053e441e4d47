//! Files of somebody else's directory: devices, fifos, and links to what is not theirs.

use std::{
    os::unix::fs::symlink,
    path::Path,
    process::{Command, Stdio},
};

use nix::{sys::stat::Mode, unistd::mkfifo};

use crate::support::{self, HOST, Kiln, Ran};

/// What is put in the place of a file: nothing that ends by itself.
const TRAPS: [&str; 2] = ["/dev/zero", "fifo"];

fn trap(what: &str, at: &Path) {
    if what == "fifo" {
        mkfifo(at, Mode::S_IRWXU).unwrap();
    } else {
        symlink(what, at).unwrap();
    }
}

/// Runs a command that has to end by itself, with little memory.
fn ends(kiln: &Kiln, arguments: &[&str]) -> Ran {
    let command = kiln.command(arguments);
    let mut limited = Command::new("prlimit");
    limited.args(["--data=1500000000", "timeout", "--kill-after=5", "120"]);
    limited.arg(command.get_program()).args(command.get_args());
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => limited.env(name, value),
            None => limited.env_remove(name),
        };
    }
    let ran = support::run({
        limited.env("KILN_SERVER", "local").stdin(Stdio::null());
        limited
    });
    assert!(
        ran.code.is_some_and(|code| code < 124),
        "{arguments:?}: {:?} {}",
        ran.code,
        ran.last()
    );
    ran
}

/// The same for a command that fails. Returns what it says.
fn refused(kiln: &Kiln, arguments: &[&str]) -> String {
    let ran = ends(kiln, arguments);
    assert_eq!(ran.code, Some(1), "{arguments:?}: {}", ran.last());
    ran.stderr
}

#[test]
fn nothing_that_others_bring_is_waited_for_or_read_without_end() {
    let kiln = Kiln::bare();
    for what in TRAPS {
        let dir = tempfile::tempdir().unwrap();
        let at = |path: &str| dir.path().join(path);
        let text = |path: &str| at(path).display().to_string();

        // An OCI layout.
        fs_err::create_dir_all(at("layout/blobs/sha256")).unwrap();
        fs_err::write(at("layout/oci-layout"), r#"{"imageLayoutVersion":"1.0.0"}"#).unwrap();
        trap(what, &at("layout/index.json"));
        let told = refused(&kiln, &["inspect", &format!("oci:{}:1", text("layout"))]);
        assert!(told.contains("index.json"), "{told}");
        fs_err::remove_file(at("layout/index.json")).unwrap();
        let digest = "0".repeat(64);
        trap(what, &at("layout/blobs/sha256").join(&digest));
        refused(&kiln, &["inspect", &format!("oci:{}@sha256:{digest}", text("layout"))]);

        // The lock of a recipe, and the recipe itself.
        fs_err::create_dir(at("recipe")).unwrap();
        fs_err::write(at("recipe/config.xml"), "<image/>").unwrap();
        trap(what, &at("recipe/kiln.lock"));
        let told = refused(&kiln, &["build", &text("recipe"), "--locked"]);
        assert!(told.contains("kiln.lock"), "{told}");
        trap(what, &at("recipe.tar"));
        for command in [
            &["recipes", "create", "--linux-distribution", "sles15", "--from"][..],
            &["check", "recipe"],
        ] {
            refused(&kiln, &[command, &[&text("recipe.tar")]].concat());
        }

        // The files of an image, and what says of it what it is.
        fs_err::create_dir(at("image")).unwrap();
        trap(what, &at("image/manifest.json"));
        fs_err::write(at("image/rootfs"), "x").unwrap();
        let create = ["images", "create", "--name", "x", "--arch", HOST, "--from"];
        refused(&kiln, &[&create[..], &[&text("image")]].concat());
        refused(&kiln, &["verify", &text("image")]);
        fs_err::remove_file(at("image/rootfs")).unwrap();
        fs_err::remove_file(at("image/manifest.json")).unwrap();
        trap(what, &at("image/rootfs"));
        refused(&kiln, &[&create[..], &[&text("image")]].concat());

        // The records of an IMS.
        fs_err::create_dir(at("ims")).unwrap();
        trap(what, &at("ims/v2.2_recipes.json"));
        ends(&kiln, &["import", "ims", &text("ims")]);
        trap(what, &at("ims/export.json"));
        refused(&kiln, &["import", "ims", &text("ims")]);
    }
}

#[test]
fn links_of_a_directory_do_not_lead_out_of_it() {
    let kiln = Kiln::bare();
    let dir = tempfile::tempdir().unwrap();
    let (image, recipe) = (dir.path().join("image"), dir.path().join("recipe"));
    let secret = dir.path().join("secret");
    fs_err::write(&secret, "the secret").unwrap();
    fs_err::create_dir(&image).unwrap();
    fs_err::write(image.join("rootfs"), "x").unwrap();
    symlink("../secret", image.join("initrd")).unwrap();
    let create = ["images", "create", "--name", "x", "--arch", HOST, "--from"];
    let told = ends(&kiln, &[&create[..], &[image.to_str().unwrap()]].concat());
    assert!(told.failed().contains("leads out of the directory"), "{}", told.last());
    // Within it, they may.
    fs_err::remove_file(image.join("initrd")).unwrap();
    fs_err::write(image.join("initrd-6.1"), "initrd").unwrap();
    symlink("initrd-6.1", image.join("initrd")).unwrap();
    ends(&kiln, &[&create[..], &[image.to_str().unwrap()]].concat()).ok();

    fs_err::create_dir(&recipe).unwrap();
    fs_err::write(recipe.join("config.xml"), "<image/>").unwrap();
    symlink(&secret, recipe.join("kiln.lock")).unwrap();
    let told = ends(&kiln, &["build", recipe.to_str().unwrap(), "--locked"]);
    assert!(told.failed().contains("kiln.lock"), "{}", told.last());
    assert!(!told.stderr.contains("the secret"), "{}", told.last());
}

#[test]
fn a_key_may_come_from_a_fifo() {
    let kiln = Kiln::bare();
    let dir = tempfile::tempdir().unwrap();
    let fifo = dir.path().join("token");
    mkfifo(&fifo, Mode::S_IRWXU).unwrap();
    let writer = std::thread::spawn({
        let fifo = fifo.clone();
        move || fs_err::write(fifo, "not such a token")
    });
    let mut command = kiln.command(["images", "list", "--server", "http://127.0.0.1:9", "--token"]);
    let told = support::run({
        command.arg(&fifo);
        command
    });
    writer.join().unwrap().unwrap();
    assert!(
        told.stderr.contains("there is no token in what was given"),
        "{}",
        told.last()
    );
}
