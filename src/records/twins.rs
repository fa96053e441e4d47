//! The level of native twins in an emulated build, and its results. Pure: no I/O.

use std::{fmt, str::FromStr};

use serde::{Deserialize, Serialize};

use super::{arch::Arch, names};

/// The tools of the image that may run as native twins during its build. Each level includes those before it.
#[derive(
    Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, utoipa::ToSchema,
)]
#[serde(rename_all = "lowercase")]
pub enum TwinLevel {
    /// None: everything is emulated.
    Off,
    /// Compressors, archivers, checksums.
    Tools,
    /// Shells and text tools, too.
    Shell,
    /// Interpreters and package tools, too: everything that has an exact twin and is not known to need emulation.
    #[default]
    Full,
}

impl TwinLevel {
    /// All levels, in order.
    pub const ALL: [Self; 4] = [Self::Off, Self::Tools, Self::Shell, Self::Full];

    /// Its name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Off => "off",
            Self::Tools => "tools",
            Self::Shell => "shell",
            Self::Full => "full",
        }
    }
}

impl fmt::Display for TwinLevel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// The longest part of a [`TwinPair`], in bytes.
const LONGEST_NAME: usize = 512;

/// A program of a package, for the two architectures of an emulated build.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize, utoipa::ToSchema)]
pub struct TwinPair {
    /// The package.
    pub package: String,
    /// Its full version.
    pub version: String,
    /// The program's path.
    pub path: String,
    /// The architecture of the image.
    #[schema(value_type = String)]
    pub target: Arch,
    /// The architecture of the twin.
    #[schema(value_type = String)]
    pub host: Arch,
}

impl TwinPair {
    /// Whether it may be the name of a pair: it may be anybody's words.
    pub fn is_sound(&self) -> bool {
        let parts = [&self.package, &self.version, &self.path];
        let is_plain = |part: &&String| (1..=LONGEST_NAME).contains(&part.len()) && !part.contains(names::is_invisible);
        parts.iter().all(is_plain) && self.path.starts_with('/') && self.target != self.host
    }
}

/// Why programs of `host` cannot be twins of those of `target`, and what that costs; `None` if they can. Tools write
/// caches in the order of bytes of the CPU that they run on.
pub fn no_twins_between(target: Arch, host: Arch) -> Option<String> {
    (target.is_big_endian() || host.is_big_endian()).then(|| {
        format!(
            "{target} and {host} have different byte orders, so everything is emulated: expect about {EMULATED_FACTOR} times the CPU \
             time of a native build"
        )
    })
}

/// The CPU time of an emulated build without twins, in those of a native one; docs/emulation.md has the measurement.
const EMULATED_FACTOR: f32 = 9.5;

/// The name of no level.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("there is no level of twins called `{0}`: it is one of off, tools, shell, full")]
pub struct UnknownTwinLevel(String);

impl FromStr for TwinLevel {
    type Err = UnknownTwinLevel;

    fn from_str(name: &str) -> Result<Self, Self::Err> {
        let level = Self::ALL.into_iter().find(|level| level.name() == name);
        level.ok_or_else(|| UnknownTwinLevel(name.to_owned()))
    }
}

/// Counts of native and emulated programs in the build of an image for a foreign architecture.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct Execs {
    /// The number of times that a program of the image ran as its native twin.
    pub twins: u64,
    /// The number of times that a program of the image ran under the emulator.
    pub emulated: u64,
    /// The emulated programs with the highest CPU time, in descending order; at most 10.
    pub most_expensive: Vec<EmulatedProgram>,
}

impl Execs {
    /// The most programs that are named.
    pub const MOST_EXPENSIVE: usize = 10;
}

impl fmt::Display for Execs {
    /// Writes the counts of each kind on one line.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} as native twins, {} emulated", self.twins, self.emulated)
    }
}

/// All emulated runs of one program.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct EmulatedProgram {
    /// Its path in the image.
    pub program: String,
    /// The number of runs.
    pub runs: u64,
    /// CPU time of all runs, in milliseconds.
    pub cpu_ms: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pair_is_a_name_that_can_be_shown() {
        let pair = TwinPair {
            package: "bash".to_owned(),
            version: "5.2".to_owned(),
            path: "/usr/bin/bash".to_owned(),
            target: Arch::Aarch64,
            host: Arch::X86_64,
        };
        assert!(pair.is_sound());
        for wrong in ["", "bash", "/a\nb", &format!("/{}", "x".repeat(LONGEST_NAME))] {
            let path = wrong.to_owned();
            assert!(!TwinPair { path, ..pair.clone() }.is_sound(), "{wrong}");
        }
        let target = Arch::X86_64;
        assert!(!TwinPair { target, ..pair }.is_sound());
    }
}
