//! The common parts of commands that talk to a server: the server, the login, and the format of results. Reads the
//! credentials and the environment.

use std::{
    io::ErrorKind,
    path::{Path, PathBuf},
    time::Duration,
};

use clap::Args;
use kiln_records::{Code, Failure};

use super::{format::Format, isolation, printer::Printer};
use crate::{
    client::{Client, Collection, Data, Server, credentials::Credentials},
    config::Config,
    site::Local,
};

/// The most bytes of a file with a token, and of a configuration of `cray`.
const LONGEST: u64 = 1 << 20;

#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Server and output")]
pub(super) struct ServerOptions {
    /// The server, or `local` for the records of the data directory [default: the server of `kiln login`, else
    /// http://127.0.0.1:9000 if something listens there, else local].
    #[arg(long, global = true, env = "KILN_SERVER", value_name = "URL")]
    server: Option<String>,

    /// A file with the token: the token alone, or JSON with `access_token` as `cray auth login` keeps it. `KILN_TOKEN`
    /// may hold a token itself.
    #[arg(long, global = true, value_name = "FILE")]
    token: Option<PathBuf>,

    /// The authorities that the server's certificate may come from, PEM, instead of the system's.
    #[arg(long, global = true, env = "KILN_CA_FILE", value_name = "FILE")]
    ca_file: Option<PathBuf>,

    /// How results are written.
    #[arg(long, global = true, env = "KILN_FORMAT", value_enum, default_value_t = Format::Toml, hide_possible_values = false)]
    format: Format,

    /// The API gateway of a Cray system, where IMS is below /apis/ims.
    #[arg(long, global = true, value_name = "URL", conflicts_with = "server", hide = true)]
    hostname: Option<String>,

    /// The configuration of `cray` that names the API gateway.
    #[arg(long, global = true, value_name = "NAME", conflicts_with_all = ["server", "hostname"], hide = true)]
    configuration: Option<String>,
}

/// A server, or the records of the data directory, and the format for answers.
#[derive(Debug)]
pub(super) struct Session {
    pub(super) client: Client,
    pub(super) printer: Printer,
    format: Format,
    local: Option<Box<Local>>,
}

/// Reads the configuration, which most commands that talk to a server do without.
pub(super) type ReadConfig<'c> = &'c dyn Fn() -> Result<Config, Failure>;

/// The name of the records of the data directory in place of a server's address.
const LOCAL: &str = "local";

/// How long a server on this host may take to accept a connection.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);

impl ServerOptions {
    pub(super) fn open(&self, printer: &Printer) -> Result<Session, Failure> {
        let stored = Credentials::load()?;
        let server = match (self.named_server()?, &stored.default) {
            (Some(server), _) => server,
            (None, Some(default)) => Server::parse(default)?,
            (None, None) => Server::parse(Server::DEFAULT)?,
        };
        let login = stored.servers.get(&server.to_string());
        let token = match self.given_token()? {
            Some(token) => Some(token),
            None => login.and_then(|login| login.token.clone()),
        };
        let ca_file = self.ca_file.as_deref().or_else(|| login?.ca_file.as_deref());
        self.session(server, token.as_deref(), ca_file, printer)
    }

    /// Does the work of a command with a server; or, if none is named and none listens at the usual address, with the
    /// records of the data directory. `with_jobs` says that the command may begin jobs, which then run in this process.
    pub(super) async fn with(
        &self,
        config: ReadConfig<'_>,
        printer: &Printer,
        with_jobs: bool,
        work: impl AsyncFnOnce(&Session) -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        let is_local = self.server.as_deref() == Some(LOCAL);
        let is_named = || -> Result<bool, Failure> {
            Ok(self.named_server()?.is_some() || Credentials::load()?.default.is_some())
        };
        if !is_local && (is_named()? || listens(&Server::parse(Server::DEFAULT)?).await) {
            return work(&self.open(printer)?).await;
        }
        let mut config = config()?;
        if !is_local {
            printer.note(format_args!(
                "no server is named and none listens at {}: using the records in {}",
                Server::DEFAULT,
                config.data_dir.display()
            ));
        }
        if with_jobs {
            printer.note(isolation::asked()?.choose(&mut config).await?.why);
        }
        let session = Session::open_local(&config, printer, self.format).await?;
        let outcome = match session.without_server().map(Local::can_carry_out) {
            Some(Err(lack)) if with_jobs => Err(lack),
            _ => work(&session).await,
        };
        session.close(outcome).await
    }

    pub(super) fn session(
        &self,
        server: Server,
        token: Option<&str>,
        ca_file: Option<&Path>,
        printer: &Printer,
    ) -> Result<Session, Failure> {
        let client = Client::new(server, token, ca_file)?;
        Ok(Session::over(client, printer, self.format))
    }

    /// The server from the command line or the environment.
    pub(super) fn named_server(&self) -> Result<Option<Server>, Failure> {
        if let Some(hostname) = &self.hostname {
            return Server::parse_gateway(hostname).map(Some);
        }
        if let Some(name) = &self.configuration {
            return cray_hostname(name)
                .and_then(|hostname| Server::parse_gateway(&hostname))
                .map(Some);
        }
        match self.server.as_deref() {
            Some(LOCAL) => Err(Failure::new(Code::Usage, "this command needs a server")
                .hint("name one with --server URL; `kiln serve` runs one")),
            server => server.map(Server::parse).transpose(),
        }
    }

    /// The token from the command line or the environment.
    pub(super) fn given_token(&self) -> Result<Option<String>, Failure> {
        if let Some(path) = &self.token {
            let text = kiln_files::read_given_text(path, LONGEST).map_err(|error| {
                Failure::new(Code::TokenUnreadable, format!("cannot read the token: {error}"))
                    .hint("--token names a file; a token itself does not belong on a command line")
            })?;
            return token_in(&text).map(Some);
        }
        match std::env::var("KILN_TOKEN") {
            Ok(text) if !text.trim().is_empty() => Ok(Some(text.trim().to_owned())),
            _ => Ok(None),
        }
    }

    /// The format for programs, if one is asked for; `json` is a command's own option for that.
    pub(super) fn data_format(&self, json: bool) -> Option<Format> {
        match self.format {
            _ if json => Some(Format::Json),
            Format::Json | Format::Yaml => Some(self.format),
            _ => None,
        }
    }

    pub(super) fn ca_file(&self) -> Option<&Path> {
        self.ca_file.as_deref()
    }
}

/// The token in a file: its whole content, or the member `access_token`.
pub(super) fn token_in(text: &str) -> Result<String, Failure> {
    let text = text.trim();
    let none = || {
        Failure::new(Code::TokenUnreadable, "there is no token in what was given")
            .hint("the token alone is expected, or JSON with `access_token`")
    };
    if text.starts_with('{') {
        let data: Data = serde_json::from_str(text).map_err(|_| none())?;
        return data.text("access_token").map(str::to_owned).ok_or_else(none);
    }
    if text.is_empty() || text.contains(char::is_whitespace) {
        return Err(none());
    }
    Ok(text.to_owned())
}

/// The gateway in a configuration of `cray`.
fn cray_hostname(name: &str) -> Result<String, Failure> {
    let unusable = |why: &dyn std::fmt::Display| {
        Failure::new(
            Code::CrayConfiguration,
            format!("the configuration `{name}` of cray cannot be used: {why}"),
        )
        .hint("name the server with --server URL, or log in to it with `kiln login`")
    };
    if name.contains('/') || matches!(name, "" | "." | "..") {
        return Err(unusable(&"it is no name"));
    }
    let set = |variable| {
        std::env::var_os(variable)
            .filter(|value| !value.is_empty())
            .map(PathBuf::from)
    };
    let home = set("CRAY_CONFIG_DIR").or_else(|| set("HOME")).unwrap_or_default();
    let path = home.join(".config/cray/configurations").join(name);
    let text = kiln_files::read_given_text(&path, LONGEST).map_err(|error| unusable(&error))?;
    let table: toml::Table = toml::from_str(&text).map_err(|_| unusable(&"it is no TOML"))?;
    let hostname = table
        .get("core")
        .and_then(|core| core.get("hostname"))
        .and_then(toml::Value::as_str);
    hostname
        .map(str::to_owned)
        .ok_or_else(|| unusable(&"it has no core.hostname"))
}

/// Whether something accepts connections at a server's address. An address that does not answer may be a server's.
async fn listens(server: &Server) -> bool {
    let connecting = tokio::time::timeout(CONNECT_TIMEOUT, tokio::net::TcpStream::connect(server.host_and_port()));
    let refused = |error: std::io::Error| error.kind() == ErrorKind::ConnectionRefused;
    !connecting.await.is_ok_and(|connected| connected.is_err_and(refused))
}

impl Session {
    /// A session with the records of a data directory.
    pub(super) async fn open_local(config: &Config, printer: &Printer, format: Format) -> Result<Self, Failure> {
        let local = Box::pin(Local::open(config)).await?;
        Ok(Self {
            client: Client::at_socket(&local.socket())?,
            printer: printer.clone(),
            format,
            local: Some(local),
        })
    }

    /// A session with a server that needs no login.
    pub(super) fn with_server(address: &str, printer: &Printer) -> Result<Self, Failure> {
        let client = Client::new(Server::parse(address)?, None, None)?;
        Ok(Self::over(client, printer, Format::Toml))
    }

    fn over(mut client: Client, printer: &Printer, format: Format) -> Self {
        if printer.is_verbose() {
            let observer = printer.clone();
            client = client.observed_by(move |what| observer.note(what));
        }
        Self {
            client,
            printer: printer.clone(),
            format,
            local: None,
        }
    }

    /// The records of the data directory, if there is no server.
    pub(super) fn without_server(&self) -> Option<&Local> {
        self.local.as_deref()
    }

    /// Ends the session: without a server, its jobs end with it.
    pub(super) async fn close(self, outcome: Result<(), Failure>) -> Result<(), Failure> {
        let interrupted = outcome.as_ref().is_err_and(|failure| failure.code == Code::Interrupted);
        let closed = match self.local {
            Some(local) => Box::pin(local.close(interrupted)).await,
            None => Ok(()),
        };
        outcome.and(closed)
    }

    /// Prints a record.
    pub(super) fn show(&self, data: &Data) -> Result<(), Failure> {
        if *data != Data::Null {
            self.printer.result(self.format.record(data)?);
        }
        Ok(())
    }

    /// Whether results are data for programs.
    pub(super) fn wants_data(&self) -> bool {
        matches!(self.format, Format::Json | Format::Yaml)
    }

    /// Prints an answer as JSON, whatever the format of results.
    pub(super) fn show_json(&self, data: &Data) -> Result<(), Failure> {
        self.printer.result(Format::Json.record(data)?);
        Ok(())
    }

    /// Prints a list for people; for programs, as data.
    pub(super) fn show_table(&self, collection: &Collection, records: Vec<Data>) -> Result<(), Failure> {
        let format = if self.wants_data() { self.format } else { Format::Table };
        self.printer.result(format.list(collection, records)?);
        Ok(())
    }

    /// Prints a list.
    pub(super) fn show_list(&self, collection: &Collection, records: Vec<Data>) -> Result<(), Failure> {
        self.printer.result(self.format.list(collection, records)?);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_are_found_in_both_kinds_of_files() {
        assert_eq!(token_in("abc.def\n").unwrap(), "abc.def");
        assert_eq!(
            token_in("{\"access_token\": \"x\", \"client_id\": \"shasta\"}").unwrap(),
            "x"
        );
        for wrong in ["", "two words", "{}", "{\"access_token\": 1}", "{"] {
            assert_eq!(token_in(wrong).unwrap_err().code, Code::TokenUnreadable, "{wrong}");
        }
    }
}
