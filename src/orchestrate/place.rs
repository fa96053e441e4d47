//! The isolation rule decides where and how a job runs, or why it cannot. Pure: no I/O. The offers of the places come
//! in, a decision goes out.
//!
//! ```text
//!                               the place's own arch        another arch, or a kernel of its own is asked for
//!   foreign = "vm"              shared kernel               a virtual machine, or refused (`no_vm`)
//!   foreign = "namespace"       shared kernel               shared kernel, and the job says so
//! ```
//!
//! Of several suitable places, a job takes one of its own architecture before one that emulates it, then the kind of
//! sandbox that `drivers` in `[isolation]` names first, a virtual machine that the CPU runs before an emulated one, and
//! then the one with the fewest jobs for each CPU. A suitable place that cannot be had, and would not have been the worse
//! one, is passed over, which the job's record says.

use std::cmp::Reverse;

use kiln_records::{
    Code, Failure, Run, ServerId,
    arch::Arch,
    run::{DriverKind, How, Kernel, LOCAL, PassedOver, Refused},
    twins::no_twins_between,
};

use serde::{Deserialize, Serialize};

use crate::{
    config::{ForeignIsolation, IsolationSettings},
    sandbox::Machine,
};

/// A job's requirements of a place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Wish {
    /// The image's architecture.
    pub arch: Arch,
    /// Whether it gets a kernel of its own whatever its architecture, as recipes with `require_dkms` do.
    pub own_kernel: bool,
}

/// The sandboxes that a place offers.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
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
    /// Its name; [`LOCAL`] is a server's own host.
    pub name: &'a str,
    /// The server that has it for itself, and the name of that server's host, which is empty for this one.
    pub host: Option<(ServerId, &'a str)>,
    /// The driver of its sandboxes on its own kernel, and that of sandboxes with a kernel each.
    pub drivers: (DriverKind, DriverKind),
    /// Whether the site has configured it to make virtual machines.
    pub has_machines: bool,
    /// Its offers.
    pub offers: &'a Offers,
    /// Whether it has ever made sandboxes on its own kernel, and virtual machines, as far as its server remembers.
    pub worked: (bool, bool),
    /// The number of jobs that run or will run there, and its CPUs.
    pub load: (u32, u32),
}

impl Candidate<'_> {
    /// Its name, as this server says it.
    fn shown_name(&self) -> String {
        match self.host {
            None | Some((_, "")) => self.name.to_owned(),
            Some((_, host)) if self.name == LOCAL => host.to_owned(),
            Some((_, host)) => format!("{} of {host}", self.name),
        }
    }
}

/// A decision, with its reason.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Placement {
    /// The name of the place.
    pub place: String,
    /// The server that has it for itself.
    pub host: Option<ServerId>,
    /// The driver that makes the sandbox.
    pub driver: DriverKind,
    /// How the programs of the image's architecture run.
    pub how: How,
    /// One sentence for the user.
    pub why: String,
    /// The places that would not have been worse, and could not be had.
    pub passed_over: Vec<PassedOver>,
}

impl Placement {
    /// Notes the decision in the job's row.
    ///
    /// # Errors
    ///
    /// When the job no longer waits.
    pub fn note_in(&self, run: &mut Run) -> Result<(), Refused> {
        run.place((&self.place, self.host), self.driver, self.how, &self.why)?;
        run.plan.passed_over.clone_from(&self.passed_over);
        Ok(())
    }
}

/// A kind of sandbox at a place that suits a job, whether it can be had or not.
#[derive(Debug, Clone, Copy)]
struct Choice<'a> {
    candidate: &'a Candidate<'a>,
    kernel: Kernel,
}

impl<'a> Choice<'a> {
    /// All that suit the job, including those that the site does not allow.
    fn all(wish: Wish, rule: &IsolationSettings, places: &'a [Candidate<'a>]) -> Vec<Self> {
        let of = |candidate| {
            let kernels = kernels_for(wish, rule.foreign, candidate);
            kernels.iter().map(move |kernel| Choice {
                candidate,
                kernel: *kernel,
            })
        };
        places.iter().flat_map(of).collect()
    }

    fn driver(&self) -> DriverKind {
        match self.kernel {
            Kernel::Shared => self.candidate.drivers.0,
            Kernel::Own => self.candidate.drivers.1,
        }
    }

    /// Why it cannot be had.
    fn lack(&self) -> Option<&'a Failure> {
        let offers = self.candidate.offers;
        match self.kernel {
            Kernel::Shared => offers.shared_kernel.as_ref().err(),
            Kernel::Own => offers.own_kernel.as_ref().err(),
        }
    }

    /// Whether it could be had before.
    fn worked(&self) -> bool {
        match self.kernel {
            Kernel::Shared => self.candidate.worked.0,
            Kernel::Own => self.candidate.worked.1,
        }
    }

    /// Whether the site wants sandboxes of this kind there.
    fn is_meant(&self, rule: &IsolationSettings) -> bool {
        self.kernel == Kernel::Shared || self.candidate.has_machines || rule.drivers.contains(&self.driver())
    }

    /// The lower, the better. Without an order of the site's, no more isolation is taken than is needed, and machines are those
    /// that the site has configured.
    fn rank(&self, wish: Wish, rule: &IsolationSettings) -> (bool, usize, bool, bool) {
        let named = rule.drivers.iter().position(|driver| *driver == self.driver());
        let machine = self.candidate.offers.own_kernel.as_ref().ok();
        (
            how(wish, self.candidate) == How::Emulated,
            named.unwrap_or(usize::from(self.kernel == Kernel::Own)),
            self.kernel == Kernel::Own && !self.candidate.has_machines,
            self.kernel == Kernel::Own && machine.is_some_and(|machine| !machine.accelerated),
        )
    }

    fn load(&self) -> (u64, Reverse<u32>) {
        let (jobs, cpus) = self.candidate.load;
        (u64::from(jobs) * 1000 / u64::from(cpus.max(1)), Reverse(cpus))
    }
}

/// Decides where a job runs.
///
/// # Errors
///
/// `no_vm` when the job needs a virtual machine and no place has one; `no_place` when no place can make a sandbox at
/// all.
pub fn place(wish: Wish, rule: &IsolationSettings, places: &[Candidate<'_>]) -> Result<Placement, Failure> {
    let choices = Choice::all(wish, rule, places);
    let allowed = || choices.iter().filter(|choice| rule.allows(choice.driver()));
    let best = allowed()
        .filter(|choice| choice.lack().is_none())
        .min_by_key(|choice| (choice.rank(wish, rule), choice.load()));
    let Some(best) = best else {
        return Err(refusal(wish, rule, places, &choices));
    };
    let passed_over = allowed().filter_map(|choice| {
        let lack = choice.lack()?;
        let order = choice.rank(wish, rule).cmp(&best.rank(wish, rule));
        // A place as good as the best is not worth waiting for.
        let is_unseen = lack.code == Code::NotLookedAt;
        (choice.is_meant(rule) && (order.is_lt() || (order.is_eq() && !is_unseen))).then(|| PassedOver {
            place: choice.candidate.shown_name(),
            driver: choice.driver(),
            code: lack.code,
            why: lack.detail.clone(),
        })
    });
    let how = how(wish, best.candidate);
    Ok(Placement {
        place: best.candidate.name.to_owned(),
        host: best.candidate.host.map(|(host, _)| host),
        driver: best.driver(),
        how,
        why: why(wish, how, best),
        passed_over: passed_over.collect(),
    })
}

/// Why a place that would do cannot be had now, if one is only away, or has worked before: a job can wait for it.
pub fn away(wish: Wish, rule: &IsolationSettings, places: &[Candidate<'_>]) -> Option<String> {
    let choices = Choice::all(wish, rule, places);
    let mut wanted = choices
        .iter()
        .filter(|choice| rule.allows(choice.driver()) && choice.is_meant(rule));
    wanted.find_map(|choice| {
        let lack = choice.lack()?;
        // What was never looked at may be anything.
        let is_away = lack.code.is_passing() && lack.code != Code::NotLookedAt;
        if !is_away && !choice.worked() {
            return None;
        }
        Some(format!("{}: {}", choice.candidate.shown_name(), lack.detail))
    })
}

/// Whose kernel the job may have at a place, the usual one first.
fn kernels_for(wish: Wish, foreign: ForeignIsolation, candidate: &Candidate<'_>) -> &'static [Kernel] {
    if reason(wish, candidate).is_none() {
        // More isolation than was requested does no harm.
        return &[Kernel::Shared, Kernel::Own];
    }
    match foreign {
        ForeignIsolation::Vm => &[Kernel::Own],
        ForeignIsolation::Namespace => &[Kernel::Shared],
    }
}

fn how(wish: Wish, candidate: &Candidate<'_>) -> How {
    if wish.arch == candidate.offers.arch {
        How::Native
    } else {
        How::Emulated
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

fn why(wish: Wish, how: How, choice: &Choice<'_>) -> String {
    let Choice { candidate, kernel } = *choice;
    let at = match candidate.shown_name() {
        name if name == LOCAL => String::new(),
        name => format!(" at {name}"),
    };
    let place = match choice.driver() {
        DriverKind::Namespace => "a sandbox of namespaces",
        DriverKind::Docker => "a container",
        DriverKind::Kubernetes => "a pod",
        DriverKind::Microvm | DriverKind::Kata | DriverKind::KubernetesVm => "a virtual machine of its own",
    };
    let begin = format!("{}: {}{at}, in {place}", wish.arch, how.name());
    let no_twins = match how {
        How::Emulated => no_twins_between(wish.arch, candidate.offers.arch).map(|why| format!("; {why}")),
        How::Native => None,
    };
    let begin = match (kernel, reason(wish, candidate), &candidate.offers.own_kernel) {
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
    };
    begin + &no_twins.unwrap_or_default()
}

/// Why no place will do.
fn refusal(wish: Wish, rule: &IsolationSettings, places: &[Candidate<'_>], choices: &[Choice<'_>]) -> Failure {
    let native = places.iter().any(|candidate| how(wish, candidate) == How::Native);
    let needs_machine = rule.foreign == ForeignIsolation::Vm && (!native || wish.own_kernel);
    let usual = if needs_machine { Kernel::Own } else { Kernel::Shared };
    let whys: Vec<_> = choices
        .iter()
        .filter(|choice| choice.kernel == usual || !rule.drivers.is_empty())
        .filter_map(|choice| {
            let name = match choice.candidate.name {
                LOCAL => "this host",
                name => name,
            };
            let why = match choice.lack() {
                _ if !rule.allows(choice.driver()) => {
                    format!("`{}` is not among `drivers` in [isolation]", choice.driver().name())
                }
                Some(lack) => lack.detail.clone(),
                None => return None,
            };
            Some(format!("{name}: {why}"))
        })
        .collect();
    let whys = whys.join("; ");
    if !needs_machine {
        return Failure::new(Code::NoPlace, format!("no place can run this job ({whys})"))
            .hint("`kiln doctor` says what is missing");
    }
    let reason = places.iter().find_map(|candidate| reason(wish, candidate));
    let reason = reason.unwrap_or_else(|| wish.arch.to_string());
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
            host: None,
            drivers: (DriverKind::Namespace, DriverKind::Microvm),
            has_machines: true,
            offers,
            worked: (false, false),
            load: (jobs, 2),
        }
    }

    fn rule(foreign: ForeignIsolation, drivers: &[DriverKind]) -> IsolationSettings {
        IsolationSettings {
            foreign,
            drivers: drivers.to_vec(),
            ..IsolationSettings::default()
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
                                let placement = place(
                                    Wish { arch, own_kernel },
                                    &rule(foreign, &[]),
                                    &[candidate(LOCAL, &offers, 0)],
                                );
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
        let placement = place(arm, &rule(ForeignIsolation::Vm, &[]), &places).unwrap();
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
        let placement = place(dkms, &rule(ForeignIsolation::Vm, &[]), &places).unwrap();
        assert_eq!(
            (placement.place.as_str(), placement.driver),
            (LOCAL, DriverKind::Microvm)
        );
    }

    #[test]
    fn a_job_that_can_have_no_twins_says_what_that_costs() {
        let here = offers(Arch::X86_64, true, None);
        let places = [candidate(LOCAL, &here, 0)];
        let why = |arch| {
            let wish = Wish {
                arch,
                own_kernel: false,
            };
            place(wish, &rule(ForeignIsolation::Namespace, &[]), &places)
                .unwrap()
                .why
        };
        let told = "; s390x and x86_64 have different byte orders, so everything is emulated: expect about 9.5 times \
                    the CPU time of a native build";
        assert!(why(Arch::S390x).ends_with(told), "{}", why(Arch::S390x));
        assert!(!why(Arch::Riscv64).contains("expect"), "{}", why(Arch::Riscv64));
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
            let placement = place(wish, &rule(ForeignIsolation::Vm, &[]), &places).unwrap();
            jobs[names.iter().position(|name| *name == placement.place).unwrap()] += 1;
        }
        assert_eq!(jobs, [3, 2, 2]);
    }

    #[test]
    fn the_machines_that_the_site_has_configured_come_first() {
        let offers = offers(Arch::X86_64, true, Some(false));
        let own = Candidate {
            has_machines: false,
            ..candidate(LOCAL, &offers, 0)
        };
        let kata = Candidate {
            load: (9, 2),
            ..broken_kata(&offers)
        };
        let placement = place(ARM, &rule(ForeignIsolation::Vm, &[]), &[own.clone(), kata.clone()]).unwrap();
        assert_eq!(placement.driver, DriverKind::Kata);
        // Other jobs take no machine, and an order of the site's goes before.
        let native = Wish {
            arch: Arch::X86_64,
            own_kernel: false,
        };
        let placement = place(native, &rule(ForeignIsolation::Vm, &[]), &[own.clone(), kata.clone()]).unwrap();
        assert_eq!(placement.driver, DriverKind::Namespace);
        let order = [DriverKind::Microvm, DriverKind::Kata];
        let placement = place(ARM, &rule(ForeignIsolation::Vm, &order), &[own, kata]).unwrap();
        assert_eq!(placement.driver, DriverKind::Microvm);
    }

    #[test]
    fn a_job_waits_for_a_place_that_has_worked_and_is_refused_at_one_that_never_did() {
        let offers = offers(Arch::X86_64, true, None);
        let rule = rule(ForeignIsolation::Vm, &[]);
        let kata = |worked| Candidate {
            worked,
            ..broken_kata(&offers)
        };
        assert_eq!(away(ARM, &rule, &[kata((true, false))]), None);
        assert_eq!(
            away(ARM, &rule, &[kata((true, true))]).as_deref(),
            Some("docker: no QEMU")
        );
    }

    /// An engine whose Kata is broken, beside a host with a machine.
    fn broken_kata(offers_of_engine: &Offers) -> Candidate<'_> {
        Candidate {
            drivers: (DriverKind::Docker, DriverKind::Kata),
            ..candidate("docker", offers_of_engine, 0)
        }
    }

    const ARM: Wish = Wish {
        arch: Arch::Aarch64,
        own_kernel: false,
    };

    #[test]
    fn a_broken_kata_is_not_passed_over_in_silence() {
        let (host, engine) = (offers(Arch::X86_64, true, Some(true)), offers(Arch::X86_64, true, None));
        let places = [candidate(LOCAL, &host, 0), broken_kata(&engine)];
        let placement = place(ARM, &rule(ForeignIsolation::Vm, &[]), &places).unwrap();
        assert_eq!(placement.driver, DriverKind::Microvm);
        let [passed] = &placement.passed_over[..] else {
            panic!("{placement:?}");
        };
        assert_eq!(
            (passed.place.as_str(), passed.driver, passed.code, passed.why.as_str()),
            ("docker", DriverKind::Kata, Code::NoVm, "no QEMU")
        );
        // An engine that is not meant to have machines is not missed.
        let places = [
            candidate(LOCAL, &host, 0),
            Candidate {
                has_machines: false,
                ..broken_kata(&engine)
            },
        ];
        let placement = place(ARM, &rule(ForeignIsolation::Vm, &[]), &places).unwrap();
        assert_eq!(placement.passed_over, []);
        // A native job misses no machine.
        let native = Wish {
            arch: Arch::X86_64,
            own_kernel: false,
        };
        let places = [candidate(LOCAL, &host, 0), broken_kata(&engine)];
        let placement = place(native, &rule(ForeignIsolation::Vm, &[]), &places).unwrap();
        assert_eq!(placement.passed_over, []);
    }

    #[test]
    fn jobs_go_only_to_the_drivers_of_the_site_and_to_the_first_that_can_be_had() {
        use DriverKind::{Docker, Kata, Microvm, Namespace};
        let good = offers(Arch::X86_64, true, Some(true));
        let broken = offers(Arch::X86_64, false, None);
        let native = Wish {
            arch: Arch::X86_64,
            own_kernel: false,
        };
        let decide = |wish, drivers: &[DriverKind], engine| {
            let places = [candidate(LOCAL, &good, 0), broken_kata(engine)];
            place(wish, &rule(ForeignIsolation::Vm, drivers), &places)
        };
        for (wish, drivers, engine, expected) in [
            (ARM, &[Kata, Microvm][..], &good, Ok(Kata)),
            (ARM, &[Microvm, Kata], &good, Ok(Microvm)),
            (ARM, &[Kata, Microvm], &broken, Ok(Microvm)),
            (ARM, &[Kata], &broken, Err(Code::NoVm)),
            (ARM, &[Namespace, Docker], &good, Err(Code::NoVm)),
            (native, &[Kata, Namespace], &good, Ok(Kata)),
            (native, &[Namespace, Kata], &good, Ok(Namespace)),
            (native, &[Docker], &good, Ok(Docker)),
            (native, &[Docker, Kata], &broken, Err(Code::NoPlace)),
        ] {
            let decided = decide(wish, drivers, engine);
            let found = decided.as_ref().map(|placement| placement.driver);
            assert_eq!(
                found.map_err(|failure| failure.code),
                expected,
                "{drivers:?}: {decided:?}"
            );
        }
        let fallen_back = decide(ARM, &[Kata, Microvm], &broken).unwrap();
        assert_eq!(fallen_back.passed_over.len(), 1, "{fallen_back:?}");
        let refused = decide(ARM, &[Kata], &broken).unwrap_err().detail;
        assert!(refused.contains("`microvm` is not among `drivers`"), "{refused}");
        // A native place is better than any order.
        let there = offers(Arch::Aarch64, true, None);
        let places = [candidate(LOCAL, &good, 0), broken_kata(&there)];
        let placement = place(ARM, &rule(ForeignIsolation::Vm, &[Microvm, Docker]), &places).unwrap();
        assert_eq!((placement.driver, placement.how), (Docker, How::Native));
    }
}
