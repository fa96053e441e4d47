//! Finds the description among the files of a recipe: kiwi's, by the names that kiwi takes, or a Containerfile. Pure: no I/O.
//!
//! Everybody who looks for a description asks here: who packs a directory, who looks into an archive, and the agent.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    path::{Path, PathBuf},
};

use crate::{Code, Failure, protocol::RecipeType};

/// The description's usual name.
pub const CONFIG: &str = "config.xml";

/// The directory in which kiwi looks for [`CONFIG`] next: it is there in every root that kiwi has made.
const IMAGE: &str = "image";

/// The ending of its other names.
const ENDING: &str = "kiwi";

/// How kiwi's descriptions end in formats that are no XML.
const OTHER_FORMATS: [&str; 5] = ["yaml", "yml", "json", "toml", "ini"];

/// The names of a Containerfile, the first of which counts (buildah-build(1)).
pub const CONTAINERFILES: [&str; 2] = ["Containerfile", "Dockerfile"];

/// The most places that a message names.
const MOST_NAMED: usize = 5;

/// The place of a description.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    /// The recipe's directory; empty for the top itself.
    pub dir: PathBuf,
    /// The description's name in it.
    pub name: PathBuf,
}

impl Place {
    /// The description's path.
    pub fn path(&self) -> PathBuf {
        self.dir.join(&self.name)
    }
}

/// Why there is no description.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Missing {
    /// No file has such a name at the top, or in a directory there. This file comes nearest, if any does.
    None(Option<PathBuf>),
    /// Several directories have one, and the top has none.
    Several(Vec<PathBuf>),
    /// Neither the top nor the one directory there has a Containerfile.
    Containerfile,
}

impl fmt::Display for Missing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shown = |path: &Path| path.display().to_string().escape_debug().to_string();
        match self {
            Self::None(None) => write!(f, "the recipe has no {CONFIG} and no file *.{ENDING}"),
            Self::None(Some(near)) => {
                write!(
                    f,
                    "the recipe has no {CONFIG} and no file *.{ENDING} at its top; `{}` comes nearest",
                    shown(near)
                )
            }
            Self::Containerfile => write!(f, "the recipe has no {} at its top", CONTAINERFILES.join(" and no ")),
            Self::Several(found) => {
                let names: Vec<_> = found.iter().take(MOST_NAMED).map(|path| shown(path)).collect();
                let more = if found.len() > MOST_NAMED { ", …" } else { "" };
                write!(
                    f,
                    "it is not clear which description is meant: {}{more}",
                    names.join(", ")
                )
            }
        }
    }
}

impl From<Missing> for Failure {
    fn from(missing: Missing) -> Self {
        let hint = match &missing {
            Missing::None(Some(near)) if is_containerfile(near) => {
                "a Containerfile is a recipe of another type, `containerfile`, which `kiln build` recognises".to_owned()
            }
            Missing::Containerfile => "an archive may have one directory around the Containerfile; a recipe with kiwi's config.xml has the type `kiwi-ng`".to_owned(),
            Missing::None(Some(near)) if is_other_format(near) => {
                "descriptions in YAML, JSON or TOML are not read: `kiwi-ng image info --print-xml` converts one into XML".to_owned()
            }
            Missing::None(Some(near)) if near.components().count() > 2 => format!(
                "give the directory `{}` as the recipe",
                near.parent().unwrap_or(near).display()
            ),
            Missing::Several(_) => "give one of these directories as the recipe".to_owned(),
            Missing::None(_) => format!(
                "a recipe has kiwi's {CONFIG}, or a file that ends in .{ENDING}, at its top; an archive may have one directory around it"
            ),
        };
        Failure::new(Code::RecipeConfigMissing, missing).hint(hint)
    }
}

/// Whether [`find`] wants to know of this file.
pub fn may_be(path: &Path) -> bool {
    let name = path.file_name().and_then(|name| name.to_str());
    name.is_some_and(|name| !name.starts_with('.'))
        && !path.starts_with("__MACOSX")
        && (is_near(path) || is_taken(path) || is_containerfile(path))
}

/// Finds the description among a recipe's files, whose paths are relative to its top. Directories are no files; links are.
///
/// In one directory, kiwi takes `config.xml`, else `image/config.xml`, else the first by name of those that end in `.kiwi`
/// (kiwi 11.1.6, `CliTask.load_xml_description`). The recipe is at the top, else in the one directory there that has a
/// description.
pub fn find<'a>(files: impl IntoIterator<Item = &'a Path>) -> Result<Place, Missing> {
    let mut dirs: BTreeMap<&Path, BTreeSet<&Path>> = BTreeMap::new();
    let mut near: Option<&Path> = None;
    for path in files.into_iter().filter(|path| may_be(path)) {
        let (Some(dir), Some(name)) = (path.parent(), path.file_name()) else {
            continue;
        };
        if is_taken(path) && path.components().count() <= 3 {
            dirs.entry(dir).or_default().insert(Path::new(name));
        }
        let depth = |path: &Path| path.components().count();
        if near.is_none_or(|before| depth(path) < depth(before)) {
            near = Some(path);
        }
    }
    let in_dir = |dir: &Path| -> Option<Place> {
        let image = dir.join(IMAGE);
        let has = |dir: &Path| dirs.get(dir).is_some_and(|names| names.contains(Path::new(CONFIG)));
        let place = |dir: &Path, name: &Path| Place {
            dir: dir.to_owned(),
            name: name.to_owned(),
        };
        if has(dir) {
            return Some(place(dir, Path::new(CONFIG)));
        }
        if has(&image) {
            return Some(place(&image, Path::new(CONFIG)));
        }
        // All the rest end in `.kiwi`, and are in the order of their bytes, as in Python.
        Some(place(dir, dirs.get(dir)?.first()?))
    };
    if let Some(place) = in_dir(Path::new("")) {
        return Ok(place);
    }
    let below: BTreeSet<&Path> = dirs
        .keys()
        .filter_map(|dir| dir.components().next().map(|first| Path::new(first.as_os_str())))
        .collect();
    let mut found: Vec<Place> = below.into_iter().filter_map(in_dir).collect();
    match found.len() {
        0 => Err(Missing::None(near.map(Path::to_owned))),
        1 => Ok(found.remove(0)),
        _ => Err(Missing::Several(found.iter().map(Place::path).collect())),
    }
}

/// Whether this is a Containerfile, by its name.
pub fn is_containerfile(path: &Path) -> bool {
    path.components().count() <= 2 && CONTAINERFILES.iter().any(|name| path.ends_with(name))
}

/// Finds the Containerfile of a recipe of that type: at the top, or in the one directory there that has one.
///
/// # Errors
///
/// There is none, or there are several.
pub fn find_containerfile<'a>(files: impl IntoIterator<Item = &'a Path>) -> Result<Place, Missing> {
    let mut dirs: BTreeMap<&Path, BTreeSet<&Path>> = BTreeMap::new();
    for path in files.into_iter().filter(|path| is_containerfile(path)) {
        if let (Some(dir), Some(name)) = (path.parent(), path.file_name()) {
            dirs.entry(dir).or_default().insert(Path::new(name));
        }
    }
    let place = |(dir, names): (&&Path, &BTreeSet<&Path>)| Place {
        dir: dir.to_path_buf(),
        name: names.first().map(|name| name.to_path_buf()).unwrap_or_default(),
    };
    // The top is the first.
    match dirs.len() {
        0 => Err(Missing::Containerfile),
        1 => dirs.iter().next().map(place).ok_or(Missing::Containerfile),
        _ if dirs.contains_key(Path::new("")) => dirs.iter().next().map(place).ok_or(Missing::Containerfile),
        _ => Err(Missing::Several(dirs.iter().map(|dir| place(dir).path()).collect())),
    }
}

/// The type of a recipe with these files, whose type nobody has said.
pub fn kind_of<'a>(files: impl IntoIterator<Item = &'a Path> + Clone) -> RecipeType {
    match (find(files.clone()), find_containerfile(files)) {
        (Err(_), Ok(_)) => RecipeType::Containerfile,
        _ => RecipeType::KiwiNg,
    }
}

/// Whether kiwi takes a file of this name.
fn is_taken(path: &Path) -> bool {
    path.ends_with(CONFIG) || path.extension().is_some_and(|ending| ending == ENDING)
}

/// Whether somebody may mean a description by a file of this name.
fn is_near(path: &Path) -> bool {
    let lower = path
        .file_name()
        .and_then(|name| name.to_str())
        .unwrap_or_default()
        .to_lowercase();
    let stem = lower.split('.').next().unwrap_or_default();
    let ending = lower.rsplit('.').next().unwrap_or_default();
    lower == CONFIG
        || ending == ENDING
        || stem == "config" && (lower.ends_with(".xml.txt") || is_other_format(path))
        || lower.rsplit('.').nth(1) == Some(ENDING)
}

fn is_other_format(path: &Path) -> bool {
    let ending = path.extension().and_then(|ending| ending.to_str()).unwrap_or_default();
    OTHER_FORMATS.contains(&ending.to_lowercase().as_str())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(files: &[&str]) -> Result<String, String> {
        find(files.iter().map(Path::new))
            .map(|place| place.path().display().to_string())
            .map_err(|missing| missing.to_string())
    }

    #[test]
    fn the_description_is_the_one_that_kiwi_takes() {
        for (files, expected) in [
            (&["config.xml", "a.kiwi", "image/config.xml"][..], "config.xml"),
            (&["b.kiwi", "a.kiwi", "B.kiwi"], "B.kiwi"),
            (&["a.kiwi", "image/config.xml"], "image/config.xml"),
            (&["._a.kiwi", ".kiwi", "z.kiwi"], "z.kiwi"),
            (&["README", "my/config.xml", "my/root/config.xml"], "my/config.xml"),
            (&["__MACOSX/my/._a.kiwi", "my/a.kiwi", "docs/x"], "my/a.kiwi"),
            (&["my/a.kiwi", "my/image/config.xml"], "my/image/config.xml"),
            (&["my/image/config.xml"], "my/image/config.xml"),
            (&["image/a.kiwi"], "image/a.kiwi"),
            (&["ümlaut dir/ä ö.kiwi"], "ümlaut dir/ä ö.kiwi"),
            (&["a.kiwi", "sub/config.xml"], "a.kiwi"),
            (&["config.yaml", "sub/config.xml"], "sub/config.xml"),
        ] {
            assert_eq!(found(files).as_deref(), Ok(expected), "{files:?}");
        }
    }

    #[test]
    fn what_is_missing_is_named() {
        for (files, says, hint) in [
            (&[][..], "no config.xml", "at its top"),
            (&["README", ".ims_recipe_template.yaml"], "no config.xml", "at its top"),
            (&["Config.XML"], "`Config.XML` comes nearest", "at its top"),
            (&["appliance.Kiwi"], "`appliance.Kiwi`", "at its top"),
            (&["config.yaml"], "`config.yaml`", "YAML"),
            (&["appliance.kiwi.toml"], "`appliance.kiwi.toml`", "YAML"),
            (&["config.xml.txt"], "`config.xml.txt`", "at its top"),
            (
                &["repo/recipes/a/config.xml"],
                "`repo/recipes/a/config.xml`",
                "`repo/recipes/a`",
            ),
            (&["a/config.xml", "b/x.kiwi"], "a/config.xml, b/x.kiwi", "one of these"),
        ] {
            let missing = find(files.iter().map(Path::new)).unwrap_err();
            let failure = Failure::from(missing);
            assert_eq!(failure.code, Code::RecipeConfigMissing);
            assert!(failure.detail.contains(says), "{failure}");
            assert!(failure.hint.as_deref().unwrap().contains(hint), "{:?}", failure.hint);
        }
    }
}
