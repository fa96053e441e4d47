//! What a recipe brings into the new root, and what is looked at in the finished one.

use std::{
    os::unix::fs::{MetadataExt, PermissionsExt},
    path::{Path, PathBuf},
};

use crate::support::{self, HOST, Kiln, Ran, Recipe, repository::Repository, squashfs, tool};

/// Makes the overlay as a checkout under the umask 077 has it, in the directory of a recipe, with an overlay of links' places, and
/// an archive with an attribute and an access control list.
const BRING: &str = r##"
import io, os, sys, tarfile

os.umask(0o077)
os.chdir(sys.argv[1])

def write(path, text, mode=0o600):
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "w") as file:
        file.write(text)
    os.chmod(path, mode)

write("root/lib/site/unit", "from /lib")
write("root/usr/lib/site/second", "from /usr/lib")
write("root/sbin/site-tool", "#!/bin/sh\necho ran\n", 0o700)
write("root/etc/site/conf", "conf")
write("root/var/run/site/early", "early")
write("root/etc/ssh/ssh_host_ed25519_key", "of the cluster")
write("root/etc/site/shared", "from a stick", 0o777)

def add(archive, name, text, kind=tarfile.REGTYPE, mode=0o644, target="", **headers):
    member = tarfile.TarInfo(name)
    member.type, member.mode, member.linkname, member.pax_headers = kind, mode, target, headers
    member.size = len(text)
    archive.addfile(member, io.BytesIO(text.encode()))

with tarfile.open("early.tar", "w", format=tarfile.PAX_FORMAT) as archive:
    # The link is absolute: it leads out of the root for those who follow it from outside.
    add(archive, "var/run", "", tarfile.SYMTYPE, 0o777, "/run")
with tarfile.open("site.tar", "w", format=tarfile.PAX_FORMAT) as archive:
    add(archive, ".", "", tarfile.DIRTYPE, 0o700)
    add(archive, "./etc", "", tarfile.DIRTYPE, 0o700)
    add(archive, "./lib", "", tarfile.DIRTYPE, 0o755)
    add(archive, "./etc/ssh/ssh_host_ecdsa_key", "packed")
    add(archive, "./lib/site-archive", "archived", **{"SCHILY.xattr.user.note": "kept"})
    add(archive, "./srv/shared", "shared", mode=0o664,
        **{"SCHILY.acl.access": "user::rw-,user:1:rw-,group::r--,mask::rw-,other::r--"})
"##;

/// Leaves what is looked at in the end.
const SCRIPT: &str = r#"#!/bin/sh
set -eu
[ "$(/sbin/site-tool)" = ran ]
cp /boot/vmlinuz-6.1.0-tiny /boot/vmlinuz-6.1.0-rt
echo "initrd of rt" > /boot/initrd-6.1.0-rt
mkdir /usr/lib/modules/6.1.0-rt
ln -s boot/vmlinuz-6.1.0-tiny /vmlinuz
ln -s boot/initrd-6.1.0-tiny /initrd.img
ln -s vmlinuz-6.1.0-rt /boot/vmlinuz
ln -s vmlinuz-6.1.0-rt /boot/Image
printf 0123456789abcdef0123456789abcdef > /etc/machine-id
echo made > /etc/ssh/ssh_host_rsa_key
mkdir -p /etc/iscsi
echo InitiatorName=iqn.1993-08.org.debian:01:bbad3257a16e > /etc/iscsi/initiatorname.iscsi
echo 'svc:x:4294967290:0::/:/bin/sh' >> /etc/passwd
cp /bin/busybox /usr/bin/site-su
chmod 4755 /usr/bin/site-su
chmod 700 /usr/share 2> /dev/null || { mkdir /usr/share; chmod 700 /usr/share; }
"#;

struct Built {
    kiln: Kiln,
    recipe: Recipe,
    repository: Repository,
    output: tempfile::TempDir,
}

impl Built {
    fn new() -> Self {
        let recipe = Recipe::copy_of("rpm-minimal")
            .with("config.sh", SCRIPT)
            .with_config(
                "<package name=\"tiny-kernel\"/>",
                "<package name=\"tiny-kernel\"/><archive name=\"early.tar\"/>",
            )
            .with_config(
                "<packages type=\"image\"/>",
                "<packages type=\"image\"><archive name=\"site.tar\"/></packages>",
            );
        tool("python3", &["-c", BRING, recipe.path()]);
        Self {
            kiln: Kiln::new(),
            recipe,
            repository: Repository::native(),
            output: tempfile::tempdir().unwrap(),
        }
    }

    fn build(&self, more: &[&str]) -> Ran {
        let set = self.repository.set();
        let mut arguments = vec![
            "build",
            self.recipe.path(),
            &set,
            "--output",
            self.output.path().to_str().unwrap(),
        ];
        arguments.extend(more);
        self.kiln.run(arguments)
    }

    fn file(&self, name: &str) -> PathBuf {
        self.output.path().join(HOST).join(name)
    }

    /// The code of the latest job's failure.
    fn code(&self) -> String {
        let job = self.kiln.jobs().pop().unwrap();
        job["state"]["error"]["code"].as_str().unwrap_or_default().to_owned()
    }

    /// The log of the latest job.
    fn log(&self) -> String {
        self.kiln.log(self.kiln.jobs().last().unwrap())
    }
}

#[track_caller]
fn assert_said(log: &str, lines: &[&str]) {
    for line in lines {
        assert!(log.contains(line), "`{line}` is missing:\n{log}");
    }
}

fn mode(root: &Path, path: &str) -> u32 {
    fs_err::symlink_metadata(root.join(path)).unwrap().mode() & 0o7777
}

#[test]
fn what_a_recipe_brings_lands_where_links_of_the_root_lead() {
    needs!(support::no_namespaces());
    let built = Built::new();
    built.build(&[]).ok();
    let log = built.log();
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().join("root");
    squashfs::unpack(&built.file("rootfs"), &root, &[]);
    let text = |path: &str| fs_err::read_to_string(root.join(path)).unwrap();

    // Links stay, and lead to what came by their names.
    for link in ["lib", "sbin", "var/run"] {
        assert!(
            fs_err::symlink_metadata(root.join(link)).unwrap().is_symlink(),
            "{link}"
        );
    }
    for (path, content) in [
        ("usr/lib/site/unit", "from /lib"),
        ("usr/lib/site/second", "from /usr/lib"),
        ("usr/lib/site-archive", "archived"),
        ("run/site/early", "early"),
    ] {
        assert_eq!(text(path), content);
    }
    assert_eq!(
        fs_err::metadata(root.join("usr/sbin/site-tool"))
            .unwrap()
            .permissions()
            .mode()
            & 0o777,
        0o700
    );
    assert_said(
        &log,
        &[
            "overlay root: /lib is put into /usr/lib",
            "overlay root: /sbin is put into /usr/sbin",
            "overlay root: /var/run is put into /run",
            "warning: overlay root: nodes do not see what is put into /var/run",
            "archive site.tar: /lib is put into /usr/lib",
        ],
    );

    // Directories that were there keep their modes; new ones have the checkout's, with a warning.
    for path in ["", "etc", "usr", "usr/lib", "usr/sbin"] {
        assert_eq!(mode(&root, path), 0o755, "/{path}");
    }
    assert_eq!(mode(&root, "etc/site"), 0o700);
    assert_said(&log, &["warning: overlay root: only root can read", "umask 077"]);
    assert_said(
        &log,
        &["warning: overlay root: any user can change /etc/site/shared, as in a checkout"],
    );

    // The group has its own rights, without the list.
    assert_eq!(mode(&root, "srv/shared"), 0o644);
    assert_said(&log, &["the access control lists of /srv/shared (root_attributes)"]);
    if nix::unistd::geteuid().is_root() {
        let note = "import os, sys; print(os.getxattr(sys.argv[1], 'user.note').decode())";
        let path = root.join("usr/lib/site-archive");
        assert_eq!(tool("python3", &["-c", note, path.to_str().unwrap()]).trim(), "kept");
    }

    // The chosen kernel has its own initrd, whatever the distribution's links say.
    assert_eq!(fs_err::read_to_string(built.file("initrd")).unwrap(), "initrd of rt\n");

    // Machines share nothing but what the recipe has on purpose.
    assert_eq!(text("etc/machine-id"), "");
    assert!(!root.join("etc/ssh/ssh_host_rsa_key").exists());
    assert_eq!(text("etc/ssh/ssh_host_ed25519_key"), "of the cluster");
    assert_eq!(text("etc/ssh/ssh_host_ecdsa_key"), "packed");
    assert!(!root.join("etc/iscsi/initiatorname.iscsi").exists());
    assert_said(
        &log,
        &[
            "identity: /etc/machine-id: emptied",
            "identity: /etc/ssh/ssh_host_rsa_key: removed",
            "warning: all machines with this image share its /etc/ssh/ssh_host_ed25519_key, which the recipe brings (root_identity)",
            "warning: the account svc has the id 4294967290, which this sandbox does not have (root_accounts)",
            "warning: /usr/bin/site-su runs with the rights of its owner or group, and no package owns it (root_setuid)",
            "warning: /usr/share has mode 0700",
        ],
    );
}

#[test]
fn a_finding_fails_a_job_if_the_recipe_says_so() {
    needs!(support::no_namespaces());
    let built = Built::new();
    let settings = Path::new(built.recipe.path()).join("kiln-recipe.toml");
    fs_err::write(
        &settings,
        "[checks]\nroot_setuid = 'off'\nroot_modes = 'fail'\nroot_identity = 'off'\n",
    )
    .unwrap();
    let said = built.build(&[]).failed();
    assert!(said.contains("/usr/share has mode 0700"), "{said}");
    assert_eq!(built.code(), "root_modes");

    // A name that is none is refused before the root is made.
    fs_err::write(&settings, "[checks]\nroot_mode = 'off'\n").unwrap();
    let said = built.build(&[]).failed();
    assert!(said.contains("did you mean `root_modes`?"), "{said}");
    assert!(!built.log().contains("config.sh"), "{}", built.log());

    // The kernel that is named has no initrd of its own.
    fs_err::write(&settings, "[checks]\nroot_identity = 'off'\n").unwrap();
    let names = [
        "--kernel-file-name",
        "vmlinuz-6.1.0-rt",
        "--initrd-file-name",
        "initrd-6.1.0-tiny",
    ];
    let said = built.build(&names).failed();
    for version in ["6.1.0-rt", "6.1.0-tiny"] {
        assert!(said.contains(version), "{said}");
    }
    assert_eq!(built.code(), "initrd_mismatch");
}
