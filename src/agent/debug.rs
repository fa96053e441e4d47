//! A look at what was built, well or not, for whoever asked for it with `enable_debug`.

use std::path::Path;

use super::{
    channel::Channel,
    events::Events,
    process::blocking,
    root::OpenRoot,
    shell::{self, End},
};
use crate::records::{
    Failure, Verdict,
    protocol::{JobDescription, ShellPlan},
};

/// What is looked at.
#[derive(Debug, Clone, Copy)]
pub struct Shown<'a> {
    /// The job.
    pub job: &'a JobDescription,
    /// The root that was built, as far as it was.
    pub root: &'a Path,
    /// Leads to the server.
    pub channel: &'a Channel,
    /// Hears what happens.
    pub events: &'a Events,
}

/// Opens a shell into a build that has `built`, and returns how the build went when it is closed.
///
/// # Errors
///
/// The build's own failure, whatever was done in the shell; of one that went well, `shell_failed` when its user throws
/// it away. One that nobody looked at goes on.
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
    // One that failed early has none.
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
            blocking(move || open.close()).await.and(held)
        }
        Err(failure) => Err(failure),
    };
    built?;
    match held? {
        End::Said(Verdict::Failed) => End::Said(Verdict::Failed).result(),
        End::Said(Verdict::Complete) | End::Unused(_) | End::TooLong(_) => Ok(()),
    }
}
