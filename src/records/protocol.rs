//! What the agent and its server say to each other.
//!
//! The agent opens every exchange. Today the messages travel as JSON lines over one inherited socket; each
//! [`Call`] is shaped as the HTTP request that it becomes when the server is elsewhere.

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::{ArtifactKind, Digests, Failure, JobId, Step};
use crate::arch::Arch;

/// Names this version of the protocol: a digest (FNV-1a) of this file. Kiln and its agent are built together; a pair
/// that was not must be told apart at once, not by the first message that cannot be read.
pub const PROTOCOL: u64 = fnv1a(include_bytes!("protocol.rs"));

const fn fnv1a(bytes: &[u8]) -> u64 {
    let mut hash = 0xcbf2_9ce4_8422_2325_u64;
    let mut at = 0;
    while at < bytes.len() {
        hash = (hash ^ bytes[at] as u64).wrapping_mul(0x0100_0000_01b3);
        at += 1;
    }
    hash
}

/// One line from the agent.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct CallFrame {
    /// Chosen by the agent; the answer bears the same number.
    pub id: u64,
    /// What it asks.
    pub call: Call,
}

/// One line to the agent.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct AnswerFrame {
    /// The call's number.
    pub id: u64,
    /// The answer, or why there is none.
    pub answer: Result<Answer, Failure>,
}

/// What an agent can ask of its server, for its own job only.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Call {
    /// What am I to do? Answered by [`Answer::Job`].
    GetJob {
        /// The agent's [`PROTOCOL`].
        protocol: u64,
    },
    /// Here is what happened, in order. Answered by [`Answer::Done`] once kept.
    PostEvents(Vec<Event>),
    /// I am about to send an object of this size. Answered by [`Answer::Upload`].
    CreateUpload {
        /// What the object is.
        kind: ArtifactKind,
        /// Its exact size in bytes.
        size: u64,
    },
    /// Where do these parts go? Answered by [`Answer::PartUrls`], in the same order.
    GetPartUrls {
        /// From [`Answer::Upload`].
        upload: u32,
        /// Part numbers, from 1.
        parts: Vec<u32>,
    },
    /// Every part was accepted. The server completes the object and checks it. Answered by [`Answer::Done`].
    CompleteUpload {
        /// From [`Answer::Upload`].
        upload: u32,
        /// The parts in order.
        parts: Vec<PartReceipt>,
        /// Of the whole object.
        digests: Digests,
    },
    /// The job is over for the agent. Answered by [`Answer::Done`], after which the agent exits.
    Finish(Result<(), Failure>),
}

/// The server's answers.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Answer {
    /// The job.
    Job(Box<JobDescription>),
    /// It is done.
    Done,
    /// An upload was opened.
    Upload {
        /// Names the upload in later calls.
        upload: u32,
        /// Every part but the last has this size in bytes.
        part_size: u64,
    },
    /// One presigned PUT address per part asked for.
    PartUrls(Vec<String>),
}

/// A part that S3 accepted.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct PartReceipt {
    /// From 1.
    pub number: u32,
    /// The entity tag S3 answered with, as it came.
    pub etag: String,
    /// MD5 of the part, lower-case hexadecimal.
    pub md5: String,
}

/// Everything an agent needs to know to do its job.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct JobDescription {
    /// The job.
    pub id: JobId,
    /// The architecture of the image.
    pub arch: Arch,
    /// Where the recipe archive is.
    pub recipe: RecipeSource,
    /// What the recipe is written for.
    pub recipe_type: RecipeType,
    /// Values for the recipe's templates that the user gave.
    pub values: BTreeMap<String, String>,
    /// Values that the server knows by itself, such as the site's package mirror; the user's win over them.
    pub default_values: BTreeMap<String, String>,
    /// What happens to template names without a value.
    pub template_mode: TemplateMode,
    /// Present when the image's architecture is not the sandbox's: what to register with its kernel.
    pub emulator: Option<Emulator>,
    /// How the root becomes a squashfs.
    pub squashfs: SquashfsOptions,
    /// Names of the files in `/boot`.
    pub boot: BootFiles,
    /// How long to wait for repositories, in seconds.
    pub repos_timeout_s: u64,
    /// How many CPUs the build may count on.
    pub cpus: u32,
    /// Trusted certificate authorities, PEM. The sandbox holds none of its own.
    pub ca_bundle: Option<String>,
}

/// What a recipe is written for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum RecipeType {
    /// kiwi-ng image descriptions.
    #[serde(rename = "kiwi-ng")]
    KiwiNg,
}

/// A recipe archive and how to know it is the right one.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct RecipeSource {
    /// A presigned GET address.
    pub url: String,
    /// SHA-256 of the archive, lower-case hexadecimal.
    pub sha256: String,
    /// Bytes.
    pub size: u64,
}

/// What happens to a template name that has no value.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TemplateMode {
    /// It is an error (Kiln's default).
    Strict,
    /// It renders as empty text, as IMS does.
    Lenient,
}

/// The user-mode emulator of a foreign architecture.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Emulator {
    /// The entry to register.
    pub binfmt: BinfmtEntry,
    /// Value of `QEMU_CPU` for everything in the sandbox.
    pub cpu: String,
}

/// One entry of `binfmt_misc`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct BinfmtEntry {
    /// Name under which the entry appears.
    pub name: String,
    /// The first bytes of a matching file.
    pub magic: Vec<u8>,
    /// Which bits of `magic` count.
    pub mask: Vec<u8>,
    /// Absolute path of the interpreter, inside the sandbox.
    pub interpreter: String,
    /// Flags, as in the kernel's `Documentation/admin-guide/binfmt-misc.rst`.
    pub flags: String,
}

/// How mksquashfs is run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SquashfsOptions {
    /// Compressor.
    pub compressor: Compressor,
    /// Level, where the compressor has levels; none means Kiln's default for it.
    pub level: Option<u32>,
}

/// Compressors of squashfs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Compressor {
    /// Zstandard.
    Zstd,
    /// Deflate.
    Gzip,
    /// LZMA2.
    Xz,
    /// LZ4.
    Lz4,
}

/// Which files of `/boot` become artifacts.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct BootFiles {
    /// The kernel's file name in `/boot`.
    pub kernel: String,
    /// The initrd's.
    pub initrd: String,
    /// The kernel parameters'; taken only if the file exists.
    pub parameters: String,
    /// A root without a kernel is an error; otherwise it is an image of a root file system only.
    pub required: bool,
}

/// One thing that happened in the sandbox. The agent numbers them from 0 without holes.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Event {
    /// Number, from 0.
    pub seq: u64,
    /// The agent's clock.
    pub time: Timestamp,
    /// What happened.
    pub what: What,
}

/// What happened.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum What {
    /// A step began.
    StepStarted(Step),
    /// A step ended well.
    StepFinished {
        /// Which.
        step: Step,
        /// Wall-clock time it took, in milliseconds.
        wall_ms: u64,
        /// CPU time that the step's processes used, in milliseconds.
        cpu_ms: u64,
    },
    /// A line that a tool or the agent itself said.
    Log {
        /// Who said it.
        stream: Stream,
        /// The line, without its end. Bytes that are no UTF-8 were replaced.
        text: String,
    },
    /// How far the current step is.
    Progress {
        /// Units done.
        done: u64,
        /// Units in all.
        total: u64,
    },
}

/// Who said a line.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Stream {
    /// The agent.
    Agent,
    /// A tool's standard output.
    Stdout,
    /// A tool's standard error.
    Stderr,
}
