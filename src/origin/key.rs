//! Keys for signatures, in PEM files as OpenSSL writes them: Ed25519, and ECDSA over P-256 and P-384. Reads key files.

use std::{io, path::Path};

use aws_lc_rs::{
    rand::SystemRandom,
    signature::{
        ECDSA_P256_SHA256_ASN1, ECDSA_P256_SHA256_ASN1_SIGNING, ECDSA_P384_SHA384_ASN1, ECDSA_P384_SHA384_ASN1_SIGNING,
        ED25519, EcdsaKeyPair, Ed25519KeyPair, KeyPair, ParsedPublicKey,
    },
};
use rustls::pki_types::{PrivatePkcs8KeyDer, SubjectPublicKeyInfoDer, pem::PemObject};
use sha2::{Digest, Sha256};

/// The most bytes of a key file.
const LONGEST: u64 = 64 << 10;

/// Why a file is no key.
#[derive(Debug, thiserror::Error)]
pub enum BadKey {
    /// It cannot be read.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// It has no key of a known kind.
    #[error("{0} has no {1}")]
    None(String, &'static str),
}

/// The key that signatures are checked with.
#[derive(Debug, Clone)]
pub struct PublicKey {
    parsed: ParsedPublicKey,
    id: String,
}

/// The key that signs.
#[derive(Debug)]
pub(super) enum PrivateKey {
    Ed25519(Ed25519KeyPair),
    Ecdsa(EcdsaKeyPair),
}

impl PublicKey {
    /// Reads a file with one public key (`-----BEGIN PUBLIC KEY-----`).
    ///
    /// # Errors
    ///
    /// When there is none of a known kind.
    pub fn read(path: &Path) -> Result<Self, BadKey> {
        let pem = read(path)?;
        let none = || {
            BadKey::None(
                path.display().to_string(),
                "public key of Ed25519, P-256 or P-384 in PEM",
            )
        };
        let der = SubjectPublicKeyInfoDer::from_pem_slice(&pem).map_err(|_| none())?;
        Self::of(&der).ok_or_else(none)
    }

    fn of(der: &[u8]) -> Option<Self> {
        let parsed = ParsedPublicKey::new(&ED25519, der)
            .or_else(|_| ParsedPublicKey::new(&ECDSA_P256_SHA256_ASN1, der))
            .or_else(|_| ParsedPublicKey::new(&ECDSA_P384_SHA384_ASN1, der));
        Some(Self {
            parsed: parsed.ok()?,
            id: format!("sha256:{}", hex::encode(Sha256::digest(der))),
        })
    }

    /// Its id: the SHA-256 of its DER form, as `openssl pkey -pubin -outform DER | sha256sum` prints it.
    pub fn id(&self) -> &str {
        &self.id
    }

    pub(super) fn has_signed(&self, message: &[u8], signature: &[u8]) -> bool {
        self.parsed.verify_sig(message, signature).is_ok()
    }
}

impl PrivateKey {
    /// Reads a file with one private key (`-----BEGIN PRIVATE KEY-----`). Returns it with its public half.
    pub(super) fn read(path: &Path) -> Result<(Self, PublicKey), BadKey> {
        use aws_lc_rs::encoding::{AsDer, PublicKeyX509Der};

        let pem = read(path)?;
        let none = || {
            let what = "unencrypted private key of Ed25519, P-256 or P-384 in PEM (PKCS#8)";
            BadKey::None(path.display().to_string(), what)
        };
        let der = PrivatePkcs8KeyDer::from_pem_slice(&pem).map_err(|_| none())?;
        let der = der.secret_pkcs8_der();
        let ecdsa = || {
            [&ECDSA_P256_SHA256_ASN1_SIGNING, &ECDSA_P384_SHA384_ASN1_SIGNING]
                .into_iter()
                .find_map(|kind| EcdsaKeyPair::from_pkcs8(kind, der).ok())
        };
        let key = match Ed25519KeyPair::from_pkcs8(der) {
            Ok(pair) => Self::Ed25519(pair),
            Err(_) => Self::Ecdsa(ecdsa().ok_or_else(none)?),
        };
        let public: Result<PublicKeyX509Der<'_>, _> = match &key {
            Self::Ed25519(pair) => pair.public_key().as_der(),
            Self::Ecdsa(pair) => pair.public_key().as_der(),
        };
        let public = public
            .ok()
            .and_then(|der| PublicKey::of(der.as_ref()))
            .ok_or_else(none)?;
        Ok((key, public))
    }

    pub(super) fn sign(&self, message: &[u8]) -> Option<Vec<u8>> {
        match self {
            Self::Ed25519(pair) => Some(pair.sign(message).as_ref().to_vec()),
            Self::Ecdsa(pair) => Some(pair.sign(&SystemRandom::new(), message).ok()?.as_ref().to_vec()),
        }
    }
}

fn read(path: &Path) -> io::Result<Vec<u8>> {
    kiln_files::read_given(path, LONGEST)
}
