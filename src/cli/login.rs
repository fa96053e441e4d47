//! `kiln login` and `kiln logout`: choose the default server, and store its token in the user's file of credentials.

use std::io::{IsTerminal, Read};

use clap::Args;
use dialoguer::Password;
use kiln_records::{Code, Failure};

use super::{
    printer::Printer,
    session::{ServerOptions, Session, token_in},
};
use crate::client::{
    Filter, Server,
    collection::{self, RECIPES},
    credentials::{Credentials, Login},
};

/// The longest accepted token.
const LONGEST: u64 = 64 << 10;

#[derive(Debug, Args)]
pub(super) struct LoginArguments {
    /// The server's URL [default: --server, else the server of the last login].
    #[arg(value_name = "SERVER")]
    address: Option<String>,

    /// Read the token from standard input.
    #[arg(long, conflicts_with = "token")]
    token_stdin: bool,

    #[command(flatten)]
    options: ServerOptions,
}

#[derive(Debug, Args)]
pub(super) struct LogoutArguments {
    /// The server's URL [default: the server of the last login].
    #[arg(value_name = "SERVER")]
    address: Option<String>,

    /// Forget all servers.
    #[arg(long, conflicts_with = "address")]
    all: bool,
}

impl LoginArguments {
    pub(super) async fn run(self, printer: &Printer) -> Result<(), Failure> {
        let mut stored = Credentials::load()?;
        let server = match (&self.address, self.options.named_server()?, &stored.default) {
            (Some(address), ..) => Server::parse(address)?,
            (None, Some(server), _) => server,
            (None, None, Some(default)) => Server::parse(default)?,
            (None, None, None) => Server::parse(Server::DEFAULT)?,
        };
        let ca_file = match self.options.ca_file() {
            Some(path) => {
                let absolute = std::path::absolute(path);
                Some(absolute.map_err(|error| Failure::io("cannot name the authorities", &error))?)
            }
            None => stored
                .servers
                .get(&server.to_string())
                .and_then(|login| login.ca_file.clone()),
        };
        let open = |token: Option<&str>| self.options.session(server.clone(), token, ca_file.as_deref(), printer);

        let given = if self.token_stdin {
            Some(read_stdin()?)
        } else {
            self.options.given_token()?
        };
        // The token is not sent to an unknown server.
        let anonymous = open(None)?;
        let version = version(&anonymous).await?;
        let token = match given {
            Some(token) => Some(token),
            None if wants_token(&anonymous).await? => Some(ask(&server)?),
            None => None,
        };
        if let Some(token) = &token {
            check(&open(Some(token))?).await?;
        }

        let needs_none = token.is_none();
        stored.default = Some(server.to_string());
        stored.servers.insert(server.to_string(), Login { token, ca_file });
        let path = stored.save()?;
        if needs_none {
            printer.note(format_args!(
                "{server} (version {version}) needs no token; it is now the default"
            ));
        } else {
            let path = path.display();
            printer.note(format_args!(
                "logged in to {server} (version {version}); the token is in {path}"
            ));
        }
        Ok(())
    }
}

impl LogoutArguments {
    pub(super) fn run(self, printer: &Printer) -> Result<(), Failure> {
        let mut stored = Credentials::load()?;
        let servers: Vec<String> = if self.all {
            stored.servers.keys().cloned().collect()
        } else {
            let address = self.address.or_else(|| stored.default.clone());
            let address = address.ok_or_else(|| Failure::new(Code::NotLoggedIn, "there is no login to forget"))?;
            vec![Server::parse(&address)?.to_string()]
        };
        for server in servers {
            if stored.servers.remove(&server).is_none() {
                let known: Vec<_> = stored.servers.keys().map(String::as_str).collect();
                let failure = Failure::new(Code::NotLoggedIn, format!("there is no login to {server}"));
                return Err(if known.is_empty() {
                    failure
                } else {
                    failure.hint(format!("there is one to {}", known.join(", ")))
                });
            }
            if stored.default.as_ref() == Some(&server) {
                stored.default = None;
            }
            printer.note(format_args!("logged out of {server}"));
        }
        stored.save().map(drop)
    }
}

/// The server's version. It shows that the address belongs to a Kiln or an IMS.
async fn version(session: &Session) -> Result<String, Failure> {
    let answer = session.client.get(collection::VERSION).await?;
    answer.text("version").map(str::to_owned).ok_or_else(|| {
        Failure::new(
            Code::ServerUnknown,
            format!("{} is neither a Kiln nor an IMS server", session.client.server()),
        )
        .hint("behind a gateway, IMS is below /apis/ims")
    })
}

async fn wants_token(anonymous: &Session) -> Result<bool, Failure> {
    match check(anonymous).await {
        Ok(()) => Ok(false),
        Err(failure) if failure.code == Code::Unauthorized => Ok(true),
        Err(failure) => Err(failure),
    }
}

/// Checks that the server accepts the token, or the lack of one.
async fn check(session: &Session) -> Result<(), Failure> {
    let one = Filter {
        limit: Some(1),
        ..Filter::default()
    };
    session.client.list(&RECIPES, &one).await.map(drop)
}

fn ask(server: &Server) -> Result<String, Failure> {
    let none = |why: &str| {
        Failure::new(Code::TokenMissing, why)
            .hint("pipe the token into `kiln login --token-stdin`, or use --token FILE")
    };
    if !std::io::stdin().is_terminal() {
        return Err(none(&format!(
            "{server} needs a token, and there is no terminal to ask for it"
        )));
    }
    if !server.keeps_secrets() {
        return Err(Failure::new(
            Code::TokenInsecure,
            format!("the token would be sent to {server} unencrypted"),
        )
        .hint("use https://"));
    }
    let answer = Password::new().with_prompt(format!("Token for {server}")).interact();
    token_in(&answer.map_err(|_| none("no token was given"))?)
}

fn read_stdin() -> Result<String, Failure> {
    let mut text = String::new();
    let read = std::io::stdin().take(LONGEST).read_to_string(&mut text);
    read.map_err(|error| Failure::io("cannot read the token", &error))?;
    token_in(&text)
}
