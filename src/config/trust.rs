//! The section `[trust]`: what builds trust. Reads the files that it names.

use std::path::PathBuf;

use super::{Config, Problem};
use crate::{host, settings, tls};

const SECTION: &str = "trust";

settings! {
    /// What builds trust beside what recipes name. Builds trust the certificate authorities of this host, or those in the file that
    /// `SSL_CERT_FILE` names for Kiln itself.
    ["trust"]
    pub struct TrustSettings {
        /// A PEM file of further certificate authorities, or a directory of such files. Programs in the new root trust them, and
        /// this host's, until it is made.
        ca: Option<PathBuf> = None, like "\"/etc/kiln/ca.pem\"";
        /// Whether the authorities of `ca` stay in every image, where its distribution has those of its site. Otherwise an image
        /// has those of its recipe alone.
        keep_ca: bool = false;
        /// A directory of public keys in ASCII armour, one in each file. Every build accepts repositories and packages that they
        /// sign, as if each recipe named them. Images of rpms have them in their database of keys.
        signing_keys: Option<PathBuf> = None, like "\"/etc/kiln/signing-keys\"";
    }
}

impl Config {
    pub(super) fn check_trust(&self, problems: &mut Vec<Problem>) {
        if let Some(path) = &self.trust.ca {
            match host::trust::files(path) {
                Ok(files) => {
                    for error in files.iter().filter_map(|file| tls::authorities(file).err()) {
                        let hint = "each file must contain PEM certificates: -----BEGIN CERTIFICATE-----";
                        problems.push(self.problem(SECTION, "ca", error).hint(hint));
                    }
                }
                Err(error) => problems.push(self.problem(SECTION, "ca", error).hint("name a file, or a directory")),
            }
        }
        if self.trust.keep_ca && self.trust.ca.is_none() {
            let text = "there are none to keep: `ca` is not set";
            problems.push(
                self.problem(SECTION, "keep_ca", text)
                    .hint("name them by `ca`, or leave it out"),
            );
        }
        if let Some(dir) = &self.trust.signing_keys
            && let Err(error) = host::trust::keys_in(dir)
        {
            let hint = "each file of the directory is a key: `gpg --armor --export KEY > FILE.asc`";
            problems.push(self.problem(SECTION, "signing_keys", error).hint(hint));
        }
    }
}
