//! Reads the recipe that a user names: a directory or an archive on this machine. It reads files and writes none.

mod attributes;
mod declared;
mod look;
mod pack;

use std::{
    fmt::Display,
    io::{self, Read},
    path::{Path, PathBuf},
};

use kiln_records::{
    Code, Failure, LinuxDistribution,
    arch::Arch,
    archive::{self, Limits},
    compression::Compression,
    description,
    protocol::RecipeType,
};
use sha2::{Digest, Sha256};

pub use self::{
    look::Look,
    pack::{Packed, pack},
};

/// A recipe as one archive.
#[derive(Debug)]
pub struct RecipeArchive {
    /// Its bytes.
    pub bytes: Vec<u8>,
    /// SHA-256 of the bytes, hexadecimal.
    pub sha256: String,
    /// The recipe's name: that of its directory or archive.
    pub name: String,
    /// Its format.
    pub kind: RecipeType,
    /// The architectures that its own description names, if it names any.
    pub declared: Vec<Arch>,
    /// The distribution that its description seems to build.
    pub distribution: Option<LinuxDistribution>,
    /// What of the recipe's directory is not in the archive, each with the reason.
    pub left_out: Vec<String>,
    /// What jobs would be refused for, as far as that can be told from the archive alone.
    pub warnings: Vec<String>,
}

/// The largest recipe archive in bytes. Recipes are descriptions and overlays, not images.
const LARGEST: u64 = 1 << 30;

impl RecipeArchive {
    /// Reads the recipe at `path`. A directory is packed such that equal recipes make equal archives; a zip file is packed
    /// anew, so that all that is stored can be read as tar.
    ///
    /// # Errors
    ///
    /// `recipe_missing`, `recipe_config_missing`, `recipe_too_large`, and all for which the archive would be refused later.
    pub fn read(path: &Path) -> Result<Self, Failure> {
        Self::read_as(path, None)
    }

    /// The same with a Containerfile whose path in the recipe is given, if it is.
    ///
    /// # Errors
    ///
    /// As [`RecipeArchive::read`].
    pub fn read_as(path: &Path, containerfile: Option<&str>) -> Result<Self, Failure> {
        let unreadable = |error: io::Error| Failure::io("cannot read the recipe", &error);
        let missing = |_| {
            Failure::new(Code::RecipeMissing, format!("there is no recipe at {}", path.display()))
                .hint("name a directory with a config.xml or a Containerfile, or an archive of one")
        };
        let path = fs_err::canonicalize(path).map_err(missing)?;
        let file_name = path.file_name().unwrap_or_default().to_string_lossy();
        let shown = path.display().to_string();
        let (bytes, left_out, name) = if path.is_dir() {
            let place = match containerfile {
                Some(file) if !path.join(file).is_file() => {
                    let text = format!("{shown} has no file {file}");
                    return Err(Failure::new(Code::RecipeConfigMissing, text)
                        .hint("the path of a Containerfile begins at the top of its context"));
                }
                Some(_) => Ok(()),
                None => {
                    let files = descriptions(&path).map_err(unreadable)?;
                    let files = || files.iter().map(PathBuf::as_path);
                    match description::kind_of(files()) {
                        RecipeType::KiwiNg => description::find(files()).map(drop),
                        RecipeType::Containerfile => description::find_containerfile(files()).map(drop),
                    }
                }
            };
            place.map_err(|missing| {
                let mut failure = Failure::from(missing);
                failure.detail = format!("{shown}: {}", failure.detail);
                failure
            })?;
            let packed = pack(&path)?;
            (packed.bytes, packed.left_out, file_name.into_owned())
        } else {
            let file = kiln_files::open(&path).map_err(unreadable)?;
            Self::check_size(file.metadata().map_err(unreadable)?.len())?;
            let mut bytes = Vec::new();
            // What is appended to it meanwhile does not count either.
            file.take(LARGEST).read_to_end(&mut bytes).map_err(unreadable)?;
            let bytes = as_tar(bytes, &shown, &Limits::default())?;
            (bytes, Vec::new(), stem(&file_name).to_owned())
        };
        Self::looked_into(bytes, left_out, name, (&shown, containerfile.is_some()))
    }

    /// The recipe of this name in an archive.
    ///
    /// # Errors
    ///
    /// As [`RecipeArchive::read`].
    pub fn of_bytes(bytes: Vec<u8>, name: &str) -> Result<Self, Failure> {
        let bytes = as_tar(bytes, name, &Limits::default())?;
        Self::looked_into(bytes, Vec::new(), name.to_owned(), (name, false))
    }

    /// Checks the size of an archive.
    ///
    /// # Errors
    ///
    /// `recipe_too_large`.
    pub fn check_size(size: u64) -> Result<(), Failure> {
        check_size("archive", size)
    }

    /// Looks into an archive, unless it is known to be that of a Containerfile.
    fn looked_into(
        bytes: Vec<u8>,
        left_out: Vec<String>,
        name: String,
        (shown, is_known): (&str, bool),
    ) -> Result<Self, Failure> {
        check_size("packed recipe", bytes.len() as u64)?;
        let look = if is_known {
            Look::of_containerfile()
        } else {
            Look::into(&bytes, shown, &Limits::default())?
        };
        Ok(Self {
            sha256: hex::encode(Sha256::digest(&bytes)),
            bytes,
            name,
            kind: look.kind,
            declared: look.archs,
            distribution: look.distribution,
            left_out,
            warnings: look.warnings,
        })
    }

    /// The media type of the archive.
    pub fn media_type(&self) -> &'static str {
        match Compression::detect(&self.bytes) {
            Some(Compression::Gzip) => "application/gzip",
            _ => "application/octet-stream",
        }
    }
}

/// An archive that can be read as tar: what is in a zip file is packed anew.
///
/// # Errors
///
/// Those of [`archive::read`].
pub fn as_tar(bytes: Vec<u8>, shown: impl Display, limits: &Limits) -> Result<Vec<u8>, Failure> {
    if archive::is_zip(&bytes) {
        let whole = Limits {
            in_part: false,
            ..*limits
        };
        return pack::from_zip(&bytes, shown, &whole);
    }
    Ok(bytes)
}

fn check_size(what: &str, size: u64) -> Result<(), Failure> {
    if size <= LARGEST {
        return Ok(());
    }
    Err(
        Failure::new(Code::RecipeTooLarge, format!("the {what} has {size} bytes"))
            .hint(format!("at most {LARGEST} are taken; large files belong in packages")),
    )
}

/// The files of a directory that may be descriptions, in it and two directories below.
fn descriptions(dir: &Path) -> io::Result<Vec<PathBuf>> {
    let (mut found, mut pending) = (Vec::new(), vec![PathBuf::new()]);
    while let Some(relative) = pending.pop() {
        for entry in fs_err::read_dir(dir.join(&relative))? {
            let entry = entry?;
            let path = relative.join(entry.file_name());
            if !entry.file_type()?.is_dir() {
                found.extend(description::may_be(&path).then_some(path));
            } else if path.components().count() < 3 && path != Path::new(".git") {
                pending.push(path);
            }
        }
    }
    Ok(found)
}

/// The name of an archive without what says how it is packed.
pub fn stem(file: &str) -> &str {
    const ENDINGS: [&str; 10] = [
        ".tar.gz", ".tar.xz", ".tar.zst", ".tar.bz2", ".tgz", ".txz", ".tzst", ".tbz2", ".tar", ".zip",
    ];
    ENDINGS
        .iter()
        .find_map(|ending| file.strip_suffix(ending))
        .unwrap_or(file)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn equal_directories_make_equal_archives_that_can_be_read_again() {
        let make = || {
            let dir = tempfile::tempdir().unwrap();
            let recipe = dir.path().join("demo");
            fs_err::create_dir_all(recipe.join("root/etc")).unwrap();
            fs_err::write(
                recipe.join("config.xml"),
                "<image><preferences arch='arm64'><type/></preferences></image>",
            )
            .unwrap();
            fs_err::write(recipe.join("root/etc/motd"), "hello").unwrap();
            let secret = std::fs::Permissions::from_mode(0o4750);
            fs_err::set_permissions(recipe.join("root/etc/motd"), secret).unwrap();
            fs_err::os::unix::fs::symlink("motd", recipe.join("root/etc/link")).unwrap();
            let archive = RecipeArchive::read(&recipe).unwrap();
            let packed = dir.path().join("demo-1.tar.gz");
            fs_err::write(&packed, &archive.bytes).unwrap();
            (archive, RecipeArchive::read(&packed).unwrap())
        };
        let ((one, one_again), (two, _)) = (make(), make());
        assert_eq!(one.sha256, two.sha256);
        let unpacked = flate2::read::GzDecoder::new(&one.bytes[..]);
        let mut archive = tar::Archive::new(unpacked);
        let modes: Vec<_> = archive
            .entries()
            .unwrap()
            .map(|entry| entry.unwrap().header().mode().unwrap())
            .collect();
        assert!(modes.contains(&0o4750), "{modes:?}");
        assert_eq!((one.name.as_str(), one_again.name.as_str()), ("demo", "demo-1"));
        assert_eq!(
            (one.declared, one_again.declared),
            (vec![Arch::Aarch64], vec![Arch::Aarch64])
        );
    }

    #[test]
    fn what_is_no_recipe_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(
            RecipeArchive::read(&dir.path().join("gone")).unwrap_err().code,
            Code::RecipeMissing
        );
        assert_eq!(
            RecipeArchive::read(dir.path()).unwrap_err().code,
            Code::RecipeConfigMissing
        );
    }
}
