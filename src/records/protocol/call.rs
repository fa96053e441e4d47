//! The agent's calls and the server's answers. Pure: no I/O.

use serde::{Deserialize, Serialize};

use super::{Event, JobDescription, ObjectSource, Reading};
use crate::{Account, ArtifactKind, Digests, Failure, Installed, LayerUse, PackageDigest, Verdict};

/// The requests that an agent can make, for its own job only. Every call may be repeated: an agent that lost the answer
/// asks again.
#[derive(Debug, Clone)]
pub enum Call {
    /// Asks for the job. Answered by [`Answer::Job`].
    GetJob(JobQuery),
    /// Reports events, in order. Answered by [`Answer::Events`] once they are stored. A batch without events shows that
    /// the agent is alive.
    PostEvents(EventBatch),
    /// Announces an object of this size. Answered by [`Answer::Upload`].
    CreateUpload(NewUpload),
    /// Asks for the addresses of these parts. Answered by [`Answer::PartUrls`], in the same order.
    GetPartUrls {
        /// From [`Answer::Upload`].
        upload: u32,
        /// The numbers of the parts.
        parts: PartNumbers,
    },
    /// Reports that every part was accepted. The server completes the object and checks it. Answered by
    /// [`Answer::Done`].
    CompleteUpload {
        /// From [`Answer::Upload`].
        upload: u32,
        /// The parts and digests of the object.
        sent: SentParts,
    },
    /// Asks which of these packages other jobs have shared. Answered by [`Answer::Packages`], in the same order.
    FindPackages(Packages),
    /// Asks for the toolbox of the job's own sandbox, before there is an agent. Answered by [`Answer::Toolbox`].
    FindToolbox(ToolboxName),
    /// Reports the packages of the root, once in each attempt and before any script of the recipe runs: other packages are refused
    /// later. Answered by [`Answer::Done`].
    KeepInstalled(Installed),
    /// Asks for the layer of these inputs. Answered by [`Answer::Layer`].
    FindLayer(LayerInputs),
    /// Reports what is done about the layer, once in each attempt and before any script of the recipe runs: whatever asks
    /// later is refused. Answered by [`Answer::LayerUrl`].
    SettleLayer(SettledLayer),
    /// Reports how programs of the root were run, and why. Answered by [`Answer::Done`].
    KeepAccount(Account),
    /// Reports what is understood of a recipe that is only read. Answered by [`Answer::Done`].
    KeepReading(Box<Reading>),
    /// Asks to open a line for logins to the shell. Answered by [`Answer::Line`]; then the connection becomes the line.
    OpenLine,
    /// Asks for a connection to the site's HTTP proxy. Answered by [`Answer::Line`].
    OpenProxy,
    /// To open a connection to registries that the site reads with a login of its own, or from a mirror.
    OpenRegistry,
    /// Reports that the job is over for the agent. Answered by [`Answer::Done`]; then the agent exits.
    Finish(Outcome),
}

/// The server's answers.
#[derive(Debug, Clone)]
pub enum Answer {
    /// The job.
    Job(Box<JobDescription>),
    /// The events are stored.
    Events(EventsKept),
    /// The upload is open.
    Upload(OpenUpload),
    /// One presigned PUT address per requested part.
    PartUrls(PartUrls),
    /// Where to get or share each package.
    Packages(PackageUrls),
    /// Where to get the toolbox.
    Toolbox(ToolboxSource),
    /// The layer that there is, or why there is none.
    Layer(Box<FoundLayer>),
    /// Where to put a layer that is to be kept.
    LayerUrl(LayerUrl),
    /// The line may be opened.
    Line,
    /// The request was carried out.
    Done,
}

/// The query of a request for a job.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub struct JobQuery {
    /// The agent's [`PROTOCOL`](super::PROTOCOL).
    pub protocol: u64,
}

/// Consecutive events. An agent numbers its events from 0 without gaps.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct EventBatch {
    /// Number of the first event; in an empty batch, of the next one to come.
    pub first: u64,
    /// The events, in order.
    pub events: Vec<Event>,
}

/// How many of an agent's events the server has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct EventsKept {
    /// Number of the next expected event; the server has all earlier ones.
    pub next: u64,
    /// The job should end: the agent stops its tools and finishes.
    pub stop: bool,
    /// A user's verdict on the work in the job's shell.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub verdict: Option<Verdict>,
}

/// An object about to be uploaded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct NewUpload {
    /// The kind of object.
    pub kind: ArtifactKind,
    /// Its exact size in bytes.
    pub size: u64,
}

/// An open upload: a new one, or the existing one for the same object.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct OpenUpload {
    /// Identifies the upload in later calls.
    pub upload: u32,
    /// Every part but the last has this size in bytes.
    pub part_size: u64,
    /// The parts that S3 already has; the agent skips those with the right content.
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

/// The parts that need addresses.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PartNumbers {
    /// From 1.
    pub numbers: Vec<u32>,
}

/// The addresses for parts.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PartUrls {
    /// Presigned PUT addresses.
    pub urls: Vec<String>,
}

/// A whole object, sent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SentParts {
    /// The parts in order.
    pub parts: Vec<PartReceipt>,
    /// The digests of the whole object.
    pub digests: Digests,
}

/// A part that S3 accepted.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PartReceipt {
    /// From 1.
    pub number: u32,
    /// The entity tag in S3's answer, unchanged.
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

/// The most packages in one request.
pub const MOST_PACKAGES: usize = 5000;

/// The largest package that is shared between jobs, in bytes.
pub const LARGEST_PACKAGE: u64 = 512 << 20;

/// A package as described by its repository's signed index.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PackageFile {
    /// The digest by which its repository lists it.
    pub digest: PackageDigest,
    /// Bytes.
    pub size: u64,
}

/// Where to get or share packages.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PackageUrls {
    /// One for each package, in order.
    pub urls: Vec<PackageUrl>,
}

/// What a layer depends on, besides what the server knows itself.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LayerInputs {
    /// A digest of all that the agent found: 64 lower-case hexadecimal digits.
    pub found: String,
    /// The same without the repositories.
    pub here: String,
    /// The same without the repositories and the packages that the description names. Absent where such a recipe's root cannot be
    /// extended.
    pub similar: Option<String>,
}

/// The most scripts of packages whose failures are kept with a layer.
pub const MOST_FAILED_SCRIPTS: usize = 64;

/// The most bytes of what is kept of each.
pub const LONGEST_FAILED_SCRIPT: usize = 256;

/// The server's answer about a layer.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct FoundLayer {
    /// The layer, with its size and SHA-256.
    pub layer: Option<ObjectSource>,
    /// Files that every root must have of its own: they are not in the layer, and made anew.
    pub anew: Vec<String>,
    /// What rpm said of scripts of its packages that have failed.
    pub failed_scripts: Vec<String>,
    /// The packages in it, as the job that kept it reported them.
    pub installed: Option<Installed>,
    /// Whether it is that of a similar recipe, which lacks packages or has others.
    pub is_similar: bool,
    /// Why there can be no layer for the recipe, whatever the agent found.
    pub never: Option<String>,
}

/// What an agent does about a layer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SettledLayer {
    /// As the layer was looked for.
    pub inputs: LayerInputs,
    /// What is done.
    pub used: LayerUse,
    /// As in [`FoundLayer`], of a layer that is to be kept.
    pub anew: Vec<String>,
    /// As in [`FoundLayer`], at most [`MOST_FAILED_SCRIPTS`] of at most [`LONGEST_FAILED_SCRIPT`] bytes.
    pub failed_scripts: Vec<String>,
}

/// Where to put a layer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LayerUrl {
    /// Absent when there is nothing to put.
    pub url: Option<PackageUrl>,
}

/// Tells a toolbox with its agents from others.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ToolboxName {
    /// The digest of its description, hexadecimal.
    pub toolbox: String,
    /// The tag of the toolbox's image.
    pub tag: String,
}

impl ToolboxName {
    /// Whether both are what Kiln makes: letters, digits and hyphens, so that they are a part of one key only.
    pub fn is_valid(&self) -> bool {
        let is_plain = |text: &str| {
            (1..=128).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
        };
        is_plain(&self.toolbox) && is_plain(&self.tag)
    }
}

/// Where to get a toolbox.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct ToolboxSource {
    /// Archives (tar, gzip) with SHA-256, which are unpacked one over the other.
    pub layers: Vec<ObjectSource>,
    /// Certificates of the authorities of S3 (PEM), if it speaks TLS.
    pub ca_bundle: Option<String>,
}

/// A presigned address.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PackageUrl {
    /// The package exists: GET.
    Get(String),
    /// The package is missing: PUT by any agent that has it, with these headers.
    Put {
        /// The address.
        url: String,
        /// Names and values.
        headers: Vec<(String, String)>,
    },
}

/// The result of the job, as far as the agent knows.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Outcome {
    /// The cause of a failure; absent when every artifact is in S3.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failure: Option<Failure>,
}
