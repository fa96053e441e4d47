//! Has the server build a recipe for several architectures, as a set of images, and follows the jobs. Talks to the server.

use kiln_records::{Code, Failure, JobType, LinuxDistribution, RecipeType, arch::Arch, run::Kernel};
use reqwest::Method;
use serde_json::json;

use super::{
    job_progress,
    progress::Progress,
    session::Session,
    upload::{Objects, fill_created, upload},
};
use crate::{
    client::{
        Data, Upload,
        collection::{RECIPES, SETS},
    },
    orchestrate::recipe::RecipeArchive,
};

/// Builds the recipe for all architectures, and says what came of it.
pub(super) async fn build_set(
    session: &Session,
    recipe: &RecipeArchive,
    archs: &[Arch],
    kernel: Kernel,
    (name, version): (&str, &str),
) -> Result<(), Failure> {
    let mut members = Vec::new();
    for arch in archs {
        let made = make_recipe(session, recipe, *arch, kernel).await?;
        members.push(json!({ "arch": arch.name(), "recipe_id": made.text("id") }));
    }
    let body = json!({ "name": name, "version": version, "arches": members });
    let set = session.client.send(Method::POST, SETS.path, &[], Some(&body)).await?;
    let jobs: Vec<(Arch, &str)> = set
        .items("arches")
        .iter()
        .filter_map(|member| match member.items("jobs") {
            [Data::Text(job), ..] => Some((member.text("arch")?.parse().ok()?, job.as_str())),
            _ => None,
        })
        .collect();
    let progress = Progress::new(&session.printer, archs);
    let following = jobs.iter().map(|(arch, job)| follow(session, *arch, job, &progress));
    let ended = futures::future::try_join_all(following).await?;
    drop(progress);
    let mut images = 0;
    for ((arch, job), status) in jobs.iter().zip(ended) {
        if let Some(image) = status.text("image").filter(|_| succeeded(&status)) {
            images += 1;
            session.printer.result(format_args!("image      {image} ({arch})"));
            continue;
        }
        let mut failure = job_progress::failure(&status);
        failure.detail = format!("{arch}: {}", failure.detail);
        match session.without_server() {
            Some(_) => session.printer.note(format_args!("log        kiln jobs logs {job}")),
            None => session
                .printer
                .note(format_args!("job        {}/ui/jobs/{job}", session.client.server())),
        }
        session.printer.failure(&failure);
    }
    session.printer.result(format_args!("set        {name}@{version}"));
    match archs.len() - images {
        0 => Ok(()),
        failed => {
            let cause = format!("{failed} of {} builds failed", archs.len());
            Err(Failure::new(Code::JobFailed, cause))
        }
    }
}

async fn make_recipe(session: &Session, recipe: &RecipeArchive, arch: Arch, kernel: Kernel) -> Result<Data, Failure> {
    let body = json!({
        "name": recipe.name,
        "recipe_type": RecipeType::from(recipe.kind).name(),
        "linux_distribution": recipe.distribution.unwrap_or(LinuxDistribution::Debian).name(),
        "arch": arch.name(),
        "require_dkms": kernel == Kernel::Own,
    });
    fill_created(session, &RECIPES, &body, Objects::Uploaded, async |id| {
        let to = ["kiln", "v1", "recipes", id, "archive"];
        let archive = Upload::bytes(recipe.bytes.clone(), "application/octet-stream");
        upload(session, &to, &format!("recipe for {arch}"), archive).await
    })
    .await
}

/// Shows the progress of a job until it ends. Returns its status then.
async fn follow(session: &Session, arch: Arch, job: &str, progress: &Progress) -> Result<Data, Failure> {
    let lane = progress.lane(arch, JobType::Create);
    job_progress::show_in(session, job, &lane).await?;
    let status = session.client.job_status(job).await?;
    let failure = (!succeeded(&status)).then(|| job_progress::failure(&status));
    lane.end(failure.as_ref());
    Ok(status)
}

fn succeeded(status: &Data) -> bool {
    status.text("state") == Some("success")
}
