//! The steps of a customize job that are its own: an image's root is fetched, and changed.

mod changes;
pub mod rootfs;

use std::path::PathBuf;

use super::{
    channel::Channel, events::Events, outputs::Outputs, process::blocking, programs::Programs, root::OpenRoot, shell,
    twins::Twins,
};
use crate::records::{
    Execs, Failure,
    protocol::{ChangeSource, Emulator, JobDescription, ShellPlan},
};

/// What changing an image takes.
#[derive(Debug, Clone, Copy)]
pub struct Customizing<'a> {
    /// The job.
    pub job: &'a JobDescription,
    /// Where its root is.
    pub outputs: &'a Outputs,
    /// What runs programs of the image, if they do not run by themselves.
    pub emulator: Option<&'a Emulator>,
    /// Reaches S3.
    pub http: &'a reqwest::Client,
    /// Reaches the server.
    pub channel: &'a Channel,
    /// Hears what happens.
    pub events: &'a Events,
}

impl Customizing<'_> {
    /// Makes the changes, then lets the user make some, if there is to be a shell. Returns what ran how, if programs of the
    /// image do not run by themselves.
    pub async fn change(
        &self,
        changes: &[ChangeSource],
        by_hand: Option<&ShellPlan>,
    ) -> (Option<Execs>, Result<(), Failure>) {
        let twins = Twins::of_job(self.job, self.outputs, self.events, self.channel, self.http);
        let mut programs = Programs::default();
        let outcome = self.change_open(changes, by_hand, twins.is_some(), &mut programs).await;
        let counted = match twins {
            Some(twins) => blocking(move || twins.finish()).await,
            None => Ok(None),
        };
        let execs = self
            .emulator
            .map(|_| programs.execs(counted.as_ref().ok().copied().flatten()));
        (execs, outcome.and(counted.map(drop)))
    }

    async fn change_open(
        &self,
        changes: &[ChangeSource],
        by_hand: Option<&ShellPlan>,
        has_twins: bool,
        programs: &mut Programs,
    ) -> Result<(), Failure> {
        let (root, aside) = (self.outputs.root(), self.aside());
        let authorities = self.job.ca_bundle.clone();
        let path = root.clone();
        let mut open = blocking(move || OpenRoot::open(&path, &aside, authorities.as_deref())).await?;
        let outcome = async {
            for change in changes {
                self.make(change, &mut open, has_twins, programs).await?;
            }
            let Some(plan) = by_hand else { return Ok(()) };
            let opening = shell::Opening {
                job: self.job,
                plan,
                root: &root,
                has_twins,
                what: "an image is yours to change.",
            };
            shell::hold(opening, self.channel, self.events).await?.result()
        }
        .await;
        blocking(move || open.close()).await.and(outcome)
    }

    /// Where lies what is put back in the end.
    fn aside(&self) -> PathBuf {
        self.outputs.root().with_extension("aside")
    }
}
