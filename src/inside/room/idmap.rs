//! Maps the ids inside a sandbox to host ids. Reads `/etc/subuid` and `/etc/subgid`, and writes the maps of a process.
//!
//! Inside, ids 0 to 65535 exist; outside they are a range that no other user has. So root inside has no rights
//! outside: it owns no host file and no host process.

use std::{path::Path, process::Command};

use kiln_records::{Code, Failure};
use nix::unistd::{Pid, Uid, User};
use serde::{Deserialize, Serialize};

/// How many ids a sandbox has; distributions use ids up to 65534 (`nobody`).
pub const ID_COUNT: u32 = 65_536;

/// The start of the range when Kiln runs as root and `/etc/subuid` grants root nothing: just above the ranges that
/// `systemd-nspawn` picks from (524288 to 1879048191, `systemd-nspawn(1)`).
const ROOT_DEFAULT_BASE: u32 = 0x7000_0000;

/// The host ids of one sandbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct IdMap {
    /// Host user id of user 0 inside.
    pub uid_base: u32,
    /// Host group id of group 0 inside.
    pub gid_base: u32,
    /// Whether the maps must be written through `newuidmap`, because Kiln is not root.
    pub rootless: bool,
}

impl IdMap {
    /// The range of the user that runs Kiln.
    ///
    /// # Errors
    ///
    /// `no_subids` when an ordinary user has no range of 65536 ids in `/etc/subuid` and `/etc/subgid`.
    pub fn of_this_user() -> Result<Self, Failure> {
        let uid = Uid::effective();
        let rootless = !uid.is_root();
        let name = User::from_uid(uid)
            .ok()
            .flatten()
            .map_or_else(|| uid.to_string(), |user| user.name);
        let find = |file: &str| {
            let text = fs_err::read_to_string(Path::new(file)).unwrap_or_default();
            find_range(&text, &name, uid.as_raw())
        };
        match (find("/etc/subuid"), find("/etc/subgid")) {
            (Some(uid_base), Some(gid_base)) => Ok(Self {
                uid_base,
                gid_base,
                rootless,
            }),
            _ if !rootless => Ok(Self {
                uid_base: ROOT_DEFAULT_BASE,
                gid_base: ROOT_DEFAULT_BASE,
                rootless,
            }),
            _ => Err(Failure::new(
                Code::NoSubids,
                format!("user `{name}` has no range of {ID_COUNT} ids in /etc/subuid and /etc/subgid"),
            )
            .hint(format!(
                "run `sudo usermod --add-subuids 100000-165535 --add-subgids 100000-165535 {name}`"
            ))),
        }
    }

    /// Writes the maps of process `pid`, which has just entered its user namespace.
    pub fn apply(&self, pid: Pid) -> Result<(), Failure> {
        if self.rootless {
            self.apply_by_helper("newuidmap", pid, self.uid_base)?;
            self.apply_by_helper("newgidmap", pid, self.gid_base)
        } else {
            let write = |file: &str, base: u32| {
                let own = fs_err::read_to_string(format!("/proc/self/{file}"));
                own.and_then(|own| {
                    let count = count_from(base, &own);
                    fs_err::write(format!("/proc/{pid}/{file}"), format!("0 {base} {count}"))
                })
                .map_err(|error| Failure::io("cannot map the sandbox's ids", &error))
            };
            write("uid_map", self.uid_base)?;
            write("gid_map", self.gid_base)
        }
    }

    #[expect(clippy::unused_self, reason = "reads better beside apply")]
    fn apply_by_helper(&self, helper: &str, pid: Pid, base: u32) -> Result<(), Failure> {
        let output = Command::new(helper)
            .args([pid.to_string(), "0".into(), base.to_string(), ID_COUNT.to_string()])
            .output()
            .map_err(|error| {
                Failure::new(Code::NoNewuidmap, format!("cannot run `{helper}`: {error}"))
                    .hint("install the package `uidmap` (Debian) or `shadow` (SUSE, Red Hat)")
            })?;
        if output.status.success() {
            return Ok(());
        }
        let said = String::from_utf8_lossy(&output.stderr);
        Err(Failure::new(
            Code::IdMapRefused,
            format!("`{helper}` refused the sandbox's ids: {}", said.trim()),
        )
        .hint("check that /etc/subuid and /etc/subgid grant your user that range"))
    }
}

/// How many of a sandbox's ids this process can map from `base`, by the map of its own namespace: a pod with a user
/// namespace has 65536 ids itself, and the sandbox in it all but the first.
fn count_from(base: u32, own: &str) -> u32 {
    let ends = own.lines().filter_map(|line| {
        let mut fields = line.split_whitespace().map(str::parse::<u64>);
        let (first, _, count) = (fields.next()?.ok()?, fields.next()?, fields.next()?.ok()?);
        (first..first + count)
            .contains(&u64::from(base))
            .then_some(first + count)
    });
    let there = ends.map(|end| end - u64::from(base)).next().unwrap_or_default();
    ID_COUNT.min(u32::try_from(there).unwrap_or(u32::MAX))
}

/// The first range of this user in `text` (format of subuid(5)) with at least [`ID_COUNT`] ids.
fn find_range(text: &str, name: &str, uid: u32) -> Option<u32> {
    text.lines().find_map(|line| {
        let mut fields = line.trim().split(':');
        let (owner, base, count) = (fields.next()?, fields.next()?, fields.next()?);
        let (base, count): (u32, u32) = (base.parse().ok()?, count.parse().ok()?);
        let ours = owner == name || owner.parse() == Ok(uid);
        (ours && count >= ID_COUNT && base.checked_add(ID_COUNT).is_some()).then_some(base)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sandbox_has_the_ids_that_there_are() {
        let host = "         0          0 4294967295\n";
        assert_eq!(count_from(ROOT_DEFAULT_BASE, host), ID_COUNT);
        let pod = "         0 1879048192      65536\n";
        assert_eq!(count_from(1, pod), 65_535);
        assert_eq!(count_from(65_536, pod), 0);
        assert_eq!(count_from(70_000, &format!("{pod} 70000 5 10\n")), 10);
    }

    #[test]
    fn ranges_are_found_by_name_or_number_and_must_be_large_enough() {
        let text = "# comment\nann:100:20\nann:100000:65536\n1001:300000:70000\nbob:4294967295:65536\n";
        assert_eq!(find_range(text, "ann", 1000), Some(100_000));
        assert_eq!(find_range(text, "carl", 1001), Some(300_000));
        assert_eq!(find_range(text, "bob", 1002), None);
        assert_eq!(find_range("", "ann", 1000), None);
    }
}
