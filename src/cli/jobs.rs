//! `kiln jobs`: the commands for jobs on a server.

use clap::{Args, Subcommand};
use kiln_records::{Failure, JobType, Step};
use reqwest::Method;
use serde_json::{Value, json};

use super::{
    explain::Explain,
    job_logs::ShowLog,
    job_options::{BootFiles, BuildSizes, Choosing, DatingOptions, Execution, Locking, Verification},
    job_progress,
    of_containerfile::OfContainerfile,
    records::{Common, JobChoice, JobList, Which, create, missing},
    session::Session,
    values::{Body, boolean, item, job_type, same_length, step},
};
use crate::client::{
    Data,
    collection::{IMAGES, JOBS, PUBLIC_KEYS, RECIPES},
};

#[derive(Debug, Subcommand)]
pub(super) enum JobsCommand {
    #[command(flatten)]
    Common(Common<JobList, JobChoice>),
    /// Create a record.
    #[command(display_order = 3)]
    Create(Box<CreateJob>),
    /// Show what was said while a job ran.
    #[command(display_order = 7)]
    Logs(ShowLog),
    /// Show how a job is: what it waits for, how far it is, what it used, why it failed.
    #[command(display_order = 8)]
    Status(Which),
    /// Show how each program of an emulated build was run, and why: as a native twin, or emulated.
    #[command(display_order = 9)]
    Explain(Explain),
    /// End a job.
    #[command(display_order = 9)]
    Cancel(Which),
    /// Keep what was done in a job's shell, which closes.
    #[command(display_order = 11)]
    Complete(Which),
    /// Throw away what was done in a job's shell, which closes.
    #[command(display_order = 12)]
    Fail(Which),
    /// Create a job like one that has ended.
    #[command(display_order = 10)]
    Retry(Retry),
}

#[derive(Debug, Args)]
pub(super) struct Retry {
    #[command(flatten)]
    which: Which,

    /// Go on from what the job left at this step, instead of anew.
    #[arg(long, value_name = "STEP", value_parser = step())]
    from: Option<Step>,
}

#[derive(Debug, Args)]
#[command(
    mut_arg("kernel_parameters_file_name", |option| {
        option.help("The kernel parameters' file name in /boot; the file may be absent [default: kernel-parameters]")
    }),
    mut_arg("build_env_size", |option| option.help("Disk for the build, GiB [default: the server's]")),
    mut_arg("job_mem_size", |option| option.help("Memory for the build, GiB [default: the server's]")),
    mut_arg("twins", |option| option.help(
        "Which tools may run as native twins if the build is emulated [default: the recipe's, else the server's]"
    )),
)]
pub(super) struct CreateJob {
    /// Whether an image is made from a recipe, or from another image.
    #[arg(long, value_parser = job_type())]
    job_type: JobType,

    /// What to call the image that comes out.
    #[arg(long, value_name = "NAME")]
    image_root_archive_name: String,

    /// The recipe (create) or image (customize) to start from: id, beginning of an id, or name.
    #[arg(long, value_name = "ID")]
    artifact_id: String,

    /// The key that may log in to the job's shell: id, beginning of an id, or name.
    #[arg(long, value_name = "ID")]
    public_key_id: String,

    #[command(flatten)]
    files: BootFiles,

    /// Names of the job's shells, with commas between them.
    #[arg(long, value_name = "NAME,…", value_delimiter = ',', value_parser = item())]
    ssh_containers_name: Vec<String>,

    /// Whether each shell is confined to the image's root, with commas between them.
    #[arg(long, value_name = "BOOL,…", value_delimiter = ',', value_parser = boolean)]
    ssh_containers_jail: Vec<bool>,

    /// Whether a build opens a shell when it has failed, or is ready to be packaged.
    #[arg(long, value_name = "BOOL", value_parser = boolean)]
    enable_debug: Option<bool>,

    #[command(flatten)]
    sizes: BuildSizes,

    #[command(flatten)]
    execution: Execution,

    #[command(flatten)]
    verification: Verification,

    #[command(flatten)]
    dating: DatingOptions,

    #[command(flatten)]
    locking: Locking,

    #[command(flatten)]
    choosing: Choosing,

    #[command(flatten)]
    of_containerfile: OfContainerfile,

    /// Show how the job gets on, and wait for its end.
    #[arg(long)]
    follow: bool,
}

impl JobsCommand {
    /// Whether the command begins a job.
    pub(super) fn begins_jobs(&self) -> bool {
        matches!(self, Self::Create(_) | Self::Retry(_))
    }

    pub(super) async fn run(self, session: &Session) -> Result<(), Failure> {
        match self {
            JobsCommand::Common(command) => command.run(&JOBS, session).await,
            JobsCommand::Create(job) => {
                let ssh_containers = job.ssh_containers()?;
                let source = match job.job_type {
                    JobType::Create => &RECIPES,
                    JobType::Customize => &IMAGES,
                };
                let artifact = session.client.find(source, &job.artifact_id).await?;
                let public_key = session.client.find(&PUBLIC_KEYS, &job.public_key_id).await?;
                let body = Body::default()
                    .set("job_type", Some(job.job_type.name()))
                    .set("image_root_archive_name", Some(job.image_root_archive_name))
                    .set("artifact_id", Some(artifact.id))
                    .set("public_key_id", Some(public_key.id))
                    .set("ssh_containers", ssh_containers)
                    .set("enable_debug", job.enable_debug);
                let body = job.sizes.add_to(job.files.or_usual().add_to(body));
                let body = job.verification.add_to(job.execution.add_to(body));
                let body = job.choosing.add_to(job.locking.add_to(job.dating.add_to(body)))?;
                let body = job.of_containerfile.add_to(body)?;
                let body = body.into_value();
                if !job.follow && session.without_server().is_none() {
                    return create(session, &JOBS, &body).await;
                }
                let made = session.client.send(Method::POST, JOBS.path, &[], Some(&body)).await?;
                job_progress::follow(session, &made).await
            }
            JobsCommand::Logs(log) => log.run(session).await,
            JobsCommand::Status(which) => {
                let job = session.client.find(&JOBS, &which.id).await?.id;
                show(session, session.client.job_status(&job).await)
            }
            JobsCommand::Explain(explain) => explain.run(session).await,
            JobsCommand::Cancel(which) => {
                let job = session.client.find(&JOBS, &which.id).await?.id;
                show(session, session.client.cancel_job(&job).await)
            }
            JobsCommand::Complete(which) => judge(session, &which, "complete").await,
            JobsCommand::Fail(which) => judge(session, &which, "fail").await,
            JobsCommand::Retry(retry) => {
                let job = session.client.find(&JOBS, &retry.which.id).await?.id;
                let from = retry.from.map(Step::name);
                let made = session.client.retry_job(&job, from).await;
                if session.without_server().is_some() {
                    // The job ends with this command.
                    return job_progress::follow(session, &made.map_err(|failure| missing(&JOBS, failure))?).await;
                }
                show(session, made)
            }
        }
    }
}

async fn judge(session: &Session, which: &Which, verdict: &str) -> Result<(), Failure> {
    let job = session.client.find(&JOBS, &which.id).await?.id;
    show(session, session.client.judge_job(&job, verdict).await)
}

fn show(session: &Session, answer: Result<Data, Failure>) -> Result<(), Failure> {
    session.show(&answer.map_err(|failure| missing(&JOBS, failure))?)
}

impl CreateJob {
    /// The shells: names, jails, or both in the same order.
    fn ssh_containers(&self) -> Result<Option<Value>, Failure> {
        let (names, jails) = (&self.ssh_containers_name, &self.ssh_containers_jail);
        if !names.is_empty() && !jails.is_empty() {
            same_length("ssh-containers-name", names.len(), "ssh-containers-jail", jails.len())?;
        }
        let shells = (0..names.len().max(jails.len())).map(|index| {
            Body::default()
                .set("name", names.get(index).cloned())
                .set("jail", jails.get(index).copied())
                .into_value()
        });
        let shells: Vec<_> = shells.collect();
        Ok((!shells.is_empty()).then(|| json!(shells)))
    }
}
