//! Opens the store of records: a file of SQLite, or a connection to PostgreSQL.

use std::sync::Arc;

use kiln_records::{Code, Failure};
use reqwest::Url;

use crate::{
    config::{Config, DatabaseUrl},
    store::{PostgresStore, SharedStore, SqliteStore},
};

/// Opens the store of records.
///
/// # Errors
///
/// `store_unavailable`; `config_invalid` when the password or the address is invalid.
pub async fn open_store(config: &Config) -> Result<SharedStore, Failure> {
    let Some(url) = &config.store.url else {
        fs_err::create_dir_all(&config.data_dir)
            .map_err(|error| Failure::io("cannot make the data directory", &error))?;
        return Ok(Arc::new(SqliteStore::open(&config.records_file()).await?));
    };
    let password = match (&config.store.password, &config.store.password_file) {
        (Some(password), _) => Some(password.expose().to_owned()),
        (None, Some(path)) => {
            let text = fs_err::read_to_string(path).map_err(|error| Failure::new(Code::ConfigInvalid, error))?;
            Some(text.trim_end_matches(['\r', '\n']).to_owned())
        }
        (None, None) => None,
    };
    let url = with_password(url, password.as_deref()).ok_or_else(|| {
        Failure::new(
            Code::ConfigInvalid,
            "[store] url is no address of a PostgreSQL database",
        )
        .hint("it looks like postgresql://kiln@db.example.org/kiln")
    })?;
    Ok(Arc::new(PostgresStore::connect(&url).await?))
}

/// The whole address of a database, with its password.
fn with_password(url: &DatabaseUrl, password: Option<&str>) -> Option<String> {
    let mut whole = Url::parse(url.expose()).ok()?;
    if !matches!(whole.scheme(), "postgresql" | "postgres") {
        return None;
    }
    if let Some(password) = password
        && whole.set_password(Some(password)).is_err()
    {
        // An address without a host, as for a socket in a directory, has no other place for the password.
        whole.query_pairs_mut().append_pair("password", password);
    }
    Some(whole.into())
}
