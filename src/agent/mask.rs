//! Masks secrets in whatever leaves the agent: the passwords of a recipe's repositories, which tools print with every
//! address. Pure, apart from reading files that contain passwords.

use std::{collections::BTreeSet, path::Path};

use kiln_records::{Failure, Warning, percent};

/// What stands in place of a secret.
const MASKED: &str = "***";

/// Shorter secrets are masked in addresses only: elsewhere they would be parts of other words.
const SHORTEST: usize = 4;

/// The most secrets known; a recipe has a few.
const MOST: usize = 200;

/// The most bytes of a file with passwords.
const LARGEST_FILE: u64 = 256 << 10;

/// Knows secrets.
#[derive(Debug, Clone, Default)]
pub(crate) struct Mask {
    /// The longest first, so that none is masked in part only.
    secrets: Vec<String>,
}

impl Mask {
    /// Learns secrets, each also in the form that it has in an address.
    pub(crate) fn learn(&mut self, secrets: impl IntoIterator<Item = String>) {
        let mut all: BTreeSet<String> = self.secrets.drain(..).collect();
        for secret in secrets {
            let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~".contains(&byte);
            all.insert(percent::encode(&secret, plain));
            all.extend(percent::decode(&secret));
            all.insert(secret);
        }
        self.secrets = all.into_iter().filter(|secret| secret.len() >= SHORTEST).collect();
        self.secrets.sort_by_key(|secret| std::cmp::Reverse(secret.len()));
        self.secrets.truncate(MOST);
    }

    /// A text without secrets: without those that are known, and without the user and password of any address.
    pub(crate) fn apply(&self, text: String) -> String {
        let mut text = without_logins(text);
        for secret in &self.secrets {
            if text.contains(secret) {
                text = text.replace(secret, MASKED);
            }
        }
        text
    }

    /// A failure without secrets.
    pub(crate) fn apply_to(&self, mut failure: Failure) -> Failure {
        failure.detail = self.apply(failure.detail);
        failure.hint = failure.hint.map(|hint| self.apply(hint));
        failure
    }

    /// A warning without secrets.
    pub(crate) fn apply_to_warning(&self, mut warning: Warning) -> Warning {
        warning.message = self.apply(warning.message);
        warning.hint = warning.hint.map(|hint| self.apply(hint));
        warning
    }
}

/// The secrets in an address: the password of its login, or the only word of that, and the values of its query.
pub(crate) fn of_address(address: &str) -> Vec<String> {
    let (bare, query) = address.split_once('?').unwrap_or((address, ""));
    let login = bare
        .split_once("://")
        .and_then(|(_, rest)| Some(rest.rsplit_once('@')?.0));
    let login = login.map(|login| login.split_once(':').map_or(login, |(_, password)| password));
    let values = query.split('&').filter_map(|pair| Some(pair.split_once('=')?.1));
    login
        .into_iter()
        .chain(values.filter(|value| value.len() >= 8))
        .map(str::to_owned)
        .collect()
}

/// The passwords in the files that name apt's logins, below the root of an image or of a recipe's overlay. A file that
/// cannot be read is not apt's either.
pub(crate) fn of_apt(root: &Path) -> Vec<String> {
    let apt = root.join("etc/apt");
    // A directory that is a link may lead out of the root.
    let Ok(root) = fs_err::canonicalize(root) else {
        return Vec::new();
    };
    let is_inside = |dir: &Path| fs_err::canonicalize(dir).is_ok_and(|real| real.starts_with(&root));
    let mut files = Vec::new();
    if is_inside(&apt) {
        files.push(apt.join("auth.conf"));
    }
    let more = apt.join("auth.conf.d");
    if is_inside(&more)
        && let Ok(entries) = fs_err::read_dir(more)
    {
        files.extend(entries.flatten().map(|entry| entry.path()).take(100));
    }
    let mut passwords = Vec::new();
    for file in files {
        let is_file = fs_err::symlink_metadata(&file).is_ok_and(|found| found.is_file() && found.len() <= LARGEST_FILE);
        if let Some(text) = is_file.then(|| fs_err::read_to_string(&file).ok()).flatten() {
            let mut words = text.split_whitespace();
            while let Some(word) = words.next() {
                if word == "password" {
                    passwords.extend(words.next().map(str::to_owned));
                }
            }
        }
    }
    passwords
}

/// Masks `user:password` in `scheme://user:password@host`.
fn without_logins(text: String) -> String {
    if !text.contains("://") {
        return text;
    }
    let mut clean = String::with_capacity(text.len());
    let mut rest = text.as_str();
    while let Some(at) = rest.find("://") {
        let (before, after) = rest.split_at(at + "://".len());
        clean.push_str(before);
        let is_end = |c: char| c.is_whitespace() || matches!(c, '/' | '?' | '#' | '"' | '\'' | '<' | '>' | '`');
        let authority = &after[..after.find(is_end).unwrap_or(after.len())];
        let login = authority.rfind('@').filter(|at| authority[..*at].contains(':'));
        if login.is_some() {
            clean.push_str(MASKED);
        }
        rest = &after[login.unwrap_or(0)..];
    }
    clean.push_str(rest);
    clean
}

#[cfg(test)]
mod tests {
    use kiln_records::Code;

    use super::*;

    fn masked(text: &str) -> String {
        Mask::default().apply(text.to_owned())
    }

    #[test]
    fn no_address_shows_its_login() {
        for (text, shown) in [
            (
                "Get:1 https://me:secret@host/debian stable",
                "Get:1 https://***@host/debian stable",
            ),
            (
                "baseurl=http://me:p@ss:w%2Frd@host:8080/x",
                "baseurl=http://***@host:8080/x",
            ),
            (
                "'https://me:secret@one', \"ftp://a:b@two\"",
                "'https://***@one', \"ftp://***@two\"",
            ),
            ("dir://me:secret@", "dir://***@"),
            ("https://:secret@host", "https://***@host"),
            // No passwords.
            (
                "ssh://git@host/x and http://host:80/a@b",
                "ssh://git@host/x and http://host:80/a@b",
            ),
            ("a:b@c", "a:b@c"),
            ("://", "://"),
            ("https://näme:ü@host", "https://***@host"),
        ] {
            assert_eq!(masked(text), shown);
        }
    }

    #[test]
    fn known_passwords_are_masked_wherever_they_stand() {
        let mut mask = Mask::default();
        mask.learn(of_address("https://me:pa%2Fss@host/x?key=0123456789&a=b"));
        mask.learn(["correct horse".to_owned(), "abc".to_owned()]);
        let text = "pa/ss pa%2Fss key 0123456789 'correct horse' correct%20horse abc";
        assert_eq!(mask.apply(text.to_owned()), "*** *** key *** '***' *** abc");
        let failure = Failure::new(Code::ScriptFailed, "curl -u me:pa/ss").hint("try pa/ss");
        let failure = mask.apply_to(failure);
        assert_eq!(
            (failure.detail.as_str(), failure.hint.as_deref()),
            ("curl -u me:***", Some("try ***"))
        );
    }

    #[test]
    fn a_password_is_not_masked_in_part_only() {
        let mut mask = Mask::default();
        mask.learn(["secret".to_owned(), "secretly".to_owned()]);
        assert_eq!(mask.apply("secretly secret".to_owned()), "*** ***");
    }

    #[test]
    fn the_logins_of_apt_are_known() {
        let root = tempfile::tempdir().unwrap();
        let apt = root.path().join("etc/apt");
        fs_err::create_dir_all(apt.join("auth.conf.d")).unwrap();
        fs_err::write(apt.join("auth.conf"), "machine host\nlogin me password first-one\n").unwrap();
        fs_err::write(
            apt.join("auth.conf.d/b.conf"),
            "machine other login me\n  password second-one",
        )
        .unwrap();
        assert_eq!(of_apt(root.path()), ["first-one", "second-one"]);
        let linked = tempfile::tempdir().unwrap();
        std::os::unix::fs::symlink(root.path().join("etc"), linked.path().join("etc")).unwrap();
        assert!(of_apt(linked.path()).is_empty());
    }
}
