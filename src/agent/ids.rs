//! The ids that the sandbox has: says what failed for want of one. Reads the sandbox's map.

use kiln_records::{Code, Failure};

/// What helps, whatever the sandbox is.
const REMEDY: &str = "give the user who runs Kiln more ids in /etc/subuid and /etc/subgid, or build in a virtual machine \
                      (`--isolation vm`), which has all";

/// Some ids that follow each other: the first and the last one.
pub(crate) type Range = (u64, u64);

/// The failure with the range of ids of this sandbox, if it is for want of one.
pub(crate) fn explained(failure: Failure) -> Failure {
    if failure.code != Code::IdOutside {
        return failure;
    }
    let map = fs_err::read_to_string("/proc/self/uid_map").unwrap_or_default();
    failure.hint(format!("a sandbox here has the ids {}: {REMEDY}", told(&ranges(&map))))
}

/// The ids inside, by a map as `/proc/PID/uid_map` shows it, in order.
pub(crate) fn ranges(map: &str) -> Vec<Range> {
    let of_line = |line: &str| {
        let mut fields = line.split_whitespace().map(str::parse::<u64>);
        let (first, _, count) = (fields.next()?.ok()?, fields.next()?, fields.next()?.ok()?);
        Some((first, first + count.checked_sub(1)?))
    };
    let mut ranges: Vec<Range> = map.lines().filter_map(of_line).collect();
    ranges.sort_unstable();
    ranges.dedup_by(|next, before| {
        let follows = next.0 == before.1 + 1;
        if follows {
            before.1 = next.1;
        }
        follows
    });
    ranges
}

fn told(ranges: &[Range]) -> String {
    let ranges = ranges.iter().map(|(first, last)| format!("{first} to {last}"));
    ranges.collect::<Vec<_>>().join(" and ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_that_follow_each_other_are_one() {
        let told = |map: &str| told(&ranges(map));
        assert_eq!(told("  0 1879048192 65536\n  65536 2147483648 10\n"), "0 to 65545");
        assert_eq!(told("  70000 5 10\n 0 100 65536\n"), "0 to 65535 and 70000 to 70009");
        assert_eq!(told("         0          0 4294967295\n"), "0 to 4294967294");
    }

    #[test]
    fn only_a_failure_for_want_of_an_id_is_explained() {
        let other = Failure::new(Code::ScriptFailed, "no").hint("as it was");
        assert_eq!(explained(other.clone()), other);
        let hint = explained(Failure::new(Code::IdOutside, "chown: Invalid argument")).hint;
        assert!(
            hint.as_deref()
                .is_some_and(|hint| hint.starts_with("a sandbox here has the ids 0 to ")),
            "{hint:?}"
        );
    }
}
