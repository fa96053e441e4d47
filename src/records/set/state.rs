//! Derives the state of a set from what is known of its jobs and images: the one place that does. Pure: no I/O.
//!
//! ```text
//!  missing ──▶ waiting ──▶ building ──▶ verifying ──▶ complete
//!     ▲                        │            │           │  ▲
//!     └── failed ◀─────────────┘            ▼           ▼  │
//!                       unverified, booting, lacking   deleted, changed, unusable
//! ```
//!
//! Only a manifest that was read makes an architecture complete: neither the word of a job, nor a name, nor a version does.
//! A question that nobody answered is `unverified`, which is not complete either.

use serde::{Deserialize, Serialize};

use super::{AttemptState, ImageSet, Member, Seen, SetImage};
use crate::arch::Arch;

/// What the records say now about an architecture of a set.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Facts {
    /// The job of its latest attempt, if that attempt has not ended.
    pub job: Option<JobFact>,
    /// The record of its image, if it has one.
    pub image: Option<ImageFact>,
}

/// What the records say about a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum JobFact {
    /// It waits for its turn.
    Waiting,
    /// It is being carried out.
    Running,
    /// It has ended, and what became of it is not noted yet.
    Over,
    /// There is no such job.
    Gone,
}

/// What the records say about an image.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ImageFact {
    /// It is in use.
    Live {
        /// The path of its manifest, if it has one.
        path: Option<String>,
        /// Its architecture.
        arch: Arch,
    },
    /// It is deleted and can be restored.
    Deleted,
    /// There is no such image.
    Gone,
}

/// The state of an architecture in a set.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum ArchState {
    /// Nothing was asked for.
    Missing,
    /// Its job is to be made, or waits for its turn.
    Waiting,
    /// Its job is being carried out.
    Building,
    /// Its image was made or given, and its manifest is still to be read.
    Verifying,
    /// Its manifest was read, and all objects of its image are there.
    Complete,
    /// Its manifest was read, and a server is to boot its image, or does so, since the set requires that.
    Booting,
    /// Its manifest was read, and its image lacks something that the set requires.
    Lacking,
    /// S3 did not answer when its manifest was to be read.
    Unverified,
    /// Its job has failed, or could not be made.
    Failed,
    /// Its image was deleted.
    Deleted,
    /// Its image is not what was verified.
    Changed,
    /// Its manifest cannot be used, or an object of its image is not there.
    Unusable,
}

impl ArchState {
    /// Every state.
    pub const ALL: [Self; 12] = [
        Self::Missing,
        Self::Waiting,
        Self::Building,
        Self::Verifying,
        Self::Complete,
        Self::Booting,
        Self::Lacking,
        Self::Unverified,
        Self::Failed,
        Self::Deleted,
        Self::Changed,
        Self::Unusable,
    ];

    /// Its name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Missing => "missing",
            Self::Waiting => "waiting",
            Self::Building => "building",
            Self::Verifying => "verifying",
            Self::Complete => "complete",
            Self::Booting => "booting",
            Self::Lacking => "lacking",
            Self::Unverified => "unverified",
            Self::Failed => "failed",
            Self::Deleted => "deleted",
            Self::Changed => "changed",
            Self::Unusable => "unusable",
        }
    }

    /// Whether it is still to get on by itself.
    pub const fn is_under_way(self) -> bool {
        matches!(self, Self::Waiting | Self::Building | Self::Verifying | Self::Booting)
    }

    /// Whether another job is what it needs. That S3 is away is no reason to build anything again, and neither is an image
    /// that was not booted yet.
    pub const fn needs_a_job(self) -> bool {
        matches!(
            self,
            Self::Missing | Self::Failed | Self::Deleted | Self::Changed | Self::Unusable
        )
    }
}

/// The state of an architecture, and the reason for it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Judged {
    /// The state.
    pub state: ArchState,
    /// The reason, for any state that is not on the way to completeness.
    pub why: Option<String>,
}

/// The state of a whole set.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum SetState {
    /// Every required architecture is complete.
    Complete,
    /// Some required architecture is still under way.
    Building,
    /// Nothing is under way, and some required architecture has no usable image, or one that lacks something.
    Incomplete,
    /// Some required architecture could not be looked at, and nothing worse is known.
    Unverified,
}

impl SetState {
    /// Its name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Complete => "complete",
            Self::Building => "building",
            Self::Incomplete => "incomplete",
            Self::Unverified => "unverified",
        }
    }
}

/// The state of an architecture.
pub fn of_member(member: &Member, facts: &Facts) -> Judged {
    match &member.image {
        Some(image) => {
            let proof = image.proof.as_ref();
            let pinned = proof.map_or("", |proof| proof.sha256.as_str());
            match (&facts.image, &image.seen) {
                (None | Some(ImageFact::Gone), _) => {
                    judged(ArchState::Deleted, format!("the image {} is gone for good", image.id))
                }
                (Some(ImageFact::Deleted), _) => judged(
                    ArchState::Deleted,
                    format!(
                        "the image {} was deleted; `kiln deleted images undelete` restores it",
                        image.id
                    ),
                ),
                (Some(ImageFact::Live { arch, .. }), _) if *arch != member.arch => judged(
                    ArchState::Changed,
                    format!("the image {} is one for {arch} now", image.id),
                ),
                (Some(ImageFact::Live { path: None, .. }), _) => {
                    judged(ArchState::Unusable, format!("the image {} has no manifest", image.id))
                }
                (Some(ImageFact::Live { path, .. }), _)
                    if proof.is_some_and(|proof| path.as_deref() != Some(proof.path.as_str())) =>
                {
                    judged(
                        ArchState::Changed,
                        format!("the image {} has another manifest now", image.id),
                    )
                }
                (_, Seen::Same) if proof.is_some() && !image.lacks.is_empty() => lacking(image),
                (_, Seen::Same) if proof.is_some() => ArchState::Complete.into(),
                (_, Seen::Same | Seen::NotYet) => ArchState::Verifying.into(),
                (_, Seen::Changed { sha256 }) => judged(
                    ArchState::Changed,
                    format!("the manifest's SHA-256 is {sha256}; verified was {pinned}"),
                ),
                (_, Seen::Unusable { why }) => judged(ArchState::Unusable, why.clone()),
                (_, Seen::Unknown { why }) => judged(ArchState::Unverified, why.clone()),
            }
        }
        None => match member.last().map(|attempt| &attempt.state) {
            None => judged(
                ArchState::Missing,
                "no job was asked for, and no image given".to_owned(),
            ),
            Some(AttemptState::Making { why }) => Judged {
                state: ArchState::Waiting,
                why: why.clone(),
            },
            Some(AttemptState::Refused { why } | AttemptState::Failed { why }) => {
                judged(ArchState::Failed, why.clone())
            }
            Some(AttemptState::Succeeded) => ArchState::Verifying.into(),
            Some(AttemptState::Made) => match facts.job {
                Some(JobFact::Waiting) => ArchState::Waiting.into(),
                Some(JobFact::Running) => ArchState::Building.into(),
                Some(JobFact::Over) => ArchState::Verifying.into(),
                None | Some(JobFact::Gone) => judged(ArchState::Failed, "its job was deleted".to_owned()),
            },
        },
    }
}

/// The state of a set, from whether each architecture is required, and its state. A set without a required architecture
/// is never complete.
pub fn of_set(members: impl IntoIterator<Item = (bool, ArchState)>) -> SetState {
    let required: Vec<ArchState> = members
        .into_iter()
        .filter_map(|(required, state)| required.then_some(state))
        .collect();
    if !required.is_empty() && required.iter().all(|state| *state == ArchState::Complete) {
        SetState::Complete
    } else if required.iter().any(|state| state.is_under_way()) {
        SetState::Building
    } else if required.is_empty()
        || required
            .iter()
            .any(|state| state.needs_a_job() || *state == ArchState::Lacking)
    {
        SetState::Incomplete
    } else {
        SetState::Unverified
    }
}

/// What is to be said about a set in addition to its state: each architecture that is not complete, and why.
pub fn remarks(set: &ImageSet, judged: &[Judged]) -> Vec<String> {
    let pairs = set.members.iter().zip(judged);
    let lacking = pairs.filter(|(_, judged)| judged.state != ArchState::Complete);
    lacking
        .map(|(member, judged)| {
            let voting = if member.required { "" } else { " (non-voting)" };
            let why = judged.why.as_deref().map(|why| format!(": {why}")).unwrap_or_default();
            format!("{}{voting} is {}{why}", member.arch, judged.state.name())
        })
        .collect()
}

/// The state of an image that is as it was verified, and lacks something.
fn lacking(image: &SetImage) -> Judged {
    let lacks = image.lacks.join("; ");
    match image.boot.as_ref().map(|turn| turn.why_not.as_ref()) {
        Some(None) => ArchState::Booting.into(),
        Some(Some(why)) => judged(
            ArchState::Lacking,
            format!("{lacks}; the server could not boot it: {why}"),
        ),
        None => judged(ArchState::Lacking, lacks),
    }
}

fn judged(state: ArchState, why: String) -> Judged {
    Judged { state, why: Some(why) }
}

impl From<ArchState> for Judged {
    fn from(state: ArchState) -> Self {
        Self { state, why: None }
    }
}

#[cfg(test)]
mod tests;
