//! Looks into the archive of a recipe for what its record should say: architectures, distribution, the values that its
//! templates ask for. Pure: no I/O.
//!
//! A look is a suggestion. What cannot be read is not known here, and refused later, in the sandbox, where archives are
//! unpacked.

use std::{
    collections::{BTreeMap, BTreeSet},
    io::Read,
    path::{Component, Path, PathBuf},
    time::{Duration, Instant},
};

use kiln_records::{LinuxDistribution, arch::Arch, compression::Compression};
use minijinja::Environment;
use serde::Deserialize;

use super::declared_archs;

/// How much of an archive, unpacked, is searched.
const LARGEST_LOOK: u64 = 256 << 20;

/// The most bytes of all files of an archive that are looked at together. Of what is larger nothing is known.
const LARGEST_FILES: u64 = 4 << 20;

/// The largest template that is looked into. Its parser goes one level deeper for each operator of an expression, and takes a time
/// that grows with their square: of this size, a part of [`STACK`] and at most a second.
const LARGEST_TEMPLATE: usize = 16 << 10;

/// How long templates are looked into. No template is begun after it.
const LONGEST_LOOK: Duration = Duration::from_secs(1);

/// The stack for looking into templates, in bytes. What is not used of it is only addresses.
const STACK: usize = 1 << 30;

/// How many variables are told.
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
            variables: named(LIST_FILE).map_or_else(BTreeSet::new, |(path, list)| {
                let top = path.parent().unwrap_or(Path::new(""));
                variables(bytes, top, list)
            }),
            ..Self::at(description)
        }
    }

    /// Looks at a description alone.
    pub fn at(description: &str) -> Self {
        Self {
            has_description: true,
            archs: declared_archs(description),
            distribution: distribution(description),
            variables: BTreeSet::new(),
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
    let mut files = files_of(bytes, |path| listed.contains(path)).unwrap_or_default();
    files.retain(|_, text| text.len() <= LARGEST_TEMPLATE);
    let looking = std::thread::Builder::new().stack_size(STACK).spawn(move || {
        let environment = Environment::new();
        let mut found = BTreeSet::new();
        let begun = Instant::now();
        for text in files.values().take_while(|_| begun.elapsed() < LONGEST_LOOK) {
            if let Ok(template) = environment.template_from_str(text) {
                found.extend(template.undeclared_variables(false));
            }
        }
        found.into_iter().take(MOST_VARIABLES).collect()
    });
    looking.ok().and_then(|looking| looking.join().ok()).unwrap_or_default()
}

/// The text files of an archive that are wanted, by their paths without `.`.
fn files_of(bytes: &[u8], wanted: impl Fn(&Path) -> bool) -> Option<BTreeMap<PathBuf, String>> {
    let reader: Box<dyn Read> = match Compression::detect(bytes) {
        Some(packed) => packed.reader(bytes).ok()?,
        None => Box::new(bytes),
    };
    let mut archive = tar::Archive::new(reader.take(LARGEST_LOOK));
    let (mut files, mut left) = (BTreeMap::new(), LARGEST_FILES);
    for entry in archive.entries().ok()? {
        // What was found before the damage is known.
        let Ok(mut entry) = entry else { break };
        let Ok(path) = entry.path().map(|path| plain(&path)) else {
            continue;
        };
        let size = entry.size();
        if size <= left && wanted(&path) && !files.contains_key(&path) {
            let mut text = String::new();
            left -= size;
            if entry.by_ref().take(size).read_to_string(&mut text).is_ok() {
                files.insert(path, text);
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
    fn a_template_that_would_exhaust_the_stack_is_survived() {
        let list = "template_files: [config.xml]";
        for deep in [
            format!("{{{{ {}a }}}}", "a+".repeat(8000)),
            format!("{{{{ a{} }}}}", "|upper".repeat(2500)),
            format!("{{% if a %}}{}{{% endif %}}", "{% elif b %}".repeat(1250)),
            format!("{{{{ {}a }}}}", "a+".repeat(1 << 20)),
        ] {
            let text = format!("<packagemanager>apt</packagemanager>{deep}");
            let look = Look::into(&packed(&[("config.xml", &text), (LIST_FILE, list)]));
            assert!(look.has_description && look.variables.len() <= 2);
        }
    }

    #[test]
    fn many_large_files_are_not_kept() {
        let large = " ".repeat(3 << 20);
        let files: Vec<_> = ["a/config.xml", "b/config.xml", "c/config.xml"]
            .map(|path| (path, large.as_str()))
            .into();
        assert_eq!(files_of(&packed(&files), |_| true).unwrap().len(), 1);
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
