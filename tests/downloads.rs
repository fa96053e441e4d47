//! Packages of the image that jobs share, instead of each downloading them.

use std::path::{Path, PathBuf};

use crate::support::{self, HOST, Kiln, Recipe, foreign, repository::Repository};

/// The content of the objects in the embedded S3 that are packages, with their paths.
fn shared(kiln: &Kiln) -> Vec<PathBuf> {
    let is_package = |path: &Path| fs_err::read(path).is_ok_and(|bytes| bytes.starts_with(b"!<arch>\n"));
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
        if shared(&kiln).len() < 3 {
            build(HOST);
        }
    }
    assert_eq!(shared(&kiln).len(), 3);

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
    for path in shared(&kiln) {
        let mut bytes = fs_err::read(&path).unwrap();
        let middle = bytes.len() / 2;
        bytes[middle] ^= 1;
        fs_err::write(&path, bytes).unwrap();
    }
    says(&build(HOST), 0);
}
