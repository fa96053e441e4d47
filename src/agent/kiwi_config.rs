//! Reads the parts of a kiwi image description that Kiln needs: the image's name, its package manager and its
//! repositories, as far as they are in force. Reads files of the recipe only.

mod force;
mod whole;

use std::{
    io,
    path::{Component, Path, PathBuf},
};

use kiln_records::{Code, Failure, arch::Arch, description, similar, xml_text};
use quick_xml::events::Event;
use reqwest::Url;
use roxmltree::{Document, Node};

use self::force::InForce;
use super::{mask, template};

pub use self::force::Choice;
pub(crate) use self::whole::{Source, whole};

/// The most bytes of a description; real ones have a hundredth.
pub(crate) const CONFIG_BYTES: u64 = 4 << 20;

/// The most elements, and the deepest nesting of them.
const MOST_ELEMENTS: usize = 100_000;
const DEEPEST: usize = 100;

/// The most attributes of one element: to find one that is there twice, each is compared with all others.
const MOST_ATTRIBUTES: usize = 200;

/// An image description.
#[derive(Debug, Clone)]
pub struct KiwiConfig {
    /// The image's name.
    pub image_name: Option<String>,
    /// The package manager, such as `zypper`, `dnf4` or `apt`.
    pub package_manager: String,
    /// The same as far as the description names one.
    pub written_manager: Option<String>,
    /// The repositories, in the order of the file.
    pub repositories: Vec<Repository>,
    /// The image types in force.
    pub types: Vec<String>,
    /// The profiles in force.
    pub profiles: Vec<String>,
    /// What to say of all profiles.
    about_profiles: String,
}

/// A repository of an image description.
#[derive(Debug, Clone)]
pub struct Repository {
    /// Its address without secrets: without passwords and query.
    pub shown: String,
    /// User and password, if the description has them outside the address.
    pub login: Option<(String, String)>,
    /// Whether and how to wait for it.
    pub plan: Plan,
}

/// What to do about a repository before the build.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Plan {
    /// Wait: the repository is available when any one of these files is.
    Wait(Vec<Url>),
    /// Do not wait, for this reason.
    Skip(String),
    /// The build does not use it, for this reason.
    Unused(String),
}

/// The metadata of a repository that the build uses.
#[derive(Debug, Clone)]
pub struct Metadata {
    /// The repository's address without secrets.
    pub shown: String,
    /// User and password, if the description has them outside the address.
    pub login: Option<(String, String)>,
    /// The files of which the first that is there has the digests of all lists of packages.
    pub urls: Vec<Url>,
}

/// The package managers whose metadata says what they install.
const MANAGERS: [&str; 3] = ["apt", "dnf4", "zypper"];

/// Names in values of a description that lead to files which are not part of a layer's key, or out of the recipe.
const LEADS: [&str; 6] = ["config.sh", "images.sh", "root/", "kiln.lock", "../", "://"];

/// Where keys are that do not lead to another file: in the toolbox, and in the recipe.
const KEY_DIRS: [&str; 4] = [
    "file:///usr/share/keyrings/",
    "file:///usr/share/distribution-gpg-keys/",
    "file:///scratch/recipe/",
    "this://",
];

/// The metadata of all repositories that a build uses, if these and the recipe alone decide what kiwi installs; else why
/// that is not certain.
///
/// # Errors
///
/// As [`read`].
pub fn metadata(recipe: &Path, choice: Choice<'_>) -> Result<Result<Vec<Metadata>, String>, Failure> {
    let config = read(recipe, choice)?;
    let text = text(&find(recipe)?).map_err(|error| Failure::io("cannot read the recipe", &error))?;
    let Ok(document) = Document::parse(&text) else {
        return Ok(Err("its description cannot be read".to_owned()));
    };
    Ok(uncertain(&document, &config).map_or_else(
        || {
            let used = config
                .repositories
                .into_iter()
                .filter_map(|repository| match repository.plan {
                    Plan::Wait(urls) => Some(Ok(Metadata {
                        shown: repository.shown,
                        login: repository.login,
                        urls,
                    })),
                    Plan::Skip(why) => Some(Err(format!("{}: {why}", repository.shown))),
                    Plan::Unused(_) => None,
                });
            used.collect()
        },
        Err,
    ))
}

/// The name of the recipe's description, and a digest of it without the packages that it names. `None` where the root of a recipe
/// with the same digest cannot become that of this one: of kiwi's package managers, only apt installs into a root that is there.
///
/// # Errors
///
/// As [`read`].
pub fn without_packages(recipe: &Path, choice: Choice<'_>) -> Result<Option<(PathBuf, [u8; 32])>, Failure> {
    if read(recipe, choice)?.package_manager != "apt" {
        return Ok(None);
    }
    let path = find(recipe)?;
    let text = text(&path).map_err(|error| Failure::io("cannot read the recipe", &error))?;
    let name = path.file_name().map(PathBuf::from);
    Ok(name.zip(similar::without_packages(&text)))
}

/// The metadata of those repositories of a build that can be looked at.
///
/// # Errors
///
/// As [`read`].
pub fn repositories(recipe: &Path, choice: Choice<'_>) -> Result<Vec<Metadata>, Failure> {
    let metadata = |repository: Repository| match repository.plan {
        Plan::Wait(urls) => Some(Metadata {
            shown: repository.shown,
            login: repository.login,
            urls,
        }),
        Plan::Skip(_) | Plan::Unused(_) => None,
    };
    Ok(read(recipe, choice)?
        .repositories
        .into_iter()
        .filter_map(metadata)
        .collect())
}

/// What in a description makes uncertain what kiwi installs.
fn uncertain(document: &Document<'_>, config: &KiwiConfig) -> Option<String> {
    let manager = &config.package_manager;
    if !MANAGERS.contains(&manager.as_str()) {
        return Some(format!("its package manager is `{manager}`"));
    }
    for node in document.descendants().filter(Node::is_element) {
        let name = node.tag_name().name();
        if ["include", "certificates", "certificate"].contains(&name) {
            return Some(format!("its description has the element `{name}`"));
        }
        // Package managers may note outside the root, as kiwi's apt does, which packages others have brought with them.
        if name == "packages" && node.attribute("type") == Some("uninstall") && node.has_children() {
            return Some("it uninstalls packages".to_owned());
        }
        for attribute in node.attributes() {
            let is_address = name == "source" && attribute.name() == "path";
            if ["derived_from", "delta_root", "bootstrap_package"].contains(&attribute.name()) {
                return Some(format!("its description has the attribute `{}`", attribute.name()));
            }
            // The toolbox's own keys belong to its packages, and the recipe's files to the recipe.
            let is_key = name == "signing" && attribute.name() == "key";
            let value = attribute.value();
            let known = KEY_DIRS.iter().find_map(|dir| value.strip_prefix(dir));
            let value = known.filter(|_| is_key).unwrap_or(value);
            if !is_address && LEADS.iter().any(|lead| value.contains(lead)) {
                return Some(format!("its attribute `{}` leads to another file", attribute.name()));
            }
        }
        // Texts about the image are for people.
        let is_prose = node.ancestors().any(|node| node.has_tag_name("description"));
        let text = node.text().unwrap_or_default();
        if !is_prose && LEADS.iter().any(|lead| text.contains(lead)) {
            return Some(format!("its element `{name}` leads to another file"));
        }
    }
    None
}

/// The package manager of a description that names none.
const USUAL_MANAGER: &str = "dnf4";

impl KiwiConfig {
    /// Whether there is an image type `tbz`, the one of recipes for IMS.
    pub fn has_tbz(&self) -> bool {
        self.types.iter().any(|name| name == "tbz")
    }

    /// Checks that there is an image to make.
    ///
    /// # Errors
    ///
    /// `no_image_type`, with the profiles that there are.
    pub fn check_types(&self, arch: Arch) -> Result<(), Failure> {
        if !self.types.is_empty() {
            return Ok(());
        }
        let chosen = match self.profiles.as_slice() {
            [] => "without a profile".to_owned(),
            profiles => format!("with {}", profiles.join(", ")),
        };
        let why = format!(
            "the recipe has no image type for {arch} {chosen}: {}",
            self.about_profiles
        );
        Err(Failure::new(Code::NoImageType, why).hint("choose a profile that has one: --profile NAME"))
    }
}

/// Reads the description in the recipe's directory, as far as it is in force by this choice.
///
/// # Errors
///
/// `recipe_config_missing`, `recipe_config_invalid`, `profile_unknown`.
pub fn read(recipe: &Path, choice: Choice<'_>) -> Result<KiwiConfig, Failure> {
    parsed(recipe, |image| config_of(image, choice))
}

/// Looks at the root element of the description in the recipe's directory.
fn parsed<T>(recipe: &Path, look: impl FnOnce(Node<'_, '_>) -> Result<T, Failure>) -> Result<T, Failure> {
    let path = find(recipe)?;
    let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let invalid = |why: &dyn std::fmt::Display| invalid(&name, why);
    let text = text(&path).map_err(|error| invalid(&error))?;
    let document = Document::parse(&text).map_err(|error| invalid(&error))?;
    let image = document.root_element();
    if !image.has_tag_name("image") {
        return Err(invalid(&format_args!(
            "its root element is `{}`, not `image`",
            image.tag_name().name()
        )));
    }
    look(image)
}

fn config_of(image: Node<'_, '_>, choice: Choice<'_>) -> Result<KiwiConfig, Failure> {
    let force = InForce::of(image, choice)?;
    let managers = force.preferred(image, "packagemanager").into_iter();
    let mut managers = managers.filter_map(|node| node.text().map(str::trim));
    let manager = managers.find(|name| !name.is_empty());
    let written_manager = manager.map(str::to_owned);
    let package_manager = manager.unwrap_or(USUAL_MANAGER).to_owned();
    let types = force.preferred(image, "type").into_iter();
    let types = types
        .filter_map(|node| node.attribute("image").map(str::to_owned))
        .collect();
    let profiles: Vec<_> = force.profiles().iter().map(|name| (*name).to_owned()).collect();
    let release = force.preferred(image, "release-version").into_iter();
    let release = release
        .filter_map(|node| node.text().map(str::trim))
        .find(|text| !text.is_empty());
    let reader = Reader {
        uses_apt: package_manager == "apt",
        // kiwi tells zypper nothing of it.
        release: release
            .filter(|_| package_manager.starts_with("dnf"))
            .map(str::to_owned),
        force,
    };
    Ok(KiwiConfig {
        image_name: image.attribute("name").map(str::to_owned),
        repositories: elements(image, "repository")
            .flat_map(|repository| reader.repositories(repository))
            .collect(),
        package_manager,
        written_manager,
        types,
        about_profiles: force::said(&elements(image, "profile").collect::<Vec<_>>()),
        profiles,
    })
}

/// The number of the first repository in a description that is in force by this choice, among all of the description; none if
/// there is none.
///
/// # Errors
///
/// `recipe_config_invalid`, `profile_unknown`.
pub(crate) fn first_repository(text: &str, choice: Choice<'_>) -> Result<Option<usize>, Failure> {
    let document = Document::parse(text).map_err(|error| invalid("the description", &error))?;
    let image = document.root_element();
    let force = InForce::of(image, choice)?;
    let mut all = image.children().filter(|node| node.has_tag_name("repository"));
    Ok(all.position(|node| force.has_profile_of(node) && force.has_arch_of(node)))
}

/// The failure for a description that cannot be used.
pub(crate) fn invalid(name: &str, why: &dyn std::fmt::Display) -> Failure {
    Failure::new(Code::RecipeConfigInvalid, format!("{name} cannot be used: {why}"))
        .hint("it must be a kiwi image description: XML in UTF-8, without DTD and entities")
}

/// The text of a description that is small and plain enough to be parsed.
pub(crate) fn text(path: &Path) -> io::Result<String> {
    let too_large = |what: String| io::Error::new(io::ErrorKind::FileTooLarge, what);
    if fs_err::metadata(path)?.len() > CONFIG_BYTES {
        return Err(too_large("it has more than 4 MiB".to_owned()));
    }
    let bytes = fs_err::read(path)?;
    let text = xml_text::decode(&bytes).map_err(io::Error::other)?.text.into_owned();
    if let Some(format) = other_format(&text) {
        return Err(io::Error::other(format!("it is {format}, not XML")));
    }
    check(&text).map_err(too_large)?;
    Ok(text)
}

/// The format of a description that is no XML, as kiwi reads it where it has another library.
fn other_format(text: &str) -> Option<&'static str> {
    let first = text
        .lines()
        .map(str::trim)
        .find(|line| !line.is_empty() && !line.starts_with('#'))?;
    match first.as_bytes() {
        [b'{', ..] => Some("JSON"),
        [b'[', ..] => Some("TOML"),
        _ if first == "---" || first.starts_with("image:") => Some("YAML"),
        _ => None,
    }
}

/// Counts elements, their depth and their attributes, without building anything.
fn check(text: &str) -> Result<(), String> {
    let mut reader = quick_xml::Reader::from_str(text);
    let (mut elements, mut depth) = (0, 0_usize);
    loop {
        let element = match reader.read_event() {
            Ok(Event::Start(element)) => {
                depth += 1;
                element
            }
            Ok(Event::Empty(element)) => element,
            Ok(Event::End(_)) => {
                depth = depth.saturating_sub(1);
                continue;
            }
            Ok(Event::Eof) => return Ok(()),
            // What cannot be counted is not parsed.
            Err(error) => return Err(error.to_string()),
            Ok(_) => continue,
        };
        elements += 1;
        if elements > MOST_ELEMENTS {
            return Err(format!("it has more than {MOST_ELEMENTS} elements"));
        }
        if depth > DEEPEST {
            return Err(format!("its elements are nested more than {DEEPEST} deep"));
        }
        let mut attributes = element.attributes();
        if attributes.with_checks(false).nth(MOST_ATTRIBUTES).is_some() {
            return Err(format!("an element has more than {MOST_ATTRIBUTES} attributes"));
        }
    }
}

/// The shortest of the user's values that are masked because they are a part of a password.
const LONG_VALUE: usize = 8;

/// The passwords that the recipe has for its repositories and users, whichever are in force, and what of them is a value that
/// the user gave for its templates. A description that cannot be read has none here: [`read`] says why.
pub fn secrets<'v>(recipe: &Path, values: impl IntoIterator<Item = &'v String>) -> Vec<String> {
    let mut secrets = mask::of_apt(&recipe.join("root"));
    let Ok(text) =
        find(recipe).and_then(|path| text(&path).map_err(|error| Failure::io("cannot read the recipe", &error)))
    else {
        return secrets;
    };
    let Ok(document) = Document::parse(&text) else {
        return secrets;
    };
    for node in document.descendants() {
        let of_user = node.has_tag_name("user");
        let password = node.attribute("password").filter(|it| !of_user || it.len() >= 8);
        secrets.extend(password.map(str::to_owned));
        if node.has_tag_name("source") {
            secrets.extend(node.attribute("path").map(mask::of_address).unwrap_or_default());
        }
        if node.has_tag_name("signing") {
            secrets.extend(node.attribute("key").map(mask::of_address).unwrap_or_default());
        }
        // Each profile may have an overlay, which is the directory of its name.
        let overlay = node.attribute("name").filter(|_| node.has_tag_name("profile"));
        if let Some(name) = overlay.filter(|name| is_plain(name)) {
            secrets.extend(mask::of_apt(&recipe.join(name)));
        }
    }
    let parts = values.into_iter().filter(|value| value.len() >= LONG_VALUE);
    let parts: Vec<_> = parts
        .filter(|value| secrets.iter().any(|secret| secret.contains(value.as_str())))
        .collect();
    // As they stand in a description, which scripts may show.
    let escaped: Vec<_> = secrets
        .iter()
        .map(|secret| quick_xml::escape::escape(secret.as_str()).into_owned())
        .collect();
    secrets.extend(parts.into_iter().cloned().chain(escaped));
    secrets
}

/// The description of a recipe.
pub(crate) fn find(recipe: &Path) -> Result<PathBuf, Failure> {
    let unreadable = |error: io::Error| Failure::io("cannot read the recipe", &error);
    let mut names = Vec::new();
    for entry in fs_err::read_dir(recipe).map_err(unreadable)? {
        let entry = entry.map_err(unreadable)?;
        if !entry.file_type().map_err(unreadable)?.is_dir() {
            names.push(PathBuf::from(entry.file_name()));
        }
    }
    let place = description::find(names.iter().map(PathBuf::as_path))?;
    let name = place.path().display().to_string();
    template::inside(recipe, &name).map_err(|error| {
        Failure::new(
            Code::RecipeConfigMissing,
            format!("the recipe's {name} cannot be read: {error}"),
        )
        .hint("a description is a file of the recipe, or a link to one")
    })
}

/// Whether a name is that of an entry of a directory, and leads nowhere else.
fn is_plain(name: &str) -> bool {
    let mut parts = Path::new(name).components();
    matches!((parts.next(), parts.next()), (Some(Component::Normal(_)), None))
}

fn elements<'a, 'i>(parent: Node<'a, 'i>, name: &'static str) -> impl Iterator<Item = Node<'a, 'i>> {
    parent.descendants().filter(move |node| node.has_tag_name(name))
}

struct Reader<'a> {
    uses_apt: bool,
    /// What dnf calls `$releasever`, if the description names it.
    release: Option<String>,
    force: InForce<'a>,
}

impl Reader<'_> {
    fn repositories(&self, repository: Node<'_, '_>) -> Vec<Repository> {
        let login = repository
            .attribute("username")
            .map(str::to_owned)
            .zip(repository.attribute("password").map(str::to_owned));
        elements(repository, "source")
            .filter_map(|source| source.attribute("path"))
            .map(|path| self.expanded(path.trim()))
            .map(|path| Repository {
                shown: redact(&path),
                login: login.clone(),
                plan: self.plan(repository, &path).unwrap_or_else(|plan| plan),
            })
            .collect()
    }

    /// An address in which those variables of zypper and dnf that are known have their values.
    fn expanded(&self, path: &str) -> String {
        let mut parts = path.split('$');
        let mut made = parts.next().unwrap_or_default().to_owned();
        for part in parts {
            let is_part = |char: char| char.is_ascii_alphanumeric() || char == '_';
            let braced = part.strip_prefix('{').and_then(|rest| rest.split_once('}'));
            let (name, rest) =
                braced.unwrap_or_else(|| part.split_at(part.find(|char| !is_part(char)).unwrap_or(part.len())));
            let value = match name {
                _ if self.uses_apt => None,
                "basearch" | "arch" => Some(self.force.arch().name()),
                "releasever" => self.release.as_deref(),
                _ => None,
            };
            match value {
                Some(value) => made.extend([value, rest]),
                None => made.extend(["$", part]),
            }
        }
        made
    }

    /// The files that prove the repository available, or what else is to be done about it.
    fn plan(&self, repository: Node<'_, '_>, path: &str) -> Result<Plan, Plan> {
        let unused = |why: &str| Plan::Unused(why.to_owned());
        let skip = |why: &str| Plan::Skip(why.to_owned());
        if !self.force.has_profile_of(repository) {
            return Err(unused("its profile is not in force"));
        }
        if !self.force.has_arch_of(repository) {
            return Err(unused("it is for another architecture"));
        }
        if repository.attribute("imageonly") == Some("true") {
            return Err(unused("the build does not use it"));
        }
        if repository.attribute("sourcetype").is_some_and(|kind| kind != "baseurl") {
            return Err(skip("it is a list of mirrors"));
        }
        if path.contains('$') {
            return Err(skip("its address contains variables"));
        }
        let url = Url::parse(path)
            .ok()
            .filter(|url| matches!(url.scheme(), "http" | "https"));
        let url = url.ok_or_else(|| skip("only http and https are supported"))?;
        let kind = repository
            .attribute("type")
            .unwrap_or(if self.uses_apt { "apt-deb" } else { "rpm-md" });
        match kind {
            "rpm-md" => Ok(Plan::Wait(vec![below(&url, "repodata/repomd.xml")])),
            "apt-deb" => {
                let dir = match repository.attribute("distribution") {
                    None => String::new(),
                    // As in sources.list, a slash at the end marks repositories without distributions.
                    Some(flat) if flat.ends_with('/') => flat.trim_start_matches("./").to_owned(),
                    Some(name) => format!("dists/{name}/"),
                };
                Ok(Plan::Wait(
                    ["InRelease", "Release"]
                        .map(|file| below(&url, &format!("{dir}{file}")))
                        .to_vec(),
                ))
            }
            _ => Err(skip("its kind is unknown")),
        }
    }
}

/// The address of a file below `base`. A query, which may be the repository's key, is kept.
fn below(base: &Url, file: &str) -> Url {
    let mut url = base.clone();
    if let Ok(mut segments) = url.path_segments_mut() {
        segments
            .pop_if_empty()
            .extend(file.split('/').filter(|part| !part.is_empty()));
    }
    url
}

/// An address without user, password and query.
pub(crate) fn redact(address: &str) -> String {
    let bare = address.split_once('?').map_or(address, |(before, _)| before);
    let Some((scheme, rest)) = bare.split_once("://") else {
        return bare.to_owned();
    };
    let (authority, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
    let host = authority.rsplit_once('@').map_or(authority, |(_, host)| host);
    format!("{scheme}://{host}{path}")
}

#[cfg(test)]
mod tests {
    use kiln_records::description::CONFIG;

    use super::*;

    fn of(arch: Arch) -> Choice<'static> {
        Choice { arch, profiles: &[] }
    }

    fn parse(text: &str) -> Result<KiwiConfig, Failure> {
        let recipe = tempfile::tempdir().unwrap();
        fs_err::write(recipe.path().join(CONFIG), text).unwrap();
        read(recipe.path(), of(Arch::Aarch64))
    }

    /// The plans of an image with these elements: the files to check, or the reason not to.
    fn plans(elements: &str) -> Vec<String> {
        let config = parse(&format!(
            "<?xml version=\"1.0\" encoding=\"utf-8\"?>\n<image name=\"i\">{elements}</image>"
        ))
        .unwrap();
        let show = |repository: Repository| match repository.plan {
            Plan::Wait(urls) => urls.iter().map(Url::as_str).collect::<Vec<_>>().join(" "),
            Plan::Skip(why) | Plan::Unused(why) => why,
        };
        config.repositories.into_iter().map(show).collect()
    }

    fn plan(attributes: &str, path: &str) -> String {
        plans(&format!(
            "<repository {attributes}><source path=\"{path}\"/></repository>"
        ))
        .concat()
    }

    #[test]
    fn facts_are_read() {
        let config = parse(
            r#"<image schemaversion="7.4" name="compute">
                <preferences><type image="tbz"/><packagemanager> dnf4 </packagemanager></preferences>
                <repository><source path="http://u:p@h/x?token=1"/></repository>
            </image>"#,
        )
        .unwrap();
        assert_eq!(config.image_name.as_deref(), Some("compute"));
        assert_eq!(config.package_manager, "dnf4");
        assert!(config.has_tbz());
        assert_eq!(config.repositories[0].shown, "http://h/x");
    }

    #[test]
    fn each_kind_of_repository_has_its_proof() {
        for (attributes, path, expected) in [
            ("type=\"rpm-md\"", "http://h/a", "http://h/a/repodata/repomd.xml"),
            ("", "HTTPS://h/a/", "https://h/a/repodata/repomd.xml"),
            ("", "https://h", "https://h/repodata/repomd.xml"),
            ("", "https://h/a?key=1", "https://h/a/repodata/repomd.xml?key=1"),
            ("arch=\"x86_64,aarch64\"", "https://h", "https://h/repodata/repomd.xml"),
            (
                "type=\"apt-deb\"",
                "http://h/a",
                "http://h/a/InRelease http://h/a/Release",
            ),
            (
                "type=\"apt-deb\" distribution=\"./\"",
                "http://h/a",
                "http://h/a/InRelease http://h/a/Release",
            ),
            (
                "type=\"apt-deb\" distribution=\"b/\"",
                "http://h/a/",
                "http://h/a/b/InRelease http://h/a/b/Release",
            ),
            (
                "type=\"apt-deb\" distribution=\"bookworm/updates\"",
                "http://h",
                "http://h/dists/bookworm/updates/InRelease http://h/dists/bookworm/updates/Release",
            ),
            ("type=\"rpm-dir\"", "http://h", "its kind is unknown"),
            ("arch=\"x86_64\"", "http://h", "it is for another architecture"),
            ("imageonly=\"true\"", "http://h", "the build does not use it"),
            ("sourcetype=\"metalink\"", "http://h", "it is a list of mirrors"),
            ("profiles=\"p\"", "http://h", "its profile is not in force"),
            ("", "http://h/$releasever", "its address contains variables"),
            (
                "",
                "http://h/$basearch/${arch}",
                "http://h/aarch64/aarch64/repodata/repomd.xml",
            ),
            ("", "http://h/$archive", "its address contains variables"),
            ("", "obs://a/b", "only http and https are supported"),
            ("", "dir:///a", "only http and https are supported"),
            ("", "this://repo", "only http and https are supported"),
            ("", "/a/b", "only http and https are supported"),
            ("", "http://", "only http and https are supported"),
            ("", "", "only http and https are supported"),
        ] {
            assert_eq!(plan(attributes, path), expected, "{attributes} {path}");
        }
    }

    #[test]
    fn what_makes_packages_uncertain_is_named() {
        let why = |manager: &str, elements: &str| {
            let recipe = tempfile::tempdir().unwrap();
            let text = format!(
                "<image name=\"i\"><preferences><packagemanager>{manager}</packagemanager></preferences>\
                 <repository><source path=\"http://h\"/></repository>{elements}</image>"
            );
            fs_err::write(recipe.path().join(CONFIG), text).unwrap();
            metadata(recipe.path(), of(Arch::X86_64))
                .unwrap()
                .err()
                .unwrap_or_default()
        };
        let uninstall = "<packages type=\"uninstall\"><package name=\"a\"/></packages>";
        for (manager, elements, expected) in [
            ("apt", "<description><author>see config.sh</author></description>", ""),
            (
                "apt",
                "<packages type=\"uninstall\"/><packages type=\"delete\"><package name=\"a\"/></packages>",
                "",
            ),
            ("zypper", uninstall, "it uninstalls packages"),
            ("apt", uninstall, "it uninstalls packages"),
            ("dnf5", "", "its package manager is `dnf5`"),
            (
                "apt",
                "<include from=\"this\"/>",
                "its description has the element `include`",
            ),
            (
                "apt",
                "<type derived_from=\"a\"/>",
                "its description has the attribute `derived_from`",
            ),
            (
                "apt",
                "<archive name=\"root/a.tar\"/>",
                "its attribute `name` leads to another file",
            ),
            (
                "zypper",
                "<repository><source path=\"http://m\"><signing key=\"file:///scratch/recipe/keys/a.asc\"/></source></repository>",
                "",
            ),
            (
                "zypper",
                "<repository><source path=\"http://m\"><signing key=\"file:///scratch/recipe/root/a.asc\"/></source></repository>",
                "its attribute `key` leads to another file",
            ),
            (
                "zypper",
                "<repository><source path=\"http://m\"><signing key=\"https://m/a.asc\"/></source></repository>",
                "its attribute `key` leads to another file",
            ),
            (
                "apt",
                "<file>images.sh</file>",
                "its element `file` leads to another file",
            ),
            (
                "apt",
                "<repository sourcetype=\"mirrorlist\"><source path=\"http://m\"/></repository>",
                "http://m: it is a list of mirrors",
            ),
        ] {
            assert_eq!(why(manager, elements), expected, "{manager} {elements}");
        }
    }

    #[test]
    fn the_package_manager_decides_where_the_kind_is_not_given() {
        let found = plans(
            r#"<preferences><packagemanager>apt</packagemanager></preferences>
               <repository distribution="d"><source path="http://h"/></repository>
               <repository type="rpm-md"><source path="http://h"/></repository>"#,
        );
        assert_eq!(
            found,
            [
                "http://h/dists/d/InRelease http://h/dists/d/Release",
                "http://h/repodata/repomd.xml"
            ]
        );
    }

    #[test]
    fn the_release_is_that_of_the_preferences_in_force() {
        let found = plans(
            r#"<profiles><profile name="a"/></profiles>
               <preferences profiles="a"><release-version>9</release-version></preferences>
               <preferences><packagemanager>dnf4</packagemanager><release-version>10</release-version></preferences>
               <repository><source path="http://h/$releasever-kitten/${releasever}"/></repository>"#,
        );
        assert_eq!(found, ["http://h/10-kitten/10/repodata/repomd.xml"]);
    }

    #[test]
    fn profiles_in_force_count() {
        let found = plans(
            r#"<profiles><profile name="a" import="true"/><profile name="b"/></profiles>
               <repository profiles="b, a"><source path="http://h"/></repository>
               <repository profiles="b"><source path="http://h"/></repository>"#,
        );
        assert_eq!(found, ["http://h/repodata/repomd.xml", "its profile is not in force"]);
    }

    #[test]
    fn addresses_are_shown_without_secrets() {
        for (address, shown) in [
            ("http://u:p@h/x?y=z", "http://h/x"),
            ("http://u:p@d@h:80", "http://h:80"),
            ("http://h/a@b", "http://h/a@b"),
            ("/a/b", "/a/b"),
        ] {
            assert_eq!(redact(address), shown);
        }
    }

    #[test]
    fn what_is_no_description_is_refused() {
        let bomb = r#"<!DOCTYPE i [<!ENTITY a "x"><!ENTITY b "&a;&a;">]><image name="&b;"/>"#;
        let external = r#"<!DOCTYPE i [<!ENTITY a SYSTEM "file:///etc/passwd">]><image name="&a;"/>"#;
        for text in [
            "",
            "text",
            "<image>",
            "<other/>",
            bomb,
            external,
            "<image name=\"&a;\"/>",
        ] {
            let failure = parse(text).unwrap_err();
            assert_eq!(failure.code, Code::RecipeConfigInvalid, "{text}: {failure}");
            assert!(failure.hint.is_some());
        }
        assert_eq!(
            parse(&"<a>".repeat(100_000)).unwrap_err().code,
            Code::RecipeConfigInvalid
        );
    }

    #[test]
    fn a_description_that_would_occupy_the_parser_is_refused_at_once() {
        let begun = std::time::Instant::now();
        let why = |text: &str| {
            let recipe = tempfile::tempdir().unwrap();
            fs_err::write(recipe.path().join("config.xml"), text).unwrap();
            let failure = read(recipe.path(), of(Arch::X86_64)).unwrap_err();
            assert_eq!(failure.code, Code::RecipeConfigInvalid);
            failure.detail
        };
        let attributes: String = (0..200_000).fold(String::new(), |text, number| text + &format!(" a{number}='1'"));
        assert!(why(&format!("<image{attributes}/>")).contains("more than 200 attributes"));
        let deep = "<a>".repeat(100_000);
        assert!(why(&format!("<image>{deep}")).contains("nested more than 100 deep"));
        let wide = "<a/>".repeat(200_000);
        assert!(why(&format!("<image>{wide}</image>")).contains("more than 100000 elements"));
        let large = " ".repeat(5 << 20);
        assert!(why(&format!("<image>{large}</image>")).contains("more than 4 MiB"));
        assert!(begun.elapsed().as_secs() < 5, "{:?}", begun.elapsed());
    }

    #[test]
    fn the_secrets_of_a_recipe_are_found() {
        let recipe = tempfile::tempdir().unwrap();
        let text = "<image><profiles><profile name='Login'/><profile name='../Login'/></profiles><repository username='me' password='first-one'><source path='https://host/'/></repository>\
                    <repository><source path='https://me:second%20one@host/x?key=0123456789'/></repository>\
                    <users><user name='root' password='root'/><user name='me' password='$6$salt$hash'/></users></image>";
        fs_err::write(recipe.path().join("config.xml"), text).unwrap();
        fs_err::create_dir_all(recipe.path().join("root/etc/apt")).unwrap();
        fs_err::write(
            recipe.path().join("root/etc/apt/auth.conf"),
            "machine a login b password third-one",
        )
        .unwrap();
        fs_err::create_dir_all(recipe.path().join("Login/etc/apt")).unwrap();
        fs_err::write(
            recipe.path().join("Login/etc/apt/auth.conf"),
            "machine a login b password <fourth>",
        )
        .unwrap();
        let values = ["salt$hash", "salt", "0123456789", "elsewhere"].map(str::to_owned);
        let secrets = secrets(recipe.path(), &values);
        for expected in [
            "third-one",
            "first-one",
            "second%20one",
            "0123456789",
            "$6$salt$hash",
            "<fourth>",
            "&lt;fourth&gt;",
            "salt$hash",
        ] {
            assert!(
                secrets.iter().any(|secret| secret == expected),
                "{expected}: {secrets:?}"
            );
        }
        for other in ["salt", "root", "elsewhere"] {
            assert!(!secrets.iter().any(|secret| secret == other), "{other}: {secrets:?}");
        }
    }

    #[test]
    fn the_description_is_found_in_the_recipe_only() {
        let recipe = tempfile::tempdir().unwrap();
        let code = || {
            read(recipe.path(), of(Arch::X86_64))
                .map_err(|failure| failure.code)
                .err()
        };
        assert_eq!(code(), Some(Code::RecipeConfigMissing));
        fs_err::write(recipe.path().join("appliance.kiwi"), "<image/>").unwrap();
        assert_eq!(code(), None);
        std::os::unix::fs::symlink("/etc/passwd", recipe.path().join(CONFIG)).unwrap();
        assert_eq!(code(), Some(Code::RecipeConfigMissing));
    }
}
