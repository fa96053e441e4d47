//! `kiln customize`: changes an image on a server by commands, scripts and playbooks. Reads their files.

use std::path::{Path, PathBuf};

use base64::{Engine, engine::general_purpose::STANDARD};
use clap::{ArgMatches, Args, FromArgMatches};
use kiln_records::{ChangeKind, Code, Failure};
use reqwest::Method;
use serde_json::{Value, json};

use super::{
    job_options::Execution,
    job_progress,
    printer::Printer,
    read_recipe::tell_left_out,
    session::{ReadConfig, ServerOptions, Session},
    values::Body,
};
use crate::{client::collection::IMAGES, orchestrate::recipe::pack};

/// The most bytes of the files beside a playbook. A larger directory does not belong to a playbook.
const MOST_BESIDE_PLAYBOOK: u64 = 64 << 20;

/// Make an image from another one, without a shell.
#[derive(Debug, Args)]
#[command(
    mut_arg("require_dkms", |option| option.help("Whether the job needs a kernel of its own [default: the server's]")),
    mut_arg("twins", |option| option.help(
        "Which tools may run as native twins if programs of the image are emulated [default: the server's]"
    )),
)]
pub(super) struct CustomizeArguments {
    /// The image to start from: id, beginning of an id, or name.
    image: String,

    #[command(flatten)]
    changes: Changes,

    /// What to call the image that comes out [default: the image's name and `-customized`].
    #[arg(long, value_name = "NAME")]
    name: Option<String>,

    #[command(flatten)]
    execution: Execution,

    #[command(flatten)]
    options: ServerOptions,
}

/// The changes to make in the image, in the order of the command line.
#[derive(Debug, Clone)]
struct Changes(Vec<(ChangeKind, String)>);

/// The options that say it.
#[derive(Debug, Args)]
#[command(next_help_heading = "Changes, made in the order in which they are given")]
struct ChangeOptions {
    /// Run a command line with the image's /bin/sh.
    #[arg(long, value_name = "COMMAND")]
    run: Vec<String>,

    /// Run a script in the image.
    #[arg(long, value_name = "FILE")]
    script: Vec<String>,

    /// Run an Ansible playbook on the image. The directory that it is in goes along.
    #[arg(long, value_name = "PLAYBOOK")]
    ansible: Vec<String>,
}

impl Args for Changes {
    fn augment_args(command: clap::Command) -> clap::Command {
        ChangeOptions::augment_args(command)
    }

    fn augment_args_for_update(command: clap::Command) -> clap::Command {
        ChangeOptions::augment_args_for_update(command)
    }
}

impl FromArgMatches for Changes {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let mut changes = Vec::new();
        for kind in ChangeKind::ALL {
            let values = matches.get_many::<String>(kind.name()).unwrap_or_default();
            let places = matches.indices_of(kind.name()).unwrap_or_default();
            changes.extend(places.zip(values).map(|(place, value)| (place, kind, value.clone())));
        }
        changes.sort_by_key(|(place, ..)| *place);
        Ok(Self(
            changes.into_iter().map(|(_, kind, value)| (kind, value)).collect(),
        ))
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

impl CustomizeArguments {
    pub(super) async fn run(self, config: ReadConfig<'_>, printer: &Printer) -> Result<(), Failure> {
        if self.changes.0.is_empty() {
            return Err(Failure::new(Code::Usage, "nothing is to be changed").hint(
                "give --run, --script or --ansible; `kiln jobs create --job-type customize` opens a shell instead",
            ));
        }
        let changes = self.changes.0.iter().map(|(kind, value)| change(*kind, value, printer));
        let changes = changes.collect::<Result<Vec<_>, _>>()?;
        let options = self.options.clone();
        let work = async |session: &Session| self.change(changes, session).await;
        options.with(config, printer, true, work).await
    }

    async fn change(self, changes: Vec<Value>, session: &Session) -> Result<(), Failure> {
        let image = session.client.find(&IMAGES, &self.image).await?;
        let name = if let Some(name) = self.name {
            name
        } else {
            let record = session.client.get(&[IMAGES.path, &[&image.id]].concat()).await?;
            format!("{}-customized", record.text("name").unwrap_or("image"))
        };
        let body = Body::default()
            .set("image_root_archive_name", Some(name))
            .set("changes", Some(changes));
        let body = self.execution.add_to(body);
        let address = ["kiln", "v1", "images", &image.id, "customize"];
        let made = session
            .client
            .send(Method::POST, &address, &[], Some(&body.into_value()))
            .await?;
        job_progress::follow(session, &made).await
    }
}

/// A change in the server's form.
fn change(kind: ChangeKind, value: &str, printer: &Printer) -> Result<Value, Failure> {
    let path = Path::new(value);
    let unreadable = |error: std::io::Error| {
        Failure::io(format!("cannot read {value}"), &error)
            .hint("it has to be a file on this machine that you may read")
    };
    let name = || path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    Ok(match kind {
        ChangeKind::Run => json!({"kind": "run", "text": value}),
        ChangeKind::Script => {
            let content = kiln_files::read_given(path, MOST_BESIDE_PLAYBOOK).map_err(unreadable)?;
            json!({"kind": "script", "name": name(), "base64": STANDARD.encode(content)})
        }
        ChangeKind::Ansible => {
            let found = fs_err::metadata(path).map_err(unreadable)?;
            if !found.is_file() {
                return Err(Failure::new(
                    Code::Usage,
                    format!("{value} is no playbook, which is a file"),
                ));
            }
            let dir = match path.parent() {
                Some(dir) if dir != Path::new("") => dir.to_owned(),
                _ => PathBuf::from("."),
            };
            if size_of(&dir, MOST_BESIDE_PLAYBOOK).map_err(unreadable)? > MOST_BESIDE_PLAYBOOK {
                return Err(Failure::new(
                    Code::Usage,
                    format!(
                        "the directory {} is too large to go along with its playbook",
                        dir.display()
                    ),
                )
                .hint("put the playbook and its roles into a directory of their own"));
            }
            let packed = pack(&dir)?;
            tell_left_out(&packed.left_out, printer);
            json!({"kind": "ansible", "name": name(), "base64": STANDARD.encode(packed.bytes)})
        }
    })
}

/// The bytes of all files in a directory, counted until they exceed `most`.
fn size_of(dir: &Path, most: u64) -> std::io::Result<u64> {
    let mut size = 0;
    for entry in fs_err::read_dir(dir)? {
        let entry = entry?;
        let found = entry.metadata()?;
        size += if found.is_dir() {
            size_of(&entry.path(), most.saturating_sub(size))?
        } else {
            found.len()
        };
        if size > most {
            break;
        }
    }
    Ok(size)
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Debug, Parser)]
    struct Line {
        #[command(flatten)]
        arguments: CustomizeArguments,
    }

    #[test]
    fn changes_keep_the_order_of_the_command_line() {
        let line = [
            "x",
            "img",
            "--script",
            "a",
            "--run",
            "b",
            "--ansible",
            "c",
            "--run",
            "d",
            "--script",
            "e",
        ];
        let line = Line::parse_from(line);
        let order: Vec<_> = line
            .arguments
            .changes
            .0
            .iter()
            .map(|(kind, value)| (kind.name(), value.as_str()))
            .collect();
        assert_eq!(
            order,
            [
                ("script", "a"),
                ("run", "b"),
                ("ansible", "c"),
                ("run", "d"),
                ("script", "e")
            ]
        );
    }
}
