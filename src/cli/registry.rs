//! `kiln registry login` and `logout`, and the options of all commands that talk to registries. Reads the password from
//! standard input or a terminal, and writes the user's file of logins.

use std::{
    io::{IsTerminal, Read},
    path::PathBuf,
    sync::Arc,
};

use clap::{Args, Subcommand};
use dialoguer::{Input, Password};
use kiln_records::{Code, Failure};
use kiln_registry::{
    Access, Notes, Remote,
    credentials::{Login, Logins},
    reference::check_registry,
};

use super::printer::Printer;

/// The longest password.
const LONGEST: u64 = 64 << 10;

/// How registries are reached.
#[derive(Debug, Clone, Default, Args)]
#[command(next_help_heading = "Registry")]
pub(super) struct RegistryOptions {
    /// Authorities to trust beside the system's, PEM.
    #[arg(long, value_name = "FILE")]
    ca: Option<PathBuf>,

    /// Use plain HTTP, which anyone on the way can read and change.
    #[arg(long, conflicts_with = "ca")]
    insecure: bool,
}

impl RegistryOptions {
    pub(super) fn access(&self) -> Access {
        Access {
            insecure: self.insecure,
            authorities: self.ca.clone(),
            logins: Logins::of_user(),
            ..Access::default()
        }
    }

    /// Prints what is being done.
    #[expect(
        clippy::unused_self,
        reason = "it is the way to all that commands about registries share"
    )]
    pub(super) fn notes(&self, printer: &Printer) -> Notes {
        let printer = printer.clone();
        Arc::new(move |line| printer.note(line))
    }
}

#[derive(Debug, Subcommand)]
pub(super) enum RegistryCommand {
    /// Store the name and password of an account at a registry.
    Login(LoginArguments),
    /// Delete the stored login of a registry.
    Logout {
        /// The registry: a host, and a port if it is not 443.
        registry: String,
    },
}

#[derive(Debug, Args)]
pub(super) struct LoginArguments {
    /// The registry: a host, and a port if it is not 443.
    registry: String,

    /// The account's name [default: asked for].
    #[arg(long, short)]
    username: Option<String>,

    /// Read the password from standard input.
    #[arg(long, requires = "username")]
    password_stdin: bool,

    #[command(flatten)]
    options: RegistryOptions,
}

impl RegistryCommand {
    pub(super) async fn run(self, printer: &Printer) -> Result<(), Failure> {
        match self {
            RegistryCommand::Login(arguments) => arguments.run(printer).await,
            RegistryCommand::Logout { registry } => {
                check_registry(&registry)?;
                if !Logins::of_user().remove(&registry)? {
                    return Err(
                        Failure::new(Code::NotLoggedIn, format!("there is no login to {registry}"))
                            .hint("logins in Docker's own file are removed with `docker logout`"),
                    );
                }
                printer.note(format_args!("logged out of {registry}"));
                Ok(())
            }
        }
    }
}

impl LoginArguments {
    async fn run(self, printer: &Printer) -> Result<(), Failure> {
        check_registry(&self.registry)?;
        let (user, password) = self.ask()?;
        if user.contains(':') || user.is_empty() {
            return Err(Failure::new(
                Code::Usage,
                "an account's name is not empty and has no colon",
            ));
        }
        let access = Access {
            login: Some(Login::Password {
                user: user.clone(),
                password: password.clone(),
            }),
            ..self.options.access()
        };
        // What does not work is not stored.
        Remote::check(&self.registry, &access).await?;
        let path = Logins::of_user().store(&self.registry, &user, &password)?;
        printer.note(format_args!(
            "logged in to {} as {user}; the password is in {}",
            self.registry,
            path.display()
        ));
        Ok(())
    }

    fn ask(&self) -> Result<(String, String), Failure> {
        let none = |why: &str| {
            Failure::new(Code::TokenMissing, why).hint("pipe the password in: --username NAME --password-stdin")
        };
        if let (Some(user), true) = (&self.username, self.password_stdin) {
            let mut text = String::new();
            let read = std::io::stdin().take(LONGEST).read_to_string(&mut text);
            read.map_err(|error| Failure::io("cannot read the password", &error))?;
            let password = text.trim_end_matches(['\r', '\n']).to_owned();
            if password.is_empty() {
                return Err(none("standard input has no password"));
            }
            return Ok((user.clone(), password));
        }
        if !std::io::stdin().is_terminal() {
            return Err(none("there is no terminal to ask for the password"));
        }
        let user = match &self.username {
            Some(user) => user.clone(),
            None => Input::new()
                .with_prompt(format!("Account at {}", self.registry))
                .interact_text()
                .map_err(|_| none("no name was given"))?,
        };
        let password = Password::new().with_prompt(format!("Password of {user}")).interact();
        Ok((user, password.map_err(|_| none("no password was given"))?))
    }
}
