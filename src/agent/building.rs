//! A root that is to be made, and what that takes. Pure: no I/O.

use kiln_records::protocol::{Emulator, JobDescription};

use super::{channel::Channel, events::Events, failed_scripts::FailedScripts, outputs::Outputs, release::Releases};

/// A root that is to be made.
#[derive(Debug, Clone, Copy)]
pub struct Building<'a> {
    /// The job.
    pub job: &'a JobDescription,
    /// For packages that jobs share.
    pub http: &'a reqwest::Client,
    /// For what the recipe names.
    pub web: &'a reqwest::Client,
    /// The channel to the server.
    pub channel: &'a Channel,
    /// The results of the steps before.
    pub outputs: &'a Outputs,
    /// The emulator for the image's programs, unless the machine runs them itself.
    pub emulator: Option<&'a Emulator>,
    /// What programs of the root are told of its kernel.
    pub releases: &'a Releases,
    /// The scripts of its packages that have failed.
    pub(crate) failed_scripts: &'a FailedScripts,
    /// Takes events.
    pub events: &'a Events,
}
