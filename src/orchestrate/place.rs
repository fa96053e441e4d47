//! The isolation rule decides where and how a job runs, or why it cannot. Pure: no I/O. The offers of the places come
//! in, a decision goes out.
//!
//! ```text
//!                               the place's own arch        another arch, or a kernel of its own is asked for
//!   foreign = "vm"              shared kernel               a virtual machine, or refused (`no_vm`)
//!   foreign = "namespace"       shared kernel               shared kernel, and the job says so
//! ```
//!
//! Of several suitable places, a job takes one of its own architecture before one that emulates it, a virtual machine
//! that the CPU runs before an emulated one, and then the one with the fewest jobs for each CPU.

use std::cmp::Reverse;

use kiln_records::{
    Code, Failure, Run,
    arch::Arch,
    run::{DriverKind, How, Kernel, LOCAL, Refused},
};

use crate::{config::ForeignIsolation, sandbox::Machine};

/// A job's requirements of a place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Wish {
    /// The image's architecture.
    pub arch: Arch,
    /// Whether it gets a kernel of its own whatever its architecture, as recipes with `require_dkms` do.
    pub own_kernel: bool,
}

/// The sandboxes that a place offers.
#[derive(Debug, Clone, PartialEq)]
pub struct Offers {
    /// Its CPU.
    pub arch: Arch,
    /// Whether it makes sandboxes on its own kernel; or why not.
    pub shared_kernel: Result<(), Failure>,
    /// The virtual machine that it makes for each sandbox; or why it makes none.
    pub own_kernel: Result<Machine, Failure>,
}

/// A place that a job may take.
#[derive(Debug, Clone)]
pub struct Candidate<'a> {
    /// Its name; [`LOCAL`] is this host.
    pub name: &'a str,
    /// The driver of its sandboxes on its own kernel, and that of sandboxes with a kernel each.
    pub drivers: (DriverKind, DriverKind),
    /// Its offers.
    pub offers: &'a Offers,
    /// The number of jobs that run or will run there, and its CPUs.
    pub load: (u32, u32),
}

/// A decision, with its reason.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Placement {
    /// The name of the place.
    pub place: String,
    /// The driver that makes the sandbox.
    pub driver: DriverKind,
    /// How the programs of the image's architecture run.
    pub how: How,
    /// One sentence for the user.
    pub why: String,
}

impl Placement {
    /// Notes the decision in the job's row.
    ///
    /// # Errors
    ///
    /// When the job no longer waits.
    pub fn note_in(&self, run: &mut Run) -> Result<(), Refused> {
        run.place(&self.place, self.driver, self.how, &self.why)
    }
}

/// Decides where a job runs.
///
/// # Errors
///
/// `no_vm` when the job needs a virtual machine and no place has one; `no_place` when no place can make a sandbox at
/// all.
pub fn place(wish: Wish, foreign: ForeignIsolation, places: &[Candidate<'_>]) -> Result<Placement, Failure> {
    let best = places
        .iter()
        .filter_map(|candidate| Some((candidate, kernel_for(wish, foreign, candidate)?)))
        .min_by_key(|(candidate, kernel)| {
            let machine = candidate.offers.own_kernel.as_ref().ok();
            let emulated_machine = *kernel == Kernel::Own && machine.is_some_and(|machine| !machine.accelerated);
            let (jobs, cpus) = candidate.load;
            (
                how(wish, candidate) == How::Emulated,
                emulated_machine,
                u64::from(jobs) * 1000 / u64::from(cpus.max(1)),
                Reverse(cpus),
            )
        });
    let Some((candidate, kernel)) = best else {
        return Err(refusal(wish, foreign, places));
    };
    let (how, driver) = (how(wish, candidate), driver(candidate, kernel));
    Ok(Placement {
        place: candidate.name.to_owned(),
        driver,
        how,
        why: why(wish, how, candidate, kernel),
    })
}

/// Whose kernel the job would have at a place; `None` if it cannot run there.
fn kernel_for(wish: Wish, foreign: ForeignIsolation, candidate: &Candidate<'_>) -> Option<Kernel> {
    let Offers {
        shared_kernel,
        own_kernel,
        ..
    } = candidate.offers;
    let shared = shared_kernel.is_ok().then_some(Kernel::Shared);
    let own = own_kernel.is_ok().then_some(Kernel::Own);
    if reason(wish, candidate).is_none() {
        // More isolation than was requested does no harm.
        return shared.or(own);
    }
    match foreign {
        ForeignIsolation::Vm => own,
        ForeignIsolation::Namespace => shared,
    }
}

fn how(wish: Wish, candidate: &Candidate<'_>) -> How {
    if wish.arch == candidate.offers.arch {
        How::Native
    } else {
        How::Emulated
    }
}

fn driver(candidate: &Candidate<'_>, kernel: Kernel) -> DriverKind {
    match kernel {
        Kernel::Shared => candidate.drivers.0,
        Kernel::Own => candidate.drivers.1,
    }
}

/// Why the job needs a kernel of its own there, if it does.
fn reason(wish: Wish, candidate: &Candidate<'_>) -> Option<String> {
    match how(wish, candidate) {
        How::Emulated => Some(format!("{} on a host that is {}", wish.arch, candidate.offers.arch)),
        How::Native if wish.own_kernel => Some("a job that asks for a kernel of its own".to_owned()),
        How::Native => None,
    }
}

fn why(wish: Wish, how: How, candidate: &Candidate<'_>, kernel: Kernel) -> String {
    let at = match candidate.name {
        LOCAL => String::new(),
        name => format!(" at {name}"),
    };
    let place = match driver(candidate, kernel) {
        DriverKind::Namespace => "a sandbox of namespaces",
        DriverKind::Docker => "a container",
        DriverKind::Microvm | DriverKind::Kata => "a virtual machine of its own",
    };
    let begin = format!("{}: {}{at}, in {place}", wish.arch, how.name());
    match (kernel, reason(wish, candidate), &candidate.offers.own_kernel) {
        (Kernel::Shared, None, _) | (Kernel::Own, _, Err(_)) => begin,
        (Kernel::Shared, Some(reason), _) => {
            format!("{begin} on the host's own kernel, as [isolation] allows for {reason}")
        }
        (Kernel::Own, reason, Ok(Machine { what, accelerated })) => {
            let needed = reason.map(|reason| format!(", for {reason}")).unwrap_or_default();
            let slow = if *accelerated {
                ""
            } else {
                "; the CPU of the machine is emulated too, which takes tens of times as long: enable KVM on this host"
            };
            format!("{begin} ({what}){needed}{slow}")
        }
    }
}

/// Why no place will do.
fn refusal(wish: Wish, foreign: ForeignIsolation, places: &[Candidate<'_>]) -> Failure {
    let native = places.iter().any(|candidate| how(wish, candidate) == How::Native);
    let needs_machine = foreign == ForeignIsolation::Vm && (!native || wish.own_kernel);
    let each = |of: fn(&Offers) -> Option<&Failure>| {
        let whys = places.iter().filter_map(|candidate| {
            let failure = of(candidate.offers)?;
            let name = if candidate.name == LOCAL {
                "this host"
            } else {
                candidate.name
            };
            Some(format!("{name}: {}", failure.detail))
        });
        whys.collect::<Vec<_>>().join("; ")
    };
    if !needs_machine {
        let whys = each(|offers| offers.shared_kernel.as_ref().err());
        return Failure::new(Code::NoPlace, format!("no place can run this job ({whys})"))
            .hint("`kiln doctor` says what is missing");
    }
    let reason = places.iter().find_map(|candidate| reason(wish, candidate));
    let reason = reason.unwrap_or_else(|| wish.arch.to_string());
    let whys = each(|offers| offers.own_kernel.as_ref().err());
    Failure::new(
        Code::NoVm,
        format!("{reason} needs a virtual machine, and there is none ({whys})"),
    )
    .hint(
        "`kiln doctor` says what is missing. `foreign = \"namespace\"` in [isolation] runs such jobs on the host's own \
         kernel; a recipe that loads no kernel modules can also say `require_dkms: false`",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn offers(arch: Arch, shared: bool, own: Option<bool>) -> Offers {
        let none = |code, what: &str| Failure::new(code, what);
        Offers {
            arch,
            shared_kernel: if shared {
                Ok(())
            } else {
                Err(none(Code::NoUserNamespace, "no user namespaces"))
            },
            own_kernel: own.map_or_else(
                || Err(none(Code::NoVm, "no QEMU")),
                |accelerated| {
                    Ok(Machine {
                        what: "QEMU".to_owned(),
                        accelerated,
                    })
                },
            ),
        }
    }

    fn candidate<'a>(name: &'a str, offers: &'a Offers, jobs: u32) -> Candidate<'a> {
        Candidate {
            name,
            drivers: (DriverKind::Namespace, DriverKind::Microvm),
            offers,
            load: (jobs, 2),
        }
    }

    /// The whole rule for one place: every architecture, wish, setting and offer.
    #[test]
    fn foreign_and_dkms_jobs_get_a_machine_of_their_own_or_are_refused() {
        let mut decided = 0;
        for arch in Arch::ALL {
            for host in Arch::ALL {
                for own_kernel in [false, true] {
                    for foreign in [ForeignIsolation::Vm, ForeignIsolation::Namespace] {
                        for shared in [false, true] {
                            for own in [None, Some(false), Some(true)] {
                                let offers = offers(host, shared, own);
                                let placement =
                                    place(Wish { arch, own_kernel }, foreign, &[candidate(LOCAL, &offers, 0)]);
                                let needs = arch != host || own_kernel;
                                let lowered = needs && foreign == ForeignIsolation::Namespace;
                                let must_own = needs && !lowered;
                                let expected = match (shared && !must_own, own.is_some() && !lowered) {
                                    (true, _) => Ok(DriverKind::Namespace),
                                    (false, true) => Ok(DriverKind::Microvm),
                                    (false, false) if must_own => Err(Code::NoVm),
                                    (false, false) => Err(Code::NoPlace),
                                };
                                match placement {
                                    Ok(placement) => {
                                        assert_eq!(Ok(placement.driver), expected, "{}", placement.why);
                                        assert_eq!(placement.how == How::Native, arch == host);
                                        assert!(placement.why.starts_with(arch.name()));
                                        // The sentence says when isolation was lowered, and when a machine is slow.
                                        assert_eq!(placement.why.contains("host's own kernel"), lowered);
                                        let slow = placement.driver == DriverKind::Microvm && own == Some(false);
                                        assert_eq!(placement.why.contains("tens of times"), slow);
                                    }
                                    Err(failure) => {
                                        assert_eq!(Err(failure.code), expected);
                                        assert!(failure.hint.is_some_and(|hint| hint.contains("kiln doctor")));
                                    }
                                }
                                decided += 1;
                            }
                        }
                    }
                }
            }
        }
        assert_eq!(decided, 25 * 2 * 2 * 6);
    }

    #[test]
    fn a_native_place_is_taken_before_one_that_emulates() {
        let (here, there) = (
            offers(Arch::X86_64, true, Some(true)),
            offers(Arch::Aarch64, true, None),
        );
        let places = [candidate(LOCAL, &here, 0), candidate("x3000c0s1b0n0", &there, 5)];
        let arm = Wish {
            arch: Arch::Aarch64,
            own_kernel: false,
        };
        let placement = place(arm, ForeignIsolation::Vm, &places).unwrap();
        assert_eq!(
            (placement.place.as_str(), placement.how),
            ("x3000c0s1b0n0", How::Native)
        );
        assert_eq!(
            placement.why,
            "aarch64: native at x3000c0s1b0n0, in a sandbox of namespaces"
        );
        // A job that needs a kernel of its own finds it only here.
        let dkms = Wish {
            own_kernel: true,
            ..arm
        };
        let placement = place(dkms, ForeignIsolation::Vm, &places).unwrap();
        assert_eq!(
            (placement.place.as_str(), placement.driver),
            (LOCAL, DriverKind::Microvm)
        );
    }

    #[test]
    fn a_burst_is_spread_evenly() {
        let offers = offers(Arch::Aarch64, true, None);
        let mut jobs = [0_u32; 3];
        let names = ["a", "b", "c"];
        for _ in 0..7 {
            let places: Vec<_> = names
                .iter()
                .zip(jobs)
                .map(|(name, jobs)| candidate(name, &offers, jobs))
                .collect();
            let wish = Wish {
                arch: Arch::Aarch64,
                own_kernel: false,
            };
            let placement = place(wish, ForeignIsolation::Vm, &places).unwrap();
            jobs[names.iter().position(|name| *name == placement.place).unwrap()] += 1;
        }
        assert_eq!(jobs, [3, 2, 2]);
    }
}
