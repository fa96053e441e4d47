//! The page of a job: what it waits for or why it failed, its steps, how it ran, what came out, its log. Reads the
//! database, and asks the orchestrator.

use axum::{
    extract::{Path, Query, State},
    response::Html,
};
use kiln_records::{
    Failure, Job, JobId, JobType, Moment, Run, ShellStatus, Warnings,
    run::{How, State as RunState},
    usage::UsageCurve,
};
use maud::{Markup, html};

use super::{
    Dashboard,
    failures::{artifact_name, points_at},
    history::Usual,
    jobs, layout,
    log::{Asked, Window},
    steps,
    text::{between, bytes, cut, duration, millis, name, short, shown, when},
    usage,
    viewer::Viewer,
};
use crate::{
    api::problem::{Problem, Result},
    store::{Pulse, StoredRun},
};

/// The page of a job.
pub(super) async fn page(
    State(web): State<Dashboard>,
    viewer: Viewer,
    Path(id): Path<JobId>,
    Query(asked): Query<Asked>,
) -> Result<Html<String>> {
    let store = &web.api.store;
    let window = if asked.head {
        None
    } else {
        Some(Window::of(&web.api, id, &asked).await?)
    };
    let Some(stored) = store.get_run(id).await? else {
        let job = store.get_job(id).await?.ok_or_else(Problem::not_found)?.record;
        return Ok(layout::page(
            &viewer,
            &job.image_root_archive_name,
            "/ui/jobs",
            None,
            &elsewhere(&job),
        ));
    };
    let artifact = artifact_name(&web.api, stored.job.job_type, stored.job.artifact_id).await?;
    let orchestrator = web.api.orchestrator.as_deref();
    let shown = Shown {
        pulse: store
            .pulse(id)
            .await?
            .filter(|pulse| pulse.attempt == stored.run.attempt),
        usual: web.histories.usual(&web.api, &stored).await?,
        progress: orchestrator.and_then(|orchestrator| orchestrator.glance.progress(id)),
        waiting: orchestrator.and_then(|orchestrator| orchestrator.glance.waiting(id)),
        held_up: orchestrator.and_then(|orchestrator| orchestrator.glance.held_up(id)),
        curve: store.usage(id).await?,
        artifact,
        stored,
        viewer: &viewer,
    };
    let is_over = shown.stored.run.state.is_final() && shown.stored.run.settled;
    let body = html! {
        (shown.head())
        (shown.facts())
        (usage::plots(&shown.stored.run, shown.curve.as_ref()))
        @if let Some(window) = window {
            section #log aria-labelledby="log-title" {
                h2 #log-title { "Log" }
                (window.show(id, &asked, is_over))
            }
        }
    };
    let title = format!(
        "{} ({})",
        shown.stored.job.image_root_archive_name,
        shown.stored.run.state.name()
    );
    Ok(layout::page(&viewer, &title, "/ui/jobs", None, &body))
}

/// A job that another service carries out.
fn elsewhere(job: &Job) -> Markup {
    html! {
        h1 { (name(&job.image_root_archive_name)) }
        p { (jobs::status(job.status)) " " (job.arch.name()) " · asked for " (when(job.created)) }
        p.note { "Kiln only keeps the record of this job; another service carries it out." }
    }
}

/// All that the page shows above the log.
struct Shown<'a> {
    stored: StoredRun,
    pulse: Option<Pulse>,
    usual: Option<Usual>,
    progress: Option<(u64, u64)>,
    waiting: Option<(usize, String)>,
    held_up: Option<String>,
    curve: Option<UsageCurve>,
    /// The name of the recipe or image; none if it is gone.
    artifact: Option<String>,
    viewer: &'a Viewer,
}

impl Shown<'_> {
    /// The part that the script keeps current: state, reason, steps.
    fn head(&self) -> Markup {
        let StoredRun { job, run, .. } = &self.stored;
        html! {
            h1 { (name(&job.image_root_archive_name)) }
            section #state aria-label="State" {
                p.line {
                    (steps::state(run)) span { (steps::arch_and_how(job, run)) } span { (steps::place(run)) }
                    @if run.attempt > 1 { span { "attempt " (run.attempt) } }
                    span.dim { "asked for " (when(job.created)) @if let Some(who) = &run.plan.who { " by " (cut(who, 40)) } }
                }
                @match &run.state {
                    RunState::Failed(failure) => (cause(failure)),
                    RunState::Queued => p.note {
                        @match &self.waiting {
                            Some((at, reason)) => { "Number " (at) " in the queue: " (shown(reason)) "." }
                            None => "It has just come in, or another server has it in its queue.",
                        }
                    },
                    RunState::Success => p.note.good {
                        "Complete"
                        @if let (Some(launched), Some(ended)) = (run.launched, run.ended) { " after " (duration(between(launched, ended))) }
                        @if let Some(image) = job.resultant_image_id { ": " a href={ "/ui/images/" (image) } { "the image" } "." }
                    },
                    _ => (self.life()),
                }
                (steps::bar(run, self.progress, self.usual.as_ref()))
                @if let Some(fallback) = &run.twins_fallback {
                    p.note { "Attempt " (fallback.attempt) " failed with native twins (" code { (fallback.failure.code.name()) } ": "
                        (cut(&fallback.failure.detail, 300)) "), so this one has none." }
                }
                (warnings(&run.warnings))
                (self.actions())
            }
        }
    }

    /// How a running job is.
    fn life(&self) -> Markup {
        let run = &self.stored.run;
        html! {
            @if let Some(why) = &self.held_up { p.note { "Its sandbox has not started: " (shown(why)) } }
            p.line {
                @if let Some(usual) = &self.usual { strong { (usual.left(run, Moment::now())) } }
                @if let Some(launched) = run.launched { span { "started " (when(launched)) } }
                @match &self.pulse {
                    Some(pulse) => {
                        span { "heartbeat " (duration(pulse.unheard)) " ago" }
                        span { "last progress " (duration(pulse.silent)) " ago" }
                    }
                    None => span.dim { "its agent has not called yet" },
                }
            }
        }
    }

    fn actions(&self) -> Markup {
        let StoredRun { job, run, .. } = &self.stored;
        if !self.viewer.may_write() {
            return html! {};
        }
        let from = steps::resumable(run);
        html! {
            div.line.actions {
                @if run.state.is_final() {
                    form.inline method="post" action={ "/ui/jobs/" (job.id) "/retry" } {
                        (self.viewer.token_field())
                        @if from.is_empty() { button type="submit" { "Retry" } }
                        @else {
                            label for="from-step" { "Retry from" }
                            select #from-step name="from" {
                                option value="" { "the beginning" }
                                @for step in &from { option value=(step.name()) { (step.name()) } }
                            }
                            button type="submit" { "Retry" }
                        }
                    }
                } @else if !matches!(run.state, RunState::Committing) {
                    details {
                        summary { "Cancel…" }
                        form.inline method="post" action={ "/ui/jobs/" (job.id) "/cancel" } {
                            (self.viewer.token_field())
                            button.danger type="submit" { "Cancel this job" }
                        }
                    }
                }
            }
        }
    }

    fn facts(&self) -> Markup {
        let StoredRun { job, run, .. } = &self.stored;
        html! {
            section #facts aria-label="Facts" { div.columns {
                div { h2 { "Where and why there" } (self.whereabouts()) }
                div { h2 { "From" } (self.inputs()) }
                div { h2 { "Result" } (outputs(job, run)) }
                div { h2 { "Resources" } (resources(run)) }
                @if run.plan.how == How::Emulated { div { h2 { "Programs" } (programs(job, run)) } }
                @if run.shell.is_some() { div { h2 { "Shell" } (shell(run)) } }
            } }
        }
    }

    fn whereabouts(&self) -> Markup {
        let run = &self.stored.run;
        html! {
            dl.facts {
                dt { "Place" } dd { (steps::place(run)) @if run.plan.place.is_some() { span.dim { " · isolated by " (run.plan.driver.isolation()) } } }
                @if !run.plan.why.is_empty() { dt { "Why" } dd { (cut(&run.plan.why, 400)) } }
                @for passed in &run.plan.passed_over {
                    dt { "Not at " (cut(&passed.place, 40)) }
                    dd { (passed.driver.name()) ": " code { (passed.code.name()) } " " (cut(&passed.why, 300)) }
                }
                @if let Some(found) = &run.found {
                    dt { "Kernel" } dd { (cut(&found.kernel, 80)) span.dim { " · boot " (cut(&found.boot_id, 8)) } }
                    dt { "Machine" } dd { @match &found.hypervisor { Some(machine) => (cut(machine, 80)), None => "no virtual machine" } }
                    dt { "Emulator" } dd { @match &found.emulator { Some(emulator) => (cut(emulator, 80)), None => "none: native" } }
                }
            }
        }
    }

    fn inputs(&self) -> Markup {
        let StoredRun { job, run, .. } = &self.stored;
        html! {
            dl.facts {
                @match job.job_type {
                    JobType::Create => { dt { "Recipe" } dd { (self.link("recipes")) } }
                    JobType::Customize => { dt { "Image" } dd { (self.link("images")) } }
                }
                @if let Some(sha256) = &run.recipe_sha256 { dt { "SHA-256" } dd { code.digest { (shown(sha256)) } } }
                @if let Some(image) = &run.plan.image {
                    dt { "Root" } dd { code.digest { (cut(&image.rootfs, 160)) } }
                    @if let Some(sha256) = &image.sha256 { dt { "SHA-256" } dd { code.digest { (shown(sha256)) } } }
                    @for change in &image.changes { dt { "Change" } dd { (cut(&change.name, 80)) } }
                } @else if !run.plan.recipe.is_empty() {
                    dt { "Archive" } dd { code.digest { (cut(&run.plan.recipe, 160)) } }
                }
                @if !run.plan.profiles.is_empty() { dt { "Profiles" } dd { (cut(&run.plan.profiles.join(", "), 160)) } }
                @for (option, text) in run.plan.additions.shown().iter().take(50) { dt { (option) } dd { (cut(text, 200)) } }
                @for (key, value) in run.plan.values.iter().take(50) { dt { (cut(key, 40)) } dd { (cut(value, 120)) } }
                @if let Some(resume) = &run.plan.resume {
                    dt { "Resumes" } dd { a href={ "/ui/jobs/" (resume.job) } { (short(resume.job)) } " at " (resume.step.name()) }
                }
                @if let Some(verified) = run.plan.verifies { dt { "Verifies" } dd { a href={ "/ui/jobs/" (verified) } { (short(verified)) } } }
                dt { "Job" } dd { code.digest { (job.id) } }
            }
        }
    }

    fn link(&self, pages: &str) -> Markup {
        let id = self.stored.job.artifact_id;
        html! {
            @match &self.artifact {
                Some(called) => a href={ "/ui/" (pages) "/" (id) } { (name(called)) },
                None => span.dim { "deleted, or given with the job: " (short(id)) },
            }
        }
    }
}

/// What the attempt warned of.
fn warnings(warnings: &Warnings) -> Markup {
    html! {
        @if !warnings.is_empty() {
            details.note #warnings open[warnings.count() <= 10] {
                summary { (steps::warned(warnings)) }
                ul {
                    @for warning in &warnings.list {
                        li {
                            (cut(&warning.message, 1000)) " " code { (warning.code.name()) }
                            @if let Some(step) = warning.step { span.dim { " in step " (step.name()) } }
                            @if let Some(hint) = &warning.hint { div.dim { "Hint: " (cut(hint, 600)) } }
                        }
                    }
                }
                @if let Some(rest) = warnings.rest() { p.dim { (rest) "." } }
            }
        }
    }
}

/// A failure with its code, cause and advice.
fn cause(failure: &Failure) -> Markup {
    html! {
        div.note.bad {
            p { strong { code { (failure.code.name()) } } " " span.badge.calm { (points_at(failure.code)) }
                @if let Some(step) = failure.step { " in step " (step.name()) } }
            p { (cut(&failure.detail, 1000)) }
            @if let Some(twin) = &failure.twin { p { "The native twin was of " code { (cut(&twin.package, 60)) } " " (cut(&twin.version, 60)) "." } }
            @if let Some(hint) = &failure.hint { p { "Hint: " (cut(hint, 600)) } }
            @if failure.step.is_some() { p { a href="?from=0&errors=true#log" { "First error in the log" } } }
        }
    }
}

fn outputs(job: &Job, run: &Run) -> Markup {
    html! {
        dl.facts {
            dt { "Image" }
            dd {
                @match job.resultant_image_id {
                    Some(image) => a href={ "/ui/images/" (image) } { (name(&job.image_root_archive_name)) },
                    None if run.plan.verifies.is_some() => "none: it verifies another job",
                    None => span.dim { "none" @if !run.state.is_final() { " yet" } },
                }
            }
            @for known in &run.uploads {
                dt { (known.upload.kind.key_name()) }
                dd {
                    (bytes(known.upload.size))
                    @match &known.done {
                        Some(done) => div { code.digest { "sha256 " (shown(&done.digests.sha256)) } div { code.digest { "md5 " (shown(&done.digests.md5)) } } },
                        None => span.dim { " not complete" },
                    }
                    div { code.digest { "s3://" (cut(&known.upload.bucket, 80)) "/" (cut(&known.upload.key, 160)) } }
                }
            }
            @if let Some(log) = &run.log { dt { "Whole log" } dd { code.digest { (cut(log, 200)) } } }
        }
    }
}

fn resources(run: &Run) -> Markup {
    let needs = run.plan.needs;
    let used = run.used;
    html! {
        div.wide tabindex="0" { table {
            thead { tr { th {} th.num { "Set aside" } th.num { "Limit" } th.num { "Used at most" } } }
            tbody {
                tr { th scope="row" { "Memory" } td.num { (bytes(needs.memory)) } td.num { (bytes(needs.memory_limit)) }
                    td.num { @match used { Some(used) => (bytes(used.memory)), None => "not measured" } } }
                tr { th scope="row" { "Disk" } td.num { (bytes(needs.disk)) } td.num { (bytes(needs.disk_limit)) }
                    td.num { @match used { Some(used) => (bytes(used.disk)), None => "not measured" } } }
                tr { th scope="row" { "CPU time" } td {} td {}
                    td.num { @match used { Some(used) => (millis(used.cpu_ms)), None => "not measured" } } }
                @for time in &run.steps {
                    tr { th scope="row" { "in " (time.step.name()) } td {} td {} td.num { (millis(time.cpu_ms)) " in " (millis(time.wall_ms)) } }
                }
            }
        } }
    }
}

fn programs(job: &Job, run: &Run) -> Markup {
    let Some(execs) = &run.execs else {
        return html! { p.dim { "Counted once the root is built." } };
    };
    html! {
        p { strong { (execs.twins) } " runs as native twins, " strong { (execs.emulated) } " emulated; twins in force: " (run.twins_in_force().name()) "." }
        @if !execs.most_expensive.is_empty() {
            div.wide tabindex="0" { table {
                caption { "The most expensive emulated programs" }
                thead { tr { th { "Program" } th.num { "Runs" } th.num { "CPU time" } } }
                tbody { @for program in &execs.most_expensive {
                    tr { td { code { (cut(&program.program, 80)) } } td.num { (program.runs) } td.num { (millis(program.cpu_ms)) } }
                } }
            } }
        }
        p.dim { code { "kiln jobs explain " (job.id) } " says for each program why." }
    }
}

fn shell(run: &Run) -> Markup {
    let Some(shell) = &run.shell else { return html! {} };
    html! {
        @match (&shell.at, shell.status) {
            (Some(at), ShellStatus::Ready) => {
                p { "Log in as root with your key:" }
                pre.copy { code { "ssh -p " (at.port) " root@" (shown(&at.host)) } }
                @if let Some(key) = &shell.host_key { p { "Its host key: " code.digest { (shown(key)) } } }
                @if let Some(until) = shell.until { p { "It closes " (when(until)) " unless it is used before." } }
                p.dim { code { "kiln shell" } " opens it, too." }
            }
            (_, ShellStatus::Pending) => p.dim { "It is not open yet." },
            _ => p.dim { "It is closed." },
        }
    }
}
