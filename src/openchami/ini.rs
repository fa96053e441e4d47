//! Files of repositories and of package managers' settings, as kiwi-ng can be told of them. Pure: no I/O.

use crate::{
    Wrong,
    layer::{Manager, Options, address, alias, is_remote},
};

/// A repository for a description.
#[derive(Debug, Default)]
pub(crate) struct Described {
    pub alias: String,
    pub url: String,
    /// `mirrorlist` or `metalink`, if the address is one.
    pub sourcetype: Option<&'static str>,
    pub priority: Option<String>,
    pub check_packages: bool,
    pub check_index: bool,
    pub keys: Vec<String>,
    pub login: Option<(String, String)>,
    /// Whether the image keeps it as kiwi-ng writes it.
    pub include: bool,
    /// The script that changes its file.
    pub customize: Option<String>,
    pub suite: Option<(String, String)>,
}

struct Section {
    name: String,
    entries: Vec<(String, String)>,
}

fn sections(text: &str) -> Vec<Section> {
    let mut sections = Vec::<Section>::new();
    for line in text.lines() {
        let bare = line.trim();
        if bare.is_empty() || bare.starts_with(['#', ';']) {
            continue;
        }
        if let Some(name) = bare.strip_prefix('[').and_then(|name| name.split(']').next()) {
            sections.push(Section {
                name: name.trim().to_owned(),
                entries: Vec::new(),
            });
            continue;
        }
        let Some(section) = sections.last_mut() else { continue };
        match (
            line.starts_with([' ', '\t']),
            section.entries.last_mut(),
            bare.split_once(['=', ':']),
        ) {
            (true, Some((_, value)), _) => {
                value.push(' ');
                value.push_str(bare);
            }
            (_, _, Some((key, value))) => {
                section
                    .entries
                    .push((key.trim().to_ascii_lowercase(), value.trim().to_owned()));
            }
            _ => {}
        }
    }
    sections
}

fn on(value: &str) -> bool {
    matches!(value.to_ascii_lowercase().as_str(), "1" | "yes" | "true" | "on")
}

fn variables(key: &str, url: &str, options: &Options, manager: Manager) -> Result<(), Wrong> {
    let mut rest = url;
    while let Some((_, after)) = rest.split_once('$') {
        let name = after.trim_start_matches('{');
        rest = after;
        if ["basearch", "arch"].iter().any(|known| name.starts_with(known)) {
            continue;
        }
        if !name.starts_with("releasever") {
            return Err(Wrong::unsupported(
                key,
                "an address has a variable other than $basearch, $arch and $releasever",
            ));
        }
        if options.release.is_none() || manager != Manager::Dnf {
            return Err(Wrong::unsupported(
                key,
                "an address has $releasever, and the layer does not say it: write it out",
            ));
        }
    }
    Ok(())
}

/// The repositories of a file of them that are in force.
pub(crate) fn repositories(
    key: &str,
    text: &str,
    manager: Manager,
    options: &Options,
    checked: bool,
    warnings: &mut Vec<String>,
) -> Result<Vec<Described>, Wrong> {
    let mut all = Vec::new();
    for section in sections(text) {
        let key = format!("{key} [{}]", section.name.escape_debug());
        let mut repository = Described {
            alias: alias(&section.name),
            check_packages: checked,
            ..Described::default()
        };
        let (mut enabled, mut user, mut password) = (true, None, None);
        for (name, value) in section.entries {
            match name.as_str() {
                "enabled" => enabled = on(&value),
                "baseurl" => {
                    let mut urls = value.split([' ', ',']).filter(|url| !url.is_empty());
                    urls.next().unwrap_or_default().clone_into(&mut repository.url);
                    repository.sourcetype = None;
                    if urls.next().is_some() {
                        warnings.push(format!("{key}: of its addresses, only the first is asked"));
                    }
                }
                "mirrorlist" | "metalink" if repository.url.is_empty() => {
                    repository.url = value;
                    repository.sourcetype = Some(if name == "metalink" { "metalink" } else { "mirrorlist" });
                }
                "gpgcheck" | "pkg_gpgcheck" => repository.check_packages = on(&value),
                "repo_gpgcheck" => repository.check_index = on(&value),
                "gpgkey" => {
                    for gpg in value.split([' ', ',']).filter(|gpg| !gpg.is_empty()) {
                        variables(&key, gpg, options, manager)?;
                        if !is_remote(gpg) && !gpg.starts_with("file:///usr/share/distribution-gpg-keys/") {
                            return Err(Wrong::unsupported(
                                key,
                                "its gpgkey is a file of the machine that would have built the image",
                            ));
                        }
                        repository.keys.push(address(&key, gpg.to_owned())?);
                    }
                }
                "priority" if value.parse::<u16>().is_ok() => repository.priority = Some(value),
                "username" => user = Some(value),
                "password" => password = Some(value),
                "name"
                | "mirrorlist"
                | "metalink"
                | "autorefresh"
                | "type"
                | "path"
                | "keeppackages"
                | "metadata_expire"
                | "enabled_metadata"
                | "skip_if_unavailable"
                | "countme"
                | "failovermethod"
                | "retries"
                | "timeout"
                | "fastestmirror"
                | "minrate"
                | "max_parallel_downloads" => {}
                _ => {
                    return Err(Wrong::unsupported(
                        format!("{key} {}", name.escape_debug()),
                        "kiwi-ng cannot be told of it",
                    ));
                }
            }
        }
        if !enabled {
            continue;
        }
        if repository.url.is_empty() || repository.alias.is_empty() {
            return Err(Wrong::missing(format!("{key} baseurl")));
        }
        variables(&key, &repository.url, options, manager)?;
        repository.url = address(&key, repository.url)?;
        repository.login = user.map(|user| (user, password.unwrap_or_default()));
        all.push(repository);
    }
    Ok(all)
}

/// What the settings of a package manager say about an installation.
#[derive(Debug, Default)]
pub(crate) struct Settings {
    pub check: Option<bool>,
    pub recommended: Option<bool>,
    pub without_docs: Option<bool>,
}

/// Reads the settings; those that would change what is installed, and that kiwi-ng cannot be told of, are refused.
pub(crate) fn settings(key: &str, text: &str, manager: Manager) -> Result<Settings, Wrong> {
    let mut settings = Settings::default();
    for (name, value) in sections(text)
        .into_iter()
        .filter(|section| section.name == "main")
        .flat_map(|section| section.entries)
    {
        match (manager, name.as_str()) {
            (Manager::Dnf, "gpgcheck") => settings.check = Some(on(&value)),
            (Manager::Dnf, "install_weak_deps") => settings.recommended = Some(on(&value)),
            (Manager::Zypper, "solver.onlyrequires") => settings.recommended = Some(!on(&value)),
            (Manager::Zypper, "rpm.install.excludedocs") => settings.without_docs = Some(on(&value)),
            (Manager::Dnf, "tsflags") if value == "nodocs" => {}
            (
                Manager::Dnf,
                "installonly_limit"
                | "clean_requirements_on_remove"
                | "best"
                | "skip_if_unavailable"
                | "reposdir"
                | "fastestmirror"
                | "max_parallel_downloads"
                | "keepcache"
                | "assumeyes"
                | "retries"
                | "timeout"
                | "color"
                | "logdir"
                | "cachedir"
                | "metadata_expire"
                | "debuglevel"
                | "log_size",
            ) => {}
            (Manager::Zypper, name)
                if ["commit.", "download.", "repo.refresh."]
                    .iter()
                    .any(|head| name.starts_with(head)) => {}
            _ => {
                return Err(Wrong::unsupported(
                    format!("{key} {}", name.escape_debug()),
                    "kiwi-ng cannot be told of it",
                ));
            }
        }
    }
    Ok(settings)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str, options: &Options) -> Result<Vec<Described>, String> {
        repositories("r", text, Manager::Dnf, options, true, &mut Vec::new()).map_err(|wrong| wrong.to_string())
    }

    #[test]
    fn repositories_of_files() {
        let text = "; c\n[a]\nname = A\nbaseurl=http://h/a\n  http://h/b\ngpgcheck=0\ngpgkey=http://h/k\n\thttp://h/l\npriority=5\nusername=u\npassword=p\n\
                    [off]\nbaseurl=http://h/off\nenabled=0\n[b c]\nmetalink=http://h/$basearch/m\n";
        let all = read(text, &Options::default()).unwrap();
        let [a, b] = all.as_slice() else { panic!("{all:?}") };
        assert_eq!(
            (a.url.as_str(), a.check_packages, a.keys.len(), a.priority.as_deref()),
            ("http://h/a", false, 2, Some("5"))
        );
        assert_eq!(a.login, Some(("u".to_owned(), "p".to_owned())));
        assert_eq!(
            (b.alias.as_str(), b.sourcetype, b.check_packages),
            ("b_c", Some("metalink"), true)
        );
    }

    #[test]
    fn refusals() {
        for (line, wanted) in [
            ("excludepkgs=x", "r [a] excludepkgs is not supported"),
            ("gpgkey=file:///etc/pki/k", "its gpgkey is a file"),
            ("baseurl=http://h/$releasever", "has $releasever"),
            ("baseurl=http://h/$other", "a variable other"),
            ("name=x", "r [a] baseurl is missing"),
        ] {
            let wrong = read(&format!("[a]\n{line}\n"), &Options::default()).unwrap_err();
            assert!(wrong.contains(wanted), "{line}: {wrong}");
        }
        let release = Options {
            release: Some("9".to_owned()),
            ..Options::default()
        };
        assert!(read("[a]\nbaseurl=http://h/${releasever}/$arch\n", &release).is_ok());
        assert!(settings("c", "[main]\nexclude=x", Manager::Dnf).is_err());
        assert!(settings("c", "[main]\nbest=1\n[x]\nexclude=x", Manager::Dnf).is_ok());
    }
}
