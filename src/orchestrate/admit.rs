//! Decides whether there is room for a job: arithmetic over what jobs need and what the place has. Pure: no I/O.

use std::fmt;

use bytesize::ByteSize;
use kiln_records::{
    JobId,
    run::{Needs, Used},
};

use super::waits::{Wait, WaitsFor};
use crate::{config::CapacitySettings, sandbox::Capacity};

/// The number of past builds of a recipe that tell what the next one will need.
pub const HISTORY: u32 = 5;

/// The resources a job asks for, in bytes; `None` where it does not say.
#[derive(Debug, Clone, Copy, Default)]
pub struct Asked {
    /// Disk.
    pub disk: Option<u64>,
    /// Memory.
    pub memory: Option<u64>,
    /// The most disk it gets when it does not say.
    pub usual_disk: u64,
    /// The most memory it gets when it does not say.
    pub usual_memory: u64,
}

/// The room that the place has left for more jobs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Room {
    /// Jobs.
    pub jobs: u32,
    /// Bytes of memory.
    pub memory: u64,
    /// Bytes of disk.
    pub disk: u64,
    /// Whether enough inodes are free.
    pub inodes: bool,
}

/// The most that the place could give if nothing else ran.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Jobs.
    pub jobs: u32,
    /// Bytes of memory.
    pub memory: u64,
    /// Bytes of disk.
    pub disk: u64,
}

/// The decision on a waiting job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// There is room.
    Go,
    /// There is no room yet, for this reason.
    Wait(Wait),
    /// There will never be room, for this reason.
    Never(String),
}

/// The next build of a recipe is expected to need what the last ones did, and this much more: a quarter.
const MARGIN: (u64, u64) = (5, 4);

/// The resources a job gets: what its recipe's last builds used plus a margin, or what the job asks for, or what a
/// first build gets; never more than its limit.
pub fn needs(asked: Asked, history: &[Used], settings: &CapacitySettings, limits: Limits) -> Needs {
    let most = |of: fn(&Used) -> u64| history.iter().map(of).filter(|used| *used > 0).max();
    let set_aside = |asked: Option<u64>, usual: u64, used: Option<u64>, first: u64, place: u64| {
        // A default is cut to what the place has; an explicit request is not.
        let limit = asked.unwrap_or(usual.min(place));
        let wanted = used.map_or(asked.unwrap_or(first), |used| used / MARGIN.1 * MARGIN.0);
        (wanted.min(limit), limit)
    };
    let (memory, memory_limit) = set_aside(
        asked.memory,
        asked.usual_memory,
        most(|used| used.memory),
        settings.first_memory.0,
        limits.memory,
    );
    let (disk, disk_limit) = set_aside(
        asked.disk,
        asked.usual_disk,
        most(|used| used.disk),
        settings.first_disk.0,
        limits.disk,
    );
    Needs {
        memory,
        memory_limit,
        disk,
        disk_limit,
    }
}

impl Limits {
    /// The limits of this place.
    pub fn of(capacity: &Capacity, settings: &CapacitySettings) -> Self {
        Self {
            jobs: settings.jobs.unwrap_or(capacity.cpus).max(1),
            memory: settings.memory.map_or(capacity.memory / 10 * 9, |size| size.0),
            disk: capacity.disk_total.saturating_sub(settings.disk_floor.0),
        }
    }
}

impl Room {
    /// The room left beside jobs that hold this much. Part of the disk set aside for them is already used.
    pub fn beside(held: &[(Needs, Used)], limits: Limits, capacity: &Capacity, settings: &CapacitySettings) -> Self {
        let to_come: u64 = held
            .iter()
            .map(|(needs, used)| needs.disk.saturating_sub(used.disk))
            .sum();
        let memory: u64 = held.iter().map(|(needs, _)| needs.memory).sum();
        let jobs = u32::try_from(held.len()).unwrap_or(u32::MAX);
        Self {
            jobs: limits.jobs.saturating_sub(jobs),
            memory: limits.memory.saturating_sub(memory),
            disk: capacity
                .disk_free
                .saturating_sub(settings.disk_floor.0)
                .saturating_sub(to_come),
            inodes: capacity.inodes_total == 0 || capacity.inodes_free > u64::from(settings.inode_floor),
        }
    }

    fn verdict(self, needs: &Needs, limits: Limits) -> Verdict {
        if needs.memory > limits.memory {
            return Verdict::Never(lacks(
                "memory",
                needs.memory,
                limits.memory,
                "all that its place has for jobs",
            ));
        }
        if needs.disk > limits.disk {
            return Verdict::Never(lacks("disk", needs.disk, limits.disk, "all that its place has"));
        }
        if self.jobs == 0 {
            return Verdict::Wait(WaitsFor::Slots.because(format!(
                "{} {} running, which is as many as its place runs at once",
                limits.jobs,
                if limits.jobs == 1 { "job is" } else { "jobs are" }
            )));
        }
        if needs.memory > self.memory {
            let why = lacks("memory", needs.memory, self.memory, "free now");
            return Verdict::Wait(WaitsFor::Memory.because(why));
        }
        if needs.disk > self.disk {
            let why = lacks("disk", needs.disk, self.disk, "free now above the floor");
            return Verdict::Wait(WaitsFor::Disk.because(why));
        }
        if !self.inodes {
            let why = "too few inodes are free at its place";
            return Verdict::Wait(WaitsFor::Inodes.because(why));
        }
        Verdict::Go
    }

    fn without(self, needs: &Needs) -> Self {
        Self {
            jobs: self.jobs.saturating_sub(1),
            memory: self.memory.saturating_sub(needs.memory),
            disk: self.disk.saturating_sub(needs.disk),
            ..self
        }
    }
}

fn lacks(what: &str, needed: u64, there: u64, where_it_is: impl fmt::Display) -> String {
    format!(
        "needs {} of {what}; {} is {where_it_is}",
        ByteSize(needed),
        ByteSize(there)
    )
}

/// Goes through the waiting jobs, in their order. A job that does not fit makes those behind it wait too: a large job
/// would never have its turn if small ones passed it by.
pub fn admit(queue: &[(JobId, Needs)], mut room: Room, limits: Limits) -> Vec<(JobId, Verdict)> {
    let mut ahead: Option<(JobId, u32)> = None;
    let decide = |(job, needs): &(JobId, Needs)| {
        let verdict = match (&mut ahead, room.verdict(needs, limits)) {
            (_, never @ Verdict::Never(_)) => never,
            (Some((first, count)), _) => {
                *count += 1;
                Verdict::Wait(WaitsFor::Turn.because(match count {
                    1 => format!("its turn is after job {first}"),
                    _ => format!("its turn is after {count} other jobs"),
                }))
            }
            (None, Verdict::Go) => {
                room = room.without(needs);
                Verdict::Go
            }
            (None, wait) => {
                ahead = Some((*job, 0));
                wait
            }
        };
        (*job, verdict)
    };
    queue.iter().map(decide).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::settings::Size;

    const GIB: u64 = 1 << 30;

    fn limits() -> Limits {
        Limits {
            jobs: 3,
            memory: 16 * GIB,
            disk: 100 * GIB,
        }
    }

    fn capacity(disk_free: u64) -> Capacity {
        Capacity {
            cpus: 4,
            memory: 18 * GIB,
            disk_free,
            disk_total: 102 * GIB,
            inodes_free: 1_000_000,
            inodes_total: 2_000_000,
        }
    }

    fn needing(memory: u64, disk: u64) -> Needs {
        Needs {
            memory,
            memory_limit: memory,
            disk,
            disk_limit: disk,
        }
    }

    #[test]
    fn what_was_used_counts_more_than_what_is_usual() {
        let settings = CapacitySettings {
            first_memory: Size(2 * GIB),
            first_disk: Size(10 * GIB),
            ..CapacitySettings::default()
        };
        let usual = Asked {
            usual_disk: 60 * GIB,
            usual_memory: 8 * GIB,
            ..Asked::default()
        };
        let first = needs(usual, &[], &settings, limits());
        assert_eq!((first.memory, first.memory_limit), (2 * GIB, 8 * GIB));
        assert_eq!((first.disk, first.disk_limit), (10 * GIB, 60 * GIB));

        let used = Used {
            memory: GIB,
            disk: 4 * GIB,
            cpu_ms: 0,
        };
        let later = needs(usual, &[used, Used::default()], &settings, limits());
        assert_eq!((later.memory, later.disk), (GIB / 4 * 5, 5 * GIB));

        let said = Asked {
            disk: Some(3 * GIB),
            memory: Some(200 * GIB),
            ..usual
        };
        let asked = needs(said, &[used], &settings, limits());
        assert_eq!((asked.disk, asked.disk_limit), (3 * GIB, 3 * GIB));
        assert_eq!((asked.memory, asked.memory_limit), (GIB / 4 * 5, 200 * GIB));
        let asked = needs(said, &[], &settings, limits());
        assert_eq!(asked.memory, 200 * GIB);
    }

    #[test]
    fn each_waits_for_a_reason() {
        let settings = CapacitySettings::default();
        let held = [(
            needing(12 * GIB, 10 * GIB),
            Used {
                disk: 4 * GIB,
                ..Used::default()
            },
        )];
        let room = Room::beside(&held, limits(), &capacity(20 * GIB), &settings);
        assert_eq!((room.jobs, room.memory, room.disk), (2, 4 * GIB, 12 * GIB));
        let ids: Vec<JobId> = (0..5).map(|_| JobId::new()).collect();
        let queue = [
            (ids[0], needing(GIB, GIB)),
            (ids[1], needing(64 * GIB, GIB)),
            (ids[2], needing(4 * GIB, GIB)),
            (ids[3], needing(GIB, GIB)),
            (ids[4], needing(GIB, GIB)),
        ];
        let verdicts: Vec<_> = admit(&queue, room, limits())
            .into_iter()
            .map(|(_, verdict)| verdict)
            .collect();
        assert_eq!(
            verdicts,
            [
                Verdict::Go,
                Verdict::Never("needs 64.0 GiB of memory; 16.0 GiB is all that its place has for jobs".into()),
                Verdict::Wait(WaitsFor::Memory.because("needs 4.0 GiB of memory; 3.0 GiB is free now")),
                Verdict::Wait(WaitsFor::Turn.because(format!("its turn is after job {}", ids[2]))),
                Verdict::Wait(WaitsFor::Turn.because("its turn is after 2 other jobs")),
            ]
        );
    }

    proptest! {
        /// However many jobs come at once, those let in never take more than there is, and no job overtakes another.
        #[test]
        fn a_burst_never_takes_more_than_there_is(sizes in prop::collection::vec((0..20_u64, 0..60_u64), 0..50)) {
            let queue: Vec<_> = sizes.iter().map(|(memory, disk)| (JobId::new(), needing(memory * GIB, disk * GIB))).collect();
            let room = Room { jobs: 3, memory: 16 * GIB, disk: 50 * GIB, inodes: true };
            let verdicts = admit(&queue, room, limits());
            let let_in: Vec<_> = queue.iter().zip(&verdicts).filter(|(_, (_, verdict))| *verdict == Verdict::Go).map(|((_, needs), _)| needs).collect();
            prop_assert!(let_in.len() <= 3);
            prop_assert!(let_in.iter().map(|needs| needs.memory).sum::<u64>() <= room.memory);
            prop_assert!(let_in.iter().map(|needs| needs.disk).sum::<u64>() <= room.disk);
            let waits = verdicts.iter().position(|(_, verdict)| matches!(verdict, Verdict::Wait(_)));
            let last = verdicts.iter().rposition(|(_, verdict)| *verdict == Verdict::Go);
            prop_assert!(waits.is_none() || last.is_none() || last < waits);
        }
    }
}
