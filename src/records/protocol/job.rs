//! The description of a job for its agent. Pure: no I/O.

use std::{collections::BTreeMap, fmt};

use serde::{Deserialize, Serialize};

use crate::{
    CacheDepth, ChangeKind, CheckLevels, Epoch, FailedTwin, GivenUp, JobId, JobType, ShellWish, Step, TwinLevel,
    additions::Additions, arch::Arch, containerfile::ContainerfileOptions,
};

/// Everything that an agent needs to know about its job.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct JobDescription {
    /// The job.
    pub id: JobId,
    /// The image's name.
    pub image_name: String,
    /// The architecture of the image.
    pub arch: Arch,
    /// The starting point.
    pub work: Work,
    /// The shell to open, if any.
    pub shell: Option<ShellPlan>,
    /// Names and values for the environment of the users' commands in the image.
    pub environment: Vec<(String, String)>,
    /// The emulator to register with the sandbox's kernel; present when the image's architecture is not the sandbox's.
    pub emulator: Option<Emulator>,
    /// Which tools of a foreign image may run as native twins.
    pub twins: TwinLevel,
    /// Whether a root that twins helped to make is also made without them, and compared.
    pub verify_twins: bool,
    /// What the job is for.
    pub purpose: Purpose,
    /// Pairs that failed in earlier jobs, of the architecture of the image.
    pub failed_twins: Vec<FailedTwin>,
    /// Commands at which twins gave up in the latest job of the same recipe.
    pub given_up: GivenUp,
    /// The date of the image, if it is to be reproducible.
    pub epoch: Option<Epoch>,
    /// How much of earlier jobs it may reuse.
    pub cache: CacheDepth,
    /// Whether it may have the packages of its recipe's lock file only.
    pub locked: bool,
    /// Options for the squashfs of the root.
    pub squashfs: SquashfsOptions,
    /// Names of the files in `/boot`.
    pub boot: BootFiles,
    /// The levels of the checks of a finished root that the site chose.
    pub checks: CheckLevels,
    /// The number of CPUs that the build may count on.
    pub cpus: u32,
    /// Trusted certificate authorities, PEM. The sandbox has none of its own.
    pub ca_bundle: Option<String>,
    /// The authorities that a new image keeps, PEM.
    pub kept_authorities: Option<String>,
    /// Keys of the site, whose signatures of repositories and packages the build accepts.
    pub signing_keys: Vec<SigningKey>,
    /// The first step to do. Another attempt finished the earlier ones, and this one has its disk space. None means all
    /// steps.
    pub from: Option<Step>,
    /// How long to wait for a server, or S3, that does not answer, in seconds.
    pub patience_s: u64,
    /// The size that the log of this attempt may have, in bytes, counted by [`size_of`](crate::log::size_of). The server
    /// keeps no line beyond it.
    pub log_bytes: u64,
}

/// What a job is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Purpose {
    /// An image.
    Image,
    /// To compare a root that twins helped to make with one that is made without them, and nothing else.
    Verification,
    /// To read the recipe, and to report what is understood of it.
    Reading,
}

/// A public key.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SigningKey {
    /// The name of its file.
    pub name: String,
    /// The key in ASCII armour.
    pub text: String,
}

impl JobDescription {
    /// The steps of the job, in order.
    pub const fn steps(&self) -> &'static [Step] {
        match (&self.work, self.purpose) {
            (Work::Create(_), Purpose::Reading) => Step::READING,
            (Work::Create(_), Purpose::Verification) => Step::VERIFICATION,
            (Work::Create(_), Purpose::Image) if self.verify_twins => Step::VERIFIED,
            (work, _) => Step::of(work.job_type()),
        }
    }
}

/// The starting point of a job.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Work {
    /// A recipe, to be built as an image.
    Create(Box<RecipeWork>),
    /// An image, to be changed into another.
    Customize(ImageWork),
}

impl Work {
    /// The type of job with this starting point.
    pub const fn job_type(&self) -> JobType {
        match self {
            Self::Create(_) => JobType::Create,
            Self::Customize(_) => JobType::Customize,
        }
    }
}

/// A recipe, and how to build it as an image.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct RecipeWork {
    /// The location of the recipe archive.
    pub recipe: RecipeSource,
    /// The format of the recipe.
    pub recipe_type: RecipeType,
    /// The user's values for the recipe's templates.
    pub values: BTreeMap<String, String>,
    /// The server's own values, such as the site's package mirror; the user's values override them.
    pub default_values: BTreeMap<String, String>,
    /// The treatment of template names without a value.
    pub template_mode: TemplateMode,
    /// How long to wait for repositories, in seconds.
    pub repos_timeout_s: u64,
    /// The profiles to build; if there are none, those that the recipe has in force by itself.
    pub profiles: Vec<String>,
    /// What is added to the recipe's description.
    pub additions: Additions,
    /// What is built of a Containerfile.
    pub containerfile: ContainerfileOptions,
    /// The secrets that its commands may have.
    pub secrets: Vec<BuildSecret>,
    /// The registries that its bases are read from by way of the server.
    pub registries: Vec<String>,
}

/// A secret for commands of a Containerfile.
#[derive(Clone, Serialize, Deserialize)]
pub struct BuildSecret {
    /// Its name, by which the file asks for it.
    pub name: String,
    /// Its content.
    pub content: Vec<u8>,
}

impl fmt::Debug for BuildSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "BuildSecret({})", self.name)
    }
}

/// An image, and the changes to it.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct ImageWork {
    /// Its root file system: a squashfs.
    pub rootfs: ObjectSource,
    /// The changes to make, in this order. If empty, a user changes the image in the shell.
    pub changes: Vec<ChangeSource>,
}

/// An object, and the digests to verify it.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct ObjectSource {
    /// A presigned GET address.
    pub url: String,
    /// Bytes.
    pub size: u64,
    /// Its MD5, lower-case hexadecimal, if known: images of other systems have no better digest.
    pub md5: Option<String>,
    /// Its SHA-256, lower-case hexadecimal, if known.
    pub sha256: Option<String>,
}

/// One change to an image.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct ChangeSource {
    /// Its kind.
    pub kind: ChangeKind,
    /// Its name in logs.
    pub name: String,
    /// The object to run.
    pub source: ObjectSource,
}

/// The shell of a job.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ShellPlan {
    /// The keys that may log in, and when the shell opens.
    pub wish: ShellWish,
    /// The shell ends after this time without use, in seconds.
    pub idle_s: u64,
    /// The shell ends after this time in any case, in seconds.
    pub longest_s: u64,
}

/// The format of a recipe.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum RecipeType {
    /// kiwi-ng image descriptions.
    #[default]
    KiwiNg,
    /// Containerfiles.
    Containerfile,
}

/// A recipe archive, and the digest to verify it.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct RecipeSource {
    /// A presigned GET address.
    pub url: String,
    /// SHA-256 of the archive, lower-case hexadecimal.
    pub sha256: String,
    /// Bytes.
    pub size: u64,
}

/// The treatment of template names without a value.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TemplateMode {
    /// An error (Kiln's default).
    #[default]
    Strict,
    /// Empty text, as in IMS.
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
    /// The bits of `magic` that count.
    pub mask: Vec<u8>,
    /// Absolute path of the interpreter, inside the sandbox.
    pub interpreter: String,
    /// Flags, as in the kernel's `Documentation/admin-guide/binfmt-misc.rst`.
    pub flags: String,
}

impl BinfmtEntry {
    /// The line to write to `register`.
    pub fn registration(&self) -> String {
        let escape = |bytes: &[u8]| {
            let escaped: Vec<String> = bytes.iter().map(|byte| format!("\\x{byte:02x}")).collect();
            escaped.concat()
        };
        format!(
            ":{}:M:0:{}:{}:{}:{}",
            self.name,
            escape(&self.magic),
            escape(&self.mask),
            self.interpreter,
            self.flags
        )
    }
}

/// Options of mksquashfs.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SquashfsOptions {
    /// The compressor.
    pub compressor: Compressor,
    /// Compression level, where the compressor has levels; none means Kiln's default for it.
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
    /// The initrd's file name there.
    pub initrd: String,
    /// The kernel parameters' file name there; optional.
    pub parameters: String,
    /// Whether a root without a kernel is an error; otherwise the image consists of a root file system only.
    pub required: bool,
}
