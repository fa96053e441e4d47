//! Packages of the image that jobs share, instead of each downloading them.

use std::path::{Path, PathBuf};

use crate::support::{self, HOST, Kiln, Recipe, foreign, repository::Repository};

/// How a package of Debian's begins, and an RPM.
const DEB: &[u8] = b"!<arch>\n";
const RPM: &[u8] = b"\xed\xab\xee\xdb";

/// The objects in the embedded S3 that are packages of a `kind`, by the paths of their content.
fn shared(kiln: &Kiln, kind: &[u8]) -> Vec<PathBuf> {
    let is_package = |path: &Path| fs_err::read(path).is_ok_and(|bytes| bytes.starts_with(kind));
    support::files_below(&kiln.data().join("s3/bodies"))
        .into_iter()
        .filter(|path| is_package(path))
        .collect()
}

#[test]
fn a_package_is_downloaded_once_for_all_jobs() {
    needs!(support::no_namespaces(), support::no_emulation());
    let (kiln, dir) = (Kiln::new(), tempfile::tempdir().unwrap());
    let repository = Repository::debian_in(dir.path());
    let recipe = Recipe::copy_of("deb-tiny").with_config("{{ deb_repo }}", &repository.url());
    let build = |arch: &str| {
        kiln.run(["build", recipe.path(), "--arch", arch, "--no-cache"]).ok();
        kiln.log(kiln.jobs().last().unwrap())
    };
    let says = |log: &str, came: usize| {
        let text = format!("of 3 packages to install, {came} came from other jobs");
        assert!(log.contains(&text), "{text}\n{log}");
    };
    says(&build(HOST), 0);
    // A job on a busy host may end before all is shared.
    for _ in 0..5 {
        if shared(&kiln, DEB).len() < 3 {
            build(HOST);
        }
    }
    assert_eq!(shared(&kiln, DEB).len(), 3);

    // The repository lists them still, and has them no more.
    let (pool, aside) = (dir.path().join("pool"), dir.path().join("aside"));
    fs_err::rename(&pool, &aside).unwrap();
    says(&build(HOST), 3);

    // Another architecture needs its own packages, and none of those that are for all.
    fs_err::rename(&aside, &pool).unwrap();
    let (note, without) = (pool.join("tiny-note_1.0_all.deb"), dir.path().join("note"));
    fs_err::rename(&note, &without).unwrap();
    says(&build(foreign()), 1);

    // A package that is damaged in S3 is downloaded from the repository.
    fs_err::rename(without, note).unwrap();
    for path in shared(&kiln, DEB) {
        let mut bytes = fs_err::read(&path).unwrap();
        let middle = bytes.len() / 2;
        bytes[middle] ^= 1;
        fs_err::write(&path, bytes).unwrap();
    }
    says(&build(HOST), 0);
}

#[test]
fn rpms_are_downloaded_once_for_all_jobs_whichever_manager_installs_them() {
    needs!(support::no_namespaces());
    let (kiln, dir) = (Kiln::new(), tempfile::tempdir().unwrap());
    let repository = Repository::native_in(dir.path());
    let build = |manager: &str| {
        let set = format!("package_manager={manager}");
        let command = [
            "build",
            "recipes/rpm-minimal",
            "--no-cache",
            "--set",
            &set,
            &repository.set(),
        ];
        kiln.run(command).ok();
        kiln.log(kiln.jobs().last().unwrap())
    };
    let says = |log: &str, came: usize| {
        let text = format!("of 4 packages to install, {came} came from other jobs");
        assert!(log.contains(&text), "{text}\n{log}");
    };
    says(&build("dnf4"), 0);
    // A job on a busy host may end before all is shared.
    for _ in 0..5 {
        if shared(&kiln, RPM).len() < 4 {
            build("dnf4");
        }
    }
    assert_eq!(shared(&kiln, RPM).len(), 4);

    // The repository lists them still, and has them no more.
    for entry in fs_err::read_dir(dir.path()).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_some_and(|extension| extension == "rpm") {
            fs_err::remove_file(path).unwrap();
        }
    }
    for manager in ["dnf4", "zypper"] {
        says(&build(manager), 4);
    }
}
