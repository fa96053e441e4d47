//! Images of another architecture: the same shells, whose programs are emulated until they have native twins.

use std::time::Duration;

use super::site::{Site, changed, paths};
use crate::{
    needs,
    support::{self, Recipe, foreign},
};

#[test]
fn a_foreign_image_is_changed_as_a_native_one_is() {
    needs!(support::no_namespaces(), support::no_emulation(), support::not_root());
    let before = support::host_binfmt();
    let mut site = Site::empty(&[]);
    // The image knows where its packages come from, as images do that somebody works on.
    let recipe = Recipe::copy_of("debian-minimal")
        .with_config("repository_gpgcheck=", "imageinclude=\"true\" repository_gpgcheck=");
    let recipe = site.server.make(&[
        "recipes",
        "create",
        "--from",
        recipe.path(),
        "--name",
        "debian",
        "--arch",
        foreign(),
        "--linux-distribution",
        "debian",
        "--require-dkms",
        "false",
    ]);
    let (base, base_rootfs) = site.succeeded(&site.server.build(&recipe, &[]));
    assert_eq!(base["arch"], foreign());
    base["id"].as_str().unwrap().clone_into(&mut site.image);

    let job = site.customize(&["--ssh-containers-jail", "true"]);
    let shell = site.open(&job);
    let has_twins = || shell.run("ls /.kiln/bin | wc -l").trim() != "0";
    assert!(
        support::eventually(Duration::from_mins(3), has_twins),
        "{}",
        site.log(&job)
    );
    let said = shell.run("uname -m; echo $IMS_ARCH; dpkg --print-architecture; bash -c 'echo $HOSTTYPE'");
    let debian = if foreign() == "aarch64" { "arm64" } else { "amd64" };
    assert_eq!(said, format!("{0}\n{0}\n{debian}\n{0}\n", foreign()));
    shell.run("echo by hand > /root/mark; touch /tmp/complete");
    let (image, after) = site.succeeded(&job);
    assert_eq!(image["arch"], foreign());
    let status = site.status(&job);
    assert_eq!(status["how"], "emulated");
    assert!(
        status["execs"]["twins"].as_u64() > Some(0),
        "{status:#}\n{}",
        site.log(&job)
    );
    // That something came into these directories shows in their times, a minute later.
    let mut differing = changed(&base_rootfs, &after);
    for touched in ["/root", "/tmp"] {
        differing.remove(touched);
    }
    assert_eq!(differing, paths(&["/root/mark"]));
    site.stop();
    assert_eq!(support::host_binfmt(), before);
}
