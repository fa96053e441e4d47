//! Makes a recipe's description what kiwi itself makes of it before it reads it, so that Kiln reads repositories, secrets and
//! all else where kiwi does. Runs a program of the toolbox, and replaces the description in the recipe.

pub(crate) mod additions;

use std::{
    collections::BTreeMap,
    io,
    path::Path,
    process::{Output, Stdio},
};

use kiln_records::{Code, Failure, Warning};
use serde::Deserialize;
use tokio::{io::AsyncWriteExt, process::Command};

use super::{events::Events, kiwi_config, pauses::PYTHON, process, template};

/// The program, which uses kiwi's own libraries.
const PROGRAM: &str = include_str!("resolve.py");

/// What a description must be.
const HINT: &str =
    "it must be a kiwi image description in XML, without DTD and entities, and can include files of the recipe only";

/// What the program says.
#[derive(Deserialize)]
#[serde(untagged)]
enum Said {
    Resolved {
        /// The description.
        text: String,
        /// What was done to it.
        notes: Vec<String>,
        /// What cannot be kept.
        warnings: Vec<String>,
        /// What it was before.
        #[serde(flatten)]
        before: Before,
    },
    Refused {
        /// What in the recipe does not allow it.
        refused: String,
    },
}

/// What a description was before it was resolved.
#[derive(Debug, Deserialize)]
pub struct Before {
    /// The files that it included.
    pub included: Vec<String>,
    /// The version of its schema, and the one that it has now.
    pub schema: (String, String),
    /// Names of package managers that it had, with those that they have now.
    pub managers: BTreeMap<String, String>,
}

/// Resolves the description of a recipe, whose templates are rendered.
///
/// # Errors
///
/// `recipe_config_missing` without a description; `recipe_config_invalid` for one that cannot be resolved; `tool_killed`.
pub async fn resolve(recipe: &Path, events: &Events) -> Result<Before, Failure> {
    let path = kiwi_config::find(recipe)?;
    let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    // What cannot be read at all is not given to another parser.
    kiwi_config::text(&path).map_err(|error| kiwi_config::invalid(&name, &error))?;
    let lost = |error: std::io::Error| Failure::io("cannot resolve the recipe's description", &error);
    let ended = run(PROGRAM, &[&path, recipe], &[]).await.map_err(lost)?;
    let said = match serde_json::from_slice(&ended.stdout) {
        Ok(said) if ended.status.success() => said,
        _ => return Err(failed(&name, &ended)),
    };
    match said {
        Said::Refused { refused } => Err(kiwi_config::invalid(&name, &refused).hint(HINT)),
        Said::Resolved {
            text,
            notes,
            warnings,
            before,
        } => {
            template::replace(&path, text.as_bytes()).map_err(lost)?;
            for note in notes {
                events.say(format!("{name}: {note}")).await;
            }
            for warning in warnings {
                let warning = Warning::new(Code::RecipeDescription, format_args!("{name}: {warning}"));
                events.warn(warning).await;
            }
            Ok(before)
        }
    }
}

/// Runs a program with kiwi's libraries on this input. An argument can be read by any program of the sandbox, the input cannot.
async fn run(program: &str, arguments: &[&Path], input: &[u8]) -> io::Result<Output> {
    let mut child = Command::new(PYTHON)
        .args(["-I", "-c", program])
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn()?;
    let stdin = child.stdin.take();
    let write = async {
        if let Some(mut stdin) = stdin {
            // One that ended at once says why.
            let _ = stdin.write_all(input).await;
        }
    };
    tokio::join!(child.wait_with_output(), write).0
}

/// The failure of such a program: its last words about this description.
fn failed(name: &str, ended: &Output) -> Failure {
    process::killed("the reader of the description", ended.status).unwrap_or_else(|| {
        let words = String::from_utf8_lossy(&ended.stderr);
        let end = words.trim().lines().next_back().unwrap_or("it said nothing");
        kiwi_config::invalid(name, &format_args!("{}: {end}", ended.status))
    })
}
