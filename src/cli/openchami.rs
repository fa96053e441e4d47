//! Turns OpenCHAMI's layer files into recipes that Kiln builds, and sends what comes out where they say. Reads the user's files,
//! writes the recipe into a temporary directory, and talks to registries.

use std::{
    collections::BTreeMap,
    fs::Permissions,
    io,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
};

use kiln_openchami::{Copy, Files, Form, Given, Publish, Recipe, Wrong, form_of, left_out, read, read_manifest};
use kiln_records::{Code, Failure, arch::Arch};
use kiln_registry::Location;
use tempfile::TempDir;

use super::{printer::Printer, publish, registry::RegistryOptions, session::Session};

/// The longest layer file, in bytes.
const LONGEST: u64 = 4 << 20;

/// The most files of a directory that a layer copies.
const MOST_FILES: usize = 200_000;

/// A layer as a recipe.
#[derive(Debug)]
pub(super) struct Layer {
    /// The recipe's directory, which has the image's name, in one that goes with this.
    pub(super) recipe: PathBuf,
    _scratch: TempDir,
    publish: Vec<Publish>,
}

/// The text of a layer file, if this path is one.
///
/// # Errors
///
/// The file cannot be read.
pub(super) fn text_of(path: &Path) -> Result<Option<(String, Form)>, Failure> {
    let is_yaml = ["yaml", "yml", "tmpl"]
        .iter()
        .any(|ending| path.extension().is_some_and(|found| found == *ending));
    if !is_yaml || !path.is_file() {
        return Ok(None);
    }
    let text = kiln_files::read(path, LONGEST).map_err(|error| Failure::io("cannot read the layer", &error))?;
    let text = String::from_utf8_lossy(&text).into_owned();
    Ok(form_of(&text).map(|form| (text, form)))
}

impl Layer {
    /// Translates the layer file at `path`.
    ///
    /// # Errors
    ///
    /// `layer_file_invalid` for what cannot be done, and whatever the files cannot be read for.
    pub(super) fn translate(
        path: &Path,
        (text, form): (&str, Form),
        arch: Arch,
        values: &[(String, String)],
        name: Option<&str>,
        printer: &Printer,
    ) -> Result<Self, Failure> {
        if form == Form::Manifest {
            return Err(manifest(path, text));
        }
        let given = Given {
            variables: values.iter().cloned().collect::<BTreeMap<_, _>>(),
            arch: arch.name().to_owned(),
            name: name.map(str::to_owned),
            parent: None,
        };
        let translated = read(text, form, &given).map_err(|wrong| refused(path, &wrong))?;
        for warning in &translated.warnings {
            printer.warning(warning, None);
        }
        let (Recipe::Kiwi(files) | Recipe::Containerfile(files)) = &translated.recipe;
        let unwritable = |error: io::Error| Failure::io("cannot write the recipe of the layer", &error);
        let scratch = tempfile::tempdir().map_err(unwritable)?;
        let recipe = scratch.path().join(&translated.name);
        fs_err::create_dir(&recipe).map_err(unwritable)?;
        let beside = path.parent().unwrap_or(Path::new("."));
        write(files, &recipe, beside)?;
        Ok(Self {
            recipe,
            _scratch: scratch,
            publish: translated.publish,
        })
    }

    /// Sends the images to the registries that the layer names, as one image of each, and says where else it would have them.
    ///
    /// # Errors
    ///
    /// A registry does not take them.
    pub(super) async fn publish(&self, images: &[String], session: &Session) -> Result<(), Failure> {
        for wanted in &self.publish {
            let left = match wanted {
                Publish::Registry { references, tls_verify } if *tls_verify => {
                    for reference in references {
                        send(images, reference, session).await?;
                    }
                    continue;
                }
                Publish::Registry { references, .. } => {
                    format!("{}: its certificate is not to be checked", references.join(", "))
                }
                // The images are in Kiln's own store.
                Publish::Local { .. } => continue,
                Publish::S3 { endpoint, bucket, .. } => format!("the bucket {bucket} at {endpoint}"),
                Publish::Squashfs { dir, .. } => format!("the directory {dir}"),
            };
            let hint = "`--output DIR` writes the artifacts, and `kiln publish` sends them to a registry";
            session
                .printer
                .warning(format_args!("not published to {left}"), Some(hint));
        }
        Ok(())
    }
}

async fn send(images: &[String], reference: &str, session: &Session) -> Result<(), Failure> {
    let place: Location = reference.parse()?;
    let which = publish::which(&place, reference)?;
    let sent = publish::publish(session, images, (&place, &which), &RegistryOptions::default()).await?;
    session
        .printer
        .result(format_args!("published  {} {}", sent.reference, sent.digest));
    Ok(())
}

fn refused(path: &Path, wrong: &Wrong) -> Failure {
    let hint = match wrong {
        Wrong::Variable { .. } => "`--set NAME=VALUE` gives a variable a value",
        _ => "docs/openchami.md says what is taken",
    };
    Failure::new(Code::LayerFileInvalid, format!("{}: {wrong}", path.display())).hint(hint)
}

/// Why a manifest is not built as a whole.
fn manifest(path: &Path, text: &str) -> Failure {
    match read_manifest(text) {
        Err(wrong) => refused(path, &wrong),
        Ok(manifest) => {
            let order: Vec<String> = manifest
                .layers
                .iter()
                .map(|layer| format!("{} ({})", layer.name(), layer.config))
                .collect();
            let text = format!("{}: manifests are not built as a whole yet", path.display());
            let hint = format!("build its layers one by one, in this order: {}", order.join(", "));
            Failure::new(Code::LayerFileInvalid, text).hint(hint)
        }
    }
}

/// Writes the recipe, with what it copies of the user's files, which are found from a directory.
fn write(files: &Files, recipe: &Path, from: &Path) -> Result<(), Failure> {
    let unwritable = |error: io::Error| Failure::io("cannot write the recipe of the layer", &error);
    for file in &files.written {
        let path = recipe.join(&file.path);
        make_parent(&path).map_err(unwritable)?;
        fs_err::write(&path, &file.bytes).map_err(unwritable)?;
        fs_err::set_permissions(&path, Permissions::from_mode(file.mode)).map_err(unwritable)?;
    }
    for copy in &files.copies {
        let source = from.join(&copy.source);
        let wrong = |why: &dyn std::fmt::Display| {
            Failure::new(
                Code::LayerFileInvalid,
                format!("{}: {}: {why}", copy.key, source.display()),
            )
            .hint("a path begins at the directory of the layer file")
        };
        let found = match fs_err::metadata(&source) {
            Ok(found) => found,
            Err(error) if error.kind() == io::ErrorKind::NotFound && copy.optional => continue,
            Err(error) => return Err(wrong(&error)),
        };
        if copy.directory.is_some_and(|wanted| wanted != found.is_dir()) {
            return Err(wrong(&if found.is_dir() {
                "it is a directory"
            } else {
                "it is no directory"
            }));
        }
        let mut left = MOST_FILES;
        copy_in(copy, &source, Path::new(""), &recipe.join(&copy.to), &mut left).map_err(|error| wrong(&error))?;
    }
    Ok(())
}

fn make_parent(path: &Path) -> io::Result<()> {
    path.parent().map_or(Ok(()), fs_err::create_dir_all)
}

/// Copies a file, a link or what is in a directory; `inner` is its path in the copied directory.
fn copy_in(copy: &Copy, from: &Path, inner: &Path, to: &Path, left: &mut usize) -> io::Result<()> {
    let Some(fewer) = left.checked_sub(1) else {
        return Err(io::Error::other(format!("it has more than {MOST_FILES} files")));
    };
    *left = fewer;
    let is_top = inner.as_os_str().is_empty();
    if !is_top && left_out(&inner.to_string_lossy(), &copy.excludes) {
        return Ok(());
    }
    // What the layer names may be a link; in a directory, links stay links.
    let found = if is_top {
        fs_err::metadata(from)?
    } else {
        fs_err::symlink_metadata(from)?
    };
    if found.is_symlink() {
        make_parent(to)?;
        return fs_err::os::unix::fs::symlink(fs_err::read_link(from)?, to);
    }
    if found.is_dir() {
        fs_err::create_dir_all(to)?;
        for entry in fs_err::read_dir(from)? {
            let name = entry?.file_name();
            copy_in(copy, &from.join(&name), &inner.join(&name), &to.join(&name), left)?;
        }
        return Ok(());
    }
    if !found.is_file() {
        return Err(io::Error::other(format!(
            "{} is neither a file nor a directory",
            from.display()
        )));
    }
    make_parent(to)?;
    fs_err::copy(from, to)?;
    match copy.mode {
        Some(mode) => fs_err::set_permissions(to, Permissions::from_mode(mode)),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_copied_from_beside_the_layer() {
        let dir = tempfile::tempdir().unwrap();
        let (from, recipe) = (dir.path().join("from"), dir.path().join("recipe"));
        fs_err::create_dir_all(from.join("tree/sub")).unwrap();
        fs_err::create_dir(&recipe).unwrap();
        fs_err::write(from.join("tree/sub/kept"), "k").unwrap();
        fs_err::write(from.join("tree/left.tmp"), "l").unwrap();
        fs_err::os::unix::fs::symlink("sub/kept", from.join("tree/link")).unwrap();
        let copy = |source: &str, to: &str| Copy {
            key: "copyfiles[0]".to_owned(),
            source: source.to_owned(),
            to: to.to_owned(),
            ..Copy::default()
        };
        let whole = Copy {
            excludes: vec!["*.tmp".to_owned()],
            mode: Some(0o640),
            ..copy("tree", "root/srv")
        };
        let files = |copies| Files {
            written: Vec::new(),
            copies,
        };
        write(&files(vec![whole]), &recipe, &from).unwrap();
        assert_eq!(
            fs_err::read_link(recipe.join("root/srv/link")).unwrap(),
            Path::new("sub/kept")
        );
        let mode = fs_err::metadata(recipe.join("root/srv/sub/kept"))
            .unwrap()
            .permissions()
            .mode();
        assert_eq!(mode & 0o777, 0o640);
        assert!(!recipe.join("root/srv/left.tmp").exists());
        let missing = write(&files(vec![copy("nowhere", "x")]), &recipe, &from).unwrap_err();
        assert_eq!(missing.code, Code::LayerFileInvalid);
        assert!(missing.detail.starts_with("copyfiles[0]: "), "{missing}");
        let optional = Copy {
            optional: true,
            ..copy("nowhere", "x")
        };
        write(&files(vec![optional]), &recipe, &from).unwrap();
    }
}
