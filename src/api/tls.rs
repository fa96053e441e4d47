//! The server's certificate, which is read again when its files change. Reads two files.

use std::{
    io,
    path::{Path, PathBuf},
    time::{Duration, SystemTime},
};

use axum_server::tls_rustls::RustlsConfig;
use tokio::task::spawn_blocking;

use crate::tls::server_config;

/// The interval between checks of the files.
const LOOK_EVERY: Duration = Duration::from_secs(5);

/// A certificate in use.
#[derive(Debug)]
pub struct Certificate {
    chain: PathBuf,
    key: PathBuf,
    config: RustlsConfig,
}

impl Certificate {
    /// Reads the certificate and its key.
    ///
    /// # Errors
    ///
    /// As [`server_config`].
    pub fn read(certificate: &Path, key: &Path) -> io::Result<Self> {
        Ok(Self {
            chain: certificate.to_owned(),
            key: key.to_owned(),
            config: RustlsConfig::from_config(server_config(certificate, key)?),
        })
    }

    /// The configuration for accepting connections. It changes with the files.
    pub fn config(&self) -> RustlsConfig {
        self.config.clone()
    }

    /// Loads the files again whenever they change; never ends. While they do not match, as in the middle of a
    /// replacement, the old ones stay in use.
    pub async fn follow(self) {
        // No state is known yet: the files may have changed since they were read.
        let mut seen = None;
        let mut told = None;
        loop {
            tokio::time::sleep(LOOK_EVERY).await;
            let (certificate, key) = (self.chain.clone(), self.key.clone());
            let before = seen;
            let looked = spawn_blocking(move || {
                let now = (stamp(&certificate), stamp(&key));
                (Some(now) != before).then(|| (now, server_config(&certificate, &key)))
            });
            match looked.await {
                Ok(None) | Err(_) => {}
                Ok(Some((now, Ok(config)))) => {
                    self.config.reload_from_config(config);
                    if seen.is_some() {
                        tracing::info!(certificate = %self.chain.display(), "using the changed certificate");
                    }
                    (seen, told) = (Some(now), None);
                }
                Ok(Some((now, Err(error)))) => {
                    if told != Some(now) {
                        tracing::warn!("the changed certificate cannot be used; the old one stays in use: {error}");
                        told = Some(now);
                    }
                }
            }
        }
    }
}

/// Changes when a file is written or replaced.
fn stamp(path: &Path) -> Option<(SystemTime, u64, u64)> {
    use std::os::unix::fs::MetadataExt;
    let metadata = fs_err::metadata(path).ok()?;
    Some((metadata.modified().ok()?, metadata.len(), metadata.ino()))
}
