//! Looks into the archive of a recipe for what its record should say: architectures, distribution, the values that its
//! templates ask for. Pure: no I/O.
//!
//! A look is a suggestion. What cannot be read is not known here, and refused later, in the sandbox, where archives are
//! unpacked.

use std::{
    collections::{BTreeMap, BTreeSet},
    io::Read,
    path::{Component, Path, PathBuf},
};

use kiln_records::{LinuxDistribution, arch::Arch, compression::Compression};
use minijinja::Environment;
use serde::Deserialize;

use super::declared_archs;

/// How much of an archive, unpacked, is searched.
const LARGEST_LOOK: u64 = 256 << 20;

/// Of a larger file nothing is known, in bytes: no job takes a larger description.
const LARGEST_FILE: u64 = 4 << 20;

/// How many files of an archive are looked at, and how many variables are told.
const MOST_FILES: usize = 64;
const MOST_VARIABLES: usize = 100;

/// The file that lists a recipe's templates, as IMS has it.
const LIST_FILE: &str = ".ims_recipe_template.yaml";

/// What an archive says of itself.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Look {
    /// Whether there is a description, `config.xml`, at its top or one directory below.
    pub has_description: bool,
    /// The architectures that the description is limited to.
    pub archs: Vec<Arch>,
    /// The distribution, by the package manager and the repositories.
    pub distribution: Option<LinuxDistribution>,
    /// The variables that its listed templates use.
    pub variables: BTreeSet<String>,
}

impl Look {
    /// Looks into an archive.
    pub fn into(bytes: &[u8]) -> Self {
        let wanted = |path: &Path| {
            let name = path.file_name().and_then(|name| name.to_str());
            depth(path) <= 2 && matches!(name, Some("config.xml" | LIST_FILE))
        };
        let files = files_of(bytes, wanted).unwrap_or_default();
        let named = |name: &str| files.iter().find(|(path, _)| path.ends_with(name));
        let Some((_, description)) = named("config.xml") else {
            return Self::default();
        };
        Self {
            has_description: true,
            archs: declared_archs(description),
            distribution: distribution(description),
            variables: named(LIST_FILE).map_or_else(BTreeSet::new, |(path, list)| {
                let top = path.parent().unwrap_or(Path::new(""));
                variables(bytes, top, list)
            }),
        }
    }
}

/// The names of variables in the listed templates.
fn variables(bytes: &[u8], top: &Path, list: &str) -> BTreeSet<String> {
    #[derive(Deserialize)]
    struct List {
        template_files: Option<Vec<PathBuf>>,
    }
    let list: Option<List> = serde_saphyr::from_str(list).ok();
    let listed = list.and_then(|list| list.template_files).unwrap_or_default();
    let listed: BTreeSet<_> = listed.iter().map(|path| plain(&top.join(path))).collect();
    let files = files_of(bytes, |path| listed.contains(path)).unwrap_or_default();
    let environment = Environment::new();
    let mut found = BTreeSet::new();
    for text in files.values() {
        if let Ok(template) = environment.template_from_str(text) {
            found.extend(template.undeclared_variables(false));
        }
    }
    found.into_iter().take(MOST_VARIABLES).collect()
}

/// The text files of an archive that are wanted, by their paths without `.`.
fn files_of(bytes: &[u8], wanted: impl Fn(&Path) -> bool) -> Option<BTreeMap<PathBuf, String>> {
    let reader: Box<dyn Read> = match Compression::detect(bytes) {
        Some(packed) => packed.reader(bytes).ok()?,
        None => Box::new(bytes),
    };
    let mut archive = tar::Archive::new(reader.take(LARGEST_LOOK));
    let mut files = BTreeMap::new();
    for entry in archive.entries().ok()? {
        // What was found before the damage is known.
        let Ok(mut entry) = entry else { break };
        let Ok(path) = entry.path().map(|path| plain(&path)) else {
            continue;
        };
        if files.len() < MOST_FILES && wanted(&path) {
            let mut text = String::new();
            if entry.by_ref().take(LARGEST_FILE).read_to_string(&mut text).is_ok() {
                files.entry(path).or_insert(text);
            }
        }
    }
    Some(files)
}

fn plain(path: &Path) -> PathBuf {
    let parts = path.components();
    parts.filter(|part| matches!(part, Component::Normal(_))).collect()
}

fn depth(path: &Path) -> usize {
    path.components().count()
}

/// The distribution that a description builds. A template need not be XML yet, so its text is searched.
fn distribution(description: &str) -> Option<LinuxDistribution> {
    use LinuxDistribution::{Centos7, Debian, Opensuse, Rhel, Rocky, Sles12, Sles15, Ubuntu};
    let lower = description.to_ascii_lowercase();
    let named = |word: &str| lower.contains(word);
    let manager = lower.split_once("<packagemanager>").map(|(_, rest)| rest.trim_start());
    Some(match manager? {
        apt if apt.starts_with("apt") => {
            if named("ubuntu") {
                Ubuntu
            } else {
                Debian
            }
        }
        zypper if zypper.starts_with("zypper") => match () {
            () if named("opensuse") => Opensuse,
            () if named("sle12") || named("sles12") || named("sle-12") => Sles12,
            () => Sles15,
        },
        yum if yum.starts_with("yum") => Centos7,
        dnf if dnf.starts_with("dnf") || dnf.starts_with("microdnf") => match () {
            () if named("rocky") => Rocky,
            () if named("centos-7") || named("centos/7") => Centos7,
            () => Rhel,
        },
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn packed(files: &[(&str, &str)]) -> Vec<u8> {
        let mut archive = tar::Builder::new(Vec::new());
        for (path, text) in files {
            let mut header = tar::Header::new_gnu();
            header.set_size(text.len() as u64);
            header.set_mode(0o644);
            archive.append_data(&mut header, path, text.as_bytes()).unwrap();
        }
        archive.into_inner().unwrap()
    }

    #[test]
    fn what_a_record_should_say_is_found() {
        let description = "<image><preferences arch='aarch64'><type/><packagemanager>apt</packagemanager></preferences>
            <repository><source path='{{ mirror }}/debian'/></repository></image>";
        let files = [
            ("r/config.xml", description),
            (
                "r/.ims_recipe_template.yaml",
                "template_files:\n- config.xml\n- root/etc/motd\n",
            ),
            ("r/root/etc/motd", "{% for it in them %}{{ it }}{{ hello }}{% endfor %}"),
            ("r/root/etc/other", "{{ unlisted }}"),
        ];
        let look = Look::into(&packed(&files));
        assert_eq!(look.archs, [Arch::Aarch64]);
        assert_eq!(look.distribution, Some(LinuxDistribution::Debian));
        let variables: Vec<_> = look.variables.iter().map(String::as_str).collect();
        assert_eq!(variables, ["hello", "mirror", "them"]);
    }

    #[test]
    fn of_what_is_no_recipe_nothing_is_known() {
        for bytes in [&b""[..], b"no archive", &packed(&[("a/b/c/config.xml", "<image/>")])] {
            assert_eq!(Look::into(bytes), Look::default());
        }
        let whole = packed(&[("config.xml", "<packagemanager> dnf4 </packagemanager>"), ("x", "y")]);
        let look = Look::into(&whole[..1030]);
        assert_eq!(
            (look.has_description, look.distribution),
            (true, Some(LinuxDistribution::Rhel))
        );
    }
}
