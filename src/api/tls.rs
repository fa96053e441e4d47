//! Certificates: reading them, and noticing that they were replaced.

use std::{
    io,
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, SystemTime},
};

use axum_server::tls_rustls::RustlsConfig;
use rustls::{
    ServerConfig,
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject},
};
use tokio::task::spawn_blocking;

/// How often the files are looked at.
const LOOK_EVERY: Duration = Duration::from_secs(5);

/// The certificates in a PEM file.
///
/// # Errors
///
/// When it cannot be read, or has none.
pub fn authorities(path: &Path) -> io::Result<Vec<CertificateDer<'static>>> {
    let pem = fs_err::read(path)?;
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&pem).collect();
    match found {
        Ok(found) if !found.is_empty() => Ok(found),
        Ok(_) => Err(wrong(path, "there is no certificate in it")),
        Err(error) => Err(wrong(path, error)),
    }
}

/// What TLS needs to serve with this certificate.
///
/// # Errors
///
/// When a file cannot be read, or the key is not the certificate's.
pub fn server_config(certificate: &Path, key: &Path) -> io::Result<Arc<ServerConfig>> {
    let chain = authorities(certificate)?;
    let pem = fs_err::read(key)?;
    let secret = PrivateKeyDer::from_pem_slice(&pem).map_err(|_| wrong(key, "there is no private key in it"))?;
    let config = ServerConfig::builder().with_no_client_auth();
    let mut config = config.with_single_cert(chain, secret).map_err(|error| {
        wrong(
            certificate,
            format_args!("it cannot be used with {}: {error}", key.display()),
        )
    })?;
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(Arc::new(config))
}

fn wrong(path: &Path, what: impl std::fmt::Display) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("{}: {what}", path.display()))
}

/// A certificate in use.
#[derive(Debug)]
pub struct Certificate {
    chain: PathBuf,
    key: PathBuf,
    config: RustlsConfig,
}

impl Certificate {
    /// Reads it.
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

    /// What connections are accepted with. It follows when the files change.
    pub fn config(&self) -> RustlsConfig {
        self.config.clone()
    }

    /// Uses the files' new contents whenever they change; never ends. While they do not fit together, as in the middle
    /// of being replaced, the old ones stay in use.
    pub async fn follow(self) {
        // Nothing is seen yet: they may have changed since they were read.
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
                        tracing::warn!("the changed certificate cannot be used; the old one stays: {error}");
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
