//! What receivers are told, as JSON. Pure: no I/O.

use kiln_records::{Code, ImageSet, Job, Moment, Run, set::state::SetState, webhook::Event};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

/// The whole text of a delivery.
pub(super) fn written(event: Event, now: Moment, data: &Value) -> String {
    json!({ "type": event.name(), "timestamp": now, "data": data }).to_string()
}

/// How a job ended, and what is told of it. Messages may be those of a recipe: they are as its record has them.
pub(super) fn of_job(job: &Job, run: &Run, public_url: Option<&str>) -> (Event, Value) {
    let failure = run.failure();
    let event = match failure {
        // A job that is deleted while it runs ends with its record.
        None if !run.state.is_final() => Event::JobCancelled,
        None => Event::JobSucceeded,
        Some(failure) if failure.code == Code::Cancelled => Event::JobCancelled,
        Some(_) => Event::JobFailed,
    };
    let cause = failure.map(|failure| {
        json!({
            "code": failure.code.name(),
            "message": failure.detail,
            "hint": failure.hint,
            "step": run.step,
        })
    });
    let data = json!({
        "job": {
            "id": job.id,
            "job_type": job.job_type,
            "image_root_archive_name": job.image_root_archive_name,
            "arch": job.arch,
            "status": job.status,
            "artifact_id": job.artifact_id,
            "resultant_image_id": job.resultant_image_id,
            "created": job.created,
            "launched": run.launched,
            "ended": run.ended,
            "attempts": run.attempt,
            "place": run.plan.place,
            "cause": cause,
        },
        "url": public_url.map(|url| format!("{url}/ui/jobs/{}", job.id)),
    });
    (event, data)
}

/// What is told of a set.
pub(super) fn of_set(set: &ImageSet, state: SetState, public_url: Option<&str>) -> Value {
    let members = set.members.iter().map(|member| {
        json!({
            "arch": member.arch,
            "required": member.required,
            "image_id": member.image.as_ref().map(|image| image.id),
            "job_id": set.job_of(member.arch),
        })
    });
    json!({
        "set": {
            "id": set.id,
            "name": set.name,
            "version": set.version,
            "state": state,
            "members": members.collect::<Vec<_>>(),
        },
        "url": public_url.map(|url| format!("{url}/ui/sets/{}", set.id)),
    })
}

/// A short name for what became of a set: the same images and jobs are no news.
pub(super) fn fact_of_set(set: &ImageSet, event: Event) -> String {
    let mut digest = Sha256::new();
    for member in &set.members {
        let image = member.image.as_ref().map(|image| image.id);
        digest.update(format!("{} {image:?} {:?}\n", member.arch, set.job_of(member.arch)));
    }
    format!("{} {}", event.name(), hex::encode(&digest.finalize()[..16]))
}
