//! `kiln demo`: runs a server in this process, has it build a small recipe for several architectures, and shows the progress
//! and the dashboard.

use std::{io::IsTerminal, path::PathBuf, process::Stdio};

use clap::Args;
use kiln_records::{Code, Failure, arch::Arch};
use tokio_util::sync::CancellationToken;

use super::{
    build_set::build_set, isolation, printer::Printer, read_recipe::read_recipe, serve, session::Session,
    signals::cancel_on_signal, toolbox, values::arch,
};
use crate::{config::Config, orchestrate::recipe::RecipeArchive};
use ending::Ending;
use place::Place;

mod ending;
mod place;
mod recipe;

/// Build a small recipe for two architectures, and show the dashboard.
///
/// It runs a server of its own for that, in the data directory.
#[derive(Debug, Args)]
pub(super) struct DemoArguments {
    /// The recipe: a directory, or an archive of one (tar or zip) [default: a minimal Debian, which comes with Kiln].
    recipe: Option<PathBuf>,

    /// Architectures to build for [default: what the recipe declares, else this host's and another one].
    #[arg(long, value_name = "ARCH", value_delimiter = ',', value_parser = arch())]
    arch: Vec<Arch>,

    /// Work in a new temporary directory that is removed at the end, and with no other S3 service or database.
    #[arg(long)]
    tmp: bool,

    /// End after the builds. Otherwise the server runs until Ctrl-C if standard output is a terminal.
    #[arg(long)]
    exit: bool,
}

impl DemoArguments {
    pub(super) async fn run(self, config: &Config, printer: &Printer) -> Result<(), Failure> {
        let interrupted = cancel_on_signal()?;
        let recipe = match &self.recipe {
            Some(path) => read_recipe(path, printer)?,
            None => recipe::minimal()?,
        };
        let place = if self.tmp {
            Place::temporary(config)?
        } else {
            Place::of_user(config)?
        };
        let outcome = Box::pin(self.demonstrate(recipe, &place, printer, &interrupted)).await;
        outcome.and(place.remove().await)
    }

    /// Runs the server for as long as it is needed.
    async fn demonstrate(
        &self,
        recipe: RecipeArchive,
        place: &Place,
        printer: &Printer,
        interrupted: &CancellationToken,
    ) -> Result<(), Failure> {
        let mut config = place.config().clone();
        tokio::select! {
            toolbox = toolbox::ensure(&config, printer, Arch::host(), None) => drop(toolbox?),
            () = interrupted.cancelled() => return Err(interruption()),
        }
        let chosen = isolation::asked()?.choose(&mut config).await?;
        printer.note(&chosen.why);
        let stop = CancellationToken::new();
        let server = serve::open(&config, stop.clone()).await?;
        let url = serve::url(&config, &server);
        // What is shown may lead elsewhere, to a gateway perhaps; this command talks to its own server.
        let own = server.addresses().first().map(|address| format!("http://{address}"));
        let session = Session::with_server(own.as_deref().unwrap_or(&url), printer)?;
        let version = jiff::Timestamp::now().strftime("%Y%m%d.%H%M%S").to_string();
        let ending = Ending::new(&server, place.is_temporary(), &version);
        let mut serving = Box::pin(server.run(&config));
        let showing = async {
            printer.result(format_args!("dashboard  {url}/ui"));
            open_in_browser(&format!("{url}/ui"));
            let archs = self.archs(&recipe);
            let outcome = tokio::select! {
                outcome = build_set(&session, &recipe, &archs, chosen.kernel, (SET, &version)) => outcome,
                () = interrupted.cancelled() => Err(interruption()),
            };
            let has_ended = outcome
                .as_ref()
                .map_or_else(|failure| failure.code == Code::JobFailed, |()| true);
            if has_ended && !self.exit && std::io::stdout().is_terminal() {
                printer.result(format_args!("look       at {url}/ui until Ctrl-C"));
                interrupted.cancelled().await;
            }
            outcome.and(ending.end(&session).await)
        };
        tokio::select! {
            ended = &mut serving => ended.and(Err(Failure::new(Code::ServerLost, "the server ended"))),
            outcome = showing => {
                stop.cancel();
                outcome.and(serving.await)
            }
        }
    }

    fn archs(&self, recipe: &RecipeArchive) -> Vec<Arch> {
        let host = Arch::host();
        let other = if host == Arch::Aarch64 {
            Arch::X86_64
        } else {
            Arch::Aarch64
        };
        let mut archs = match (&self.arch[..], &recipe.declared[..]) {
            ([], []) => vec![host, other],
            ([], declared) => declared.to_vec(),
            (asked, _) => asked.to_vec(),
        };
        archs.sort_unstable();
        archs.dedup();
        archs
    }
}

fn interruption() -> Failure {
    Failure::new(Code::Interrupted, "the demonstration was interrupted")
}

/// The name of the set of images.
const SET: &str = "demo";

/// Opens an address in the user's browser, if there is a display for it. It is a courtesy: the address is printed too.
fn open_in_browser(address: &str) {
    let is_set = |name| std::env::var_os(name).is_some_and(|value| !value.is_empty());
    if !std::io::stdout().is_terminal() || !["DISPLAY", "WAYLAND_DISPLAY"].into_iter().any(is_set) {
        return;
    }
    // A group of its own: Ctrl-C is not meant for the browser.
    let _ = tokio::process::Command::new("xdg-open")
        .arg(address)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .process_group(0)
        .spawn();
}
