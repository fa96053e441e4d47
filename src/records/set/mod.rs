//! Image sets: one image for each of several architectures, under one name and version. Types. Pure: no I/O.
//!
//! A set holds what was asked for and what was found out: the jobs that were made, and the manifests that were read. What
//! follows from these for the whole is in [`state`], and nowhere else.
//!
//! The id of a job is chosen before the job exists, and is stored with the set. So a set whose server died half-way leads
//! to the same jobs, made by another server.

pub mod check;
pub mod ipxe;
pub mod name;
pub mod openstack;
pub mod promotion;
pub mod state;

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use super::{ImageId, JobId, Moment, PublicKeyId, RecipeId, ServerId, SetId, job::JobOptions, run::How};
use crate::arch::Arch;

/// The most attempts that a set remembers for each architecture.
pub const MOST_ATTEMPTS: usize = 20;

/// The longest limit of time for the job of an architecture, in seconds: a month.
pub const LONGEST_LIMIT_S: u32 = 31 * 24 * 3600;

/// A set, as it is stored.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ImageSet {
    /// Its id.
    pub id: SetId,
    /// The time of its creation.
    pub created: Moment,
    /// Its name, which its versions share.
    pub name: String,
    /// Its version, unique among the sets of that name.
    pub version: String,
    /// The public key of its jobs.
    pub public_key_id: Option<PublicKeyId>,
    /// The options of its jobs.
    pub options: JobOptions,
    /// The user who made it, if known.
    #[serde(default)]
    pub by: Option<String>,
    /// Its architectures, each once, in the order of [`Arch`].
    pub members: Vec<Member>,
    /// What each of its images needs before it counts as complete.
    #[serde(default)]
    pub requires: Vec<Requirement>,
    /// Whether it was complete when it was last looked at: the catalogue searches by this, and then looks again.
    pub was_complete: bool,
    /// Since when it has been complete without a break, as far as that was noticed.
    #[serde(default)]
    pub complete_since: Option<Moment>,
    /// What there was to tell receivers of webhooks last.
    #[serde(default)]
    pub told: Option<Told>,
    /// When it is to be looked at again.
    pub next_look: Moment,
}

/// What there was to tell of a set.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Told {
    /// The number of times that there was something new.
    pub number: u32,
    /// A short name of the fact.
    pub fact: String,
}

impl ImageSet {
    /// The name of the image of an architecture.
    pub fn image_name(&self, arch: Arch) -> String {
        format!("{}-{}.{arch}", self.name, self.version)
    }

    /// The images that this set has in place of those that it had `before`: a text for each architecture with another one.
    pub fn other_images(&self, before: &Self) -> Vec<String> {
        let of = |set: &Self, arch: Arch| {
            let member = set.members.iter().find(|member| member.arch == arch);
            member.and_then(|member| member.image.as_ref()).map(|image| image.id)
        };
        let archs: BTreeSet<_> = self
            .members
            .iter()
            .chain(&before.members)
            .map(|member| member.arch)
            .collect();
        let others = archs.into_iter().map(|arch| (arch, of(before, arch), of(self, arch)));
        let text = |(arch, was, is): (Arch, Option<ImageId>, Option<ImageId>)| match (was, is) {
            (was, is) if was == is => None,
            (None, Some(is)) => Some(format!("{arch}: {is}")),
            (Some(was), Some(is)) => Some(format!("{arch}: {is} in place of {was}")),
            (Some(was), None) => Some(format!("{arch}: none in place of {was}")),
            (None, None) => None,
        };
        others.filter_map(text).collect()
    }

    /// The latest job of an architecture.
    pub fn job_of(&self, arch: Arch) -> Option<JobId> {
        let member = self.members.iter().find(|member| member.arch == arch)?;
        member.last().map(|attempt| attempt.job_id)
    }
}

/// What an image needs to be good enough for a set, or for a channel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum Requirement {
    /// A boot check of exactly this content, in which it came up.
    Boot,
    /// Provenance that is signed with this site's key and names this content.
    Signature,
}

impl Requirement {
    /// Each of them.
    pub const ALL: [Self; 2] = [Self::Boot, Self::Signature];

    /// Its name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Boot => "boot",
            Self::Signature => "signature",
        }
    }
}

/// One architecture of a set.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Member {
    /// The architecture.
    pub arch: Arch,
    /// Whether the set is incomplete without it. Otherwise it is non-voting.
    pub required: bool,
    /// The recipe that its jobs build; none where an image was given, or a command built an archive of its own.
    pub recipe_id: Option<RecipeId>,
    /// How long an attempt of its job may take from its launch, in seconds.
    pub time_limit_s: Option<u32>,
    /// The jobs that were asked for, the latest last.
    pub attempts: Vec<Attempt>,
    /// Its image, once there is one.
    pub image: Option<SetImage>,
}

impl Member {
    /// The latest attempt.
    pub fn last(&self) -> Option<&Attempt> {
        self.attempts.last()
    }

    /// Asks for another job, with an id that is chosen now. Its image is to be that job's.
    pub fn ask(&mut self, now: Moment) {
        if self.attempts.len() >= MOST_ATTEMPTS {
            self.attempts.remove(0);
        }
        self.image = None;
        self.attempts.push(Attempt::new(now));
    }
}

/// A job of a set.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Attempt {
    /// The job's id, chosen before the job exists.
    pub job_id: JobId,
    /// When it was asked for.
    pub asked: Moment,
    /// How far it got.
    pub state: AttemptState,
    /// The image that it is to make, once that is known.
    #[serde(default)]
    pub image_id: Option<ImageId>,
    /// How its programs ran, once that is known.
    #[serde(default)]
    pub how: Option<How>,
    /// How long it took from its launch to its end, in seconds.
    #[serde(default)]
    pub seconds: Option<u64>,
}

impl Attempt {
    fn new(asked: Moment) -> Self {
        Self {
            job_id: JobId::new(),
            asked,
            state: AttemptState::Making { why: None },
            image_id: None,
            how: None,
            seconds: None,
        }
    }
}

/// How far an attempt got.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "is")]
pub enum AttemptState {
    /// The job is to be made, and need not exist yet.
    Making {
        /// Why it could not be made so far.
        why: Option<String>,
    },
    /// The job was made.
    Made,
    /// The job could not be made.
    Refused {
        /// The reason.
        why: String,
    },
    /// The job has ended without an image.
    Failed {
        /// The reason.
        why: String,
    },
    /// The job has ended with an image.
    Succeeded,
}

/// The image of an architecture, and what was found when its manifest was read.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SetImage {
    /// The image.
    pub id: ImageId,
    /// What its manifest was when it was first read; none before that.
    pub proof: Option<Proof>,
    /// What the last look at the manifest found.
    pub seen: Seen,
    /// When that was.
    pub looked: Option<Moment>,
    /// What that look missed of that which the set requires.
    #[serde(default)]
    pub lacks: Vec<String>,
    /// The server that is to boot it, while a boot check is missing.
    #[serde(default)]
    pub boot: Option<BootTurn>,
}

/// A server's turn to boot an image.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct BootTurn {
    /// The server.
    pub server: ServerId,
    /// When the turn ends, whatever has become of the server.
    pub until: Moment,
    /// Why the server cannot boot it; none while it still may.
    pub why_not: Option<String>,
}

impl SetImage {
    /// An image that nobody has looked at.
    pub fn new(id: ImageId) -> Self {
        Self {
            id,
            proof: None,
            seen: Seen::NotYet,
            looked: None,
            lacks: Vec::new(),
            boot: None,
        }
    }
}

/// A manifest that was read, and whose objects were all there.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Proof {
    /// Its path: `s3://bucket/key`.
    pub path: String,
    /// SHA-256 of its bytes, lower-case hexadecimal.
    pub sha256: String,
    /// The files that it names.
    pub files: Vec<ImageFile>,
}

/// A file of an image.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct ImageFile {
    /// Its name in addresses: the last part of its key for the artifacts that Kiln knows.
    pub name: String,
    /// Its media type.
    pub media_type: String,
    /// Where it is: `s3://bucket/key`.
    pub path: String,
    /// SHA-256 of its content, lower-case hexadecimal, if its manifest has it.
    pub sha256: Option<String>,
    /// Its size in bytes, if its manifest has it.
    pub size: Option<u64>,
}

/// What the last look at a manifest found.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "is")]
pub enum Seen {
    /// There was no look yet.
    NotYet,
    /// The manifest is the one of the proof, and all of its objects are there.
    Same,
    /// The manifest is another one.
    Changed {
        /// SHA-256 of its bytes.
        sha256: String,
    },
    /// The manifest cannot be used, or one of its objects is not there.
    Unusable {
        /// The reason.
        why: String,
    },
    /// S3 did not say.
    Unknown {
        /// The reason.
        why: String,
    },
}
