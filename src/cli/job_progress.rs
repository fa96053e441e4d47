//! Shows the progress of a job until it ends: for `kiln jobs create --follow`, `kiln customize` and `kiln build`.

use super::{
    follow::Follower,
    progress::{Lane, Progress},
    session::Session,
    signals::cancel_on_signal,
    warnings,
};
use kiln_records::{
    Code, Execs, Failure, JobType, LogStream, Step,
    arch::Arch,
    protocol::{Event, Stream, What},
};

use crate::client::{Data, JobProgress, News, collection::JOBS};

/// Shows the progress of a job, then its record.
///
/// # Errors
///
/// `job_failed` when it ends without an image; `interrupted` when the user stops following.
pub(super) async fn follow(session: &Session, job: &Data) -> Result<(), Failure> {
    let id = job.text("id").unwrap_or_default();
    let printer = &session.printer;
    printer.note(format_args!("job        {id}"));
    let interrupted = cancel_on_signal()?;
    if let Some(local) = session.without_server() {
        local.carry_out();
    }
    tokio::select! {
        shown = show(session, id, job) => shown?,
        () = interrupted.cancelled() => {
            if session.without_server().is_some() {
                return Err(Failure::new(Code::Interrupted, "the build was interrupted"));
            }
            return Err(Failure::new(Code::Interrupted, "interrupted; the job goes on").hint(format!(
                "`kiln jobs logs -f {id}` follows it, `kiln jobs cancel {id}` ends it"
            )));
        }
    }
    let status = session.client.job_status(id).await?;
    let fallback = status.get("twins_fallback");
    if let (Some(attempt), Some(detail)) = (fallback.number("attempt"), fallback.get("error").text("detail")) {
        printer.note(format_args!(
            "fallback   try {attempt}, with native twins, failed: {detail}"
        ));
    }
    let (list, more) = warnings::of_status(&status);
    warnings::show(printer, &list, more);
    if let Some(image) = status.text("image").filter(|_| status.text("state") == Some("success")) {
        session.show(&session.client.get(&[JOBS.path, &[id]].concat()).await?)?;
        printer.note(format_args!("image      {image}"));
        let execs = status.get("execs");
        if let (Some(twins), Some(emulated)) = (execs.number("twins"), execs.number("emulated")) {
            let execs = Execs {
                twins,
                emulated,
                most_expensive: Vec::new(),
            };
            printer.note(format_args!("programs   {execs}"));
        }
        return Ok(());
    }
    printer.note(format_args!("log        kiln jobs logs {id}"));
    Err(failure(&status))
}

/// The reason for the job's failure.
pub(super) fn failure(status: &Data) -> Failure {
    let error = status.get("error");
    let state = status.text("state").unwrap_or("gone");
    let cause = error.text("detail").map(str::to_owned);
    let failure = Failure::new(Code::JobFailed, cause.unwrap_or_else(|| format!("the job is {state}")));
    match error.text("hint") {
        Some(hint) => failure.hint(hint),
        None => failure,
    }
}

async fn show(session: &Session, id: &str, job: &Data) -> Result<(), Failure> {
    let arch = job.text("arch").and_then(|arch| arch.parse().ok());
    let arch: Arch = arch.ok_or_else(|| Failure::new(Code::ServerUnknown, "the job has no architecture"))?;
    let progress = Progress::new(&session.printer, &[arch]);
    let lane = progress.lane(arch, job_type(job));
    let state = show_in(session, id, &lane).await?;
    lane.end_as(state.as_deref().unwrap_or("ended"));
    Ok(())
}

/// Shows the progress of a job in a lane. Returns its last state, if it was heard.
pub(super) async fn show_in(session: &Session, id: &str, lane: &Lane) -> Result<Option<String>, Failure> {
    let mut follower = Follower::new(session, id, None);
    let mut before: Option<JobProgress> = None;
    loop {
        for news in follower.next().await? {
            match news {
                News::Line(said) => lane.show(&event(What::Log {
                    stream: Stream::Agent,
                    text: match said.stream {
                        // An error of the server is shown as such once the job has ended.
                        Some(LogStream::Server) => format!("kiln: {}", said.text),
                        _ => said.text,
                    },
                })),
                News::Progress(now) => {
                    for what in changes(before.as_ref(), &now) {
                        lane.show(&event(what));
                    }
                    if before.as_ref().and_then(|before| before.reason.as_ref()) != now.reason.as_ref()
                        && let Some(reason) = &now.reason
                    {
                        lane.say(reason);
                    }
                    if before.as_ref().is_none_or(|before| before.twins_fallback.is_none())
                        && let Some(fallback) = &now.twins_fallback
                    {
                        let end = match session.without_server() {
                            Some(_) => "Ctrl-C".to_owned(),
                            None => format!("`kiln jobs cancel {id}`"),
                        };
                        lane.remark(&format!(
                            "try {}, with native twins, failed: {}",
                            fallback.attempt, fallback.error.detail
                        ));
                        lane.remark(&format!(
                            "one of them may be the cause, so the job is tried again without them, which takes longer; {end} \
                             keeps it at that failure"
                        ));
                    }
                    before = Some(now);
                }
                News::End => return Ok(before.map(|last| last.state)),
            }
        }
    }
}

fn job_type(job: &Data) -> JobType {
    match job.text("job_type") {
        Some("customize") => JobType::Customize,
        _ => JobType::Create,
    }
}

fn event(what: What) -> Event {
    Event {
        time: jiff::Timestamp::now(),
        what,
    }
}

/// The events between two views of a job.
fn changes(before: Option<&JobProgress>, now: &JobProgress) -> Vec<What> {
    // Another attempt starts from nothing.
    let before = before.filter(|before| before.attempt == now.attempt);
    let known = before.map_or(&[][..], |before| &before.steps);
    let ended = now.steps.iter().filter(|time| !known.contains(time));
    let mut changes: Vec<_> = ended
        .map(|time| What::StepFinished {
            step: time.step,
            wall_ms: time.wall_ms,
            cpu_ms: time.cpu_ms,
        })
        .collect();
    let step = |progress: &JobProgress| {
        let name = progress.step.as_deref();
        Step::ALL.into_iter().find(|step| Some(step.name()) == name)
    };
    if let Some(begun) = step(now).filter(|begun| before.and_then(step) != Some(*begun)) {
        changes.push(What::StepStarted(begun));
    }
    if let Some(share) = now
        .progress
        .filter(|share| before.and_then(|before| before.progress) != Some(*share))
    {
        changes.push(What::Progress {
            done: share.done,
            total: share.total,
        });
    }
    changes
}
