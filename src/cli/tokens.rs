//! `kiln tokens`: the commands for API tokens. They use the database directly, whether a server runs or not.

use clap::{Subcommand, ValueEnum};
use kiln_records::{Code, Failure, Moment, Role, TokenId};

use super::printer::Printer;
use crate::{
    api::auth::token::{self, TokenText},
    config::{Access, Config},
    settings::Period,
    site,
    store::SharedStore,
};

/// The longest name of a token.
const LONGEST_NAME: usize = 64;

#[derive(Debug, Subcommand)]
pub(super) enum TokensCommand {
    /// Create a token and print it once.
    Create {
        /// Its owner or purpose, which appears in the server's log.
        #[arg(long, value_parser = name)]
        name: String,
        /// Its role.
        #[arg(long, value_enum)]
        role: RoleName,
        /// The period of its validity, such as 90d or 12h [default: unlimited].
        #[arg(long, value_name = "TIME", value_parser = expiry)]
        expires: Option<Period>,
    },
    /// List tokens. The secrets themselves are not stored, so they are not shown.
    List,
    /// Delete a token. The next request with it is refused.
    Delete {
        /// The token's id.
        id: TokenId,
    },
}

#[derive(Debug, Clone, Copy, ValueEnum)]
pub(super) enum RoleName {
    /// Read everything.
    Read,
    /// Also create, change, delete and restore single records.
    Write,
    /// Everything: also whole collections at once, and remote build nodes.
    Admin,
}

impl From<RoleName> for Role {
    fn from(name: RoleName) -> Self {
        match name {
            RoleName::Read => Role::Read,
            RoleName::Write => Role::Write,
            RoleName::Admin => Role::Admin,
        }
    }
}

fn name(text: &str) -> Result<String, String> {
    let fits = !text.trim().is_empty() && text.chars().count() <= LONGEST_NAME;
    if fits && !text.chars().any(char::is_control) {
        return Ok(text.trim().to_owned());
    }
    Err(format!("it must be one line of 1 to {LONGEST_NAME} letters"))
}

fn expiry(text: &str) -> Result<Period, String> {
    match text.parse::<Period>()? {
        period if period.duration().is_zero() => Err("it would expire at once".to_owned()),
        period => Ok(period),
    }
}

impl TokensCommand {
    pub(super) async fn run(self, config: &Config, printer: &Printer) -> Result<(), Failure> {
        let store = site::open_store(config).await?;
        let outcome = self.run_on(&store, config, printer).await;
        store.close().await;
        outcome
    }

    async fn run_on(self, store: &SharedStore, config: &Config, printer: &Printer) -> Result<(), Failure> {
        match self {
            TokensCommand::Create { name, role, expires } => {
                let expires = expires.map(after_now).transpose()?;
                let (text, token) = (TokenText::random(), token::record(name, role.into(), expires));
                store.insert_token(&token, &text.sha256()).await?;
                printer.note(format_args!(
                    "Token {} for `{}`: role {}, expires {}. It is shown this once:",
                    token.id,
                    token.name,
                    token.role.name(),
                    expiry_in_words(token.expires),
                ));
                printer.result(text.expose());
                if config.access() == Access::Open {
                    printer.note("Servers with this configuration need no token: set `mode = \"required\"` in [auth].");
                }
            }
            TokensCommand::List => {
                let now = Moment::now();
                for token in store.tokens().await? {
                    let over = token.expires.is_some_and(|expires| expires <= now);
                    printer.result(format_args!(
                        "{}  {:<5}  created {}  expires {:<20}  {}{}",
                        token.id,
                        token.role.name(),
                        token.created.to_the_second(),
                        expiry_in_words(token.expires),
                        token.name,
                        if over { "  (expired)" } else { "" },
                    ));
                }
            }
            TokensCommand::Delete { id } => {
                if !store.delete_token(id).await? {
                    let failure = Failure::new(Code::NoToken, format_args!("there is no token {id}"));
                    return Err(failure.hint("`kiln tokens list` shows all tokens"));
                }
            }
        }
        Ok(())
    }
}

fn after_now(period: Period) -> Result<Moment, Failure> {
    let micros = i64::try_from(period.duration().as_micros()).ok();
    let end = micros.and_then(|micros| Moment::now().micros().checked_add(micros));
    // The year of a later moment would need more than four digits.
    let end = end.filter(|end| *end < 253_402_300_800_000_000);
    let end = end.ok_or_else(|| {
        Failure::new(Code::Expiry, "that is too far in the future").hint("leave --expires out for `never`")
    })?;
    Ok(Moment::from_micros(end))
}

fn expiry_in_words(expires: Option<Moment>) -> String {
    expires.map_or_else(|| "never".to_owned(), |expires| expires.to_the_second().to_string())
}
