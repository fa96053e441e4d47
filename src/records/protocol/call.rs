//! Calls of the agent and the server's answers.

use serde::{Deserialize, Serialize};

use super::{Event, JobDescription};
use crate::records::{ArtifactKind, Digests, Failure, Verdict};

/// What an agent can ask of its server, for its own job only. Every call may be repeated: an agent that lost the answer
/// asks again.
#[derive(Debug, Clone)]
pub enum Call {
    /// What am I to do? Answered by [`Answer::Job`].
    GetJob(JobQuery),
    /// Here is what happened, in order. Answered by [`Answer::Events`] once kept. A batch without events says that the
    /// agent is alive.
    PostEvents(EventBatch),
    /// I am about to send an object of this size. Answered by [`Answer::Upload`].
    CreateUpload(NewUpload),
    /// Where do these parts go? Answered by [`Answer::PartUrls`], in the same order.
    GetPartUrls {
        /// From [`Answer::Upload`].
        upload: u32,
        /// Which.
        parts: PartNumbers,
    },
    /// Every part was accepted. The server completes the object and checks it. Answered by [`Answer::Done`].
    CompleteUpload {
        /// From [`Answer::Upload`].
        upload: u32,
        /// What was sent.
        sent: SentParts,
    },
    /// Which of these packages did other jobs share? Answered by [`Answer::Packages`], in the same order.
    FindPackages(Packages),
    /// May I open a line for who logs in to the shell? Answered by [`Answer::Line`], after which the connection is one.
    OpenLine,
    /// The job is over for the agent. Answered by [`Answer::Done`], after which the agent exits.
    Finish(Outcome),
}

/// The server's answers.
#[derive(Debug, Clone)]
pub enum Answer {
    /// The job.
    Job(Box<JobDescription>),
    /// The events are kept.
    Events(EventsKept),
    /// The upload is open.
    Upload(OpenUpload),
    /// One presigned PUT address per part asked for.
    PartUrls(PartUrls),
    /// Where each package can be got or shared.
    Packages(PackageUrls),
    /// It may.
    Line,
    /// It is done.
    Done,
}

/// Who asks for a job.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub struct JobQuery {
    /// The agent's [`PROTOCOL`](super::PROTOCOL).
    pub protocol: u64,
}

/// Events one after another. An agent numbers its events from 0 without holes.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct EventBatch {
    /// Number of the first; without any, of the next to come.
    pub first: u64,
    /// The events, in order.
    pub events: Vec<Event>,
}

/// How far the server has an agent's events.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct EventsKept {
    /// Number of the event that it expects next; it has all before.
    pub next: u64,
    /// The job is to end: the agent stops its tools and finishes.
    pub stop: bool,
    /// What somebody said is to become of the work in its shell.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub verdict: Option<Verdict>,
}

/// An object to come.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct NewUpload {
    /// What the object is.
    pub kind: ArtifactKind,
    /// Its exact size in bytes.
    pub size: u64,
}

/// An open upload: a new one, or the one that was open for the same object.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct OpenUpload {
    /// Names the upload in later calls.
    pub upload: u32,
    /// Every part but the last has this size in bytes.
    pub part_size: u64,
    /// The parts that S3 has already; these need not be sent again if they are what would be sent.
    pub parts: Vec<StoredPart>,
}

/// A part that S3 has, as S3 lists it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoredPart {
    /// From 1.
    pub number: u32,
    /// Its entity tag.
    pub etag: String,
    /// Bytes.
    pub size: u64,
}

/// Parts that addresses are asked for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PartNumbers {
    /// From 1.
    pub numbers: Vec<u32>,
}

/// Where parts go.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PartUrls {
    /// Presigned PUT addresses.
    pub urls: Vec<String>,
}

/// A whole object that was sent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SentParts {
    /// The parts in order.
    pub parts: Vec<PartReceipt>,
    /// Of the whole object.
    pub digests: Digests,
}

/// A part that S3 accepted.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PartReceipt {
    /// From 1.
    pub number: u32,
    /// The entity tag S3 answered with, as it came.
    pub etag: String,
    /// MD5 of the part, lower-case hexadecimal.
    pub md5: String,
}

/// Packages of a distribution.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Packages {
    /// At most [`MOST_PACKAGES`].
    pub packages: Vec<PackageFile>,
}

/// How many packages can be asked for at once.
pub const MOST_PACKAGES: usize = 5000;

/// A package as its repository's signed index has it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PackageFile {
    /// Of the file, lower-case hexadecimal.
    pub sha256: String,
    /// Bytes.
    pub size: u64,
}

/// Where packages can be got or shared.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PackageUrls {
    /// One each.
    pub urls: Vec<PackageUrl>,
}

/// A presigned address.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PackageUrl {
    /// The package is there: GET.
    Get(String),
    /// It is not: PUT, with these headers, by whoever has it.
    Put {
        /// The address.
        url: String,
        /// Names and values.
        headers: Vec<(String, String)>,
    },
}

/// How the job went, as far as the agent knows.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Outcome {
    /// Why it failed; absent when every artifact is in S3.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failure: Option<Failure>,
}
