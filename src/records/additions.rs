//! What a job adds to the description of its recipe, as kiwi's options do: repositories and packages. Pure: no I/O.

use std::fmt;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

/// The most repositories, and the most packages of a kind.
pub const MOST_ADDED: usize = 1000;

/// The form of kiwi's `--add-repo` and `--set-repo`.
pub const REPOSITORY_FORM: &str = "SOURCE,TYPE,ALIAS,PRIORITY,IMAGEINCLUDE,PACKAGE_GPGCHECK,{SIGNING_KEY;…},COMPONENTS,DISTRIBUTION,\
                                   REPO_GPGCHECK,SOURCETYPE";

/// The types of repositories that kiwi knows.
const TYPES: [&str; 6] = ["apk", "apt-deb", "apt-rpm", "deb-dir", "mirrors", "rpm-md"];

/// What a source may be of.
const SOURCE_TYPES: [&str; 3] = ["baseurl", "metalink", "mirrorlist"];

/// How sources begin that kiwi knows.
const SOURCES: [&str; 8] = [
    "http:",
    "https:",
    "ftp:",
    "obs:",
    "obsrepositories:",
    "dir:",
    "file:",
    "this:",
];

/// The longest line, in bytes.
const LONGEST: usize = 4096;

/// The longest name of a package, in bytes.
const LONGEST_NAME: usize = 256;

/// What a job adds.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Additions {
    /// Whether the repositories of the description are left out.
    pub ignore_repos: bool,
    /// What replaces the first repository that is in force.
    pub set_repo: Option<RepositoryLine>,
    /// Repositories after those of the description.
    pub add_repos: Vec<RepositoryLine>,
    /// Packages beside those of the description.
    pub add_packages: Vec<PackageName>,
    /// The same for those that the root begins with.
    pub add_bootstrap_packages: Vec<PackageName>,
    /// Packages that are uninstalled at the end.
    pub delete_packages: Vec<PackageName>,
}

impl Additions {
    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// The repositories.
    pub fn repositories(&self) -> impl Iterator<Item = &RepositoryLine> {
        self.set_repo.iter().chain(&self.add_repos)
    }

    /// The texts by which two jobs differ, each under its option.
    pub fn parts(&self) -> Vec<(&'static str, &str)> {
        let mut parts = Vec::new();
        if self.ignore_repos {
            parts.push(("ignore-repos", "true"));
        }
        parts.extend(self.set_repo.iter().map(|line| ("set-repo", line.as_str())));
        parts.extend(self.add_repos.iter().map(|line| ("add-repo", line.as_str())));
        for (option, names) in [
            ("add-package", &self.add_packages),
            ("add-bootstrap-package", &self.add_bootstrap_packages),
            ("delete-package", &self.delete_packages),
        ] {
            parts.extend(names.iter().map(|name| (option, name.as_str())));
        }
        parts
    }

    /// The same to be shown, without secrets.
    pub fn shown(&self) -> Vec<(&'static str, String)> {
        let shown = self.parts().into_iter().map(|(option, text)| match option {
            "set-repo" | "add-repo" => (option, without_secrets(text)),
            _ => (option, text.to_owned()),
        });
        shown.collect()
    }
}

/// Why a text is none of these.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Wrong(String);

/// A repository, in the form of kiwi's options. Its text may have secrets.
#[derive(Clone, PartialEq, Eq)]
pub struct RepositoryLine(String);

/// The parts of a repository's line. Those that are absent or empty are none.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct RepositoryParts<'a> {
    /// Its address.
    pub source: Option<&'a str>,
    /// Its type.
    pub kind: Option<&'a str>,
    /// Its alias.
    pub alias: Option<&'a str>,
    /// Its priority.
    pub priority: Option<&'a str>,
    /// Whether the image has it.
    pub imageinclude: Option<&'a str>,
    /// Whether signatures of packages are verified.
    pub package_gpgcheck: Option<&'a str>,
    /// Addresses of its signing keys.
    pub signing_keys: Vec<&'a str>,
    /// Its components.
    pub components: Option<&'a str>,
    /// Its distribution.
    pub distribution: Option<&'a str>,
    /// Whether its own signature is verified.
    pub repo_gpgcheck: Option<&'a str>,
    /// What the address is of.
    pub sourcetype: Option<&'a str>,
}

impl RepositoryLine {
    /// A line for `--add-repo`, which has a source and a type.
    ///
    /// # Errors
    ///
    /// What kiwi expects, where the text is not that.
    pub fn added(text: &str) -> Result<Self, Wrong> {
        let line = Self::set(text)?;
        let parts = line.parts();
        if parts.source.is_none() || parts.kind.is_none() {
            return Err(wrong(
                text,
                &format!("it needs a source and a type ({})", TYPES.join(", ")),
            ));
        }
        Ok(line)
    }

    /// A line for `--set-repo`, which changes what it has.
    ///
    /// # Errors
    ///
    /// What kiwi expects, where the text is not that.
    pub fn set(text: &str) -> Result<Self, Wrong> {
        let parts = split(text).map_err(|why| wrong(text, &why))?;
        check(&parts).map_err(|why| wrong(text, &why))?;
        Ok(Self(text.to_owned()))
    }

    /// The same with a login in its address, as kiwi's `--add-repo-credentials` puts it there.
    ///
    /// # Errors
    ///
    /// The address has no scheme, or the login is none.
    pub fn with_login(&self, login: &str) -> Result<Self, Wrong> {
        let is_login = login.contains(':') && !login.contains(|c: char| c == ',' || c == '/' || c.is_whitespace());
        if !is_login {
            return Err(Wrong(
                "credentials must be USER:PASSWORD, percent-encoded where needed, without commas".to_owned(),
            ));
        }
        let at = self.0.find("://").filter(|at| !self.0[..*at].contains(','));
        let at = at.ok_or_else(|| wrong(&self.0, "credentials need an address with a scheme"))? + "://".len();
        Self::set(&format!("{}{login}@{}", &self.0[..at], &self.0[at..]))
    }

    /// The whole text, with its secrets.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Its parts.
    pub fn parts(&self) -> RepositoryParts<'_> {
        split(&self.0).unwrap_or_default()
    }
}

/// Takes a line apart as kiwi does: at commas, with the keys in braces.
fn split(text: &str) -> Result<RepositoryParts<'_>, String> {
    if text.len() > LONGEST {
        return Err(format!("it has more than {LONGEST} bytes"));
    }
    let words: Vec<_> = text.splitn(11, ',').collect();
    let word = |at: usize| words.get(at).copied().filter(|word| !word.is_empty());
    let signing_keys = match word(6) {
        None => Vec::new(),
        Some(keys) => match keys.strip_prefix('{').and_then(|keys| keys.strip_suffix('}')) {
            Some(keys) => keys.split(';').filter(|key| !key.is_empty()).collect(),
            None => return Err("the signing keys must be in braces, with semicolons between them".to_owned()),
        },
    };
    Ok(RepositoryParts {
        source: word(0),
        kind: word(1),
        alias: word(2),
        priority: word(3),
        imageinclude: word(4),
        package_gpgcheck: word(5),
        signing_keys,
        components: word(7),
        distribution: word(8),
        repo_gpgcheck: word(9),
        sourcetype: word(10),
    })
}

fn check(parts: &RepositoryParts<'_>) -> Result<(), String> {
    let all = [parts.source, parts.components, parts.distribution];
    if all.iter().flatten().any(|text| text.contains(char::is_control)) {
        return Err("it has control characters".to_owned());
    }
    for address in parts.source.iter().chain(&parts.signing_keys) {
        if address.contains(char::is_whitespace) {
            return Err("an address has blanks".to_owned());
        }
        if !address.starts_with('/') && !SOURCES.iter().any(|begin| address.starts_with(begin)) {
            return Err(format!(
                "an address begins with one of {}, or is a path",
                SOURCES.join(", ")
            ));
        }
    }
    one_of("type", parts.kind, &TYPES)?;
    for (name, flag) in [
        ("imageinclude", parts.imageinclude),
        ("package_gpgcheck", parts.package_gpgcheck),
        ("repo_gpgcheck", parts.repo_gpgcheck),
    ] {
        one_of(name, flag, &["true", "false"])?;
    }
    one_of("sourcetype", parts.sourcetype, &SOURCE_TYPES)?;
    if parts.priority.is_some_and(|text| text.parse::<i32>().is_err()) {
        return Err("the priority must be a number".to_owned());
    }
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "_-.".contains(c);
    if parts.alias.is_some_and(|alias| !alias.chars().all(is_plain)) {
        return Err("the alias may have letters, digits and `_-.` only".to_owned());
    }
    Ok(())
}

fn one_of(name: &str, value: Option<&str>, known: &[&str]) -> Result<(), String> {
    match value {
        Some(value) if !known.contains(&value) => Err(format!("{name} must be one of {}", known.join(", "))),
        _ => Ok(()),
    }
}

/// Says what kiwi expects. The text itself may have a password.
fn wrong(text: &str, why: &str) -> Wrong {
    let source = text.split(',').next().unwrap_or_default();
    let shown: String = without_secrets(source).chars().take(100).collect();
    Wrong(format!(
        "`{}`: {why}; the form is {REPOSITORY_FORM}, of which the end may be left out",
        shown.escape_debug()
    ))
}

/// A line without the logins and the queries of its addresses.
fn without_secrets(text: &str) -> String {
    let word = |word: &str| {
        let bare = word.find('?').map_or(word, |at| &word[..at]);
        let query = if bare.len() < word.len() { "?***" } else { "" };
        match bare.split_once("://") {
            Some((scheme, rest)) => {
                let end = rest.find('/').unwrap_or(rest.len());
                // A password may have a `/` that is not encoded: then what follows is more of it.
                let at = rest
                    .rfind('@')
                    .filter(|at| *at > end)
                    .or_else(|| rest[..end].rfind('@'));
                match at {
                    Some(at) => format!("{scheme}://***@{}{query}", &rest[at + 1..]),
                    None => format!("{bare}{query}"),
                }
            }
            None => match bare.rsplit_once('@') {
                // What begins so is no address, but may have been meant to be one.
                Some((_, host)) if !bare.starts_with('/') => format!("***@{host}{query}"),
                _ => format!("{bare}{query}"),
            },
        }
    };
    text.split(',')
        .map(|part| part.split(';').map(word).collect::<Vec<_>>().join(";"))
        .collect::<Vec<_>>()
        .join(",")
}

impl fmt::Display for RepositoryLine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&without_secrets(&self.0))
    }
}

impl fmt::Debug for RepositoryLine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", without_secrets(&self.0))
    }
}

impl Serialize for RepositoryLine {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.0)
    }
}

impl<'de> Deserialize<'de> for RepositoryLine {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Self::set(&String::deserialize(deserializer)?).map_err(de::Error::custom)
    }
}

/// The name of a package.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub struct PackageName(String);

impl PackageName {
    /// The name.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl std::str::FromStr for PackageName {
    type Err = Wrong;

    /// A package manager must not take it for an option, nor for more than one word.
    fn from_str(name: &str) -> Result<Self, Wrong> {
        let is_plain = |c: char| !c.is_whitespace() && !c.is_control();
        if name.is_empty() || name.len() > LONGEST_NAME || name.starts_with('-') || !name.chars().all(is_plain) {
            let shown: String = name.chars().take(100).collect();
            return Err(Wrong(format!(
                "`{}` is no name of a package: it has no blanks, does not begin with `-`, and has at most {LONGEST_NAME} bytes",
                shown.escape_debug()
            )));
        }
        Ok(Self(name.to_owned()))
    }
}

impl<'de> Deserialize<'de> for PackageName {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WHOLE: &str =
        "https://h/r,rpm-md,site,5,true,false,{https://h/a.asc;file:///b.asc},main extra,bookworm,true,mirrorlist";

    #[test]
    fn a_line_has_kiwis_parts() {
        let line = RepositoryLine::added(WHOLE).unwrap();
        let parts = RepositoryParts {
            source: Some("https://h/r"),
            kind: Some("rpm-md"),
            alias: Some("site"),
            priority: Some("5"),
            imageinclude: Some("true"),
            package_gpgcheck: Some("false"),
            signing_keys: vec!["https://h/a.asc", "file:///b.asc"],
            components: Some("main extra"),
            distribution: Some("bookworm"),
            repo_gpgcheck: Some("true"),
            sourcetype: Some("mirrorlist"),
        };
        assert_eq!(line.parts(), parts);
        let short = RepositoryLine::added("http://h/,apt-deb,,,,,,main,stable").unwrap();
        let parts = short.parts();
        assert_eq!(
            (parts.alias, parts.components, parts.distribution),
            (None, Some("main"), Some("stable"))
        );
        assert!(parts.signing_keys.is_empty());
        // What is to be changed may be all but the address.
        assert_eq!(RepositoryLine::set(",,,7").unwrap().parts().priority, Some("7"));
    }

    #[test]
    fn what_kiwi_does_not_expect_is_refused_with_what_it_does() {
        for (text, why) in [
            ("", "a source and a type"),
            ("http://h/", "a source and a type"),
            ("http://h/,yum", "type must be one of apk, apt-deb"),
            ("h/r,rpm-md", "an address begins with one of http:"),
            ("http://h/ r,rpm-md", "an address has blanks"),
            ("http://h/,rpm-md,a b", "the alias may have"),
            ("http://h/,rpm-md,a,high", "the priority must be a number"),
            ("http://h/,rpm-md,a,1,yes", "imageinclude must be one of true, false"),
            ("http://h/,rpm-md,a,1,,1", "package_gpgcheck must be"),
            ("http://h/,rpm-md,,,,,http://h/key", "in braces"),
            ("http://h/,rpm-md,,,,,{key}", "an address begins with"),
            ("http://h/,rpm-md,,,,,,,,maybe", "repo_gpgcheck must be"),
            ("http://h/,rpm-md,,,,,,,,,list", "sourcetype must be one of baseurl"),
            ("http://h/,rpm-md,,,,,,,a\nb", "control characters"),
        ] {
            let said = RepositoryLine::added(text).unwrap_err().to_string();
            assert!(
                said.contains(why) && said.contains("the form is SOURCE,TYPE,ALIAS"),
                "{text}: {said}"
            );
        }
        let said = RepositoryLine::added("http://me:hunter2@h/?k=hunter2,yum")
            .unwrap_err()
            .to_string();
        assert!(!said.contains("hunter2") && said.contains("***@h/"), "{said}");
    }

    #[test]
    fn secrets_are_kept_and_never_shown() {
        let text = "https://me:hunter2@h/r?token=hunter2,rpm-md,,,,,{https://x:hunter2@h/k?hunter2;file:///b}";
        let line = RepositoryLine::added(text).unwrap();
        let json = serde_json::to_string(&line).unwrap();
        assert_eq!(serde_json::from_str::<RepositoryLine>(&json).unwrap().as_str(), text);
        let additions = Additions {
            add_repos: vec![line.clone()],
            ..Additions::default()
        };
        for shown in [
            line.to_string(),
            format!("{line:?}"),
            format!("{additions:?}{:?}", additions.shown()),
        ] {
            assert!(
                !shown.contains("hunter2") && shown.contains("https://***@h/r?***"),
                "{shown}"
            );
        }
        for (login, address) in [
            ("http://a:b/c@h/d", "http://***@h/d"),
            ("http://h/a@b", "http://***@b"),
            ("/a@b", "/a@b"),
        ] {
            assert_eq!(without_secrets(login), address);
        }
    }

    #[test]
    fn credentials_become_a_login() {
        let line = RepositoryLine::added("https://h/r,rpm-md").unwrap();
        assert_eq!(
            line.with_login("me:pass%2C").unwrap().as_str(),
            "https://me:pass%2C@h/r,rpm-md"
        );
        for wrong in ["me", "a:b c", "a:b,c", "a:b/c", ""] {
            assert!(line.with_login(wrong).is_err(), "{wrong}");
        }
        assert!(RepositoryLine::added("/r,rpm-md").unwrap().with_login("a:b").is_err());
        assert!(
            RepositoryLine::added("/r,rpm-md,,,,,{http://h/}")
                .unwrap()
                .with_login("a:b")
                .is_err()
        );
    }

    #[test]
    fn a_package_is_one_word_and_no_option() {
        for good in [
            "vim",
            "gcc-c++",
            "libstdc++6",
            "pattern:base",
            "kernel-default=6.4",
            "python3.11",
        ] {
            assert!(good.parse::<PackageName>().is_ok(), "{good}");
        }
        let long = "a".repeat(257);
        for wrong in ["", "-o", "--allow-downgrades", "a b", "a\n", &long] {
            assert!(wrong.parse::<PackageName>().is_err(), "{wrong}");
            assert!(serde_json::from_value::<PackageName>(wrong.into()).is_err());
        }
    }
}
