//! Names of images: `REGISTRY/NAME:TAG`, `REGISTRY/NAME@DIGEST` and `oci:DIR:TAG`. Pure: no I/O.

use std::{fmt, path::PathBuf, str::FromStr};

use kiln_records::{Code, Failure};

use crate::digest::Digest;

/// The longest name of a repository, which some registries count with their own name.
const LONGEST_NAME: usize = 255;

/// An image in a registry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reference {
    /// The host, and the port if it is not the usual one.
    pub registry: String,
    /// The repository's name.
    pub repository: String,
    /// The tag or digest.
    pub which: Which,
}

/// Which of the images of a repository or layout.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Which {
    /// The one that has the tag now.
    Tag(String),
    /// The one with this digest.
    Digest(Digest),
}

impl Which {
    /// The tag, if it is one.
    pub fn tag(&self) -> Option<&str> {
        match self {
            Self::Tag(tag) => Some(tag),
            Self::Digest(_) => None,
        }
    }
}

impl fmt::Display for Which {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tag(tag) => f.write_str(tag),
            Self::Digest(digest) => f.write_str(digest.as_str()),
        }
    }
}

/// A place for images.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Location {
    /// In a registry. The tag or digest may be missing where another name supplies it.
    Registry {
        /// The host, and the port if it is not the usual one.
        registry: String,
        /// The repository's name.
        repository: String,
        /// The tag or digest, if one is named.
        which: Option<Which>,
    },
    /// A directory with an OCI image layout.
    Layout {
        /// The directory.
        dir: PathBuf,
        /// The tag, if one is named.
        which: Option<Which>,
    },
}

impl FromStr for Location {
    type Err = Failure;

    fn from_str(text: &str) -> Result<Self, Failure> {
        if let Some(rest) = text.strip_prefix("oci:") {
            return layout(text, rest);
        }
        let text = text.strip_prefix("docker://").unwrap_or(text);
        if text.contains("://") {
            return Err(wrong(text, "an image has no scheme"));
        }
        let (registry, rest) = text
            .split_once('/')
            .filter(|(host, _)| is_host(host))
            .ok_or_else(|| wrong(text, "it does not begin with a registry, such as registry.example.org/"))?;
        let (rest, digest) = match rest.split_once('@') {
            Some((rest, digest)) => (rest, Some(digest.parse::<Digest>().map_err(|why| wrong(text, why))?)),
            None => (rest, None),
        };
        let (repository, tag) = match rest.split_once(':') {
            Some((repository, tag)) => (repository, Some(tag)),
            None => (rest, None),
        };
        if !is_repository(repository) {
            return Err(wrong(
                text,
                "names consist of lower-case letters, digits and single separators between them",
            ));
        }
        if let Some(tag) = tag.filter(|tag| !is_tag(tag)) {
            return Err(wrong(text, format_args!("`{tag}` cannot be a tag")));
        }
        // A digest says more than the tag before it.
        let which = digest
            .map(Which::Digest)
            .or_else(|| tag.map(|tag| Which::Tag(tag.to_owned())));
        Ok(Self::Registry {
            registry: registry.to_owned(),
            repository: repository.to_owned(),
            which,
        })
    }
}

fn layout(text: &str, rest: &str) -> Result<Location, Failure> {
    // A digest and a tag have no slash, and the directory before them ends there.
    let after = rest.rfind('/').map_or(0, |slash| slash + 1);
    let (dir, which) = match (rest[after..].find('@'), rest[after..].find(':')) {
        (Some(at), _) => {
            let digest = rest[after + at + 1..]
                .parse::<Digest>()
                .map_err(|why| wrong(text, why))?;
            (&rest[..after + at], Some(Which::Digest(digest)))
        }
        (None, Some(at)) => (&rest[..after + at], Some(Which::Tag(rest[after + at + 1..].to_owned()))),
        (None, None) => (rest, None),
    };
    if dir.is_empty() {
        return Err(wrong(text, "it names no directory"));
    }
    if let Some(tag) = which.as_ref().and_then(Which::tag).filter(|tag| !is_tag(tag)) {
        return Err(wrong(text, format_args!("`{tag}` cannot be a tag")));
    }
    Ok(Location::Layout { dir: dir.into(), which })
}

impl Location {
    /// The tag or digest, if one is named.
    pub fn which(&self) -> Option<&Which> {
        match self {
            Self::Registry { which, .. } | Self::Layout { which, .. } => which.as_ref(),
        }
    }
}

impl FromStr for Reference {
    type Err = Failure;

    fn from_str(text: &str) -> Result<Self, Failure> {
        match text.parse()? {
            Location::Registry {
                registry,
                repository,
                which: Some(which),
            } => Ok(Self {
                registry,
                repository,
                which,
            }),
            Location::Registry { .. } => Err(wrong(text, "it has neither a tag nor a digest")),
            Location::Layout { .. } => Err(wrong(text, "a registry is needed here")),
        }
    }
}

impl fmt::Display for Reference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sign = if self.which.tag().is_some() { ':' } else { '@' };
        write!(f, "{}/{}{sign}{}", self.registry, self.repository, self.which)
    }
}

/// Checks that a text is a registry's host, with a port or without.
pub fn check_registry(text: &str) -> Result<(), Failure> {
    if is_host(text) {
        return Ok(());
    }
    Err(
        Failure::new(Code::RegistryReference, format!("`{text}` does not name a registry"))
            .hint("a registry is a host, and a port if it is not 443: registry.example.org:5000"),
    )
}

fn wrong(text: &str, why: impl fmt::Display) -> Failure {
    Failure::new(
        Code::RegistryReference,
        format!("`{text}` does not name an image: {why}"),
    )
    .hint("REGISTRY/NAME:TAG, REGISTRY/NAME@sha256:…, or oci:DIR:TAG for a directory")
}

/// Whether the first part of a name is a host. A single word without a port could be the first part of a name.
fn is_host(text: &str) -> bool {
    let (host, port) = match text.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        Some((inside, rest)) => {
            let is_port = rest.is_empty() || rest.strip_prefix(':').is_some_and(is_port);
            return is_port && inside.parse::<std::net::Ipv6Addr>().is_ok();
        }
        None => match text.split_once(':') {
            Some((host, port)) => (host, Some(port)),
            None => (text, None),
        },
    };
    let is_label = |label: &str| {
        !label.is_empty()
            && !label.starts_with('-')
            && !label.ends_with('-')
            && label.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
    };
    host.split('.').all(is_label)
        && port.is_none_or(is_port)
        && (host.contains('.') || port.is_some() || host == "localhost")
}

fn is_port(text: &str) -> bool {
    text.bytes().all(|byte| byte.is_ascii_digit()) && text.parse::<u16>().is_ok_and(|port| port > 0)
}

/// Whether a registry may have a repository of this name.
pub fn is_repository(text: &str) -> bool {
    let is_inside = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    let is_part = |part: &str| {
        // Letters and digits, with one `.`, one or two `_`, or any number of `-` between them.
        let mut rest = part;
        loop {
            let word = rest.bytes().take_while(|byte| is_inside(*byte)).count();
            if word == 0 {
                return false;
            }
            rest = &rest[word..];
            if rest.is_empty() {
                return true;
            }
            let dashes = rest.bytes().take_while(|byte| *byte == b'-').count();
            let separator = match rest.as_bytes() {
                [b'-', ..] => dashes,
                [b'_', b'_', ..] => 2,
                [b'_' | b'.', ..] => 1,
                _ => return false,
            };
            rest = &rest[separator..];
        }
    };
    text.len() <= LONGEST_NAME && text.split('/').all(is_part)
}

fn is_tag(text: &str) -> bool {
    let is_word = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
    (1..=128).contains(&text.len())
        && text.bytes().take(1).all(is_word)
        && text.bytes().all(|byte| is_word(byte) || matches!(byte, b'.' | b'-'))
}

#[cfg(test)]
mod tests {
    use super::*;

    const DIGEST: &str = "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";

    #[test]
    fn names_are_taken_apart() {
        for text in [
            "registry.example.org/a/b-c__d.e:24.11",
            "localhost/x:latest",
            "127.0.0.1:5000/x:v",
            "[::1]:5000/x/y:_",
            &format!("r.example/x@{DIGEST}"),
        ] {
            assert_eq!(text.parse::<Reference>().unwrap().to_string(), text);
        }
        let both: Reference = format!("docker://r.example/x:tag@{DIGEST}").parse().unwrap();
        assert_eq!(both.which.to_string(), DIGEST);
        let layout: Location = "oci:/a:b/c:v1".parse().unwrap();
        assert_eq!(
            layout,
            Location::Layout {
                dir: "/a:b/c".into(),
                which: Some(Which::Tag("v1".to_owned()))
            }
        );
        let by_digest: Location = format!("oci:dir@{DIGEST}").parse().unwrap();
        assert_eq!(by_digest.which().unwrap().to_string(), DIGEST);
        assert_eq!("oci:dir".parse::<Location>().unwrap().which(), None);
    }

    #[test]
    fn what_is_no_name_is_refused() {
        for text in [
            "",
            "debian:12",
            "library/debian:12",
            "r.example/UPPER:1",
            "r.example/a//b:1",
            "r.example/../x:1",
            "r.example/a..b:1",
            "r.example/a___b:1",
            "r.example/a-:1",
            "r.example/x:",
            "r.example/x:-1",
            "r.example/x:a/b",
            "r.example/x@sha256:00",
            "r.example:0/x:1",
            "r.example:port/x:1",
            "r.exa mple/x:1",
            "user@r.example/x:1",
            "https://r.example/x:1",
            "[::g]/x:1",
            "-.example/x:1",
            "r.example/x",
            "oci:dir:1",
        ] {
            assert_eq!(
                text.parse::<Reference>().unwrap_err().code,
                Code::RegistryReference,
                "{text}"
            );
        }
        for text in ["oci:", "oci::v", "oci:dir:a b", "oci:dir@x"] {
            assert_eq!(
                text.parse::<Location>().unwrap_err().code,
                Code::RegistryReference,
                "{text}"
            );
        }
    }
}
