//! `kiln public-keys`: the commands for public keys on a server.

use std::{
    io::Read,
    path::{Path, PathBuf},
};

use clap::{Args, Subcommand};
use kiln_records::{Code, Failure};
use serde_json::json;

use super::{
    records::{Common, NamedList, Plain, create},
    session::Session,
};
use crate::client::collection::PUBLIC_KEYS;

/// The longest accepted file of a public key.
const LONGEST: u64 = 64 << 10;

#[derive(Debug, Subcommand)]
pub(super) enum PublicKeysCommand {
    #[command(flatten)]
    Common(Common<NamedList, Plain>),
    /// Create a record.
    #[command(display_order = 3)]
    Create(CreatePublicKey),
}

#[derive(Debug, Args)]
pub(super) struct CreatePublicKey {
    /// Its name.
    #[arg(long)]
    name: String,

    /// The file with the public key, or `-` for standard input.
    #[arg(long, value_name = "FILE")]
    public_key: PathBuf,
}

impl PublicKeysCommand {
    pub(super) async fn run(self, session: &Session) -> Result<(), Failure> {
        match self {
            PublicKeysCommand::Common(command) => command.run(&PUBLIC_KEYS, session).await,
            PublicKeysCommand::Create(key) => {
                let text = read(&key.public_key)?;
                create(session, &PUBLIC_KEYS, &json!({ "name": key.name, "public_key": text })).await
            }
        }
    }
}

/// The key's text, byte for byte.
fn read(path: &Path) -> Result<String, Failure> {
    let unreadable = |why: &dyn std::fmt::Display| {
        Failure::new(Code::PublicKeyUnreadable, format!("cannot read the public key: {why}"))
            .hint("--public-key names a file such as ~/.ssh/id_ed25519.pub")
    };
    let mut text = String::new();
    if path.as_os_str() == "-" {
        std::io::stdin()
            .take(LONGEST)
            .read_to_string(&mut text)
            .map_err(|error| unreadable(&error))?;
    } else {
        text = kiln_files::read_given_text(&at_home(path), LONGEST).map_err(|error| unreadable(&error))?;
    }
    if text.contains("PRIVATE KEY-----") {
        return Err(
            unreadable(&format_args!("{} holds a private key; it was not sent", path.display()))
                .hint(format!("did you mean {}.pub?", path.display())),
        );
    }
    Ok(text)
}

/// A path as a shell would expand it: shells leave the `~` of `--public-key=~/.ssh/id_rsa.pub` alone.
fn at_home(path: &Path) -> PathBuf {
    match (path.strip_prefix("~"), std::env::var_os("HOME")) {
        (Ok(rest), Some(home)) if !path.exists() => Path::new(&home).join(rest),
        _ => path.to_owned(),
    }
}
