//! Facts about this machine: its name, its memory and its package mirror, and what builds trust; and directories that go with
//! their process. Reads files of the system.

mod own_dir;
pub(crate) mod trust;

use std::{
    io,
    path::{Path, PathBuf},
};

pub use own_dir::OwnDir;
pub use trust::{ca_bundle, kept_authorities, signing_keys};

/// The kernel's id of this boot.
pub fn boot_id() -> Option<String> {
    let text = fs_err::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
    Some(text.trim().to_owned())
}

/// This host's name, as the kernel has it.
pub fn name() -> String {
    let name = nix::unistd::gethostname().ok().and_then(|name| name.into_string().ok());
    name.unwrap_or_else(|| "localhost".to_owned())
}

/// The Debian mirror that this host uses itself.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct AptMirror {
    /// Address of the archive.
    pub archive: String,
    /// Address of the security archive, if the host uses one.
    pub security: Option<String>,
}

/// One source of packages in apt's configuration.
#[derive(Debug, PartialEq, Eq)]
struct Source {
    uri: String,
    suite: String,
    main: bool,
}

/// The Debian mirror in the host's apt configuration; none on other distributions.
pub fn apt_mirror() -> Option<AptMirror> {
    let os_release = fs_err::read_to_string("/etc/os-release").ok()?;
    let codename = os_release
        .lines()
        .find_map(|line| line.strip_prefix("VERSION_CODENAME="))?
        .trim_matches('"');
    let debian = os_release.lines().any(|line| line.trim() == "ID=debian");
    let mut files = vec![PathBuf::from("/etc/apt/sources.list")];
    if let Ok(entries) = fs_err::read_dir("/etc/apt/sources.list.d") {
        files.extend(entries.flatten().map(|entry| entry.path()));
    }
    files.sort();
    let sources = files.iter().flat_map(|file| read_sources(file)).collect::<Vec<_>>();
    debian.then(|| choose(&sources, codename)).flatten()
}

fn choose(sources: &[Source], codename: &str) -> Option<AptMirror> {
    let find = |suite: &str| {
        let hit = sources.iter().find(|source| source.main && source.suite == suite);
        hit.map(|source| source.uri.trim_end_matches('/').to_owned())
    };
    // A mirror method of apt's own does not work in kiwi or mmdebstrap.
    let archive = find(codename).filter(|uri| uri.starts_with("http"))?;
    Some(AptMirror {
        archive,
        security: find(&format!("{codename}-security")),
    })
}

fn read_sources(file: &Path) -> Vec<Source> {
    let Ok(text) = fs_err::read_to_string(file) else {
        return Vec::new();
    };
    match file.extension().and_then(|extension| extension.to_str()) {
        Some("list") => one_line_sources(&text),
        Some("sources") => deb822_sources(&text),
        _ => Vec::new(),
    }
}

/// Lines of the form `deb [options] uri suite component…` (sources.list(5)).
fn one_line_sources(text: &str) -> Vec<Source> {
    let source = |line: &str| {
        let rest = line.trim().strip_prefix("deb ")?.trim_start();
        let rest = if rest.starts_with('[') {
            rest.split_once(']')?.1
        } else {
            rest
        };
        let mut words = rest.split_whitespace();
        let (uri, suite) = (words.next()?.to_owned(), words.next()?.to_owned());
        Some(Source {
            uri,
            suite,
            main: words.any(|component| component == "main"),
        })
    };
    text.lines().filter_map(source).collect()
}

/// Paragraphs of fields (sources.list(5), "deb822-style format").
fn deb822_sources(text: &str) -> Vec<Source> {
    let lines: Vec<&str> = text.lines().filter(|line| !line.starts_with('#')).collect();
    let text = lines.join("\n");
    let mut sources = Vec::new();
    for paragraph in text.split("\n\n") {
        let words = |name: &str| {
            let line = paragraph.lines().find_map(|line| {
                let (field, value) = line.split_once(':')?;
                field.eq_ignore_ascii_case(name).then_some(value)
            });
            line.unwrap_or_default()
                .split_whitespace()
                .map(str::to_owned)
                .collect::<Vec<_>>()
        };
        if !words("Types").iter().any(|kind| kind == "deb") || words("Enabled").iter().any(|value| value == "no") {
            continue;
        }
        let main = words("Components").iter().any(|component| component == "main");
        for uri in words("URIs") {
            sources.extend(words("Suites").into_iter().map(|suite| Source {
                uri: uri.clone(),
                suite,
                main,
            }));
        }
    }
    sources
}

/// This host's memory, in bytes.
///
/// # Errors
///
/// When the kernel's file cannot be read, or lacks it.
pub fn memory() -> io::Result<u64> {
    let text = fs_err::read_to_string("/proc/meminfo")?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemTotal:"));
    let kib: Option<u64> = line.and_then(|line| line.split_whitespace().next()?.parse().ok());
    kib.map(|kib| kib * 1024)
        .ok_or_else(|| io::ErrorKind::InvalidData.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_formats_of_apt_sources() {
        let list = "# deb http://old.example/debian bookworm main\n\
            deb [signed-by=/k.gpg arch=amd64] http://mirror.example/debian/ bookworm main contrib\n\
            deb http://mirror.example/debian-security bookworm-security main\n\
            deb-src http://mirror.example/debian bookworm main\n";
        let deb822 = "Types: deb\n# a remark\nURIs: http://mirror.example/debian\nSuites: bookworm bookworm-updates\n\
            Components: main\n\nTypes: deb\nURIs: http://mirror.example/debian-security\nSuites: bookworm-security\n\
            Components: main\n\nTypes: deb\nURIs: http://tool.example\nSuites: bookworm\nComponents: tool\n";
        let expected = Some(AptMirror {
            archive: "http://mirror.example/debian".into(),
            security: Some("http://mirror.example/debian-security".into()),
        });
        assert_eq!(choose(&one_line_sources(list), "bookworm"), expected);
        assert_eq!(choose(&deb822_sources(deb822), "bookworm"), expected);
        assert_eq!(choose(&deb822_sources(deb822), "trixie"), None);
    }
}
