//! Says who signed the index of a repository. Talks HTTP to the repository, and runs gpgv, which is asked for names only: whether a
//! signature is accepted is the package manager's to decide.

use std::{
    path::{Path, PathBuf},
    process::Stdio,
};

use reqwest::{Client, StatusCode, Url};
use tokio::process::Command;

use super::{answered, beginning};
use crate::kiwi_config::Repository;

/// The most bytes of an index, or of a signature.
const MOST: usize = 16 << 20;

/// Where distributions' keys are in the toolbox.
const KEYRINGS: &str = "/usr/share/keyrings";

/// The first line of an index that has its signature inside.
const SIGNED: &[u8] = b"-----BEGIN PGP SIGNED MESSAGE-----";

/// The keys that signed a repository's index; `Some(None)` if it is not signed, `None` if that is not known.
pub(super) async fn of(client: &Client, repository: &Repository, urls: &[Url]) -> Option<Option<Vec<String>>> {
    for url in urls {
        let Some(index) = beginning(client, repository, url, MOST).await else {
            continue;
        };
        if index.starts_with(SIGNED) {
            return Some(Some(signers(&index, None).await.unwrap_or_default()));
        }
        let beside = beside(url)?;
        return match answered(client, repository, &beside, MOST).await {
            Ok((StatusCode::NOT_FOUND | StatusCode::GONE, _)) => Some(None),
            Ok((status, signature)) if status.is_success() => {
                Some(Some(signers(&index, Some(&signature)).await.unwrap_or_default()))
            }
            _ => None,
        };
    }
    None
}

/// The address of the signature of an index that has none inside.
fn beside(index: &Url) -> Option<Url> {
    let is_xml = Path::new(index.path()).extension() == Some("xml".as_ref());
    let ending = if is_xml { ".asc" } else { ".gpg" };
    let name = format!("{}{ending}", index.path_segments()?.next_back()?);
    let mut url = index.clone();
    url.path_segments_mut().ok()?.pop().push(&name);
    Some(url)
}

/// The keys of the signatures of an index, if they can be told.
async fn signers(index: &[u8], signature: Option<&[u8]>) -> Option<Vec<String>> {
    let dir = tempfile::tempdir().ok()?;
    let data = dir.path().join("index");
    fs_err::write(&data, index).ok()?;
    let mut command = Command::new("gpgv");
    command.args(["--status-fd", "1", "--homedir"]).arg(dir.path());
    for keyring in keyrings() {
        command.arg("--keyring").arg(keyring);
    }
    if let Some(signature) = signature {
        let beside = dir.path().join("signature");
        fs_err::write(&beside, signature).ok()?;
        command.arg(beside);
    }
    command.arg(data).stdin(Stdio::null()).kill_on_drop(true);
    // It fails where it does not know the key, and says which one that is.
    let said = command.output().await.ok()?;
    Some(named(&String::from_utf8_lossy(&said.stdout)))
}

fn keyrings() -> Vec<PathBuf> {
    let files = fs_err::read_dir(KEYRINGS).into_iter().flatten().flatten();
    let files = files.map(|entry| entry.path());
    let mut keyrings: Vec<_> = files
        .filter(|path| path.extension().is_some_and(|ending| ending == "gpg"))
        .collect();
    keyrings.sort();
    keyrings
}

/// The keys in the status lines of gpgv (GnuPG's doc/DETAILS).
fn named(status: &str) -> Vec<String> {
    let mut signers: Vec<String> = Vec::new();
    let mut name = None;
    for line in status.lines().filter_map(|line| line.strip_prefix("[GNUPG:] ")) {
        let (keyword, rest) = line.split_once(' ').unwrap_or((line, ""));
        let words: Vec<&str> = rest.split(' ').collect();
        match keyword {
            // The name comes before the fingerprint.
            "GOODSIG" | "EXPSIG" | "EXPKEYSIG" | "REVKEYSIG" | "BADSIG" => {
                name = rest.split_once(' ').map(|(_, name)| name);
            }
            "VALIDSIG" => {
                let key = words.first().unwrap_or(&"");
                signers.push(match name.take() {
                    Some(name) => format!("{key} ({name})"),
                    None => (*key).to_owned(),
                });
            }
            // The id of the key, and with a newer signature its fingerprint.
            "ERRSIG" => {
                let id = words.first().unwrap_or(&"");
                let fingerprint = words.get(6).filter(|word| word.len() >= 40);
                signers.push((*fingerprint.unwrap_or(id)).to_owned());
            }
            _ => {}
        }
    }
    signers.dedup();
    signers
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_named_whether_or_not_they_are_known() {
        let status = "[GNUPG:] NEWSIG\n\
            [GNUPG:] ERRSIG 0E98404D386FA1D9 1 8 01 1700000000 9 A7236886F3CCCAAD148A27F80E98404D386FA1D9\n\
            [GNUPG:] NO_PUBKEY 0E98404D386FA1D9\n\
            [GNUPG:] GOODSIG 6ED0E7B82643E131 Debian Archive Automatic Signing Key (12/bookworm) <a@debian.org>\n\
            [GNUPG:] VALIDSIG 4CB50190207B4758A3F73A796ED0E7B82643E131 2026-01-01 1 0 4 0 1 8 01 B8B80B5B\n\
            [GNUPG:] ERRSIG 1234567890ABCDEF 1 8 01 1700000000 9 -\n";
        assert_eq!(
            named(status),
            [
                "A7236886F3CCCAAD148A27F80E98404D386FA1D9",
                "4CB50190207B4758A3F73A796ED0E7B82643E131 (Debian Archive Automatic Signing Key (12/bookworm) <a@debian.org>)",
                "1234567890ABCDEF",
            ]
        );
    }

    #[test]
    fn a_signature_lies_beside_its_index() {
        for (index, signature) in [
            (
                "http://h/a/repodata/repomd.xml?k=1",
                "http://h/a/repodata/repomd.xml.asc?k=1",
            ),
            ("http://h/dists/d/Release", "http://h/dists/d/Release.gpg"),
        ] {
            assert_eq!(beside(&index.parse().unwrap()).unwrap().as_str(), signature);
        }
    }
}
