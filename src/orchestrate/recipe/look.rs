//! Looks into the archive of a recipe for what its record should say: architectures, distribution, the values that its
//! templates ask for. Pure: no I/O.
//!
//! What a look tells is a suggestion. An archive that no sandbox would unpack is refused.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Display,
    io::{Cursor, Read},
    path::{Component, Path, PathBuf},
    time::{Duration, Instant},
};

use kiln_records::{
    Failure, LinuxDistribution,
    arch::Arch,
    archive::{self, Contents, Kind, Limits},
    description, xml_text,
};
use minijinja::Environment;
use serde::Deserialize;

use super::declared_archs;

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
    /// The architectures that the description is limited to.
    pub archs: Vec<Arch>,
    /// The distribution, by the package manager and the repositories.
    pub distribution: Option<LinuxDistribution>,
    /// The variables that its listed templates use.
    pub variables: BTreeSet<String>,
}

impl Look {
    /// The limits of an archive that a server looks into: what is beyond them is not read, since many may ask for it.
    pub fn limits() -> Limits {
        Limits {
            bytes: 256 << 20,
            in_part: true,
            ..Limits::default()
        }
    }

    /// Looks into an archive, which is called as it is `shown`.
    ///
    /// # Errors
    ///
    /// Those of [`archive::read`], and `recipe_config_missing`.
    pub fn into(bytes: &[u8], shown: impl Display, limits: &Limits) -> Result<Self, Failure> {
        let may_be_wanted = |path: &Path| {
            let depth = path.components().count();
            depth <= 3 && (description::may_be(path) || path.ends_with(LIST_FILE))
        };
        let (contents, files) = files_of(bytes, shown, limits, may_be_wanted)?;
        let place = contents.description?;
        let described = files.get(&place.path());
        let decoded = described.and_then(|bytes| xml_text::decode(bytes).ok());
        let description = decoded.map(|decoded| decoded.text).unwrap_or_default();
        let list = files.get(&place.dir.join(LIST_FILE));
        let list = list.and_then(|list| std::str::from_utf8(list).ok());
        Ok(Self {
            archs: declared_archs(&description),
            distribution: distribution(&description),
            variables: list.map_or_else(BTreeSet::new, |list| variables(bytes, &place.dir, list, limits)),
        })
    }
}

/// The names of variables in the listed templates.
fn variables(bytes: &[u8], top: &Path, list: &str, limits: &Limits) -> BTreeSet<String> {
    #[derive(Deserialize)]
    struct List {
        template_files: Option<Vec<PathBuf>>,
    }
    let list: Option<List> = serde_saphyr::from_str(list).ok();
    let listed = list.and_then(|list| list.template_files).unwrap_or_default();
    let listed: BTreeSet<_> = listed.iter().map(|path| plain(&top.join(path))).collect();
    let Ok((_, mut files)) = files_of(bytes, "", limits, |path| listed.contains(path)) else {
        return BTreeSet::new();
    };
    files.retain(|_, text| text.len() <= LARGEST_TEMPLATE);
    let looking = std::thread::Builder::new().stack_size(STACK).spawn(move || {
        let environment = Environment::new();
        let mut found = BTreeSet::new();
        let begun = Instant::now();
        for bytes in files.values().take_while(|_| begun.elapsed() < LONGEST_LOOK) {
            if let Ok(text) = xml_text::decode(bytes)
                && let Ok(template) = environment.template_from_str(&text.text)
            {
                found.extend(template.undeclared_variables(false));
            }
        }
        found.into_iter().take(MOST_VARIABLES).collect()
    });
    looking.ok().and_then(|looking| looking.join().ok()).unwrap_or_default()
}

/// What is read of an archive, and the files of it that are wanted, by their paths.
fn files_of(
    bytes: &[u8],
    shown: impl Display,
    limits: &Limits,
    wanted: impl Fn(&Path) -> bool,
) -> Result<(Contents, BTreeMap<PathBuf, Vec<u8>>), Failure> {
    let (mut files, mut left) = (BTreeMap::new(), LARGEST_FILES);
    let contents = archive::read(Cursor::new(bytes), shown, limits, &mut |entry, content| {
        if entry.kind == Kind::File && entry.size <= left && wanted(&entry.path) {
            let mut file = Vec::new();
            // A fault of the archive is told by its reader.
            let _ = content.take(entry.size).read_to_end(&mut file);
            left -= file.len() as u64;
            files.insert(entry.path.clone(), file);
        }
        Ok(())
    })?;
    Ok((contents, files))
}

fn plain(path: &Path) -> PathBuf {
    let parts = path.components();
    parts.filter(|part| matches!(part, Component::Normal(_))).collect()
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
    use kiln_records::Code;

    use super::*;

    fn look(bytes: &[u8]) -> Result<Look, Code> {
        Look::into(bytes, "x.tar", &Look::limits()).map_err(|failure| failure.code)
    }

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
        let look = look(&packed(&files)).unwrap();
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
            let look = look(&packed(&[("config.xml", &text), (LIST_FILE, list)])).unwrap();
            assert!(look.variables.len() <= 2);
        }
    }

    #[test]
    fn many_large_files_are_not_kept() {
        let large = " ".repeat(3 << 20);
        let files: Vec<_> = ["a/config.xml", "b/config.xml", "c/config.xml"]
            .map(|path| (path, large.as_str()))
            .into();
        let found = files_of(&packed(&files), "", &Look::limits(), |_| true).unwrap().1;
        assert_eq!(found.len(), 1);
    }

    #[test]
    fn what_is_no_recipe_is_refused() {
        let none = packed(&[("a/b/c/d.txt", "x")]);
        for (bytes, code) in [
            (&b""[..], Code::RecipeNotArchive),
            (&b"no archive"[..], Code::RecipeNotArchive),
            (&none[..], Code::RecipeConfigMissing),
        ] {
            assert_eq!(look(bytes), Err(code));
        }
        let whole = packed(&[("a.kiwi", "<packagemanager> dnf4 </packagemanager>"), ("x", "y")]);
        assert_eq!(look(&whole).unwrap().distribution, Some(LinuxDistribution::Rhel));
        assert_eq!(look(&whole[..1030]), Err(Code::RecipeDamaged));
    }

    #[test]
    fn what_is_beyond_the_limits_of_a_look_is_not_known() {
        let zeros = "\0".repeat(200);
        let bytes = packed(&[("config.xml", "<packagemanager>apt"), ("z", &zeros)]);
        let limits = Limits {
            bytes: 1200,
            ..Look::limits()
        };
        let look = Look::into(&bytes, "", &limits).unwrap();
        assert_eq!(look.distribution, Some(LinuxDistribution::Debian));
    }

    #[test]
    fn the_description_is_read_in_its_encoding() {
        let text = "<?xml version='1.0' encoding='utf-16'?><image name='ü'><preferences arch='aarch64'><type/></preferences></image>";
        let wide: Vec<u8> = text.encode_utf16().flat_map(u16::to_be_bytes).collect();
        let mut archive = tar::Builder::new(Vec::new());
        let mut header = tar::Header::new_gnu();
        header.set_size(wide.len() as u64);
        archive.append_data(&mut header, "my/z.kiwi", &wide[..]).unwrap();
        assert_eq!(look(&archive.into_inner().unwrap()).unwrap().archs, [Arch::Aarch64]);
    }
}
