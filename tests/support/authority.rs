//! Certificates for servers in tests.

use std::path::Path;

use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair};

/// A certificate authority, which issues certificates for this host.
pub struct Authority {
    pub pem: String,
    issuer: Issuer<'static, KeyPair>,
}

impl Authority {
    pub fn new() -> Self {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        // Another name than that of its certificates, or these would seem to be signed by themselves.
        params
            .distinguished_name
            .push(DnType::CommonName, "the authority of a test");
        let pem = params.self_signed(&key).unwrap().pem();
        Self {
            pem,
            issuer: Issuer::new(params, key),
        }
    }

    /// Writes a certificate for 127.0.0.1 and its key.
    pub fn write(&self, certificate: &Path, key: &Path) {
        self.write_for(&["127.0.0.1"], certificate, key);
    }

    /// Writes a certificate for these names and addresses, and its key.
    pub fn write_for(&self, names: &[&str], certificate: &Path, key: &Path) {
        let pair = KeyPair::generate().unwrap();
        let names: Vec<_> = names.iter().map(|name| (*name).to_owned()).collect();
        let params = CertificateParams::new(names).unwrap();
        let signed = params.signed_by(&pair, &self.issuer).unwrap();
        fs_err::write(key, pair.serialize_pem()).unwrap();
        fs_err::write(certificate, signed.pem()).unwrap();
    }
}
