//! Takes out of a root what makes two machines take themselves for one: ids and keys that were made while the root was, and that
//! all machines with the image would share. Changes and removes files of the root, and follows no link of it.

mod brought;

use std::{io, path::Path};

use crate::{
    normalize::{Rule, Treatment, matching, treat_all},
    twins::Root,
};

/// Files that each machine is to make for itself.
const RULES: [Rule; 18] = [
    (
        "etc/machine-id",
        Treatment::Empty,
        "emptied, for each machine gets its own at its first boot (machine-id(5))",
    ),
    (
        "var/lib/dbus/machine-id",
        Treatment::Remove,
        "removed, for D-Bus then reads /etc/machine-id",
    ),
    (
        "etc/ssh/ssh_host_*",
        Treatment::Remove,
        "removed, for all machines with this image would share the key; `ssh-keygen -A` makes new ones",
    ),
    (
        "etc/dropbear/dropbear_*_host_key",
        Treatment::Remove,
        "removed, for all machines with this image would share the key; dropbear makes new ones with -R",
    ),
    (
        "var/lib/systemd/random-seed",
        Treatment::Remove,
        "removed, for a seed must not be known",
    ),
    (
        "var/lib/urandom/random-seed",
        Treatment::Remove,
        "removed, for a seed must not be known",
    ),
    (
        "var/lib/systemd/credential.secret",
        Treatment::Remove,
        "removed, for systemd makes one for each machine (systemd-creds(1))",
    ),
    (
        "var/lib/NetworkManager/secret_key",
        Treatment::Remove,
        "removed, for NetworkManager makes one for each machine",
    ),
    (
        "etc/ssl/private/ssl-cert-snakeoil.key",
        Treatment::Remove,
        "removed, for all machines with this image would share the key; `make-ssl-cert generate-default-snakeoil` makes one",
    ),
    (
        "etc/ssl/certs/ssl-cert-snakeoil.pem",
        Treatment::Remove,
        "removed with its key",
    ),
    (
        "etc/pki/tls/private/localhost.key",
        Treatment::Remove,
        "removed, for all machines with this image would share the key; httpd-init.service makes one",
    ),
    (
        "etc/pki/tls/certs/localhost.crt",
        Treatment::Remove,
        "removed with its key",
    ),
    (
        "etc/nvme/hostid",
        Treatment::Remove,
        "removed, for NVMe storage must tell machines apart; `nvme gen-hostnqn` makes one",
    ),
    (
        "etc/nvme/hostnqn",
        Treatment::Remove,
        "removed, for NVMe storage must tell machines apart; `nvme gen-hostnqn` makes one",
    ),
    (
        "etc/iscsi/initiatorname.iscsi",
        Treatment::Remove,
        "removed, for iSCSI storage must tell machines apart; iscsi-init.service makes one",
    ),
    (
        "var/lib/dhcp/dhclient*.leases",
        Treatment::Remove,
        "removed, for it has the address and the id of another machine",
    ),
    (
        "var/lib/dhcpcd/duid",
        Treatment::Remove,
        "removed, for DHCP servers must tell machines apart",
    ),
    (
        "var/lib/zypp/AnonymousUniqueId",
        Treatment::Remove,
        "removed, for zypper draws one for each machine",
    ),
];

/// The file of the iSCSI initiator's name, which Debian's start script makes anew if it says so, and does without if it is not there.
const INITIATOR: &str = "etc/iscsi/initiatorname.iscsi";
const INITIATOR_OF_DEBIAN: (&str, &str) = ("usr/lib/open-iscsi/startup-checks.sh", "GenerateName=yes\n");

/// What machines share on purpose or not: nobody else can know.
const DOUBTFUL: [(&str, &str); 2] = [
    (
        "etc/munge/munge.key",
        "all machines of a cluster have one key, which only they may know: everybody who can read the image can read this one",
    ),
    ("etc/hostid", "file systems such as ZFS tell machines apart by it"),
];

/// Servers that need keys: the files of these, and what makes new ones when a machine starts.
const KEYED: [(&str, &str, &[&str], &str); 2] = [
    (
        "sshd",
        "etc/ssh/ssh_host_*_key",
        &["ssh-keygen", "sshd-keygen"],
        "run `ssh-keygen -A` then",
    ),
    (
        "dropbear",
        "etc/dropbear/dropbear_*_host_key",
        &["dropbearkey", "dropbear -R"],
        "start it with -R",
    ),
];

/// Directories of what runs at a node's start.
const STARTED: [&str; 4] = [
    "etc/systemd/system",
    "usr/lib/systemd/system",
    "lib/systemd/system",
    "etc/init.d",
];

/// The most bytes of such a file.
const LARGEST: u64 = 1 << 20;

/// What became of a root.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Parted {
    /// Files that were changed or removed, by their paths in the root, and why.
    pub(crate) treated: Vec<(String, String)>,
    /// Files that the recipe itself brings, and that were left.
    pub(crate) kept: Vec<String>,
    /// What else is to be said.
    pub(crate) said: Vec<String>,
}

/// Takes out of a root what machines must not share. What has the content of a file of `recipe`, or of an archive in it, is meant
/// to be there.
///
/// # Errors
///
/// A file cannot be changed.
pub(crate) fn part(root: &Path, recipe: &Path) -> io::Result<Parted> {
    let mut parted = Parted::default();
    let mut had_keys = Vec::new();
    for (server, keys, makers, advice) in KEYED {
        if !matching(root, keys)?.is_empty() {
            had_keys.push((server, keys, makers, advice));
        }
    }
    let opened = Root::open(root)?;
    let doubtful = DOUBTFUL
        .iter()
        .filter(|(path, _)| matching(root, path).is_ok_and(|found| !found.is_empty()));
    let doubtful: Vec<_> = doubtful.collect();
    let shared = shared(root)?
        .into_iter()
        .map(|path| path.trim_start_matches('/').to_owned());
    let asked: Vec<String> = shared
        .chain(doubtful.iter().map(|(path, _)| (*path).to_owned()))
        .collect();
    let brought = brought::of(recipe, &opened, &asked);
    let is_brought = |path: &str| brought.contains(path);
    let debians_initiator = !is_brought(INITIATOR)
        && !matching(root, INITIATOR)?.is_empty()
        && opened
            .file(Path::new(INITIATOR_OF_DEBIAN.0))
            .is_ok_and(|found| found.is_some());
    parted.treated = treat_all(root, &RULES, |path| {
        let path = path.to_string_lossy();
        let is_kept = is_brought(&path);
        if is_kept {
            parted.kept.push(format!("/{path}"));
        }
        !is_kept
    })?;
    if debians_initiator {
        fs_err::write(root.join(INITIATOR), INITIATOR_OF_DEBIAN.1)?;
    }
    for (path, why) in doubtful {
        if !is_brought(path) {
            parted
                .said
                .push(format!("all machines with this image share its /{path}: {why}"));
        }
    }
    for (server, keys, makers, advice) in had_keys {
        if matching(root, keys)?.is_empty() && !makes_keys(&opened, makers) {
            parted.said.push(format!(
                "{server} has no host keys, and nothing in the root makes new ones when a machine boots: {advice}"
            ));
        }
    }
    Ok(parted)
}

/// What a root has that machines must not share, with nothing done about it.
pub(crate) fn shared(root: &Path) -> io::Result<Vec<String>> {
    let mut found = Vec::new();
    treat_all(root, &RULES, |path| {
        let is_empty = fs_err::read(root.join(path))
            .is_ok_and(|text| ["", "uninitialized"].contains(&String::from_utf8_lossy(&text).trim()));
        if !is_empty {
            found.push(format!("/{}", path.display()));
        }
        false
    })?;
    Ok(found)
}

/// Whether something that starts with a node makes host keys.
fn makes_keys(root: &Root, makers: &[&str]) -> bool {
    STARTED.iter().any(|dir| {
        root.names(Path::new(dir)).iter().any(|name| {
            let name = name.to_string_lossy();
            let is_made = |text: &str| makers.iter().any(|maker| text.contains(maker));
            is_made(&name)
                || root
                    .text(&Path::new(dir).join(&*name), LARGEST)
                    .is_some_and(|text| is_made(&text))
        })
    })
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    fn file(top: &Path, path: &str, content: &str) {
        let path = top.join(path);
        fs_err::create_dir_all(path.parent().unwrap()).unwrap();
        fs_err::write(path, content).unwrap();
    }

    #[test]
    fn machines_share_nothing_but_what_the_recipe_brings() {
        let (root, recipe) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let (root, recipe) = (root.path(), recipe.path());
        for (path, content) in [
            ("etc/machine-id", "0123456789abcdef0123456789abcdef\n"),
            ("etc/ssh/ssh_host_rsa_key", "made"),
            ("etc/ssh/ssh_host_ed25519_key", "the cluster's"),
            ("etc/ssh/sshd_config", "Port 22"),
            ("etc/ssl/private/ssl-cert-snakeoil.key", "made"),
        ] {
            file(root, path, content);
        }
        file(recipe, "root/etc/ssh/ssh_host_ed25519_key", "the cluster's");
        file(recipe, "root/etc/ssh/ssh_host_rsa_key", "another");
        assert_eq!(shared(root).unwrap().len(), 4);
        let parted = part(root, recipe).unwrap();
        let treated: Vec<&str> = parted.treated.iter().map(|(path, _)| &**path).collect();
        assert_eq!(
            treated,
            [
                "/etc/machine-id",
                "/etc/ssh/ssh_host_rsa_key",
                "/etc/ssl/private/ssl-cert-snakeoil.key"
            ]
        );
        assert_eq!(parted.kept, ["/etc/ssh/ssh_host_ed25519_key"]);
        assert!(parted.said.is_empty());
        for (path, is_there) in [
            ("etc/ssh/ssh_host_ed25519_key", true),
            ("etc/ssh/sshd_config", true),
            ("etc/ssh/ssh_host_rsa_key", false),
            ("etc/machine-id", true),
        ] {
            assert_eq!(root.join(path).exists(), is_there, "{path}");
        }
        assert_eq!(fs_err::read_to_string(root.join("etc/machine-id")).unwrap(), "");
        // An image that is changed has no recipe.
        assert_eq!(shared(root).unwrap(), ["/etc/ssh/ssh_host_ed25519_key"]);
    }

    #[test]
    fn links_of_the_root_lead_nowhere() {
        let (dir, outside) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let (root, outside) = (dir.path(), outside.path());
        file(outside, "id", "0123456789abcdef");
        file(outside, "ssh/ssh_host_rsa_key", "secret");
        fs_err::create_dir_all(root.join("etc")).unwrap();
        symlink(outside.join("id"), root.join("etc/machine-id")).unwrap();
        symlink(outside.join("ssh"), root.join("etc/ssh")).unwrap();
        assert_eq!(part(root, Path::new("/nonexistent")).unwrap(), Parted::default());
        assert_eq!(fs_err::read_to_string(outside.join("id")).unwrap(), "0123456789abcdef");
        assert!(outside.join("ssh/ssh_host_rsa_key").exists());
    }

    #[test]
    fn an_uninitialized_machine_stays_so() {
        let dir = tempfile::tempdir().unwrap();
        file(dir.path(), "etc/machine-id", "uninitialized\n");
        assert_eq!(part(dir.path(), Path::new("/nonexistent")).unwrap(), Parted::default());
        let id = fs_err::read_to_string(dir.path().join("etc/machine-id")).unwrap();
        assert_eq!(id, "uninitialized\n");
    }

    #[test]
    fn an_initiator_gets_a_name_as_its_distribution_gives_it() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path();
        let name = || fs_err::read_to_string(root.join(INITIATOR)).ok();
        let part = || {
            file(
                root,
                INITIATOR,
                "InitiatorName=iqn.1993-08.org.debian:01:bbad3257a16e\n",
            );
            part(root, Path::new("/nonexistent")).unwrap()
        };
        assert_eq!(part().treated.len(), 1);
        assert_eq!(name(), None);
        file(root, INITIATOR_OF_DEBIAN.0, "");
        part();
        assert_eq!(name().as_deref(), Some("GenerateName=yes\n"));
        file(root, "etc/munge/munge.key", "made");
        assert!(part().said[0].contains("/etc/munge/munge.key"));
        assert!(root.join("etc/munge/munge.key").exists());
    }

    #[test]
    fn a_server_without_keys_is_noticed_unless_something_makes_new_ones() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path();
        let part = || {
            file(root, "etc/ssh/ssh_host_rsa_key", "made");
            !part(root, Path::new("/nonexistent")).unwrap().said.is_empty()
        };
        file(
            root,
            "usr/lib/systemd/system/ssh.service",
            "[Service]\nExecStart=/usr/sbin/sshd -D",
        );
        assert!(part());
        file(
            root,
            "etc/systemd/system/keys.service",
            "[Service]\nExecStart=/usr/bin/ssh-keygen -A",
        );
        assert!(!part());
    }
}
