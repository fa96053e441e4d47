//! The isolation of jobs that a command carries out itself, as its user names it. Reads the environment.

use clap::ValueEnum;
use kiln_records::{Code, Failure};

use crate::site::Isolation;

/// The variable that names the isolation where no option does.
pub(super) const ISOLATION: &str = "KILN_ISOLATION";

/// The names of the kinds.
#[derive(Debug, Clone, Copy, ValueEnum)]
pub(super) enum IsolationName {
    Auto,
    Vm,
    Namespace,
}

impl From<IsolationName> for Isolation {
    fn from(name: IsolationName) -> Self {
        match name {
            IsolationName::Auto => Isolation::Auto,
            IsolationName::Vm => Isolation::Vm,
            IsolationName::Namespace => Isolation::Namespace,
        }
    }
}

/// The isolation for a command without such an option.
///
/// # Errors
///
/// `usage` when the variable names none.
pub(super) fn asked() -> Result<Isolation, Failure> {
    let Ok(name) = std::env::var(ISOLATION) else {
        return Ok(Isolation::Auto);
    };
    let known = IsolationName::from_str(&name, false).map_err(|_| {
        Failure::new(
            Code::Usage,
            format!("{ISOLATION} is `{name}`, which is not a kind of isolation"),
        )
        .hint("it may be auto, vm or namespace")
    })?;
    Ok(known.into())
}
