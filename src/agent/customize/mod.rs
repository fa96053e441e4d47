//! The steps that only a customize job has: an image's root is fetched and changed. Downloads from S3, and changes the
//! root.

mod changes;
pub mod rootfs;

use std::path::PathBuf;

use super::{
    channel::Channel, events::Events, outputs::Outputs, pauses, process::blocking, programs::Programs,
    release::Releases, root::OpenRoot, shell, twins::Twins,
};
use kiln_records::{
    Execs, Failure, Warning,
    protocol::{ChangeSource, Emulator, JobDescription, ShellPlan},
    recipe_settings::Uname,
};

/// Everything that the changes need.
#[derive(Debug, Clone, Copy)]
pub struct Customizing<'a> {
    /// The job.
    pub job: &'a JobDescription,
    /// The job's outputs, with the image's root.
    pub outputs: &'a Outputs,
    /// The emulator for programs of the image, unless the machine runs them itself.
    pub emulator: Option<&'a Emulator>,
    /// The client for S3.
    pub http: &'a reqwest::Client,
    /// The channel to the server.
    pub channel: &'a Channel,
    /// What programs of the image are told of its kernel.
    pub releases: &'a Releases,
    /// Takes events.
    pub events: &'a Events,
}

impl Customizing<'_> {
    /// Makes the changes, then opens the shell, if the job has one. Returns how often programs ran as twins or
    /// emulated, if the machine cannot run them itself.
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
        if let Err(failure) = pauses::trust_the_site(&self.outputs.root(), true).await {
            let closed = open.close(self.events).await;
            return (None, closed.and(Err(failure)));
        }
        let twins = Twins::of_job(self.job, self.outputs, self.events, self.channel, self.http, None);
        let mut programs = Programs::default();
        let root = self.outputs.root();
        let outcome = tokio::select! {
            outcome = self.change_open(changes, by_hand, &mut open, twins.is_some(), &mut programs) => outcome,
            failure = self.releases.follow(&root, Uname::Image, self.events) => Err(failure),
        };
        // Before all remaining processes are killed: the deaths of the twins' own tools would be reported as failures.
        let (execs, outcome) = Twins::end(twins, programs, self.emulator, outcome).await;
        let trusted = pauses::trust_the_site(&self.outputs.root(), false).await;
        if let Err(failure) = open.close(self.events).await {
            return (execs, Err(failure));
        }
        // The work is done: what is not undone around it is told, and does not cost it.
        if let Err(failure) = trusted {
            self.events.warn(Warning::of(&failure, &failure)).await;
        }
        (execs, outcome)
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
            self.releases.look(&self.outputs.root(), self.events).await?;
            self.make(change, open, has_twins, programs).await?;
        }
        let Some(plan) = by_hand else { return Ok(()) };
        let root = self.outputs.root();
        self.releases.look(&root, self.events).await?;
        let opening = shell::Opening {
            job: self.job,
            plan,
            root: &root,
            has_twins,
            what: "an image is yours to change.",
        };
        shell::hold(opening, self.channel, self.events).await?.result()
    }

    /// The directory for files that are restored at the end.
    fn aside(&self) -> PathBuf {
        self.outputs.root().with_extension("aside")
    }
}
