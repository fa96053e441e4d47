//! The section `[signing]`: who vouches for images. Reads key files.

use std::path::PathBuf;

use kiln_records::ServerId;

use super::{Config, Problem};
use crate::{
    origin::{BadKey, Signer},
    settings,
};

const SECTION: &str = "signing";

settings! {
    /// Signatures over the provenance of images, which names the digests of the manifest and of everything in it. Without a
    /// key, images have their provenance unsigned. See docs/origin.md.
    ["signing"]
    pub struct SigningSettings {
        /// A file with an unencrypted private key of Ed25519, P-256 or P-384 (PEM, PKCS#8). Only Kiln's user should be able
        /// to read it.
        key_file: Option<PathBuf> = None, like "\"/etc/kiln/signing.pem\"";
        /// A command that signs instead, for a key that is in no file: it reads the bytes to sign from standard input and
        /// writes the signature to standard output, raw for Ed25519 and DER for ECDSA. It gets one minute. Requires
        /// `public_key_file`.
        command: Vec<String> = Vec::new();
        /// The public key (PEM) with which signatures of `command` are checked before they are stored.
        public_key_file: Option<PathBuf> = None, like "\"/etc/kiln/signing.pub\"";
        /// The name of this builder in the provenance: a URI. Default: `urn:kiln:` and the id of the data directory.
        builder: Option<String> = None, like "\"https://builds.example.org/kiln\"";
    }
}

impl SigningSettings {
    /// The site's signer, if it has one.
    ///
    /// # Errors
    ///
    /// When a key cannot be read.
    pub fn signer(&self) -> Result<Option<Signer>, BadKey> {
        match (&self.key_file, &self.public_key_file) {
            (Some(key), _) => Signer::with_key(key).map(Some),
            (None, Some(public)) if !self.command.is_empty() => {
                Signer::with_command(self.command.clone(), public).map(Some)
            }
            (None, _) => Ok(None),
        }
    }

    /// The name of this builder in the provenance of its images.
    pub fn builder(&self, id: ServerId) -> String {
        self.builder.clone().unwrap_or_else(|| format!("urn:kiln:{id}"))
    }
}

impl Config {
    pub(super) fn check_signing(&self, problems: &mut Vec<Problem>) {
        let signing = &self.signing;
        let has_command = !signing.command.is_empty();
        let (wrong, hint) = match (&signing.key_file, has_command, &signing.public_key_file) {
            (Some(_), true, _) => ("command", "`key_file` is set as well: which of them signs?"),
            (None, true, None) => (
                "command",
                "`public_key_file` is not set, so that its signatures cannot be checked",
            ),
            (_, false, Some(_)) => (
                "public_key_file",
                "there is no `command` whose signatures it could check",
            ),
            _ => {
                if let Err(error) = signing.signer() {
                    let key = if has_command { "public_key_file" } else { "key_file" };
                    let problem = self.problem(SECTION, key, error);
                    problems.push(problem.hint("`openssl genpkey -algorithm ed25519` makes a private key, and `openssl pkey -pubout` its public half"));
                }
                if signing.builder.as_deref().is_some_and(|uri| !is_uri(uri)) {
                    let problem = self.problem(SECTION, "builder", "it is no URI");
                    problems.push(problem.hint("such as `https://builds.example.org/kiln` or `urn:kiln:site-a`"));
                }
                return;
            }
        };
        problems.push(
            self.problem(SECTION, wrong, hint)
                .hint("set `key_file` alone, or `command` and `public_key_file`"),
        );
    }
}

/// Whether a text has the form of a URI: a scheme, a colon, and graphic characters.
fn is_uri(text: &str) -> bool {
    let scheme = text.split_once(':').filter(|(scheme, rest)| {
        scheme.starts_with(|first: char| first.is_ascii_alphabetic())
            && scheme
                .bytes()
                .all(|byte| byte.is_ascii_alphanumeric() || b"+-.".contains(&byte))
            && !rest.is_empty()
    });
    scheme.is_some() && text.bytes().all(|byte| byte.is_ascii_graphic())
}
