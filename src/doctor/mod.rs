//! `kiln doctor`: tests what this host can do for Kiln, and names the next command where something is missing. Runs
//! programs and test sandboxes, and talks to engines and S3.
//!
//! One file for each area; each returns [`Finding`]s and leaves nothing changed. The needs of jobs are tested through
//! the same drivers that run jobs, so the findings show what will happen.

use kiln_records::Failure;
use serde::Serialize;

use crate::config::Config;

mod callers;
mod cluster;
mod engines;
mod kernel;
mod machines;
mod nodes;
mod records;
mod storage;
mod twins;

/// The finding about one thing.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// Its area: `kernel`, `machines`, `engines`, `cluster`, `storage`, `records`, `twins`, `callers`.
    pub area: &'static str,
    /// The thing.
    pub what: &'static str,
    /// Its state.
    pub state: State,
    /// The observation.
    pub detail: String,
    /// The next command or action, if something is wrong.
    pub next: Option<String>,
    /// Whether Kiln cannot work without it.
    pub required: bool,
}

/// The state of a thing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum State {
    /// It works, by trial.
    Ok,
    /// It does not exist.
    Missing,
    /// It exists and does not work.
    Broken,
}

impl State {
    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Missing => "missing",
            Self::Broken => "broken",
        }
    }
}

#[expect(clippy::needless_pass_by_value, reason = "callers hand over what they made for this")]
impl Finding {
    fn ok(area: &'static str, what: &'static str, detail: impl ToString) -> Self {
        Self {
            area,
            what,
            state: State::Ok,
            detail: detail.to_string(),
            next: None,
            required: false,
        }
    }

    fn missing(area: &'static str, what: &'static str, detail: impl ToString, next: impl ToString) -> Self {
        Self {
            state: State::Missing,
            next: Some(next.to_string()),
            ..Self::ok(area, what, detail)
        }
    }

    fn broken(area: &'static str, what: &'static str, detail: impl ToString, next: impl ToString) -> Self {
        Self {
            state: State::Broken,
            ..Self::missing(area, what, detail, next)
        }
    }

    fn required(self) -> Self {
        Self { required: true, ..self }
    }
}

/// Examines everything in sequence: some of it takes seconds.
pub async fn examine(config: &Config) -> Vec<Finding> {
    let mut findings = kernel::examine(config).await;
    findings.extend(machines::examine(config).await);
    findings.extend(engines::examine(config).await);
    findings.extend(nodes::examine(config).await);
    findings.extend(cluster::examine(config).await);
    findings.extend(storage::examine(config).await);
    findings.extend(records::examine(config).await);
    findings.extend(twins::examine(config).await);
    findings.extend(callers::examine(config));
    findings
}

/// What does not work for this reason. `otherwise` is what to do where the failure has no hint.
fn broken(area: &'static str, what: &'static str, failure: &Failure, otherwise: &str) -> Finding {
    let next = failure.hint.clone().unwrap_or_else(|| otherwise.to_owned());
    Finding::broken(area, what, failure, next)
}

/// Runs a program. Returns its output if it succeeded, or else the reason why not.
async fn ask(program: &str, arguments: &[&str]) -> Result<String, String> {
    let output = tokio::process::Command::new(program)
        .args(arguments)
        .stdin(std::process::Stdio::null())
        .kill_on_drop(true)
        .output();
    let limit = std::time::Duration::from_secs(10);
    let output = match tokio::time::timeout(limit, output).await {
        Ok(output) => output.map_err(|error| format!("cannot run {program}: {error}"))?,
        Err(_) => return Err(format!("{program} did not answer for {} s", limit.as_secs())),
    };
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    Err(said
        .trim()
        .lines()
        .last()
        .unwrap_or("it failed and printed nothing")
        .to_owned())
}
