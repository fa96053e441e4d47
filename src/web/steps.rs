//! Parts of pages about one job: its state, its steps as a bar, the way in which it runs. Pure: no I/O.

use kiln_records::{
    Job, Run, Step, Warnings,
    run::{How, State},
};
use maud::{Markup, html};

use super::{
    history::Usual,
    text::{cut, millis},
};

/// The state of a job as a word with a colour.
pub(super) fn state(run: &Run) -> Markup {
    let class = match run.state {
        State::Success => "good",
        State::Failed(_) => "bad",
        State::Queued => "calm",
        _ => "busy",
    };
    badge(class, run.state.name())
}

/// A word with a colour.
pub(super) fn badge(class: &str, word: &str) -> Markup {
    html! { span class={ "badge " (class) } { (word) } }
}

/// The mark of a job that warns of something.
pub(super) fn warned(warnings: &Warnings) -> Markup {
    match warnings.count() {
        0 => html! {},
        1 => badge("warn", "1 warning"),
        count => badge("warn", &format!("{count} warnings")),
    }
}

/// The place of a run, and its kind of sandbox.
pub(super) fn place(run: &Run) -> Markup {
    html! {
        @match &run.plan.place {
            Some(place) => { (cut(place, 40)) span.dim { " · " (run.plan.driver.name()) } }
            None => span.dim { "no place yet" },
        }
    }
}

/// Whether a job is native or emulated. Its place decides that.
pub(super) fn how(run: &Run) -> Markup {
    match run.plan.how {
        _ if run.plan.place.is_none() => html! {},
        How::Native => html! { "native" },
        How::Emulated => html! { strong { "emulated" } },
    }
}

/// The architecture of a job, with the way in which it runs.
pub(super) fn arch_and_how(job: &Job, run: &Run) -> Markup {
    html! { (job.arch.name()) @if run.plan.place.is_some() { " · " (how(run)) } }
}

/// The steps of a job: those that are done with their durations, and the current one with its progress.
pub(super) fn bar(run: &Run, progress: Option<(u64, u64)>, usual: Option<&Usual>) -> Markup {
    let failed = run
        .failure()
        .and_then(|failure| failure.step)
        .or(run.step.filter(|_| run.failure().is_some()));
    html! {
        ol.steps {
            @for step in run.plan.steps() {
                @let took = run.steps.iter().find(|time| time.step == *step).map(|time| time.wall_ms);
                @let is_now = run.step == Some(*step) && took.is_none() && !run.state.is_final();
                @let class = match took {
                    _ if failed == Some(*step) => "failed",
                    Some(_) => "done",
                    None if is_now => "now",
                    None => "todo",
                };
                li class=(class) aria-current=[is_now.then_some("step")] {
                    span { (step.name()) }
                    @match took {
                        _ if class == "failed" => span.small { "failed" },
                        Some(ms) => span.small { (millis(ms)) },
                        None if is_now => {
                            @match progress.and_then(percent) {
                                Some(percent) => {
                                    span.small { (percent) " %" }
                                    progress max="100" value=(percent) aria-label={ (step.name()) " progress" } {}
                                }
                                None => span.small { "now" },
                            }
                        }
                        None => @if let Some(ms) = usual.and_then(|usual| usual.step(*step)) {
                            span.small { "usually " (millis(ms)) }
                        }
                    }
                }
            }
        }
    }
}

fn percent((done, total): (u64, u64)) -> Option<u64> {
    (total > 0).then(|| (done.min(total) / (total / 100).max(1)).min(100))
}

/// Whether a job can be resumed from a step: its files were kept, and the steps before it are done.
pub(super) fn resumable(run: &Run) -> Vec<Step> {
    if !run.kept || !run.state.is_final() {
        return Vec::new();
    }
    let done = run.steps.iter().map(|time| time.step).max();
    let all = run.plan.steps().iter().copied();
    all.filter(|step| done.is_some_and(|done| *step <= done) || Some(*step) == run.step)
        .collect()
}
