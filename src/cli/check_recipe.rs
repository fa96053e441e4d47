//! `kiln check recipe`: reads recipes in a sandbox, and says what is understood of them. Talks to the server for a recipe that it
//! keeps.

use std::{collections::BTreeMap, path::Path};

use bytes::Bytes;
use clap::Args;
use futures::StreamExt;
use kiln_records::{Code, Failure, additions::Additions, arch::Arch, job::JobOptions, protocol::Reading};
use reqwest::Method;

use super::{
    build::{Templating, archs},
    format::Format,
    job_options::Choosing,
    printer::Printer,
    read_recipe::read_recipe,
    recipe_reading,
    records::request,
    session::{ReadConfig, ServerOptions, Session},
    signals::cancel_on_signal,
    toolbox, warnings,
};
use crate::{
    client::{Data, collection::RECIPES},
    config::Config,
    orchestrate::{reading::WantedReading, recipe::RecipeArchive},
    site,
};

#[derive(Debug, Args)]
pub(super) struct CheckRecipeArguments {
    /// The recipe: a directory, an archive of one, or the id or name of a server's recipe.
    #[arg(value_name = "DIR|ARCHIVE|ID")]
    recipe: String,

    /// Architectures to read it for [default: what the recipe declares, else this host's].
    #[arg(long, value_name = "ARCH", value_delimiter = ',')]
    arch: Vec<String>,

    #[command(flatten)]
    templating: Templating,

    #[command(flatten)]
    choosing: Choosing,

    /// Print the result as JSON.
    #[arg(long)]
    json: bool,
}

/// A recipe, and what its record says of it.
struct Found {
    archive: RecipeArchive,
    /// The architecture of the record.
    arch: Option<String>,
    /// The values of the record.
    values: BTreeMap<String, String>,
    /// The profiles of the record.
    profiles: Vec<String>,
}

impl CheckRecipeArguments {
    pub(super) async fn run(
        self,
        options: &ServerOptions,
        config: ReadConfig<'_>,
        printer: &Printer,
    ) -> Result<(), Failure> {
        let interrupted = cancel_on_signal()?;
        let found = tokio::select! {
            found = Box::pin(self.find(options, config, printer)) => found?,
            () = interrupted.cancelled() => return Err(interruption()),
        };
        let given = if self.arch.is_empty() {
            Vec::from_iter(found.arch.clone())
        } else {
            self.arch.clone()
        };
        let archs = archs(&given, &found.archive)?;
        let additions = self.choosing.adding.apply(JobOptions::default())?.additions();
        let config = config()?;
        let toolbox = tokio::select! {
            toolbox = toolbox::ensure(&config, printer, Arch::host(), None) => toolbox?,
            () = interrupted.cancelled() => return Err(interruption()),
        };
        let mut readings = Vec::new();
        for arch in archs {
            let wanted = self.wanted(&found, arch, &config, additions.clone());
            let log = printer.clone();
            let say = Box::new(move |line: &str| {
                if log.is_verbose() {
                    log.note(line);
                }
            });
            let reading = site::read_recipe(&config, toolbox.clone(), wanted, say, &interrupted);
            readings.push(Box::pin(reading).await?);
        }
        if let Some(format) = options.data_format(self.json) {
            show_data(&readings, format, printer)?;
        } else {
            for reading in &readings {
                recipe_reading::show(reading, printer);
            }
        }
        conclude(&readings, printer)
    }

    fn wanted(&self, found: &Found, arch: Arch, config: &Config, additions: Additions) -> WantedReading {
        let mut values = found.values.clone();
        values.extend(self.templating.values.iter().cloned());
        WantedReading {
            archive: Bytes::from(found.archive.bytes.clone()),
            name: found.archive.name.clone(),
            arch,
            values,
            template_mode: self.templating.mode(),
            profiles: self.choosing.chosen().unwrap_or_else(|| found.profiles.clone()),
            additions,
            checks: config.root_checks.levels(),
        }
    }

    /// The recipe on this machine or, if there is nothing at such a path, that of the server.
    async fn find(&self, options: &ServerOptions, config: ReadConfig<'_>, printer: &Printer) -> Result<Found, Failure> {
        let path = Path::new(&self.recipe);
        if path.exists() || self.recipe.contains('/') {
            return Ok(Found {
                archive: read_recipe(path, printer)?,
                arch: None,
                values: BTreeMap::new(),
                profiles: Vec::new(),
            });
        }
        let mut found = None;
        let work = async |session: &Session| {
            found = Some(of_record(&self.recipe, session).await?);
            Ok(())
        };
        Box::pin(options.with(config, printer, false, work)).await?;
        found.ok_or_else(|| Failure::new(Code::RecordUnknown, format!("there is no recipe `{}`", self.recipe)))
    }
}

async fn of_record(given: &str, session: &Session) -> Result<Found, Failure> {
    let found = session.client.find(&RECIPES, given).await?;
    let record = request(session, Method::GET, &RECIPES, &found, None).await?;
    let place = session
        .client
        .get(&["kiln", "v1", "recipes", &found.id, "archive"])
        .await?;
    let url = place.text("url").ok_or_else(|| {
        Failure::new(
            Code::RecipeUnreachable,
            "the server does not say where the recipe's archive is",
        )
    })?;
    let bytes = download(session, url).await?;
    let name = record.text("name").unwrap_or(given).to_owned();
    let values = record.items("template_dictionary").iter();
    let value = |value: &Data| Some((value.text("key")?.to_owned(), value.text("value")?.to_owned()));
    let profile = |item: &Data| match item {
        Data::Text(name) => Some(name.clone()),
        _ => None,
    };
    Ok(Found {
        archive: RecipeArchive::of_bytes(bytes, &name)?,
        arch: record.text("arch").map(str::to_owned),
        values: values.filter_map(value).collect(),
        profiles: record.items("profiles").iter().filter_map(profile).collect(),
    })
}

/// Downloads the archive from an address, which may hold a signature, so that no message names it.
async fn download(session: &Session, url: &str) -> Result<Vec<u8>, Failure> {
    let failed = |error: reqwest::Error| {
        let detail = format!("cannot get the recipe from S3: {}", error.without_url());
        Failure::new(Code::RecipeUnreachable, detail).hint("check that the S3 endpoint can be reached from here")
    };
    let answer = session.client.object(url).await?.get().send().await;
    let answer = answer.and_then(reqwest::Response::error_for_status).map_err(failed)?;
    let (mut bytes, mut body) = (Vec::new(), answer.bytes_stream());
    while let Some(piece) = body.next().await {
        bytes.extend_from_slice(&piece.map_err(failed)?);
        RecipeArchive::check_size(bytes.len() as u64)?;
    }
    Ok(bytes)
}

/// Prints one reading, or a list of several.
fn show_data(readings: &[Reading], format: Format, printer: &Printer) -> Result<(), Failure> {
    let text = match readings {
        [one] => serde_json::to_string(one),
        all => serde_json::to_string(all),
    };
    // In the order of the fields.
    let data: Data = text
        .and_then(|text| serde_json::from_str(&text))
        .map_err(|error| Failure::new(Code::Format, error))?;
    printer.result(format.record(&data)?);
    Ok(())
}

/// Warns, and fails as the first build that would be refused.
fn conclude(readings: &[Reading], printer: &Printer) -> Result<(), Failure> {
    let mut said = Vec::new();
    for warning in readings.iter().flat_map(|reading| &reading.warnings) {
        if !said.contains(&warning) {
            said.push(warning);
        }
    }
    let said: Vec<_> = said.into_iter().cloned().collect();
    warnings::show(
        printer,
        &said,
        readings.iter().map(|reading| reading.more_warnings).sum(),
    );
    let refused = readings
        .iter()
        .find_map(|reading| Some((reading.arch, reading.failure.clone()?)));
    match refused {
        None => Ok(()),
        Some((_, failure)) if readings.len() == 1 => Err(failure),
        Some((arch, mut failure)) => {
            failure.detail = format!("{arch}: {}", failure.detail);
            Err(failure)
        }
    }
}

fn interruption() -> Failure {
    Failure::new(Code::Interrupted, "the check was interrupted")
}
