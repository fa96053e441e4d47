//! The domain: the types of everything that Kiln stores and exchanges, and their rules. Pure: no I/O.

pub mod artifact;
pub mod change;
pub mod failure;
pub mod guest;
pub mod ids;
pub mod image;
pub mod job;
pub mod link;
pub mod log;
pub mod names;
pub mod protocol;
pub mod public_key;
pub mod recipe;
pub mod remote_build_node;
pub mod run;
#[cfg(feature = "server")]
pub mod schedule;
pub mod shell;
pub mod step;
pub mod time;
pub mod token;
pub mod twins;

pub use artifact::{ArtifactKind, Digests, Upload, UploadedArtifact};
pub use change::{Change, ChangeKind};
pub use failure::{Code, Failure};
pub use ids::{ImageId, JobId, PublicKeyId, RecipeId, ScheduleId, ServerId, TokenId};
pub use image::Image;
pub use job::{Job, JobStatus, JobType};
pub use link::{Link, StoreType};
pub use log::{LogLine, LogRow, LogStream};
pub use public_key::PublicKey;
pub use recipe::{LinuxDistribution, Recipe, RecipeType, TemplateValue};
pub use remote_build_node::RemoteBuildNode;
pub use run::Run;
#[cfg(feature = "server")]
pub use schedule::Schedule;
pub use shell::{Shell, ShellStatus, ShellTime, ShellWish, Verdict};
pub use step::Step;
pub use time::Moment;
pub use token::{Role, Token};
pub use twins::{EmulatedProgram, Execs, TwinLevel};
