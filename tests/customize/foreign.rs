//! Images of another architecture: the same shells, whose programs are emulated until they have native twins.

use super::{
    changes::playbook,
    site::{Site, changed, paths},
};
use crate::{
    build::both,
    support::{self, Recipe, foreign, repository::Repository},
};

#[test]
fn a_foreign_image_is_changed_as_a_native_one_is() {
    needs!(support::no_namespaces(), support::no_emulation(), support::not_root());
    let before = support::host_binfmt();
    let mut site = Site::empty(&[]);
    let base_rootfs = both().images[foreign()].file("rootfs");
    site.image = site.upload(&base_rootfs, foreign());

    let job = site.customize(&["--ssh-containers-jail", "true"]);
    let shell = site.open(&job);
    support::eventually(|| shell.run("ls /.kiln/bin | wc -l").trim() != "0");
    let said = shell.run("uname -m; echo $IMS_ARCH; dpkg --print-architecture; bash -c 'echo $HOSTTYPE'");
    let debian = if foreign() == "aarch64" { "arm64" } else { "amd64" };
    assert_eq!(said, format!("{0}\n{0}\n{debian}\n{0}\n", foreign()));
    let file = site.home.path().join("file");
    fs_err::write(&file, "by sftp\n").unwrap();
    shell.sftp(&format!("put {} /root/file\n", file.display()));
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
    // New entries in these directories change their times, a minute later.
    let mut differing = changed(&base_rootfs, &after);
    for touched in ["/root", "/tmp"] {
        differing.remove(touched);
    }
    assert_eq!(differing, paths(&["/root/file", "/root/mark"]));

    let playbook = playbook(site.home.path());
    // Ansible needs a Python, which comes from the repositories that the image names.
    let install = "apt-get -q update && apt-get -q -y install --no-install-recommends python3";
    let arguments = [
        "customize",
        &site.image,
        "--run",
        install,
        "--ansible",
        playbook.to_str().unwrap(),
    ];
    let job = site.server.make(&arguments);
    let (_, after) = site.succeeded(&job);
    let said = support::tool("unsquashfs", &["-cat", after.to_str().unwrap(), "root/by-ansible"]);
    assert_eq!(said, format!("{}\n", foreign()), "{}", site.log(&job));
    site.stop();
    assert_eq!(support::host_binfmt(), before);
}

#[test]
fn an_image_of_rpms_names_its_repositories_too() {
    needs!(support::no_namespaces(), support::no_emulation(), support::not_root());
    let repository = Repository::shell().of(foreign());
    let ports = format!("[{}]", repository.port());
    let mut site = Site::empty(&[("KILN__ISOLATION__LOOPBACK_PORTS", &ports)]);
    let repo = format!("[shell]\nenabled=1\nbaseurl={}\ngpgcheck=0\n", repository.url());
    let script = format!("mkdir -p /etc/zypp/repos.d\nprintf '%s' '{repo}' > /etc/zypp/repos.d/shell.repo");
    let recipe = Recipe::copy_of("rpm-shell").with("config.sh", &format!("#!/bin/sh\n{script}\n"));
    let options = ["--arch", foreign(), "--require-dkms", "false"];
    let recipe = site.server.recipe(&recipe, &repository, &options);
    let (base, base_rootfs) = site.succeeded(&site.server.build(&recipe, &[]));
    base["id"].as_str().unwrap().clone_into(&mut site.image);

    let wait = "i=0; until ls /.kiln/bin | grep -q .; do i=$((i + 1)); [ $i -lt 200 ] || exit 9; sleep 1; done";
    let work = "for i in 1 2 3; do sort /etc/zypp/repos.d/shell.repo | wc -l; done > /counted; uname -m >> /counted";
    let job = site
        .server
        .make(&["customize", &site.image, "--run", wait, "--run", work]);
    let (_, after) = site.succeeded(&job);
    let status = site.status(&job);
    assert!(
        status["execs"]["twins"].as_u64() > Some(3),
        "{status:#}\n{}",
        site.log(&job)
    );
    let mut differing = changed(&base_rootfs, &after);
    differing.remove("/");
    assert_eq!(differing, paths(&["/counted"]));
    let counted = support::tool("unsquashfs", &["-cat", after.to_str().unwrap(), "counted"]);
    assert_eq!(counted, format!("4\n4\n4\n{}\n", foreign()));

    // A change that fails with twins is made without.
    let fails = format!("[ -e /.kiln ] || exit 0; {wait}; {work}; ls /no-such-file");
    let job = site.server.make(&["customize", &site.image, "--run", &fails]);
    site.succeeded(&job);
    let status = site.status(&job);
    let of_tries = (&status["attempt"], &status["twins"], &status["twins_in_force"]);
    assert_eq!(of_tries, (&2.into(), &"full".into(), &"off".into()), "{status:#}");
    let cause = &status["twins_fallback"]["error"]["code"];
    assert_eq!(cause, "change_failed", "{status:#}");
    site.stop();
}
