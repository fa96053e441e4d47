//! `kiln schedules`: the commands for schedules on a server.

use clap::{
    Args, Subcommand,
    builder::{PossibleValuesParser, TypedValueParser},
};
use kiln_records::{
    Code, Failure,
    arch::Arch,
    schedule::{MOST_MISSED, MissedRuns, Overlap},
};
use reqwest::Method;
use serde_json::Value;

use super::{
    job_options::{BootFiles, BuildSizes, Choosing, DatingOptions, Execution, Locking, Verification},
    of_containerfile::OfContainerfile,
    records::{NamedList, Which, called, create, describe, request},
    session::Session,
    sets::{limit, limit_of, records, requirement, wished},
    values::{Body, arch, missed_runs, overlap},
};
use crate::client::{
    Data, Found,
    collection::{PUBLIC_KEYS, RECIPES, RUNS, SCHEDULES},
};

#[derive(Debug, Subcommand)]
pub(super) enum SchedulesCommand {
    /// List records.
    #[command(display_order = 1)]
    List(NamedList),
    /// Show a record.
    #[command(display_order = 2)]
    Describe(Which),
    /// Create a record.
    #[command(display_order = 3)]
    Create(Box<CreateSchedule>),
    /// Change a record.
    #[command(display_order = 4)]
    Update(Box<UpdateSchedule>),
    /// Delete a record.
    #[command(display_order = 5)]
    Delete(Which),
    /// Pause a schedule
    #[command(display_order = 6)]
    Pause(Which),
    /// Resume a schedule with its next run
    #[command(display_order = 7)]
    Resume(Which),
    /// Run a schedule now, even if it is paused
    #[command(display_order = 8)]
    RunNow(Which),
    /// Show the outcomes of a schedule's last runs
    #[command(display_order = 9)]
    History(History),
}

#[derive(Debug, Args)]
pub(super) struct CreateSchedule {
    /// The name of the schedule, and of its images unless --image-root-archive-name is given.
    #[arg(long)]
    name: String,

    /// The recipe to build: id, beginning of an id, or name. For image sets there may be several, and recipes for several
    /// architectures may share a name.
    #[arg(long, value_name = "ID", required = true)]
    recipe: Vec<String>,

    #[command(flatten)]
    sets: ImageSets,

    /// The time of its runs: minute, hour, day of the month, month and day of the week, as in a crontab.
    #[arg(long, value_name = "LINE")]
    cron: String,

    /// The time zone of --cron [default: UTC].
    #[arg(long, value_name = "ZONE")]
    timezone: Option<String>,

    #[command(flatten)]
    jobs: JobArguments,

    /// Create it paused.
    #[arg(long)]
    paused: bool,
}

#[derive(Debug, Args)]
pub(super) struct UpdateSchedule {
    #[command(flatten)]
    which: Which,

    /// The name of the schedule.
    #[arg(long)]
    name: Option<String>,

    /// The recipe to build: id, beginning of an id, or name. For image sets there may be several, and recipes for several
    /// architectures may share a name.
    #[arg(long, value_name = "ID")]
    recipe: Vec<String>,

    #[command(flatten)]
    sets: ImageSets,

    /// The time of its runs; the next run is computed from now.
    #[arg(long, value_name = "LINE")]
    cron: Option<String>,

    /// The time zone of --cron.
    #[arg(long, value_name = "ZONE")]
    timezone: Option<String>,

    #[command(flatten)]
    jobs: JobArguments,

    /// Options of jobs to reset to the default, separated by commas.
    #[arg(long, value_name = "OPTION,…", value_delimiter = ',', value_parser = option())]
    unset: Vec<String>,
}

/// The image sets of a schedule.
#[derive(Debug, Args)]
struct ImageSets {
    /// Make an image set of the recipes in each run. {date}, {time} or n in braces gives each its own version.
    #[arg(
        long,
        value_name = "NAME@VERSION",
        requires = "recipe",
        conflicts_with = "image_root_archive_name"
    )]
    image_set: Option<String>,

    /// The architectures without which a set is complete all the same.
    #[arg(long, value_name = "ARCH,…", value_delimiter = ',', value_parser = arch(), requires = "image_set")]
    non_voting: Vec<Arch>,

    /// How long the job of an architecture may take, for all or as ARCH=SECONDS [default: no limit].
    #[arg(long, value_name = "SECONDS", value_delimiter = ',', value_parser = limit, requires = "image_set")]
    time_limit: Vec<(Option<Arch>, u32)>,

    /// What each image of a set needs before it counts as complete: a boot check in which it came up, or a signature
    /// [default: nothing but its own manifest].
    #[arg(long, value_name = "WHAT,…", value_delimiter = ',', value_parser = requirement(), requires = "image_set")]
    requires: Vec<String>,
}

impl ImageSets {
    /// Adds what the runs make: image sets, or images of one recipe.
    async fn add_to(self, body: Body, recipes: &[String], session: &Session) -> Result<Body, Failure> {
        let Some(set) = &self.image_set else {
            return match recipes {
                [] => Ok(body),
                [recipe] => Ok(body.set("recipe_id", Some(session.client.find(&RECIPES, recipe).await?.id))),
                _ => Err(Failure::new(
                    Code::Usage,
                    "a schedule builds one recipe, or makes image sets of several",
                )
                .hint("give --image-set, or make a schedule for each recipe")),
            };
        };
        let Some((name, version)) = set.split_once('@') else {
            return Err(Failure::new(Code::Usage, "image sets have a name and a version")
                .hint(format!("write `{set}@{{date}}`")));
        };
        let mut list = Vec::new();
        for recipe in recipes {
            for record in records(session, &RECIPES, recipe).await? {
                let arch = record.text("arch").unwrap_or_default();
                let entry = Body::default()
                    .set("recipe_id", record.text("id"))
                    .set("required", Some(!self.non_voting.iter().any(|of| of.name() == arch)))
                    .set("time_limit_s", limit_of(&self.time_limit, arch));
                list.push(entry.into_value());
            }
        }
        let sets = Body::default()
            .set("name", Some(name))
            .set("version", Some(version))
            .set("recipes", Some(list))
            .set("requires", wished(self.requires));
        Ok(body.set("image_set", Some(sets.into_value())))
    }
}

/// The options of a schedule's jobs.
#[derive(Debug, Args)]
#[command(mut_arg("require_dkms", |option| option.help("Whether jobs need their own kernel [default: the recipe's]")))]
struct JobArguments {
    /// The names of the images. {date}, {time}, {recipe} and {arch} stand for those of the run, n in braces for its
    /// number.
    #[arg(long, visible_alias = "image-name", value_name = "NAME")]
    image_root_archive_name: Option<String>,

    /// The public key of its jobs: id, beginning of an id, or name [default: none].
    #[arg(long, value_name = "ID")]
    public_key_id: Option<String>,

    /// The treatment of runs missed while no server was running: skip them, make up for the last one, or for all
    /// [default: once].
    #[arg(long, value_parser = missed_runs())]
    missed_runs: Option<MissedRuns>,

    /// The maximum number of missed runs that `all` makes up for [default: 10].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=i64::from(MOST_MISSED)))]
    missed_runs_limit: Option<u32>,

    /// The treatment of a run while an earlier one has not ended: skip it, queue it, or replace the earlier one
    /// [default: forbid].
    #[arg(long, value_parser = overlap())]
    overlap: Option<Overlap>,

    #[command(flatten)]
    files: BootFiles,

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
}

#[derive(Debug, Args)]
pub(super) struct History {
    #[command(flatten)]
    which: Which,

    /// The maximum number of runs [default: 100].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1000))]
    limit: Option<u32>,
}

fn option() -> impl TypedValueParser<Value = String> {
    PossibleValuesParser::new([
        "public-key-id",
        "kernel-file-name",
        "initrd-file-name",
        "kernel-parameters-file-name",
        "build-env-size",
        "job-mem-size",
        "require-dkms",
        "twins",
        "cache",
        "cache-from",
        "verify-twins",
        "reproducible",
        "source-date-epoch",
        "locked",
        "profiles",
        "containerfile",
        "target",
        "secrets",
        "ignore-repos",
        "set-repo",
        "add-repos",
        "add-packages",
        "add-bootstrap-packages",
        "delete-packages",
    ])
}

impl SchedulesCommand {
    pub(super) async fn run(self, session: &Session) -> Result<(), Failure> {
        let client = &session.client;
        match self {
            Self::List(list) => session.show_list(&SCHEDULES, client.list(&SCHEDULES, &list.into()).await?),
            Self::Describe(which) => session.show(&describe(session, &SCHEDULES, &which.id).await?),
            Self::Create(schedule) => {
                let body = Body::default()
                    .set("name", Some(schedule.name))
                    .set("cron", Some(schedule.cron))
                    .set("timezone", schedule.timezone)
                    .set("paused", schedule.paused.then_some(true));
                let body = schedule.sets.add_to(body, &schedule.recipe, session).await?;
                let body = schedule.jobs.add_to(body, session).await?;
                create(session, &SCHEDULES, &body.into_value()).await
            }
            Self::Update(change) => {
                let body = Body::default()
                    .set("name", change.name)
                    .set("cron", change.cron)
                    .set("timezone", change.timezone);
                let body = change.sets.add_to(body, &change.recipe, session).await?;
                let mut body = change.jobs.add_to(body, session).await?;
                for option in &change.unset {
                    body = body.set(&option.replace('-', "_"), Some(Value::Null));
                }
                let body = body.into_change()?;
                let found = client.find(&SCHEDULES, &change.which.id).await?;
                session.show(&request(session, Method::PATCH, &SCHEDULES, &found, Some(&body)).await?)
            }
            Self::Delete(which) => {
                let found = client.find(&SCHEDULES, &which.id).await?;
                request(session, Method::DELETE, &SCHEDULES, &found, None).await?;
                session
                    .printer
                    .note(format_args!("deleted {}", called(&SCHEDULES, &found)));
                Ok(())
            }
            Self::Pause(which) => session.show(&act(session, &which, "pause").await?.1),
            Self::Resume(which) => session.show(&act(session, &which, "resume").await?.1),
            Self::RunNow(which) => {
                let (found, run) = act(session, &which, "run").await?;
                session.show(&run)?;
                match run.text("outcome") {
                    Some("failed") => Err(not_made(&found, &run)),
                    _ => Ok(()),
                }
            }
            Self::History(history) => {
                let found = client.find(&SCHEDULES, &history.which.id).await?;
                let limit = history.limit.map(|limit| limit.to_string());
                let query: Vec<_> = limit.iter().map(|limit| ("limit", limit.as_str())).collect();
                let path = below(&found, "history");
                let runs = client.send(Method::GET, &path, &query, None).await?;
                session.show_list(&RUNS, runs.into_items())
            }
        }
    }
}

impl JobArguments {
    async fn add_to(self, body: Body, session: &Session) -> Result<Body, Failure> {
        let public_key = match &self.public_key_id {
            Some(key) => Some(session.client.find(&PUBLIC_KEYS, key).await?.id),
            None => None,
        };
        let body = body
            .set("image_root_archive_name", self.image_root_archive_name)
            .set("public_key_id", public_key)
            .set("missed_runs", self.missed_runs.map(MissedRuns::name))
            .set("missed_runs_limit", self.missed_runs_limit)
            .set("overlap", self.overlap.map(Overlap::name));
        let body = self.of_containerfile.add_to(self.choosing.add_to(body)?)?;
        let body = self.locking.add_to(self.sizes.add_to(self.files.add_to(body)));
        Ok(self
            .dating
            .add_to(self.verification.add_to(self.execution.add_to(body))))
    }
}

/// Makes the server do something with a schedule.
async fn act(session: &Session, which: &Which, what: &str) -> Result<(Found, Data), Failure> {
    let found = session.client.find(&SCHEDULES, &which.id).await?;
    let answer = session
        .client
        .send(Method::POST, &below(&found, what), &[], None)
        .await?;
    Ok((found, answer))
}

/// The address of a part of a schedule.
fn below<'a>(found: &'a Found, what: &'a str) -> Vec<&'a str> {
    let mut path = SCHEDULES.path.to_vec();
    path.extend([found.id.as_str(), what]);
    path
}

fn not_made(found: &Found, run: &Data) -> Failure {
    let why = run.text("why").unwrap_or("the server does not say why");
    Failure::new(
        Code::RunFailed,
        format!("{} made nothing: {why}", called(&SCHEDULES, found)),
    )
    .hint(format!("`kiln schedules describe {}` shows what it is told", found.id))
}
