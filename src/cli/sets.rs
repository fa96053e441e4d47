//! `kiln sets`: the commands for image sets, which have one image for each of several architectures.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use clap::{Args, Subcommand, builder::PossibleValuesParser};
use kiln_records::{
    Code, Failure,
    arch::Arch,
    set::{
        Requirement,
        name::{Which as Version, parse},
    },
};
use reqwest::Method;
use serde_json::{Value, json};

use super::{
    records::{NamedList, called, missing},
    session::Session,
    values::{Body, arch},
};
use crate::client::{
    Collection, Data, Filter, Found,
    collection::{IMAGES, PUBLIC_KEYS, RECIPES, SET_ARCHES, SETS},
};

/// How often a set is looked at while a command waits for it.
const LOOK: Duration = Duration::from_secs(2);

#[derive(Debug, Subcommand)]
pub(super) enum SetsCommand {
    /// List records.
    #[command(display_order = 1)]
    List(NamedList),
    /// Show the state of a set and of each of its architectures, after a look at its images
    #[command(display_order = 2)]
    Describe(WhichSet),
    /// Wait until a set is complete, or nothing is under way any more that could make it so
    #[command(display_order = 7)]
    Wait(WaitForSet),
    /// Create a set: build recipes of several architectures, or put existing images together
    #[command(display_order = 3)]
    Create(Box<CreateSet>),
    /// Add an architecture to a set; only what is missing is built
    #[command(display_order = 4)]
    AddArch(AddArch),
    /// Build again what has failed, was deleted or has changed
    #[command(display_order = 5)]
    Rebuild(Rebuild),
    /// Delete a set; its jobs and images remain
    #[command(display_order = 6)]
    Delete(WhichSet),
}

/// One set.
#[derive(Debug, Args)]
pub(super) struct WhichSet {
    /// The set: NAME@VERSION, its id, or the first four or more characters of the id.
    #[arg(value_name = "SET")]
    set: String,
}

#[derive(Debug, Args)]
pub(super) struct WaitForSet {
    #[command(flatten)]
    which: WhichSet,

    /// How long to wait, in seconds [default: as long as it takes].
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..))]
    timeout: Option<u64>,
}

#[derive(Debug, Args)]
pub(super) struct CreateSet {
    /// The set's name and version.
    #[arg(value_name = "NAME@VERSION")]
    set: String,

    #[command(flatten)]
    sources: Sources,

    /// The architectures to build, of the recipes with the given names [default: all that there are].
    #[arg(long, value_name = "ARCH,…", value_delimiter = ',', value_parser = arch(), requires = "recipe")]
    arch: Vec<Arch>,

    /// The architectures without which the set is complete all the same.
    #[arg(long, value_name = "ARCH,…", value_delimiter = ',', value_parser = arch())]
    non_voting: Vec<Arch>,

    /// What each image needs before it counts as complete: a boot check in which it came up, or a signature
    /// [default: nothing but its own manifest].
    #[arg(long, value_name = "WHAT,…", value_delimiter = ',', value_parser = requirement())]
    requires: Vec<String>,

    /// The public key that may log in to the shells of its jobs: id, beginning of an id, or name.
    #[arg(long, value_name = "ID")]
    public_key_id: Option<String>,
}

#[derive(Debug, Args)]
#[command(mut_arg("recipe", |option| option.help(
    "The recipe to build [default: the one that has the name of the set's other recipes]"
)))]
pub(super) struct AddArch {
    #[command(flatten)]
    which: WhichSet,

    /// The architectures.
    #[arg(required = true, value_parser = arch())]
    arch: Vec<Arch>,

    #[command(flatten)]
    sources: Sources,

    /// The set is complete without it, too.
    #[arg(long)]
    non_voting: bool,
}

/// Where images come from.
#[derive(Debug, Args)]
struct Sources {
    /// The recipes to build: ids, beginnings of ids, or names, which several architectures may share.
    #[arg(long, value_name = "ID,…", value_delimiter = ',')]
    recipe: Vec<String>,

    /// The images that exist already: ids, beginnings of ids, or names.
    #[arg(long, value_name = "ID,…", value_delimiter = ',')]
    image: Vec<String>,

    /// How long the job of an architecture may take, for all or as ARCH=SECONDS [default: no limit].
    #[arg(long, value_name = "SECONDS", value_delimiter = ',', value_parser = limit)]
    time_limit: Vec<(Option<Arch>, u32)>,
}

#[derive(Debug, Args)]
pub(super) struct Rebuild {
    #[command(flatten)]
    which: WhichSet,

    /// Build again what is neither complete nor under way; there is nothing else to choose yet.
    #[arg(long, required = true)]
    failed: bool,
}

/// Reads `SECONDS` or `ARCH=SECONDS`.
pub(super) fn limit(text: &str) -> Result<(Option<Arch>, u32), String> {
    let (arch, seconds) = match text.split_once('=') {
        Some((arch, seconds)) => (Some(arch.parse::<Arch>().map_err(|error| error.to_string())?), seconds),
        None => (None, text),
    };
    let seconds = seconds
        .parse()
        .map_err(|_| format!("`{seconds}` is no number of seconds"))?;
    Ok((arch, seconds))
}

impl SetsCommand {
    pub(super) async fn run(self, session: &Session) -> Result<(), Failure> {
        let client = &session.client;
        match self {
            Self::List(list) => session.show_list(&SETS, client.list(&SETS, &list.into()).await?),
            Self::Describe(which) => {
                let found = which.find(session).await?;
                show(session, &send(session, Method::GET, &found, None, None).await?)
            }
            Self::Wait(wait) => wait.run(session).await,
            Self::Create(set) => set.run(session).await,
            Self::AddArch(more) => more.run(session).await,
            Self::Rebuild(rebuild) => {
                needs_server(session)?;
                let found = rebuild.which.find(session).await?;
                show(
                    session,
                    &send(session, Method::POST, &found, Some("rebuild"), None).await?,
                )
            }
            Self::Delete(which) => {
                let found = which.find(session).await?;
                send(session, Method::DELETE, &found, None, None).await?;
                session.printer.note(format_args!("deleted {}", called(&SETS, &found)));
                Ok(())
            }
        }
    }
}

impl WhichSet {
    /// The set, by its version or in the ways of other records.
    async fn find(&self, session: &Session) -> Result<Found, Failure> {
        let Ok((name, Version::Version(version))) = parse(&self.set) else {
            return session.client.find(&SETS, &self.set).await;
        };
        let versions = of_name(session, &SETS, &name).await?;
        let found = versions.iter().find(|set| set.text("version") == Some(&version));
        if let Some(id) = found.and_then(|set| set.text("id")) {
            return Ok(Found {
                id: id.to_owned(),
                name: Some(self.set.clone()),
            });
        }
        let known: Vec<_> = versions.iter().filter_map(|set| set.text("version")).collect();
        let failure = Failure::new(Code::RecordUnknown, format!("there is no set {}", self.set));
        Err(if known.is_empty() {
            failure.hint("`kiln sets list` shows what there is")
        } else {
            failure.hint(format!("there are the versions {}", known.join(", ")))
        })
    }
}

/// The images of a complete set, by its name and version. A set that is not complete has none to hand on; what failed of its
/// non-voting architectures is left out.
pub(super) async fn images_of(session: &Session, set: &str) -> Result<Vec<String>, Failure> {
    let which = WhichSet { set: set.to_owned() };
    let found = which.find(session).await?;
    let answer = session.client.get(&["kiln", "v1", "sets", &found.id]).await?;
    let state = answer.text("state").unwrap_or_default();
    if state != "complete" {
        return Err(Failure::new(
            Code::SetIncomplete,
            format!("the set {set} is not complete, but {state}"),
        )
        .hint(format!("`kiln sets describe {set}` says what is missing")));
    }
    let complete = answer.items("arches").iter();
    let complete = complete.filter(|arch| arch.text("state") == Some("complete"));
    Ok(complete
        .filter_map(|arch| arch.text("image_id").map(str::to_owned))
        .collect())
}

impl WaitForSet {
    async fn run(self, session: &Session) -> Result<(), Failure> {
        let found = self.which.find(session).await?;
        let (begun, mut told) = (Instant::now(), BTreeMap::new());
        loop {
            let set = send(session, Method::GET, &found, None, None).await?;
            for arch in set.items("arches") {
                let text = |member: &str| arch.text(member).unwrap_or_default().to_owned();
                let (name, state) = (text("arch"), text("state"));
                if told.get(&name) != Some(&state) {
                    session.printer.note(format_args!("{name:<8} {state}"));
                    told.insert(name, state);
                }
            }
            let state = set.text("state").unwrap_or_default();
            let failure = |code, cause| {
                let hint = format!("`kiln sets describe {}` says what is missing", self.which.set);
                Failure::new(code, format!("the set {} is {state}{cause}", self.which.set)).hint(hint)
            };
            match state {
                "complete" => return show(session, &set),
                // What cannot be looked at now may be there a little later.
                "building" | "unverified" => {}
                _ => {
                    show(session, &set)?;
                    return Err(failure(Code::SetIncomplete, String::new()));
                }
            }
            if let Some(seconds) = self.timeout.filter(|seconds| begun.elapsed().as_secs() >= *seconds) {
                return Err(failure(Code::SetIncomplete, format!(" after {seconds} s")));
            }
            tokio::time::sleep(LOOK).await;
        }
    }
}

impl CreateSet {
    async fn run(self, session: &Session) -> Result<(), Failure> {
        let (name, version) = match parse(&self.set) {
            Ok((name, Version::Version(version))) => (name, version),
            Ok(_) => {
                return Err(Failure::new(Code::Usage, "a set has a name and a version")
                    .hint(format!("write `{}@VERSION`", self.set)));
            }
            Err(why) => return Err(Failure::new(Code::Usage, why).hint("write NAME@VERSION")),
        };
        let mut arches = Vec::new();
        for recipe in &self.sources.recipe {
            needs_server(session)?;
            for record in records(session, &RECIPES, recipe).await? {
                let is_wanted = |wanted: &Arch| record.text("arch") == Some(wanted.name());
                if self.arch.is_empty() || self.arch.iter().any(is_wanted) {
                    arches.push(("recipe_id", record));
                }
            }
        }
        for image in &self.sources.image {
            let found = session.client.find(&IMAGES, image).await?;
            arches.push(("image_id", session.client.get(&["v3", "images", &found.id]).await?));
        }
        for wanted in &self.arch {
            if !arches
                .iter()
                .any(|(_, record)| record.text("arch") == Some(wanted.name()))
            {
                return Err(Failure::new(
                    Code::RecordUnknown,
                    format!("none of the given recipes is one for {wanted}"),
                )
                .hint(format!("`kiln recipes list --arch {wanted}` shows what there is")));
            }
        }
        if arches.is_empty() {
            return Err(
                Failure::new(Code::Usage, "a set has at least one architecture").hint("give --recipe or --image")
            );
        }
        let mut list = Vec::new();
        for (source, record) in arches {
            let (id, of) = (
                record.text("id").unwrap_or_default(),
                record.text("arch").unwrap_or_default(),
            );
            list.push(
                self.sources
                    .entry(of, source, id, !self.non_voting.iter().any(|arch| arch.name() == of)),
            );
        }
        let public_key = match &self.public_key_id {
            Some(key) => Some(session.client.find(&PUBLIC_KEYS, key).await?.id),
            None => None,
        };
        let body = Body::default()
            .set("name", Some(name))
            .set("version", Some(version))
            .set("arches", Some(list))
            .set("requires", wished(self.requires))
            .set("public_key_id", public_key)
            .into_value();
        show(
            session,
            &session.client.send(Method::POST, SETS.path, &[], Some(&body)).await?,
        )
    }
}

impl AddArch {
    async fn run(self, session: &Session) -> Result<(), Failure> {
        let found = self.which.find(session).await?;
        let mut list = Vec::new();
        for image in &self.sources.image {
            let image = session.client.find(&IMAGES, image).await?;
            let record = session.client.get(&["v3", "images", &image.id]).await?;
            list.push(("image_id", record));
        }
        let mut recipes = self.sources.recipe.clone();
        if recipes.is_empty() && list.is_empty() {
            recipes = self.names_of_recipes(session, &found).await?;
        }
        for recipe in &recipes {
            needs_server(session)?;
            list.extend(
                records(session, &RECIPES, recipe)
                    .await?
                    .into_iter()
                    .map(|record| ("recipe_id", record)),
            );
        }
        let mut arches = Vec::new();
        for wanted in &self.arch {
            let mut fitting = list
                .iter()
                .filter(|(_, record)| record.text("arch") == Some(wanted.name()));
            let (Some((source, record)), None) = (fitting.next(), fitting.next()) else {
                return Err(Failure::new(
                    Code::RecordUnknown,
                    format!("there is not exactly one recipe or image for {wanted}"),
                )
                .hint("name it with --recipe ID or --image ID"));
            };
            let id = record.text("id").unwrap_or_default();
            arches.push(self.sources.entry(wanted.name(), source, id, !self.non_voting));
        }
        let body = json!({ "arches": arches });
        show(
            session,
            &send(session, Method::POST, &found, Some("arches"), Some(&body)).await?,
        )
    }

    /// The names of the recipes that the set is built from.
    async fn names_of_recipes(&self, session: &Session, found: &Found) -> Result<Vec<String>, Failure> {
        let set = send(session, Method::GET, found, None, None).await?;
        let mut names = Vec::new();
        for arch in set.get("arches").clone().into_items() {
            let Some(id) = arch.text("recipe_id") else { continue };
            let recipe = session.client.get(&["v3", "recipes", id]).await?;
            if let Some(name) = recipe
                .text("name")
                .filter(|name| !names.iter().any(|known| known == name))
            {
                names.push(name.to_owned());
            }
        }
        Ok(names)
    }
}

impl Sources {
    /// The entry of an architecture in a request.
    fn entry(&self, arch: &str, source: &str, id: &str, required: bool) -> Value {
        Body::default()
            .set("arch", Some(arch))
            .set(source, Some(id))
            .set("required", Some(required))
            .set("time_limit_s", limit_of(&self.time_limit, arch))
            .into_value()
    }
}

/// Reads the name of a requirement.
pub(super) fn requirement() -> PossibleValuesParser {
    PossibleValuesParser::new(Requirement::ALL.map(Requirement::name))
}

/// A list, if something is in it.
pub(super) fn wished(list: Vec<String>) -> Option<Vec<String>> {
    Some(list).filter(|list| !list.is_empty())
}

/// The limit of an architecture: its own, or the one for all.
pub(super) fn limit_of(limits: &[(Option<Arch>, u32)], arch: &str) -> Option<u32> {
    let own = limits.iter().find(|(of, _)| of.is_some_and(|of| of.name() == arch));
    let limit = own.or_else(|| limits.iter().find(|(of, _)| of.is_none()));
    limit.map(|(_, seconds)| *seconds)
}

/// The records that a user names: one by its id, or all of a name, which several architectures share.
pub(super) async fn records(
    session: &Session,
    collection: &'static Collection,
    given: &str,
) -> Result<Vec<Data>, Failure> {
    let named = of_name(session, collection, given).await?;
    if !named.is_empty() {
        return Ok(named);
    }
    let found = session.client.find(collection, given).await?;
    let mut path = collection.path.to_vec();
    path.push(&found.id);
    let record = session.client.get(&path).await;
    Ok(vec![record.map_err(|failure| missing(collection, failure))?])
}

async fn of_name(session: &Session, collection: &Collection, name: &str) -> Result<Vec<Data>, Failure> {
    let by_name = Filter {
        name: Some(name.to_owned()),
        ..Filter::default()
    };
    session.client.list(collection, &by_name).await
}

/// A request about a set, or a part of it.
async fn send(
    session: &Session,
    method: Method,
    found: &Found,
    part: Option<&str>,
    body: Option<&Value>,
) -> Result<Data, Failure> {
    let mut path = SETS.path.to_vec();
    path.push(&found.id);
    path.extend(part);
    let answer = session.client.send(method, &path, &[], body).await;
    answer.map_err(|failure| missing(&SETS, failure))
}

/// Prints a set: for people as a matrix, for programs as it is.
fn show(session: &Session, set: &Data) -> Result<(), Failure> {
    if session.wants_data() {
        return session.show(set);
    }
    let text = |member| set.text(member).unwrap_or("-");
    session.printer.result(format_args!(
        "{}@{} ({}): {}",
        text("name"),
        text("version"),
        text("id"),
        text("state")
    ));
    for remark in set.get("remarks").clone().into_items() {
        if let Data::Text(remark) = remark {
            session
                .printer
                .result(format_args!("  {}", kiln_records::names::shown(&remark)));
        }
    }
    session.show_table(&SET_ARCHES, set.get("arches").clone().into_items())
}

/// Without a server, jobs end with the command that began them.
fn needs_server(session: &Session) -> Result<(), Failure> {
    if session.without_server().is_none() {
        return Ok(());
    }
    Err(Failure::new(Code::Usage, "the jobs of a set need a server")
        .hint("`kiln serve` runs one; `kiln build --image-set NAME@VERSION` builds a set without one"))
}
