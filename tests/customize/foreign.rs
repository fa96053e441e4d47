//! Images of another architecture: the same shells, whose programs are emulated.

use super::site::{Site, changed, paths};
use crate::{
    needs,
    support::{self, foreign},
};

#[test]
fn a_foreign_image_is_changed_as_a_native_one_is() {
    needs!(support::no_namespaces(), support::no_emulation(), support::not_root());
    let before = support::host_binfmt();
    let mut site = Site::empty(&[]);
    let recipe = support::source_dir().join("recipes/debian-minimal");
    let recipe = site.json(&[
        "recipes",
        "create",
        "--from",
        recipe.to_str().unwrap(),
        "--name",
        "debian",
        "--arch",
        foreign(),
        "--linux-distribution",
        "debian",
        "--require-dkms",
        "false",
    ]);
    let made = site.json(&[
        "jobs",
        "create",
        "--job-type",
        "create",
        "--artifact-id",
        recipe["id"].as_str().unwrap(),
        "--public-key-id",
        "me",
        "--image-root-archive-name",
        "base",
    ]);
    let (base, base_rootfs) = site.succeeded(made["id"].as_str().unwrap());
    assert_eq!(base["arch"], foreign());
    base["id"].as_str().unwrap().clone_into(&mut site.image);

    let job = site.customize(&["--ssh-containers-jail", "true"]);
    let shell = site.open(&job);
    let said = shell.run("uname -m; echo $IMS_ARCH; dpkg --print-architecture; bash -c 'echo $HOSTTYPE'");
    let debian = if foreign() == "aarch64" { "arm64" } else { "amd64" };
    assert_eq!(said, format!("{0}\n{0}\n{debian}\n{0}\n", foreign()));
    shell.run("echo by hand > /root/mark; touch /tmp/complete");
    let (image, after) = site.succeeded(&job);
    assert_eq!(image["arch"], foreign());
    assert_eq!(site.status(&job)["how"], "emulated");
    // That something came into these directories shows in their times, a minute later.
    let mut differing = changed(&base_rootfs, &after);
    for touched in ["/root", "/tmp"] {
        differing.remove(touched);
    }
    assert_eq!(differing, paths(&["/root/mark"]));
    site.stop();
    assert_eq!(support::host_binfmt(), before);
}
