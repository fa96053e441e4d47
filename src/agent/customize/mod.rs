//! The steps that only a customize job has: an image's root is fetched and changed. Downloads from S3, and changes the
//! root.

mod changes;
pub mod rootfs;

use std::path::PathBuf;

use super::{
    channel::Channel,
    events::Events,
    outputs::Outputs,
    pauses,
    process::blocking,
    programs::Programs,
    release::Releases,
    root::OpenRoot,
    shell,
    twins::{Earlier, Twins, layout},
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
    /// For what the image names.
    pub web: &'a reqwest::Client,
    /// The channel to the server.
    pub channel: &'a Channel,
    /// What programs of the image are told of its kernel.
    pub releases: &'a Releases,
    /// Takes events.
    pub events: &'a Events,
}

/// Restores the root in which an agent died while its shell was open, if one did: the changes are its user's.
///
/// # Errors
///
/// Something is mounted in the root, or it is not known what is to be restored.
pub async fn recover(job: &JobDescription, outputs: &Outputs, events: &Events) -> Result<(), Failure> {
    let (noted, root) = (outputs.opened(), outputs.root());
    if !noted.exists() {
        return Ok(());
    }
    let text = "the root is as it was when its sandbox was lost, in which its shell was open";
    events.say(text.to_owned()).await;
    if job.shell.as_ref().is_some_and(|plan| plan.wish.jail) {
        let cleared = shell::clear(&root);
        cleared.map_err(|error| Failure::io("cannot clear up after the shell", &error))?;
    }
    // The mount point of native twins, where it is no directory of the image's.
    let _ = fs_err::remove_dir(root.join(layout::MOUNT.trim_start_matches('/')));
    for warning in blocking(move || OpenRoot::recover(&noted)).await? {
        events.warn(warning).await;
    }
    if let Err(failure) = pauses::trust_the_site(&outputs.root(), false).await {
        events.warn(Warning::of(&failure, &failure)).await;
    }
    Ok(())
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
        let twins = Twins::of_job(
            self.job,
            self.outputs,
            self.events,
            self.channel,
            self.http,
            self.web,
            None,
        );
        let mut programs = Programs::default();
        let root = self.outputs.root();
        let outcome = tokio::select! {
            outcome = self.change_open(changes, by_hand, &mut open, twins.is_some(), &mut programs) => outcome,
            failure = self.releases.follow(&root, Uname::Image, self.events) => Err(failure),
        };
        // Before all remaining processes are killed: the deaths of the twins' own tools would be reported as failures.
        let (execs, outcome) = Twins::end(twins, Earlier::default(), programs, self.emulator, outcome).await;
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
        open.note(&self.outputs.opened())
            .map_err(|error| Failure::io("cannot note what is in the root", &error))?;
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
