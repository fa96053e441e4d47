//! What an agent is told about its job.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::{
    arch::Arch,
    records::{ChangeKind, JobId, JobType, ShellWish, Step, TwinLevel},
};

/// Everything an agent needs to know to do its job.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct JobDescription {
    /// The job.
    pub id: JobId,
    /// The architecture of the image.
    pub arch: Arch,
    /// What it starts from.
    pub work: Work,
    /// The shell that it opens, if it does.
    pub shell: Option<ShellPlan>,
    /// Names and values that users find in the environment of what they run in the image.
    pub environment: Vec<(String, String)>,
    /// Present when the image's architecture is not the sandbox's: what to register with its kernel.
    pub emulator: Option<Emulator>,
    /// Which tools of a foreign image may run as native twins.
    pub twins: TwinLevel,
    /// How the root becomes a squashfs.
    pub squashfs: SquashfsOptions,
    /// Names of the files in `/boot`.
    pub boot: BootFiles,
    /// How many CPUs the build may count on.
    pub cpus: u32,
    /// Trusted certificate authorities, PEM. The sandbox holds none of its own.
    pub ca_bundle: Option<String>,
    /// The first step to do. Earlier ones were finished by another attempt, whose disk space this one was given. None
    /// means all of them.
    pub from: Option<Step>,
    /// How long a server, or S3, that does not answer is waited for, in seconds.
    pub patience_s: u64,
}

/// What a job starts from.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Work {
    /// A recipe becomes an image.
    Create(RecipeWork),
    /// An image becomes another.
    Customize(ImageWork),
}

impl Work {
    /// The type of a job that does this.
    pub const fn job_type(&self) -> JobType {
        match self {
            Self::Create(_) => JobType::Create,
            Self::Customize(_) => JobType::Customize,
        }
    }
}

/// A recipe, and how it becomes an image.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct RecipeWork {
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
    /// How long to wait for repositories, in seconds.
    pub repos_timeout_s: u64,
}

/// An image, and what is done to it.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct ImageWork {
    /// Its root file system: a squashfs.
    pub rootfs: ObjectSource,
    /// What is run in it, in this order. With none, its user changes it in the shell.
    pub changes: Vec<ChangeSource>,
}

/// An object and how to know it is the right one.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct ObjectSource {
    /// A presigned GET address.
    pub url: String,
    /// Bytes.
    pub size: u64,
    /// Its MD5, lower-case hexadecimal, where it is known: images of other systems have no better digest.
    pub md5: Option<String>,
    /// Its SHA-256, lower-case hexadecimal, where it is known.
    pub sha256: Option<String>,
}

/// One change to an image.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct ChangeSource {
    /// How it is made.
    pub kind: ChangeKind,
    /// What it is called in logs.
    pub name: String,
    /// What is run.
    pub source: ObjectSource,
}

/// The shell of a job.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ShellPlan {
    /// Keys that may log in, and when it is opened.
    pub wish: ShellWish,
    /// After this time without use it ends, in seconds.
    pub idle_s: u64,
    /// After this time it ends in any case, in seconds.
    pub longest_s: u64,
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
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TemplateMode {
    /// It is an error (Kiln's default).
    #[default]
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
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SquashfsOptions {
    /// Compressor.
    pub compressor: Compressor,
    /// Level, where the compressor has levels; none means Kiln's default for it.
    pub level: Option<u32>,
}

/// Compressors of squashfs.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Compressor {
    /// Zstandard (Kiln's default).
    #[default]
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
