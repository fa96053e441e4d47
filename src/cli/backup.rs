//! `kiln backup` and `kiln restore`: copy the records of SQLite, and put a copy back. They use the files directly, whether a
//! server runs or not.

use std::path::PathBuf;

use clap::Args;
use kiln_records::{Code, Failure, ServerId};

use super::printer::Printer;
use crate::{
    config::Config,
    orchestrate::runner::server_id,
    store::{self, BackupOrigin},
};

/// The name of a backup in a directory.
const NAME: &str = "records.sqlite";

/// The most bytes of the file with a server's id.
const LONGEST_ID: u64 = 1 << 10;

#[derive(Debug, Args)]
pub(super) struct BackupArguments {
    /// The new file, or the directory for `records.sqlite`.
    #[arg(value_name = "FILE")]
    to: PathBuf,
}

#[derive(Debug, Args)]
pub(super) struct RestoreArguments {
    /// A file by `kiln backup`, or the directory with it.
    #[arg(value_name = "FILE")]
    from: PathBuf,
}

impl BackupArguments {
    pub(super) async fn run(self, config: &Config, printer: &Printer) -> Result<(), Failure> {
        let from = records(config)?;
        let to = in_directory(self.to);
        let origin = BackupOrigin {
            server: server_id(&config.data_dir)?.to_string(),
            kiln: env!("CARGO_PKG_VERSION").to_owned(),
            made: jiff::Timestamp::now().to_string(),
        };
        store::backup(&from, &to, &origin).await?;
        printer.result(format_args!("backup     {}", to.display()));
        printer.note("Objects in S3 are not in it: docs/operating.md says how they are kept.");
        Ok(())
    }
}

impl RestoreArguments {
    pub(super) async fn run(self, config: &Config, printer: &Printer) -> Result<(), Failure> {
        if config.store.url.is_some() {
            return Err(elsewhere());
        }
        fs_err::create_dir_all(&config.data_dir)
            .map_err(|error| Failure::io("cannot make the data directory", &error))?;
        let from = in_directory(self.from);
        let to = config.records_file();
        let origin = store::restore(&from, &to, |origin| {
            // Its jobs belong to the server with this id.
            let id: ServerId = origin
                .server
                .parse()
                .map_err(|_| Failure::new(Code::BackupInvalid, format!("{} names no server", from.display())))?;
            let path = config.data_dir.join("server-id");
            match kiln_files::read_given_text(&path, LONGEST_ID) {
                Ok(text) if text.trim() == id.to_string() => Ok(()),
                Ok(_) => Err(Failure::new(
                    Code::BackupExists,
                    format!("{} is that of another server", path.display()),
                )),
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => fs_err::write(&path, format!("{id}\n"))
                    .map_err(|error| Failure::io("cannot keep this server's id", &error)),
                Err(error) => Err(Failure::io("cannot keep this server's id", &error)),
            }
        });
        let origin = origin.await?;
        printer.result(format_args!("records    {}", to.display()));
        printer.result(format_args!("made       {} by Kiln {}", origin.made, origin.kiln));
        Ok(())
    }
}

/// The file of records.
fn records(config: &Config) -> Result<PathBuf, Failure> {
    if config.store.url.is_some() {
        return Err(elsewhere());
    }
    let path = config.records_file();
    match path.try_exists() {
        Ok(true) => Ok(path),
        Ok(false) => Err(Failure::new(
            Code::StoreUnavailable,
            format!("there are no records: {} does not exist", path.display()),
        )
        .hint("`--data-dir` or `data_dir` in the configuration names the directory of the server")),
        Err(error) => Err(Failure::io("cannot look for the records", &error)),
    }
}

fn elsewhere() -> Failure {
    Failure::new(
        Code::BackupElsewhere,
        "the records are in PostgreSQL, which has its own tools for that",
    )
    .hint("`pg_dump --format=custom` and `pg_restore`; see docs/operating.md")
}

fn in_directory(path: PathBuf) -> PathBuf {
    if path.is_dir() { path.join(NAME) } else { path }
}
