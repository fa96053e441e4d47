//! Maps the ids inside a sandbox to host ids. Reads `/etc/subuid` and `/etc/subgid`, and writes the maps of a process.
//!
//! ```text
//!  inside                     outside
//!  0 to 65535                 a range that no other user has
//!  65536 and up: those of     root: from the middle of all ids up, which nobody gives to users
//!  directory services         others: whatever more they are granted
//!                             in a machine or a pod of its own: whatever there is
//! ```
//!
//! So root inside has no rights outside: it owns no host file and no host process.

use std::{path::Path, process::Command};

use kiln_records::{Code, Failure};
use nix::unistd::{Pid, Uid, User};
use serde::{Deserialize, Serialize};

/// How many ids a sandbox has at least; distributions use ids up to 65534 (`nobody`).
pub const ID_COUNT: u32 = 65_536;

/// The start of the range when Kiln runs as root and `/etc/subuid` grants root nothing: just above the ranges that
/// `systemd-nspawn` picks from (524288 to 1879048191, `systemd-nspawn(1)`).
const ROOT_DEFAULT_BASE: u32 = 0x7000_0000;

/// The ids that root has for those from [`ID_COUNT`] up: the half that no distribution and no directory service assigns, since
/// some programs take such numbers for negative ones. The last two are those that NFS and the kernel use for nobody.
const UPPER: Range = Range {
    first: 0x8000_0000,
    count: 0x7fff_fffe,
};

/// The most further ranges of a user that are used.
const MORE: usize = 8;

/// Some ids that follow each other.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Range {
    first: u32,
    count: u32,
}

impl Range {
    fn end(self) -> u64 {
        u64::from(self.first) + u64::from(self.count)
    }

    fn overlaps(self, other: Self) -> bool {
        u64::from(self.first) < other.end() && u64::from(other.first) < self.end()
    }
}

/// Where the ids from 65536 up are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Beyond {
    /// In the upper half of the host's ids, if this process has them.
    Upper,
    /// After the others: all ids that this process has are the sandbox's.
    Rest,
    /// In these ranges of user ids and of group ids, which the host grants the user. Those without ids are none.
    Granted([Range; MORE], [Range; MORE]),
}

/// The host ids of one sandbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct IdMap {
    /// Host user id of user 0 inside.
    pub uid_base: u32,
    /// Host group id of group 0 inside.
    pub gid_base: u32,
    /// Whether the maps must be written through `newuidmap`, because Kiln is not root.
    pub rootless: bool,
    /// The ids of directory services.
    pub beyond: Beyond,
}

/// A line of a map.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Line {
    inside: u32,
    outside: Range,
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
            find_ranges(&text, &name, uid.as_raw())
        };
        match (find("/etc/subuid"), find("/etc/subgid")) {
            (Some((uid_base, uids)), Some((gid_base, of_groups))) => Ok(Self {
                uid_base,
                gid_base,
                rootless,
                beyond: if rootless {
                    Beyond::Granted(uids, of_groups)
                } else {
                    Beyond::Upper
                },
            }),
            _ if !rootless => Ok(Self {
                uid_base: ROOT_DEFAULT_BASE,
                gid_base: ROOT_DEFAULT_BASE,
                rootless,
                beyond: Beyond::Upper,
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
        if let Beyond::Granted(uids, gids) = &self.beyond {
            self.apply_by_helper("newuidmap", pid, &granted(self.uid_base, uids))?;
            return self.apply_by_helper("newgidmap", pid, &granted(self.gid_base, gids));
        }
        let write = |file: &str, base: u32| {
            let own = fs_err::read_to_string(format!("/proc/self/{file}"));
            own.and_then(|own| {
                let lines = lines(base, self.beyond == Beyond::Rest, &own);
                fs_err::write(format!("/proc/{pid}/{file}"), text(&lines))
            })
            .map_err(|error| Failure::io("cannot map the sandbox's ids", &error))
        };
        write("uid_map", self.uid_base)?;
        write("gid_map", self.gid_base)
    }

    /// How many user ids there are inside, unless that is only known in the sandbox's place.
    #[must_use]
    pub fn user_ids(&self) -> Option<u64> {
        match &self.beyond {
            Beyond::Upper => Some(u64::from(ID_COUNT) + u64::from(UPPER.count)),
            Beyond::Rest => None,
            Beyond::Granted(uids, _) => {
                let more: u64 = uids.iter().map(|range| u64::from(range.count)).sum();
                Some(u64::from(ID_COUNT) + more)
            }
        }
    }

    #[expect(clippy::unused_self, reason = "reads better beside apply")]
    fn apply_by_helper(&self, helper: &str, pid: Pid, lines: &[Line]) -> Result<(), Failure> {
        let numbers = lines.iter().flat_map(|line| line.numbers());
        let output = Command::new(helper)
            .arg(pid.to_string())
            .args(numbers.map(|number| number.to_string()))
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

impl Line {
    fn numbers(self) -> [u32; 3] {
        [self.inside, self.outside.first, self.outside.count]
    }
}

/// The lines of a map as `/proc/PID/uid_map` takes them.
fn text(lines: &[Line]) -> String {
    let lines = lines.iter().map(|line| {
        let [inside, outside, count] = line.numbers();
        format!("{inside} {outside} {count}\n")
    });
    lines.collect()
}

/// The map that gives a namespace inside this process's own one all of its ids, by the map of the latter.
///
/// # Errors
///
/// The map cannot be read.
pub(super) fn of_this_namespace(file: &str) -> std::io::Result<String> {
    let own = fs_err::read_to_string(format!("/proc/self/{file}"))?;
    let lines = ranges_of(&own).map(|own| Line {
        inside: own.first,
        outside: own,
    });
    Ok(text(&lines.collect::<Vec<_>>()))
}

/// The ids of a namespace, by its own map.
fn ranges_of(own: &str) -> impl Iterator<Item = Range> {
    own.lines().filter_map(|line| {
        let mut fields = line.split_whitespace().map(str::parse);
        let (first, _, count) = (fields.next()?.ok()?, fields.next()?, fields.next()?.ok()?);
        Some(Range { first, count })
    })
}

/// The map from `base` for what a process with the map `own` has: a pod with a user namespace has some ids itself, and the
/// sandbox in it all but the first.
fn lines(base: u32, takes_rest: bool, own: &str) -> Vec<Line> {
    let most = if takes_rest { u32::MAX } else { ID_COUNT };
    let mut lines = vec![Line {
        inside: 0,
        outside: Range {
            first: base,
            count: there(base, own).min(most),
        },
    }];
    let low = lines[0].outside;
    if !takes_rest && low.count == ID_COUNT {
        let first = if low.overlaps(UPPER) {
            base + ID_COUNT
        } else {
            UPPER.first
        };
        let wanted = u32::try_from(UPPER.end().saturating_sub(u64::from(first))).unwrap_or_default();
        let outside = Range {
            first,
            count: there(first, own).min(wanted),
        };
        lines.push(Line {
            inside: ID_COUNT,
            outside,
        });
    }
    lines.retain(|line| line.outside.count > 0);
    lines
}

/// How many ids from `first` up a process with this map has, one after the other.
fn there(first: u32, own: &str) -> u32 {
    let mut own = ranges_of(own).filter(|own| (u64::from(own.first)..own.end()).contains(&u64::from(first)));
    let count = own.next().map_or(0, |own| own.end() - u64::from(first));
    u32::try_from(count).unwrap_or(u32::MAX)
}

/// The map from `base` that continues in the ranges `more`.
fn granted(base: u32, more: &[Range]) -> Vec<Line> {
    let mut lines = vec![Line {
        inside: 0,
        outside: Range {
            first: base,
            count: ID_COUNT,
        },
    }];
    let mut inside = ID_COUNT;
    for outside in more.iter().copied().filter(|range| range.count > 0) {
        lines.push(Line { inside, outside });
        inside = inside.saturating_add(outside.count);
    }
    lines
}

/// The first range of this user in `text` (format of subuid(5)) with at least [`ID_COUNT`] ids, and what the user has beside
/// these.
fn find_ranges(text: &str, name: &str, uid: u32) -> Option<(u32, [Range; MORE])> {
    let of_line = |line: &str| {
        let mut fields = line.trim().split(':');
        let (owner, first, count) = (fields.next()?, fields.next()?, fields.next()?);
        let range = Range {
            first: first.parse().ok()?,
            count: count.parse().ok()?,
        };
        let ours = owner == name || owner.parse() == Ok(uid);
        (ours && range.count > 0 && u32::try_from(range.end()).is_ok()).then_some(range)
    };
    let all: Vec<Range> = text.lines().filter_map(of_line).collect();
    let low = all.iter().position(|range| range.count >= ID_COUNT)?;
    let base = all[low].first;
    let rest = Range {
        first: base.saturating_add(ID_COUNT),
        count: all[low].count - ID_COUNT,
    };
    let mut chosen = vec![all[low]];
    let mut more = vec![rest];
    for range in all {
        // A range may be listed twice, and the kernel takes no id twice.
        if chosen.iter().all(|other| !other.overlaps(range)) {
            chosen.push(range);
            more.push(range);
        }
    }
    more.retain(|range| range.count > 0);
    more.resize(MORE, Range::default());
    Some((base, more.try_into().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOST: &str = "         0          0 4294967295\n";

    #[test]
    fn a_sandbox_has_the_ids_that_there_are() {
        for (base, takes_rest, own, map) in [
            (
                ROOT_DEFAULT_BASE,
                false,
                HOST,
                "0 1879048192 65536\n65536 2147483648 2147483646\n",
            ),
            // A range of root's own in the upper half.
            (
                0x8000_0000,
                false,
                HOST,
                "0 2147483648 65536\n65536 2147549184 2147418110\n",
            ),
            (0, true, HOST, "0 0 4294967295\n"),
            // Pods.
            (1, true, "         0 1879048192      65536\n", "0 1 65535\n"),
            (1, true, "         0 1879048192     131072\n", "0 1 131071\n"),
            // A container of a manager that has no more.
            (1000, false, " 0 100000 200000\n", "0 1000 65536\n"),
            (70_000, false, " 0 100000 65536\n 70000 5 10\n", "0 70000 10\n"),
        ] {
            assert_eq!(text(&lines(base, takes_rest, own)), map, "{base} {own}");
        }
    }

    #[test]
    fn no_id_is_mapped_twice() {
        for lines in [
            lines(ROOT_DEFAULT_BASE, false, HOST),
            lines(0x7fff_8000, false, HOST),
            lines(0xfff0_0000, false, HOST),
            granted(
                100_000,
                &find_ranges("a:100000:165536\na:5:9\na:99999:2\na:5:9", "a", 1)
                    .unwrap()
                    .1,
            ),
        ] {
            let mut inside = 0;
            for (at, one) in lines.iter().enumerate() {
                for other in &lines[at + 1..] {
                    assert!(!one.outside.overlaps(other.outside), "{lines:?}");
                }
                assert_eq!(one.inside, inside, "{lines:?}");
                inside += one.outside.count;
            }
        }
    }

    #[test]
    fn ranges_are_found_by_name_or_number_and_must_be_large_enough() {
        let text = "# comment\nann:100:20\nann:100000:65536\n1001:300000:70000\nbob:4294967295:65536\n";
        let found = |name, uid| {
            let (base, more) = find_ranges(text, name, uid)?;
            Some(super::text(&granted(base, &more)))
        };
        assert_eq!(found("ann", 1000).unwrap(), "0 100000 65536\n65536 100 20\n");
        assert_eq!(found("carl", 1001).unwrap(), "0 300000 65536\n65536 365536 4464\n");
        assert_eq!(found("bob", 1002), None);
        assert_eq!(find_ranges("", "ann", 1000), None);
        let many: Vec<String> = (0..20)
            .map(|at| format!("ann:{}:65536", at * 100_000 + 1_000_000))
            .collect();
        assert_eq!(
            granted(0, &find_ranges(&many.join("\n"), "ann", 1000).unwrap().1).len(),
            1 + MORE
        );
    }
}
