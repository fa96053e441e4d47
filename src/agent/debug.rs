//! Opens a shell into a finished or failed build, for jobs with `enable_debug`. Touches the root.

use std::path::Path;

use super::{
    channel::Channel,
    events::Events,
    process::blocking,
    root::OpenRoot,
    shell::{self, End},
};
use kiln_records::{
    Failure, Verdict,
    protocol::{JobDescription, ShellPlan},
};

/// Everything that the shell needs.
#[derive(Debug, Clone, Copy)]
pub struct Shown<'a> {
    /// The job.
    pub job: &'a JobDescription,
    /// The root, as far as it was built.
    pub root: &'a Path,
    /// The channel to the server.
    pub channel: &'a Channel,
    /// Takes events.
    pub events: &'a Events,
}

/// Opens a shell into a build with the result `built`, and returns the build's result when the shell is closed.
///
/// # Errors
///
/// The build's own failure, whatever was done in the shell; after a successful build, `shell_failed` when its user
/// rejects it. A build whose shell was never used continues.
pub async fn show(at: Shown<'_>, plan: &ShellPlan, built: Result<(), Failure>) -> Result<(), Failure> {
    let Shown {
        job,
        root,
        channel,
        events,
    } = at;
    let what = match &built {
        Ok(()) => "the image is built, and waits to be packaged.".to_owned(),
        Err(failure) => {
            events.say(format!("the build failed: {failure}")).await;
            format!("the build failed: {failure}")
        }
    };
    // A build that failed early has no root.
    fs_err::create_dir_all(root).map_err(|error| Failure::io("cannot open the shell", &error))?;
    let (path, aside) = (root.to_owned(), root.with_extension("aside"));
    let authorities = job.ca_bundle.clone();
    let open = blocking(move || OpenRoot::open(&path, &aside, authorities.as_deref())).await;
    let held = match open {
        Ok(open) => {
            let opening = shell::Opening {
                job,
                plan,
                root,
                has_twins: false,
                what: &what,
            };
            let held = shell::hold(opening, channel, events).await;
            open.close(events).await.and(held)
        }
        Err(failure) => Err(failure),
    };
    built?;
    match held? {
        End::Said(Verdict::Failed) => End::Said(Verdict::Failed).result(),
        End::Said(Verdict::Complete) | End::Unused(_) | End::TooLong(_) => Ok(()),
    }
}
