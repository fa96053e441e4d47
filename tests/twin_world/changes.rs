//! Packages that come late, go, or change.

use std::{
    os::unix::fs::{MetadataExt, PermissionsExt},
    process::Command,
};

use kiln_agent::twins::world::{Census, Package, World};

use crate::twin_world::debian::Debian;

fn exists(world: &World, name: &str) -> bool {
    world.mounted().join(name).exists()
}

fn inode(world: &World, name: &str) -> u64 {
    fs_err::metadata(world.mounted().join(name)).unwrap().ino()
}

#[test]
fn programs_wait_for_their_libraries() {
    let debian = Debian::shared();
    let mut world = debian.world();
    let cat = format!("bin/{}", debian.key("/bin/cat"));
    world.add(&[debian.package("coreutils").clone()]).unwrap();
    assert_eq!(world.census(), Census::default());
    assert!(!exists(&world, &cat) && !exists(&world, "loader"));
    let missing: Vec<&str> = world.missing().collect();
    assert!(missing.iter().any(|name| name.starts_with("ld")), "{missing:?}");

    world.add(&[debian.package("libc6").clone()]).unwrap();
    assert!(exists(&world, &cat) && exists(&world, "loader") && exists(&world, "lib/libc.so.6"));
    // ls wants libselinux, which wants libpcre.
    let ls = format!("bin/{}", debian.key("/bin/ls"));
    world.add(&[debian.package("libselinux1").clone()]).unwrap();
    assert!(!exists(&world, &ls));
    world.add(&[debian.package("libpcre2-8-0").clone()]).unwrap();
    assert!(exists(&world, &ls));

    world.remove("libselinux1").unwrap();
    assert!(!exists(&world, &ls) && exists(&world, &cat));
    // A program that is just being started still finds the library.
    assert!(exists(&world, "lib/libselinux.so.1"));
    world.remove("libpcre2-8-0").unwrap();
    assert!(!exists(&world, "lib/libselinux.so.1"));
    world.remove("libc6").unwrap();
    assert!(!exists(&world, &cat));
    assert_eq!(world.census(), Census::default());
}

#[test]
fn files_that_come_late_are_added() {
    let debian = Debian::shared();
    let mut world = debian.world();
    world.add(&[debian.package("libc6").clone()]).unwrap();
    let whole = debian.package("coreutils");
    let named = |name: &str| Package {
        files: whole
            .files
            .iter()
            .filter(|path| path.ends_with(name))
            .cloned()
            .collect(),
        ..whole.clone()
    };
    world.add(&[named("cat")]).unwrap();
    assert_eq!(world.census().programs, 1);
    world.add(&[named("wc")]).unwrap();
    world.add(&[named("cat")]).unwrap();
    assert_eq!(world.census().programs, 2);
}

#[test]
fn an_upgrade_replaces_libraries_without_a_gap() {
    let debian = Debian::shared();
    let mut world = debian.world();
    world.add(&debian.packages).unwrap();
    let before = (
        world.census(),
        inode(&world, "lib/libc.so.6"),
        inode(&world, "lib/libselinux.so.1"),
    );
    // Another build has other bytes, so other files.
    let libc = debian.package("libc6");
    let host = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let copied = Command::new("cp")
        .arg("-a")
        .arg(&libc.host)
        .arg(host.path().join("libc6"))
        .status();
    assert!(copied.unwrap().success());
    let upgraded = Package {
        version: format!("{}+1", libc.version),
        host_version: format!("{}+1", libc.version),
        host: host.path().join("libc6"),
        ..libc.clone()
    };
    world.add(&[upgraded]).unwrap();
    assert_eq!(world.census(), before.0);
    assert_ne!(inode(&world, "lib/libc.so.6"), before.1);
    assert_eq!(inode(&world, "lib/libselinux.so.1"), before.2);
}

#[test]
fn a_rebuild_has_twins_but_of_files_that_name_their_version() {
    let debian = Debian::shared();
    let rebuilt = debian.packages.iter().map(|package| {
        // libc6 and ldd name their version.
        let (host_version, _) = package.version.rsplit_once("+deb").unwrap_or((&package.version, ""));
        let host_version = host_version.to_owned();
        let version = if host_version == package.version {
            format!("{host_version}+b1")
        } else {
            package.version.clone()
        };
        Package {
            version,
            host_version,
            ..package.clone()
        }
    });
    let rebuilt: Vec<_> = rebuilt.collect();
    let mut world = debian.world();
    let refused = world.add(&rebuilt).unwrap().refused;
    let named: Vec<_> = refused
        .iter()
        .filter(|refused| refused.why.contains("names its version"))
        .collect();
    assert!(
        named.iter().any(|refused| refused.path.ends_with("/libc.so.6")),
        "{refused:?}"
    );
    assert!(!named.iter().any(|refused| refused.path.ends_with("/cat")), "{named:?}");
    // All that needs libc waits for it; with libc of the same version, the others run.
    assert_eq!(world.census().programs, 0);
    world.add(&[debian.package("libc6").clone()]).unwrap();
    assert!(exists(&world, &format!("bin/{}", debian.key("/bin/cat"))));
}

#[test]
fn programs_with_answers_are_tried_first() {
    let debian = Debian::shared();
    let mut world = debian.world();
    let added = world.add(&debian.packages).unwrap();
    let trial = added
        .trials
        .iter()
        .find(|trial| trial.path.ends_with("bin/bash"))
        .unwrap();
    assert_eq!((trial.package.as_str(), &trial.key), ("bash", &debian.key("/bin/bash")));
    let (tried, used) = (format!("trial/{}", trial.key), format!("bin/{}", trial.key));
    assert!(exists(&world, &tried) && !exists(&world, &used));
    world.accept(&trial.key).unwrap();
    assert!(!exists(&world, &tried) && exists(&world, &used));
    // Once is enough.
    assert!(
        world
            .add(&debian.packages)
            .unwrap()
            .trials
            .iter()
            .all(|other| other.key != trial.key)
    );
    world.refuse(&trial.key).unwrap();
    assert!(!exists(&world, &tried) && !exists(&world, &used));
    world.accept(&trial.key).unwrap();
    assert!(!exists(&world, &used));
}

#[test]
fn what_must_stay_emulated_has_no_twin() {
    let debian = Debian::shared();
    let mut world = debian.world();
    world.add(&debian.packages).unwrap();
    for path in ["/usr/bin/seq", "/usr/bin/sort", "/usr/bin/getconf"] {
        if debian.root().join(path.trim_start_matches('/')).exists() {
            assert!(!exists(&world, &format!("bin/{}", debian.key(path))), "{path}");
        }
    }
    // A program that runs the loader by its name never gets the host's.
    let programs = fs_err::read_dir(world.mounted().join("bin")).unwrap();
    let loader = inode(&world, "loader");
    assert!(
        programs
            .into_iter()
            .all(|entry| entry.unwrap().metadata().unwrap().ino() != loader)
    );
    let mode = |name: &str| {
        fs_err::metadata(world.mounted().join(name))
            .unwrap()
            .permissions()
            .mode()
            & 0o7777
    };
    assert_eq!(mode("lib/libc.so.6"), 0o644);
    assert_eq!(mode(&format!("bin/{}", debian.key("/bin/cat"))), 0o755);
    assert_eq!(mode("counts"), 0o666);
}
