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
        let (root, aside) = (self.outputs.root(), self.aside());
        let authorities = self.job.ca_bundle.clone();
        let open = blocking(move || OpenRoot::open(&root, &aside, authorities.as_deref())).await;
        let mut open = match open {
            Ok(open) => open,
            Err(failure) => return (None, Err(failure)),
        };
        let twins = Twins::of_job(self.job, self.outputs, self.events, self.channel, self.http);
        let mut programs = Programs::default();
        let outcome = self
            .change_open(changes, by_hand, &mut open, twins.is_some(), &mut programs)
            .await;
        // Before all that still runs is killed, which would be taken for a failure of theirs.
        let (execs, counted) = Twins::end(twins, programs, self.emulator).await;
        let closed = blocking(move || open.close()).await;
        (execs, closed.and(outcome).and(counted))
    }

    async fn change_open(
        &self,
        changes: &[ChangeSource],
        by_hand: Option<&ShellPlan>,
        open: &mut OpenRoot,
        has_twins: bool,
        programs: &mut Programs,
    ) -> Result<(), Failure> {
        for change in changes {
            self.make(change, open, has_twins, programs).await?;
        }
        let Some(plan) = by_hand else { return Ok(()) };
        let root = self.outputs.root();
        let opening = shell::Opening {
            job: self.job,
            plan,
            root: &root,
            has_twins,
            what: "an image is yours to change.",
        };
        shell::hold(opening, self.channel, self.events).await?.result()
    }

    /// Where lies what is put back in the end.
    fn aside(&self) -> PathBuf {
        self.outputs.root().with_extension("aside")
    }
}
