//! Where and how a job runs.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::{
    arch::Arch,
    emulation::binfmt::{Emulation, emulation_of},
    records::Failure,
};

/// How the programs of the image's architecture run while it is built.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum How {
    /// On this CPU.
    Native,
    /// By user-mode emulation.
    Emulated(Emulation),
}

/// A decision, and why.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Placement {
    /// How it runs.
    pub how: How,
    /// One sentence for the user.
    pub why: String,
}

/// A placement as the job's record keeps it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum HowName {
    /// See [`How::Native`].
    Native,
    /// See [`How::Emulated`].
    Emulated,
}

impl How {
    /// Its name.
    pub fn name(&self) -> HowName {
        match self {
            How::Native => HowName::Native,
            How::Emulated(_) => HowName::Emulated,
        }
    }
}

impl fmt::Display for HowName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            HowName::Native => "native",
            HowName::Emulated => "emulated",
        })
    }
}

/// Decides for a build that one person starts on their own machine: always a sandbox of namespaces.
pub fn place(job: Arch, host: Arch) -> Result<Placement, Failure> {
    if job == host {
        return Ok(Placement {
            how: How::Native,
            why: format!("{job}: native, in a sandbox of namespaces"),
        });
    }
    Ok(Placement {
        how: How::Emulated(emulation_of(job)?),
        why: format!("{job}: emulated (this host is {host}), in a sandbox of namespaces with a binfmt_misc of its own"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn native_exactly_when_the_architectures_agree() {
        for job in Arch::ALL {
            for host in Arch::ALL {
                let placement = place(job, host).unwrap();
                assert_eq!(placement.how == How::Native, job == host);
                assert!(placement.why.starts_with(job.name()));
            }
        }
    }
}
