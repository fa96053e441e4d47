//! Reads certificates and keys from files.

use std::{io, path::Path, sync::Arc};

use rustls::{
    ServerConfig,
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject},
};

/// The certificates in a PEM file.
///
/// # Errors
///
/// When the file cannot be read, or contains no certificate.
pub fn authorities(path: &Path) -> io::Result<Vec<CertificateDer<'static>>> {
    let pem = fs_err::read(path)?;
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&pem).collect();
    match found {
        Ok(found) if !found.is_empty() => Ok(found),
        Ok(_) => Err(wrong(path, "it contains no certificate")),
        Err(error) => Err(wrong(path, error)),
    }
}

/// The TLS configuration of a server with this certificate.
///
/// # Errors
///
/// When a file cannot be read, or the key does not match the certificate.
pub fn server_config(certificate: &Path, key: &Path) -> io::Result<Arc<ServerConfig>> {
    let chain = authorities(certificate)?;
    let pem = fs_err::read(key)?;
    let secret = PrivateKeyDer::from_pem_slice(&pem).map_err(|_| wrong(key, "it contains no private key"))?;
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
