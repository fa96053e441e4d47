//! What scripts of a recipe find around them: ids, sockets, names, file systems, and what becomes of programs that they leave running.

use kiln_records::Code;

use crate::support::{
    self, HOST, Kiln, Recipe,
    repository::Repository,
    squashfs::{list, read, unpack},
};

/// A recipe with the scripts that kiwi knows for a root file system, and one for disks.
fn recipe() -> Recipe {
    Recipe::copy_of("rpm-shell")
        .with(
            "post_bootstrap.sh",
            "#!/bin/bash
set -eu
[ $kiwi_iname = rpm-shell ]
(cd /; exec sleep 7201) < /dev/null > /dev/null 2>&1 &
",
        )
        .with(
            "config.sh",
            "#!/bin/bash
set -eu
mkdir -p /srv/project
chown 1234567:700001 /srv/project
[ $(stat -c %u:%g /srv/project) = 1234567:700001 ]
ln -sf ../run/systemd/resolve/stub-resolv.conf /etc/resolv.conf
ln -s hosts.kiwi /etc/.hosts.before
for node in {1..9000}; do echo '10.0.0.1 mgmt'; done >> /etc/hosts
sleep 7200 &
echo 'config.sh is done'
",
        )
        .with(
            "images.sh",
            r#"#!/usr/bin/awk -f
# Neither bash nor the shell could run this.
BEGIN {
    print "gone" > "/dev/null"
    while ((getline line < "/proc/self/mounts") > 0) if (line ~ " /(proc|sys|dev) ") mounts++
    while ((getline line < "/etc/resolv.conf") > 0) names++
    print ENVIRON["kiwi_iname"], ENVIRON["kiwi_iversion"], ENVIRON["DEBIAN_FRONTEND"] > "/etc/images-report"
    print (mounts >= 3) (names > 0) > "/etc/images-report"
}
"#,
        )
        .with("pre_disk_sync.sh", "exit 1\n")
}

#[test]
fn scripts_find_what_kiwi_gives_them_and_leave_nothing_running() {
    needs!(support::no_namespaces());
    let (kiln, repository, recipe) = (Kiln::new(), Repository::shell().of(HOST), recipe());
    let output = tempfile::tempdir().unwrap();
    let set = repository.set();
    let built = kiln
        .run([
            "build",
            recipe.path(),
            &set,
            "--output",
            output.path().to_str().unwrap(),
        ])
        .ok();
    let log = kiln.log(kiln.jobs().last().unwrap());
    for said in [
        "config.sh is done",
        "warning: config.sh has ended, but programs that it left hold its output open; they are ended: `sleep 7200` (process ",
        "warning: programs that scripts or packages have left running are ended: `sleep 7201` (process ",
        "warning: pre_disk_sync.sh is not run: kiwi runs it for disks, ",
    ] {
        assert!(log.contains(said), "{said}\n{log}");
    }
    let image = output.path().join(HOST).join("rootfs");
    assert_eq!(
        read(&image, "etc/images-report"),
        "rpm-shell 1.0.0 noninteractive\n11\n"
    );
    let entries = list(&image);
    let of = |path: &str| entries.get(path);
    let project = of("/srv/project").unwrap();
    assert_eq!((project.uid, project.gid), (1_234_567, 700_001));
    for absent in [
        "/dev/null",
        "/run/systemd",
        "/etc/resolv.conf.kiwi",
        "/etc/hosts.kiwi",
        "/etc/hosts.sha",
        "/etc/.hosts.before",
        "/etc/resolv.conf.kiln-aside",
    ] {
        assert!(of(absent).is_none(), "{absent} is in the image");
    }
    // What the sandbox's own file has of this host does not stay.
    let hosts = read(&image, "etc/hosts");
    let of_script = |line: &str| line == "10.0.0.1 mgmt" || line.contains("localhost");
    assert!(
        hosts.ends_with("10.0.0.1 mgmt\n") && hosts.lines().all(of_script),
        "{hosts}"
    );
    assert_eq!(hosts.lines().filter(|line| *line == "10.0.0.1 mgmt").count(), 9000);
    let dir = tempfile::tempdir().unwrap();
    unpack(&image, &dir.path().join("root"), &["etc/resolv.conf"]);
    let link = fs_err::read_link(dir.path().join("root/etc/resolv.conf")).unwrap();
    assert_eq!(link.to_str(), Some("../run/systemd/resolve/stub-resolv.conf"));

    // An image with such owners is unpacked, changed and packed again.
    let id = built.values("image").remove(0);
    let id = id.split_whitespace().next().unwrap();
    let change = "set -e; stat -c %u:%g /srv/project > /etc/owner; chown 1234568 /etc/owner; sleep 7202 & echo changed";
    kiln.run(["customize", id, "--name", "changed", "--run", change]).ok();
    let log = kiln.log(kiln.jobs().last().unwrap());
    assert!(
        log.contains("sh has ended, but programs that it left hold its output open"),
        "{log}"
    );
    let owner = output.path().join("owner");
    let files = |more: &[&str]| {
        let mut list = kiln.command(["images", "files", "changed", "/etc/owner"]);
        support::run({
            list.args(more).env("KILN_SERVER", "local");
            list
        })
        .ok()
    };
    assert!(files(&[]).stdout.contains(" 1234568:0 "));
    files(&["--output", owner.to_str().unwrap()]);
    assert_eq!(fs_err::read_to_string(owner).unwrap(), "1234567:700001\n");

    // The last id of all is nobody's.
    let refused = kiln.run(["customize", id, "--run", "chown 4294967294 /etc/os-release"]);
    assert!(refused.failed().contains("Invalid argument"), "{}", refused.last());
    assert!(
        refused.stderr.contains("a sandbox here has the ids 0 to "),
        "{}",
        refused.last()
    );
    let last = kiln.jobs().pop().unwrap();
    assert_eq!(last["state"]["error"]["code"], Code::IdOutside.name());
    kiln.assert_clean();
}

#[test]
fn a_script_that_fails_fails_the_build_by_its_own_first_line() {
    needs!(support::no_namespaces());
    let (kiln, repository) = (Kiln::new(), Repository::shell().of(HOST));
    let recipe = Recipe::copy_of("rpm-shell").with(
        "images.sh",
        "#!/bin/bash -e\nmkdir -p /srv/jail/dev\nmknod /srv/jail/dev/null c 1 3\necho 'BAD: went on'\n",
    );
    let refused = kiln.run(["build", recipe.path(), &repository.set()]);
    let said = refused.failed();
    assert!(
        said.contains("mknod: /srv/jail/dev/null: Operation not permitted"),
        "{said}"
    );
    assert!(refused.stderr.contains("--isolation vm"), "{}", refused.last());
    assert!(!refused.stderr.contains("BAD"), "{}", refused.last());
    assert_eq!(kiln.failure_code(), Code::DeviceRefused.name());
    kiln.assert_nothing_built();
}
