//! A layer as both forms mean it, and checks of its values. Pure: no I/O.

use std::collections::BTreeMap;

use crate::{Copy, Files, Form, Parent, Publish, Written, Wrong};

/// What installs packages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Manager {
    Dnf,
    Zypper,
    Apt,
    Mmdebstrap,
}

impl Manager {
    pub fn of(name: &str) -> Option<Self> {
        match name {
            "dnf" => Some(Self::Dnf),
            "zypper" => Some(Self::Zypper),
            "apt" => Some(Self::Apt),
            "mmdebstrap" => Some(Self::Mmdebstrap),
            _ => None,
        }
    }

    pub fn name(self) -> &'static str {
        match self {
            Self::Dnf => "dnf",
            Self::Zypper => "zypper",
            Self::Apt => "apt",
            Self::Mmdebstrap => "mmdebstrap",
        }
    }

    pub fn is_deb(self) -> bool {
        matches!(self, Self::Apt | Self::Mmdebstrap)
    }

    /// Where a root has its repositories.
    pub fn repositories(self) -> &'static str {
        match self {
            Self::Dnf => "/etc/yum.repos.d",
            Self::Zypper => "/etc/zypp/repos.d",
            Self::Apt | Self::Mmdebstrap => "/etc/apt/sources.list.d",
        }
    }
}

/// A layer. Which of the parts come first is the form's.
#[derive(Debug)]
pub(crate) struct Layer {
    pub form: Form,
    pub name: String,
    pub tags: Vec<String>,
    pub parent: Parent,
    pub manager: Manager,
    pub options: Options,
    /// The configuration of the package manager: key, path in the image, text.
    pub config: Option<(String, String, String)>,
    /// Whether other repositories of the parent are removed.
    pub only_these_repos: bool,
    pub repos: Vec<Repo>,
    pub modules: Vec<Module>,
    pub groups: Vec<String>,
    pub packages: Vec<String>,
    pub remove: Vec<String>,
    pub files: Vec<File>,
    pub commands: Vec<Command>,
    /// Commands of OpenSCAP, after all others.
    pub scans: Vec<Command>,
    pub labels: BTreeMap<String, String>,
    pub publish: Vec<Publish>,
    pub promote: Vec<Publish>,
}

/// How packages are installed.
#[derive(Debug, Default)]
pub(crate) struct Options {
    /// Options before the manager's command.
    pub global: Vec<String>,
    /// Options after `install`.
    pub install: Vec<String>,
    /// Whether what packages recommend is installed; the manager's own choice if not given.
    pub recommended: Option<bool>,
    /// Whether the signatures of packages count, if the layer says so.
    pub check: Option<bool>,
    pub release: Option<String>,
    pub suite: String,
    pub mirror: String,
    /// Why kiwi-ng cannot do this.
    pub not_kiwi: Option<Wrong>,
}

#[derive(Debug)]
pub(crate) struct Repo {
    pub key: String,
    pub source: RepoSource,
    /// The address or the path of a key, and the key that names it.
    pub gpg: Option<String>,
}

#[derive(Debug)]
pub(crate) enum RepoSource {
    /// An address with packages.
    Packages {
        alias: String,
        url: String,
        priority: Option<String>,
        /// Lines for the file of the repository.
        settings: Vec<(&'static str, String)>,
        /// apt's distribution and components.
        suite: Option<(String, String)>,
    },
    /// A file of repositories at this path in the image.
    File { path: String, content: Content, mode: u32 },
}

#[derive(Debug)]
pub(crate) enum Content {
    Text(String),
    /// A path of the user's.
    Path(String),
    Url(String),
}

#[derive(Debug)]
pub(crate) struct Module {
    pub key: String,
    pub action: String,
    /// `name[:stream][/profile]`.
    pub spec: String,
}

#[derive(Debug)]
pub(crate) struct File {
    pub key: String,
    /// Absolute. Ends in `/` if the file goes into this directory.
    pub dest: String,
    pub content: Content,
    pub mode: Option<u32>,
    pub owner: Option<String>,
    /// Patterns of a directory's contents; such a one is a directory for certain.
    pub tree: Option<Vec<String>>,
}

/// A command in the image.
#[derive(Debug)]
pub(crate) struct Command {
    pub key: String,
    pub argv: Vec<String>,
    pub env: Vec<(String, String)>,
    /// Exit status 107 is success.
    pub lenient: bool,
    pub playbook: Option<Playbook>,
}

/// What a command of ansible needs at [`Playbook::PLACE`].
#[derive(Debug)]
pub(crate) struct Playbook {
    /// Written files: path below the place, text.
    pub texts: Vec<(&'static str, String)>,
    /// What is copied: source, path below the place, whether it may be missing.
    pub copies: Vec<(String, String, bool)>,
}

impl Playbook {
    pub const PLACE: &'static str = "/run/image-thrillhouse-ansible";

    /// Adds what it needs to a recipe's files, below a place; `key` is the one that wants it.
    pub fn add_to(&self, files: &mut Files, key: &str, place: &str) {
        for (path, text) in &self.texts {
            files.written.push(Written {
                path: format!("{place}/{path}"),
                mode: 0o644,
                bytes: text.clone().into_bytes(),
            });
        }
        for (source, to, optional) in &self.copies {
            files.copies.push(Copy {
                key: key.to_owned(),
                source: source.clone(),
                to: format!("{place}/{to}"),
                optional: *optional,
                ..Copy::default()
            });
        }
    }
}

impl Command {
    pub fn new(key: impl Into<String>, argv: &[&str]) -> Self {
        let argv = argv.iter().map(|&word| word.to_owned()).collect();
        Self {
            key: key.into(),
            argv,
            env: Vec::new(),
            lenient: false,
            playbook: None,
        }
    }
}

/// A text without control characters.
pub(crate) fn line(key: &str, text: String) -> Result<String, Wrong> {
    if text.chars().any(char::is_control) {
        return Err(Wrong::value(key, "has a line break or another control character"));
    }
    Ok(text)
}

/// Names of packages and the like: arguments that a package manager must not take for options.
pub(crate) fn names(key: &str, texts: Vec<String>) -> Result<Vec<String>, Wrong> {
    let check = |(i, text): (usize, String)| {
        let key = format!("{key}[{i}]");
        if text.trim().is_empty() || text.starts_with('-') {
            return Err(Wrong::value(key, "is empty, or begins with -"));
        }
        line(&key, text)
    };
    texts.into_iter().enumerate().map(check).collect()
}

/// An address, or a path where that is possible.
pub(crate) fn address(key: &str, text: String) -> Result<String, Wrong> {
    let bad = |c: char| c.is_control() || c.is_whitespace() || "\"'\\<>`".contains(c);
    if text.is_empty() || text.starts_with('-') || text.contains(bad) {
        return Err(Wrong::value(
            key,
            "is no address: it is empty, or has white space, quotes or the like",
        ));
    }
    Ok(text)
}

pub(crate) fn is_remote(text: &str) -> bool {
    ["http://", "https://", "ftp://"]
        .iter()
        .any(|scheme| text.starts_with(scheme))
}

/// A path in the image: absolute, without `..`; a `/` at its end stays.
pub(crate) fn in_image(key: &str, text: &str) -> Result<String, Wrong> {
    let parts: Vec<&str> = text.split('/').filter(|part| !matches!(*part, "" | ".")).collect();
    if text.is_empty() || parts.contains(&"..") || text.chars().any(char::is_control) {
        return Err(Wrong::value(
            key,
            "is no path in the image: it is empty, or has .. or control characters",
        ));
    }
    let end = if !parts.is_empty() && (text.ends_with('/') || text.ends_with("/.")) {
        "/"
    } else {
        ""
    };
    Ok(format!("/{}{end}", parts.join("/")))
}

/// A path of the user's.
pub(crate) fn source(key: &str, text: String) -> Result<String, Wrong> {
    let text = line(key, text)?;
    if text.is_empty() {
        return Err(Wrong::missing(key));
    }
    Ok(text)
}

/// Permission bits: octal digits.
pub(crate) fn mode(key: &str, text: &str) -> Result<u32, Wrong> {
    let digits = text.strip_prefix("0o").unwrap_or(text);
    let mode = u32::from_str_radix(digits, 8)
        .ok()
        .filter(|mode| *mode <= 0o7777 && !digits.starts_with('+'));
    mode.ok_or_else(|| Wrong::value(key, "is no mode of octal digits, such as \"0644\""))
}

/// `user[:group]`, as names or numbers.
pub(crate) fn owner(key: &str, text: String) -> Result<String, Wrong> {
    let word = |part: &str| {
        !part.is_empty()
            && !part.starts_with('-')
            && part.chars().all(|c| c.is_ascii_alphanumeric() || "._-".contains(c))
    };
    if text.split(':').count() > 2 || !text.split(':').all(word) {
        return Err(Wrong::value(key, "is no owner, such as user:group"));
    }
    Ok(text)
}

/// The image's name.
pub(crate) fn name(key: &str, text: String) -> Result<String, Wrong> {
    let part = |part: &str| {
        part.starts_with(|c: char| c.is_ascii_alphanumeric())
            && part.chars().all(|c| c.is_ascii_alphanumeric() || "._-".contains(c))
    };
    if !text.split('/').all(part) {
        return Err(Wrong::value(key, "is no name of an image"));
    }
    Ok(text)
}

/// The tags of an image, each once.
pub(crate) fn tags(key: &str, texts: Vec<String>) -> Result<Vec<String>, Wrong> {
    let good = |text: &String| {
        text.len() <= 128
            && text.starts_with(|c: char| c.is_ascii_alphanumeric() || c == '_')
            && text.chars().all(|c| c.is_ascii_alphanumeric() || "._-".contains(c))
    };
    let mut tags = Vec::new();
    for text in texts {
        if !good(&text) {
            return Err(Wrong::value(key, "has no tag of a container image"));
        }
        if !tags.contains(&text) {
            tags.push(text);
        }
    }
    Ok(tags)
}

/// What a layer begins with.
pub(crate) fn parent(key: &str, text: &str) -> Result<Parent, Wrong> {
    if text == "scratch" {
        return Ok(Parent::Scratch);
    }
    let text = text.strip_prefix("docker://").unwrap_or(text);
    let transports = [
        "oci",
        "oci-archive",
        "dir",
        "docker-archive",
        "docker-daemon",
        "containers-storage",
        "sif",
        "ostree",
    ];
    if let Some((transport, _)) = text.split_once(':').filter(|(head, _)| transports.contains(head)) {
        return Err(Wrong::unsupported(
            key,
            format!("its transport is {transport}: only images of registries can be parents"),
        ));
    }
    if !text.starts_with(|c: char| c.is_ascii_alphanumeric())
        || !text.chars().all(|c| c.is_ascii_alphanumeric() || "._-/:@".contains(c))
    {
        let hint = if text.contains("{{") {
            ": it is a template that was not rendered"
        } else {
            ""
        };
        return Err(Wrong::value(key, format!("is no reference of a container image{hint}")));
    }
    Ok(Parent::Image(text.to_owned()))
}

/// The references of an image by its tags.
pub(crate) fn references(place: &str, name: &str, tags: &[String]) -> Vec<String> {
    let place = place.strip_prefix("docker://").unwrap_or(place).trim_end_matches('/');
    tags.iter().map(|tag| format!("{place}/{name}:{tag}")).collect()
}

/// A name for a repository and its file, of letters that all tools take.
pub(crate) fn alias(text: &str) -> String {
    let safe = |c: char| {
        if c.is_ascii_alphanumeric() || "._-".contains(c) {
            c
        } else {
            '_'
        }
    };
    let alias: String = text.trim().chars().map(safe).collect();
    alias.trim_start_matches(['.', '-']).to_owned()
}

/// Checks labels.
pub(crate) fn labels(key: &str, pairs: Vec<(String, String)>) -> Result<BTreeMap<String, String>, Wrong> {
    let check = |(name, value): (String, String)| {
        let path = format!("{key}.{}", name.escape_debug());
        if name.is_empty() || !name.chars().all(|c| c.is_ascii_alphanumeric() || "._-/".contains(c)) {
            return Err(Wrong::value(path, "is no name of a label"));
        }
        Ok((name, line(&path, value)?))
    };
    pairs.into_iter().map(check).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_checked() {
        assert_eq!(in_image("k", "etc//x/./y").unwrap(), "/etc/x/y");
        assert_eq!(in_image("k", "/etc/").unwrap(), "/etc/");
        assert_eq!(in_image("k", "/").unwrap(), "/");
        for bad in ["", "/a/../b", "/a\nRUN x"] {
            assert!(in_image("k", bad).is_err(), "{bad}");
        }
        assert_eq!(mode("k", "0755").unwrap(), 0o755);
        for bad in ["", "u+x", "888", "+7", "77777"] {
            assert!(mode("k", bad).is_err(), "{bad}");
        }
        for bad in ["", "a:b:c", "a b", "-x", ":"] {
            assert!(owner("k", bad.to_owned()).is_err(), "{bad}");
        }
        for bad in ["-", "a b", "../x", "x\ny", "/a", "a/"] {
            assert!(name("k", bad.to_owned()).is_err(), "{bad}");
        }
        assert!(names("k", vec!["-x".to_owned()]).is_err() && names("k", vec!["a\nb".to_owned()]).is_err());
        assert_eq!(alias("../a b$"), "_a_b_");
    }

    #[test]
    fn parents() {
        assert_eq!(parent("k", "scratch").unwrap(), Parent::Scratch);
        for (text, wanted) in [
            ("docker://rocky:9", "rocky:9"),
            ("h:5000/a/b@sha256:00", "h:5000/a/b@sha256:00"),
        ] {
            assert_eq!(parent("k", text).unwrap(), Parent::Image(wanted.to_owned()));
        }
        for bad in ["", "a b", "a\nRUN x", "$X", "--platform=x", "oci:dir", "{{ x }}:9"] {
            assert!(parent("k", bad).is_err(), "{bad}");
        }
    }
}
