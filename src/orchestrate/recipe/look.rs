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
    description, percent,
    protocol::RecipeType,
    xml_text,
};
use minijinja::Environment;
use serde::Deserialize;

use super::declared::{self, Part};

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

/// How many links are kept in mind.
const MOST_LINKS: usize = 10_000;

/// The file that lists a recipe's templates, as IMS has it.
const LIST_FILE: &str = ".ims_recipe_template.yaml";

/// What an archive says of itself.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Look {
    /// The recipe's format.
    pub kind: RecipeType,
    /// The architectures that the description is limited to.
    pub archs: Vec<Arch>,
    /// The distribution, by the package manager and the repositories.
    pub distribution: Option<LinuxDistribution>,
    /// The variables that its listed templates use.
    pub variables: BTreeSet<String>,
    /// What jobs would be refused for.
    pub warnings: Vec<String>,
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

    /// What is known of every recipe with a Containerfile.
    pub fn of_containerfile() -> Self {
        Self {
            kind: RecipeType::Containerfile,
            ..Self::default()
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
        let (contents, files, links) = files_of(bytes, shown, limits, may_be_wanted)?;
        let kind = contents.kind();
        let place = contents.place(kind).clone()?;
        if kind == RecipeType::Containerfile {
            return Ok(Self::of_containerfile());
        }
        let described = files.get(&place.path());
        let decoded = described.and_then(|bytes| xml_text::decode(bytes).ok());
        let description = decoded.map(|decoded| decoded.text).unwrap_or_default();
        let list = files.get(&place.dir.join(LIST_FILE));
        let list = list.and_then(|list| std::str::from_utf8(list).ok());
        let mut warnings = Vec::new();
        let parts = parts(&description, &place.dir, (bytes, limits), &links, &mut warnings);
        warnings.extend(parts.as_deref().and_then(declared::warning));
        Ok(Self {
            kind,
            archs: parts.as_deref().map(declared::archs).unwrap_or_default(),
            warnings,
            distribution: distribution(&description),
            variables: list.map_or_else(BTreeSet::new, |list| variables(bytes, &place.dir, list, limits)),
        })
    }
}

/// What a description and the parts that it includes declare; `None` where one of them cannot be read.
fn parts(
    description: &str,
    top: &Path,
    (bytes, limits): (&[u8], &Limits),
    links: &BTreeSet<PathBuf>,
    warnings: &mut Vec<String>,
) -> Option<Vec<Part>> {
    let main = Part::read(description)?;
    if main.includes.is_empty() {
        return Some(vec![main]);
    }
    let (mut wanted, mut is_known) = (BTreeMap::new(), true);
    for address in &main.includes {
        match included(address) {
            Included::Unknown => is_known = false,
            Included::Outside => warnings.push(format!(
                "its description includes {address}, which is no file of the recipe"
            )),
            // Where a link leads is known in a sandbox only.
            Included::Files(paths) if paths.iter().any(|path| leads_through(&top.join(path), links)) => {
                is_known = false;
            }
            Included::Files(paths) => {
                wanted.insert(address, paths.map(|path| plain(&top.join(path))));
            }
        }
    }
    let (_, files, _) = files_of(bytes, "", limits, |path| {
        wanted.values().flatten().any(|one| one == path)
    })
    .ok()?;
    let mut parts = Vec::new();
    for (address, paths) in wanted {
        let Some(file) = paths.iter().find_map(|path| files.get(path)) else {
            warnings.push(format!(
                "its description includes {address}, which the recipe does not have"
            ));
            continue;
        };
        let text = xml_text::decode(file).ok();
        match text.and_then(|decoded| Part::read(&decoded.text)) {
            Some(part) => parts.push(part),
            None => is_known = false,
        }
    }
    parts.push(main);
    (is_known && warnings.is_empty()).then_some(parts)
}

/// Where an address of a description leads.
enum Included {
    /// To one of these files, below the recipe's directory.
    Files([PathBuf; 2]),
    Outside,
    /// It is a template.
    Unknown,
}

/// What `resolve.py` of the agent takes such an address for.
fn included(address: &str) -> Included {
    let address = address.trim();
    if address.contains("{{") || address.contains("{%") || address.contains('&') {
        return Included::Unknown;
    }
    let path = match address.split_once(':') {
        Some(("this", rest)) => rest.strip_prefix("//").unwrap_or(rest),
        Some(("file" | "dir", rest)) => rest,
        Some(_) => return Included::Outside,
        None => address,
    };
    let unquoted = percent::decode(path).unwrap_or_else(|| path.to_owned());
    let paths = [path, unquoted.as_str()].map(PathBuf::from);
    let is_inside = |path: &PathBuf| {
        let plain = |part| matches!(part, Component::Normal(_) | Component::CurDir);
        path.components().all(plain) && !path.as_os_str().is_empty()
    };
    match (paths.iter().all(is_inside), Path::new(path).is_absolute()) {
        (true, _) => Included::Files(paths),
        (false, true) => Included::Outside,
        // `..` may lead back into it.
        (false, false) => Included::Unknown,
    }
}

fn leads_through(path: &Path, links: &BTreeSet<PathBuf>) -> bool {
    plain(path).ancestors().any(|part| links.contains(part))
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
    let Ok((_, mut files, _)) = files_of(bytes, "", limits, |path| listed.contains(path)) else {
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

/// Files by their paths.
type Files = BTreeMap<PathBuf, Vec<u8>>;

/// What is read of an archive, the files of it that are wanted, and the paths of links.
fn files_of(
    bytes: &[u8],
    shown: impl Display,
    limits: &Limits,
    wanted: impl Fn(&Path) -> bool,
) -> Result<(Contents, Files, BTreeSet<PathBuf>), Failure> {
    let (mut files, mut links, mut left) = (BTreeMap::new(), BTreeSet::new(), LARGEST_FILES);
    let contents = archive::read(Cursor::new(bytes), shown, limits, &mut |entry, content| {
        if entry.kind == Kind::File && entry.size <= left && wanted(&entry.path) {
            let mut file = Vec::new();
            // A fault of the archive is told by its reader.
            let _ = content.take(entry.size).read_to_end(&mut file);
            left -= file.len() as u64;
            files.insert(entry.path.clone(), file);
        }
        if matches!(entry.kind, Kind::Symlink(_) | Kind::HardLink(_)) {
            // With too many of them, everything may lead through one.
            let is_full = links.len() >= MOST_LINKS;
            links.insert(if is_full { PathBuf::new() } else { entry.path.clone() });
        }
        Ok(())
    })?;
    Ok((contents, files, links))
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
    fn what_a_description_includes_is_read_too() {
        let include = |address: &str| format!("<image><include from='{address}'/></image>");
        let part = "<image><preferences arch='aarch64'><type/></preferences></image>";
        let of = |address: &str| {
            let text = include(address);
            look(&packed(&[("my/config.xml", &text), ("my/parts/a b.xml", part)])).unwrap()
        };
        for address in [
            "this://parts/a b.xml",
            "this://./parts/a%20b.xml",
            "parts/a b.xml",
            "file:parts/a b.xml",
        ] {
            let look = of(address);
            assert_eq!((look.archs, look.warnings), (vec![Arch::Aarch64], vec![]), "{address}");
        }
        for (address, why) in [
            (
                "this://parts/other.xml",
                "this://parts/other.xml, which the recipe does not have",
            ),
            (
                "https://host/a.xml",
                "https://host/a.xml, which is no file of the recipe",
            ),
            (
                "file:///etc/passwd",
                "file:///etc/passwd, which is no file of the recipe",
            ),
        ] {
            let look = of(address);
            assert_eq!(look.archs, []);
            assert_eq!(look.warnings, [format!("its description includes {why}")]);
        }
        // What is not known is not said.
        for address in ["this://{{ part }}.xml", "this://../my/parts/a b.xml"] {
            assert_eq!(of(address).warnings, [""; 0], "{address}");
        }
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
