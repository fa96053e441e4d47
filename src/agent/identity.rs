//! Takes out of a root what makes two machines take themselves for one: ids and keys that were made while the root was, and that
//! all machines with the image would share. Changes and removes files of the root, and follows no link of it.

use std::{io, path::Path};

use crate::{
    normalize::{Rule, Treatment, matching, treat_all},
    twins::Root,
};

/// Files that each machine is to make for itself.
const RULES: [Rule; 17] = [
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

/// The host keys of sshd.
const HOST_KEYS: &str = "etc/ssh/ssh_host_*_key";

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
    /// Whether sshd lost its keys, and nothing in the root makes new ones.
    pub(crate) has_no_keys: bool,
}

/// Takes out of a root what machines must not share. What `recipe` has in its overlay is meant to be there.
///
/// # Errors
///
/// A file cannot be changed.
pub(crate) fn part(root: &Path, recipe: Option<&Path>) -> io::Result<Parted> {
    let mut parted = Parted::default();
    let had_keys = !matching(root, HOST_KEYS)?.is_empty();
    let treated = treat_all(root, &RULES, |path| {
        let is_brought = recipe.is_some_and(|recipe| brings(recipe, root, path));
        if is_brought {
            parted.kept.push(format!("/{}", path.display()));
        }
        !is_brought
    })?;
    parted.treated = treated;
    parted.has_no_keys = had_keys && matching(root, HOST_KEYS)?.is_empty() && !makes_keys(root);
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

/// Whether the recipe's overlay has this very file.
fn brings(recipe: &Path, root: &Path, path: &Path) -> bool {
    let content = |top: &Path| Root::open(top).ok()?.content(path, LARGEST);
    content(&recipe.join("root")).is_some_and(|brought| !brought.is_empty() && Some(brought) == content(root))
}

/// Whether something that starts with a node makes host keys.
fn makes_keys(root: &Path) -> bool {
    let Ok(opened) = Root::open(root) else { return false };
    STARTED.iter().any(|dir| {
        opened.names(Path::new(dir)).iter().any(|name| {
            let name = name.to_string_lossy();
            name.contains("sshd-keygen")
                || opened
                    .text(&Path::new(dir).join(&*name), LARGEST)
                    .is_some_and(|text| text.contains("ssh-keygen") || text.contains("sshd-keygen"))
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
        let parted = part(root, Some(recipe)).unwrap();
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
        assert!(!parted.has_no_keys);
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
        assert_eq!(part(root, None).unwrap(), Parted::default());
        assert_eq!(fs_err::read_to_string(outside.join("id")).unwrap(), "0123456789abcdef");
        assert!(outside.join("ssh/ssh_host_rsa_key").exists());
    }

    #[test]
    fn an_uninitialized_machine_stays_so() {
        let dir = tempfile::tempdir().unwrap();
        file(dir.path(), "etc/machine-id", "uninitialized\n");
        assert_eq!(part(dir.path(), None).unwrap(), Parted::default());
        let id = fs_err::read_to_string(dir.path().join("etc/machine-id")).unwrap();
        assert_eq!(id, "uninitialized\n");
    }

    #[test]
    fn a_server_without_keys_is_noticed_unless_something_makes_new_ones() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path();
        let part = || {
            file(root, "etc/ssh/ssh_host_rsa_key", "made");
            part(root, None).unwrap().has_no_keys
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
