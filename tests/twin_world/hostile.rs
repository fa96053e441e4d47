//! Tests hostile roots, which try to harm the maker of their twins.

use std::os::unix::fs::symlink;

use kiln_agent::twins::world::{Added, Package};
use nix::{sys::stat::Mode, unistd::mkfifo};

use crate::twin_world::debian::Debian;

/// The result of adding a package with a file `bin/tool` that is something else in the root.
fn adding(put: impl FnOnce(&Debian, &std::path::Path)) -> (Added, usize) {
    let debian = Debian::empty();
    let host = debian.root().with_file_name("host");
    fs_err::create_dir_all(host.join("usr/bin")).unwrap();
    fs_err::copy("/bin/true", host.join("usr/bin/tool")).unwrap();
    put(&debian, &debian.root().join("usr/bin/tool"));
    let mut world = debian.world();
    let package = Package {
        name: "tool".to_owned(),
        version: "1".to_owned(),
        host_version: "1".to_owned(),
        files: vec![
            "/usr/bin/tool".into(),
            "/bin/tool".into(),
            "/usr/bin".into(),
            "/../../usr/bin/tool".into(),
        ],
        host,
    };
    let added = world.add(&[package]).unwrap();
    (added, world.census().programs)
}

#[test]
fn what_is_no_program_of_the_target_has_no_twin() {
    let nothing = |put: fn(&Debian, &std::path::Path)| {
        let (added, programs) = adding(put);
        assert_eq!((added.refused.len(), added.trials.len(), programs), (0, 0, 0));
    };
    nothing(|_, _| {});
    nothing(|_, path| mkfifo(path, Mode::S_IRWXU).unwrap());
    nothing(|_, path| symlink("tool", path).unwrap());
    nothing(|_, path| symlink("/dev/zero", path).unwrap());
    // The host's own file, seen through a link that leaves the root.
    nothing(|_, path| symlink("../../../../../../../../../../bin/true", path).unwrap());
    nothing(|_, path| fs_err::create_dir(path).unwrap());
    nothing(|_, path| fs_err::write(path, b"").unwrap());
    nothing(|_, path| fs_err::write(path, b"\x7fELF\x02\x01\x01").unwrap());
    nothing(|_, path| fs_err::File::create(path).unwrap().set_len(1 << 40).unwrap());
    // A program of the host.
    nothing(|_, path| {
        fs_err::copy("/bin/true", path).unwrap();
    });
}

#[test]
fn a_broken_package_of_the_host_is_no_failure() {
    let debian = Debian::shared();
    let whole = debian.package("coreutils");
    let host = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    fs_err::create_dir(host.path().join("bin")).unwrap();
    let bytes = fs_err::read(whole.host.join("bin/cat")).unwrap();
    fs_err::write(host.path().join("bin/cat"), &bytes[..1000]).unwrap();
    symlink("/proc/self/exe", host.path().join("bin/ls")).unwrap();
    mkfifo(&host.path().join("bin/wc"), Mode::S_IRWXU).unwrap();
    let mut world = debian.world();
    let package = Package {
        host: host.path().to_owned(),
        ..whole.clone()
    };
    let refused = world.add(&[package]).unwrap().refused;
    assert_eq!(
        refused.iter().map(|refused| refused.path.as_str()).collect::<Vec<_>>(),
        ["/bin/cat"]
    );
    assert!(
        refused[0].why.starts_with("the host's file is broken"),
        "{}",
        refused[0].why
    );
}
