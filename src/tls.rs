//! Reads certificates and keys from files.

use std::{io, path::Path, sync::Arc};

use rustls::{
    RootCertStore, ServerConfig,
    client::{WebPkiServerVerifier, danger::ServerCertVerifier},
    crypto::aws_lc_rs,
    pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime, pem::PemObject},
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

/// The certificates in a PEM text, each as PEM. Whatever else the text has, such as a key, is left out.
pub fn certificates_in(pem: &str) -> Vec<&str> {
    const BEGIN: &str = "-----BEGIN CERTIFICATE-----";
    const END: &str = "-----END CERTIFICATE-----";
    let blocks = pem.split_inclusive(END);
    blocks
        .filter(|block| block.ends_with(END))
        .filter_map(|block| block.rfind(BEGIN).map(|at| &block[at..]))
        .collect()
}

/// Of these authorities, those that make a client trust a server of this name with this chain of certificates; all PEM.
pub fn issuers<'a>(chain: &[&str], name: &str, authorities: &[&'a str]) -> Vec<&'a str> {
    let read = |pem: &str| CertificateDer::from_pem_slice(pem.as_bytes()).ok();
    let chain: Vec<_> = chain.iter().filter_map(|pem| read(pem)).collect();
    let (Some((first, others)), Ok(name)) = (chain.split_first(), ServerName::try_from(name)) else {
        return Vec::new();
    };
    let provider = Arc::new(aws_lc_rs::default_provider());
    let trusts = |pem: &str| {
        let mut roots = RootCertStore::empty();
        roots.add(read(pem)?).ok()?;
        let checks = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), Arc::clone(&provider));
        let checks = checks.build().ok()?;
        checks
            .verify_server_cert(first, others, &name, &[], UnixTime::now())
            .ok()
    };
    let trusted = authorities.iter().filter(|pem| trusts(pem).is_some());
    trusted.copied().collect()
}

fn wrong(path: &Path, what: impl std::fmt::Display) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("{}: {what}", path.display()))
}

#[cfg(test)]
mod tests {
    use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};

    use super::*;

    fn authority() -> (String, Issuer<'static, KeyPair>) {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        (params.self_signed(&key).unwrap().pem(), Issuer::new(params, key))
    }

    #[test]
    fn only_the_authority_of_a_certificate_is_found() {
        let ((first, issuer), (second, _)) = (authority(), authority());
        let key = KeyPair::generate().unwrap();
        let params = CertificateParams::new(vec!["172.17.0.1".to_owned()]).unwrap();
        let certificate = params.signed_by(&key, &issuer).unwrap().pem();
        let file = format!("# kiln\n{certificate}{}{first}", key.serialize_pem());
        let chain = certificates_in(&file);
        assert_eq!(chain.len(), 2);
        assert!(chain.iter().all(|pem| !pem.contains("PRIVATE")), "a key goes nowhere");
        let bundle = format!("{second}{first}");
        let authorities = certificates_in(&bundle);
        assert_eq!(issuers(&chain, "172.17.0.1", &authorities), [authorities[1]]);
        assert_eq!(issuers(&chain, "172.17.0.2", &authorities), [""; 0]);
        assert_eq!(issuers(&[], "172.17.0.1", &authorities), [""; 0]);
        assert_eq!(certificates_in("-----BEGIN CERTIFICATE-----\n"), [""; 0]);
    }
}
