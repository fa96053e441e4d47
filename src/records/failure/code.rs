//! The kinds of failures, as a type: each has a stable name and fixed consequences. Pure: no I/O.

use std::{borrow::Cow, fmt};

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::{row::Chance, table::Code};

/// The part of the infrastructure whose failure ended an attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Blame {
    /// The host or engine on which the job ran.
    Place,
    /// S3 or the database.
    Storage,
    /// Nothing that was at fault itself: a process of Kiln, a virtual machine or an engine ended, or was killed.
    Killed,
}

impl fmt::Display for Blame {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Place => "the place failed",
            Self::Storage => "the storage failed",
            Self::Killed => "something was killed",
        })
    }
}

impl Code {
    /// The code with this name.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|code| code.name() == name)
    }

    /// Whether it may pass while the caller waits: agents are told to retry later, a finished job waits for its image,
    /// a client that follows a job reconnects.
    pub const fn is_passing(self) -> bool {
        use Chance::{PassingKilled, PassingPlace, PassingStorage};
        matches!(self.chance(), PassingPlace | PassingStorage | PassingKilled)
    }

    /// Whether the cause lies in the infrastructure and not in the request, so that another attempt may succeed. This
    /// includes all failures that may pass.
    pub const fn is_of_the_place(self) -> bool {
        self.blame().is_some()
    }

    /// What failed in the infrastructure; `None` if the cause lies in the request.
    pub const fn blame(self) -> Option<Blame> {
        match self.chance() {
            Chance::Lasting | Chance::OfTwins => None,
            Chance::OfThePlace | Chance::PassingPlace => Some(Blame::Place),
            Chance::OfStorage | Chance::PassingStorage => Some(Blame::Storage),
            Chance::Killed | Chance::PassingKilled => Some(Blame::Killed),
        }
    }

    /// Whether the cause may be that programs of the image ran as native twins, if some did.
    pub const fn may_be_of_twins(self) -> bool {
        matches!(self.chance(), Chance::OfTwins)
    }
}

impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl Serialize for Code {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.name())
    }
}

/// The code of another version becomes [`Code::Unknown`], so that its records stay readable.
impl<'de> Deserialize<'de> for Code {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let name = Cow::<'de, str>::deserialize(deserializer)?;
        Ok(Self::named(&name).unwrap_or(Self::Unknown))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::Failure;

    #[test]
    fn names_are_unique_and_those_of_the_variants() {
        let names: BTreeSet<_> = Code::ALL.iter().map(|code| code.name()).collect();
        assert_eq!(names.len(), Code::ALL.len());
        for code in Code::ALL {
            let mut name = String::new();
            for c in format!("{code:?}").chars() {
                if c.is_ascii_uppercase() && !name.is_empty() {
                    name.push('_');
                }
                name.push(c.to_ascii_lowercase());
            }
            assert_eq!(code.name(), name);
        }
    }

    #[test]
    fn names_are_read_as_they_are_written() {
        for code in Code::ALL {
            let json = serde_json::to_string(code).unwrap();
            assert_eq!(json, format!("{:?}", code.name()));
            assert_eq!(serde_json::from_str::<Code>(&json).unwrap(), *code);
            // A JSON value cannot lend its text, so this reads an owned one.
            assert_eq!(serde_json::from_value::<Code>(code.name().into()).unwrap(), *code);
        }
    }

    #[test]
    fn another_versions_code_is_readable_and_changes_nothing() {
        let json = r#"{"code": "not_of_this_version", "detail": "why", "hint": "what"}"#;
        let failure: Failure = serde_json::from_str(json).unwrap();
        assert_eq!(failure, Failure::new(Code::Unknown, "why").hint("what"));
        assert!(!failure.code.is_passing() && !failure.code.is_of_the_place());
        let written = serde_json::to_string(&failure).unwrap();
        assert_eq!(serde_json::from_str::<Failure>(&written).unwrap(), failure);
    }

    #[test]
    fn what_may_pass_is_of_the_place() {
        for code in Code::ALL {
            assert!(!code.is_passing() || code.is_of_the_place(), "{code}");
        }
    }

    #[test]
    fn statuses_are_refusals() {
        for code in Code::ALL {
            assert!((400..600).contains(&code.status()), "{code}");
            // A failure of Kiln's own infrastructure is not the client's fault, unless the request came too late.
            let of_objects = matches!(code, Code::S3Missing | Code::StoreConflict);
            assert!(!code.is_of_the_place() || code.status() >= 500 || of_objects, "{code}");
        }
    }

    #[test]
    fn full_disks_long_builds_and_users_are_no_reason_to_do_without_twins() {
        for code in [
            Code::Cancelled,
            Code::DiskFull,
            Code::OutOfMemory,
            Code::WallLimit,
            Code::ToolKilled,
            Code::ToolMissing,
            Code::ShellFailed,
            Code::ShellTimeout,
            Code::Interrupted,
            Code::Io,
            Code::Unknown,
        ] {
            assert!(!code.may_be_of_twins(), "{code}");
        }
        for code in [
            Code::BuildFailed,
            Code::ScriptFailed,
            Code::ScriptletFailed,
            Code::ChangeFailed,
            Code::EmulatorFault,
            Code::TwinsDiffer,
            // A program may wait for ever where it would not under the emulator.
            Code::Silent,
        ] {
            assert!(code.may_be_of_twins() && code.blame().is_none(), "{code}");
        }
    }

    #[test]
    fn recipes_and_settings_are_no_reason_to_try_again() {
        for code in [
            Code::BuildFailed,
            Code::DiskFull,
            Code::OutOfMemory,
            Code::KernelMissing,
            Code::Cancelled,
            Code::S3Denied,
            Code::S3NoBucket,
            Code::StoreDamaged,
        ] {
            assert!(!code.is_of_the_place(), "{code}");
        }
    }

    /// Holds the lists that were separate before, as far as they were right.
    #[test]
    fn infrastructure_is_tried_again_and_what_may_pass_is_waited_for() {
        use Code::*;
        for code in [
            S3Unreachable,
            S3Timeout,
            S3Unavailable,
            StoreUnavailable,
            EngineGone,
            ServerUnreachable,
            ServerLost,
            ServerTimeout,
            ServerError,
        ] {
            assert!(code.is_passing(), "{code}");
        }
        for code in [
            ImageUnreachable,
            HeartbeatLost,
            SandboxLost,
            SandboxStart,
            AgentPanic,
            UploadFailed,
            S3Error,
            S3Missing,
            ArtifactMismatch,
        ] {
            assert!(code.is_of_the_place() && !code.is_passing(), "{code}");
        }
    }
}
