//! The Debian package, in a clean Debian of its own: installed, used, upgraded and purged, as `debian/test` does it.

use std::{path::Path, process::Command};

use crate::support::{self, HOST, programs, run, source_dir};

#[test]
fn the_package_is_installed_used_upgraded_and_purged() {
    needs!(support::not_root());
    let work = Path::new(env!("CARGO_TARGET_TMPDIR")).join("deb");
    let out = work.join("packages");
    let _ = fs_err::remove_dir_all(&out);
    fs_err::create_dir_all(&out).unwrap();
    let make = |revision: &str| {
        let mut build = Command::new(source_dir().join("debian/build"));
        build.arg(programs()).arg(HOST).arg(&out);
        build.env("DEB_FAST", "1").env("DEB_REVISION", revision);
        run(build).ok();
        let made = fs_err::read_dir(&out).unwrap().map(|entry| entry.unwrap().path());
        let mut made = made.filter(|path| path.to_str().unwrap().contains(revision));
        made.next().unwrap()
    };
    let (package, newer) = (make("1~test1"), make("1~test2"));

    // Debian's own look at the package: no errors, and no warnings that are not explained.
    let mut lintian = Command::new("lintian");
    lintian.arg("--fail-on=error,warning").arg(&package);
    let ran = run(lintian);
    assert_eq!(ran.code, Some(0), "{}{}", ran.stdout, ran.stderr);

    let mut test = Command::new(source_dir().join("debian/test"));
    test.arg(&work).args([&package, &newer]);
    let ran = run(test);
    assert_eq!(ran.code, Some(0), "{}{}", ran.stdout, ran.stderr);
    assert!(ran.stdout.ends_with("==> done\n"), "{}", ran.stdout);
}
