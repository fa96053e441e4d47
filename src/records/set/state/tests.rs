use proptest::prelude::*;

use super::*;
use crate::{
    ImageId, Moment,
    set::{BootTurn, Proof, SetImage},
};

const PATH: &str = "s3://boot-images/i/manifest.json";

fn member(required: bool) -> Member {
    Member {
        arch: Arch::Aarch64,
        required,
        recipe_id: None,
        time_limit_s: None,
        attempts: Vec::new(),
        image: None,
    }
}

/// An architecture whose image was verified, and then seen like this.
fn with_image(seen: Seen) -> Member {
    let mut image = SetImage::new(ImageId::new());
    image.proof = Some(Proof {
        path: PATH.to_owned(),
        sha256: "ab".repeat(32),
        files: Vec::new(),
    });
    image.seen = seen;
    Member {
        image: Some(image),
        ..member(true)
    }
}

fn with_attempt(state: AttemptState) -> Member {
    let mut member = member(true);
    member.ask(Moment::from_micros(0));
    member.attempts[0].state = state;
    member
}

fn live(path: Option<&str>, arch: Arch) -> Facts {
    Facts {
        image: Some(ImageFact::Live {
            path: path.map(str::to_owned),
            arch,
        }),
        job: None,
    }
}

#[test]
fn only_a_manifest_that_was_read_and_is_still_the_same_is_complete() {
    let good = live(Some(PATH), Arch::Aarch64);
    let why = || "S3 is away".to_owned();
    for (seen, facts, expected) in [
        (Seen::Same, good.clone(), ArchState::Complete),
        (Seen::NotYet, good.clone(), ArchState::Verifying),
        (Seen::Unknown { why: why() }, good.clone(), ArchState::Unverified),
        (Seen::Unusable { why: why() }, good.clone(), ArchState::Unusable),
        (
            Seen::Changed {
                sha256: "cd".repeat(32),
            },
            good,
            ArchState::Changed,
        ),
        (
            Seen::Same,
            live(Some("s3://b/other"), Arch::Aarch64),
            ArchState::Changed,
        ),
        (Seen::Same, live(Some(PATH), Arch::X86_64), ArchState::Changed),
        (Seen::Same, live(None, Arch::Aarch64), ArchState::Unusable),
        (Seen::Same, Facts::default(), ArchState::Deleted),
        (
            Seen::Same,
            Facts {
                image: Some(ImageFact::Deleted),
                job: None,
            },
            ArchState::Deleted,
        ),
        (
            Seen::Same,
            Facts {
                image: Some(ImageFact::Gone),
                job: None,
            },
            ArchState::Deleted,
        ),
    ] {
        let judged = of_member(&with_image(seen.clone()), &facts);
        assert_eq!(judged.state, expected, "{seen:?} {facts:?}");
        let is_good = matches!(expected, ArchState::Complete | ArchState::Verifying);
        assert_eq!(judged.why.is_none(), is_good, "{judged:?}");
    }
    let mut unread = with_image(Seen::Same);
    unread.image.as_mut().unwrap().proof = None;
    let judged = of_member(&unread, &live(Some(PATH), Arch::Aarch64));
    assert_eq!(judged.state, ArchState::Verifying, "nothing was read");
}

#[test]
fn an_image_that_lacks_something_waits_for_its_boot_or_is_named() {
    let good = live(Some(PATH), Arch::Aarch64);
    let judged = |lacks: &[&str], boot: Option<Option<&str>>, seen| {
        let mut member = with_image(seen);
        let image = member.image.as_mut().unwrap();
        image.lacks = lacks.iter().map(|lack| (*lack).to_owned()).collect();
        image.boot = boot.map(|why_not| BootTurn {
            server: crate::ServerId::new(),
            until: Moment::from_micros(0),
            why_not: why_not.map(str::to_owned),
        });
        let Judged { state, why } = of_member(&member, &good);
        (state, why.unwrap_or_default())
    };
    let said = |state, why: &str| (state, why.to_owned());
    assert_eq!(
        judged(&["not booted", "not signed"], None, Seen::Same),
        said(ArchState::Lacking, "not booted; not signed")
    );
    assert_eq!(
        judged(&["not booted"], Some(None), Seen::Same),
        said(ArchState::Booting, "")
    );
    assert_eq!(
        judged(&["not booted"], Some(Some("no emulator")), Seen::Same),
        said(
            ArchState::Lacking,
            "not booted; the server could not boot it: no emulator"
        )
    );
    // What it lacks is of no interest while it is not what was verified.
    let changed = Seen::Changed { sha256: String::new() };
    assert_eq!(judged(&["not booted"], Some(None), changed).0, ArchState::Changed);
    assert_eq!(of_set([(true, ArchState::Lacking)]), SetState::Incomplete);
    assert_eq!(
        of_set([(true, ArchState::Lacking), (true, ArchState::Booting)]),
        SetState::Building
    );
    assert!(!ArchState::Lacking.needs_a_job() && !ArchState::Booting.needs_a_job());
}

#[test]
fn a_job_alone_completes_nothing() {
    let job = |job| Facts {
        job: Some(job),
        image: None,
    };
    let made = with_attempt(AttemptState::Made);
    assert_eq!(of_member(&made, &job(JobFact::Waiting)).state, ArchState::Waiting);
    assert_eq!(of_member(&made, &job(JobFact::Running)).state, ArchState::Building);
    assert_eq!(of_member(&made, &job(JobFact::Over)).state, ArchState::Verifying);
    assert_eq!(of_member(&made, &job(JobFact::Gone)).state, ArchState::Failed);
    let ended = with_attempt(AttemptState::Succeeded);
    assert_eq!(of_member(&ended, &Facts::default()).state, ArchState::Verifying);
    let failed = with_attempt(AttemptState::Failed { why: "no".to_owned() });
    assert_eq!(of_member(&failed, &Facts::default()).state, ArchState::Failed);
    assert_eq!(of_member(&member(true), &Facts::default()).state, ArchState::Missing);
}

#[test]
fn a_failed_non_voting_architecture_leaves_the_set_complete_and_is_named() {
    let members = [(true, ArchState::Complete), (false, ArchState::Failed)];
    assert_eq!(of_set(members), SetState::Complete);
    let mut set = ImageSet {
        id: crate::SetId::new(),
        created: Moment::from_micros(0),
        name: "n".to_owned(),
        version: "1".to_owned(),
        public_key_id: None,
        options: crate::job::JobOptions::default(),
        by: None,
        members: vec![with_image(Seen::Same), with_attempt(AttemptState::Made)],
        requires: Vec::new(),
        was_complete: false,
        complete_since: None,
        told: None,
        next_look: Moment::from_micros(0),
    };
    set.members[1].required = false;
    set.members[1].arch = Arch::Riscv64;
    let judged = [
        ArchState::Complete.into(),
        super::judged(ArchState::Failed, "no such package".to_owned()),
    ];
    assert_eq!(
        remarks(&set, &judged),
        ["riscv64 (non-voting) is failed: no such package"]
    );
}

#[test]
fn a_set_without_a_required_architecture_is_never_complete() {
    assert_eq!(of_set([]), SetState::Incomplete);
    assert_eq!(of_set([(false, ArchState::Complete)]), SetState::Incomplete);
}

fn any_state() -> impl Strategy<Value = ArchState> {
    prop::sample::select(ArchState::ALL.to_vec())
}

proptest! {
    /// Whatever the states are: complete means that each required architecture is, and one more that is not complete
    /// ends it. So a set that grows at the same version is not complete until the image of what was added is there.
    #[test]
    fn complete_is_what_every_required_architecture_is(
        members in prop::collection::vec((any::<bool>(), any_state()), 0..6),
        more in any_state(),
    ) {
        let complete = of_set(members.clone()) == SetState::Complete;
        let required: Vec<_> = members.iter().filter(|(required, _)| *required).collect();
        let all = !required.is_empty() && required.iter().all(|(_, state)| *state == ArchState::Complete);
        prop_assert_eq!(complete, all);
        let grown = members.iter().copied().chain([(true, more)]);
        let still = of_set(grown) == SetState::Complete;
        let only = required.is_empty();
        prop_assert_eq!(still, (complete || only) && more == ArchState::Complete);
        // The order of architectures and those without a vote change nothing.
        let mut other: Vec<_> = members.clone();
        other.reverse();
        other.push((false, more));
        prop_assert_eq!(of_set(other), of_set(members));
    }

    /// No state is both under way and in need of a job, and a complete one is neither.
    #[test]
    fn what_is_under_way_is_not_asked_for_again(state in any_state()) {
        prop_assert!(!(state.is_under_way() && state.needs_a_job()));
        if matches!(state, ArchState::Complete | ArchState::Unverified) {
            prop_assert!(!state.is_under_way() && !state.needs_a_job());
        }
    }
}
