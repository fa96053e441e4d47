//! Reads the recipe that a user names: a directory or an archive on this machine. It reads files and writes none.

mod look;

use std::{
    io::Write,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
};

use flate2::{Compression, GzBuilder};
use kiln_records::{Code, Failure, LinuxDistribution, arch::Arch};
use quick_xml::events::{BytesStart, Event};
use sha2::{Digest, Sha256};

pub use self::look::Look;

/// A recipe as one archive.
#[derive(Debug)]
pub struct RecipeArchive {
    /// Its bytes.
    pub bytes: Vec<u8>,
    /// SHA-256 of the bytes, hexadecimal.
    pub sha256: String,
    /// The recipe's name: that of its directory or archive.
    pub name: String,
    /// The architectures that its own description names, if it names any.
    pub declared: Vec<Arch>,
    /// The distribution that its description seems to build.
    pub distribution: Option<LinuxDistribution>,
}

/// The largest recipe archive in bytes. Recipes are descriptions and overlays, not images.
const LARGEST: u64 = 1 << 30;

impl RecipeArchive {
    /// Reads the recipe at `path`. A directory is packed such that equal recipes make equal archives.
    ///
    /// # Errors
    ///
    /// `recipe_missing`, `recipe_config_missing` (a directory without `config.xml`), `recipe_too_large`.
    pub fn read(path: &Path) -> Result<Self, Failure> {
        let unreadable = |error: std::io::Error| Failure::io("cannot read the recipe", &error);
        let missing = |_| {
            Failure::new(Code::RecipeMissing, format!("there is no recipe at {}", path.display()))
                .hint("name a directory with a config.xml, or a tar archive of one")
        };
        let path = fs_err::canonicalize(path).map_err(missing)?;
        let name = name_of(&path);
        let (bytes, look) = if path.is_dir() {
            let description = fs_err::read_to_string(path.join("config.xml")).map_err(|_| {
                Failure::new(
                    Code::RecipeConfigMissing,
                    format!("{} holds no config.xml", path.display()),
                )
                .hint("a kiwi-ng recipe is a directory with config.xml at its top")
            })?;
            (pack(&path).map_err(unreadable)?, Look::at(&description))
        } else {
            let size = fs_err::metadata(&path).map_err(unreadable)?.len();
            if size > LARGEST {
                return Err(
                    Failure::new(Code::RecipeTooLarge, format!("the recipe archive has {size} bytes"))
                        .hint(format!("at most {LARGEST} are taken; large files belong in packages")),
                );
            }
            let bytes = fs_err::read(&path).map_err(unreadable)?;
            let look = Look::into(&bytes);
            (bytes, look)
        };
        let sha256 = hex::encode(Sha256::digest(&bytes));
        Ok(Self {
            bytes,
            sha256,
            name,
            declared: look.archs,
            distribution: look.distribution,
        })
    }
}

fn name_of(path: &Path) -> String {
    let name = path
        .file_name()
        .map(|name| name.to_string_lossy().into_owned())
        .unwrap_or_default();
    let stem = [".tar.gz", ".tar.xz", ".tar.zst", ".tar.bz2", ".tgz", ".txz", ".tar"]
        .iter()
        .find_map(|ending| name.strip_suffix(ending))
        .unwrap_or(&name);
    stem.to_owned()
}

/// Packs a directory: sorted, owned by root, without times, with links as links and modes unchanged.
pub fn pack(dir: &Path) -> std::io::Result<Vec<u8>> {
    let mut archive = tar::Builder::new(GzBuilder::new().mtime(0).write(Vec::new(), Compression::fast()));
    let mut pending = vec![PathBuf::new()];
    while let Some(relative) = pending.pop() {
        let mut names: Vec<_> = fs_err::read_dir(dir.join(&relative))?.collect::<Result<_, _>>()?;
        names.sort_by_key(fs_err::DirEntry::file_name);
        for entry in names {
            let path = relative.join(entry.file_name());
            let kind = entry.file_type()?;
            // Version control is not part of a recipe; sockets and devices cannot be.
            if path == Path::new(".git") || !(kind.is_dir() || kind.is_file() || kind.is_symlink()) {
                continue;
            }
            let metadata = fs_err::symlink_metadata(entry.path())?;
            let mut header = tar::Header::new_gnu();
            header.set_metadata_in_mode(&metadata, tar::HeaderMode::Deterministic);
            header.set_mode(metadata.permissions().mode() & 0o7777);
            if kind.is_symlink() {
                archive.append_link(&mut header, &path, fs_err::read_link(entry.path())?)?;
            } else if kind.is_dir() {
                archive.append_data(&mut header, &path, std::io::empty())?;
                pending.push(path);
            } else {
                archive.append_data(&mut header, &path, fs_err::File::open(entry.path())?)?;
            }
        }
    }
    let mut packed = archive.into_inner()?;
    packed.flush()?;
    packed.finish()
}

/// The architectures that every `<preferences>` with an image type is limited to.
///
/// kiwi restricts an image to some architectures by the `arch` attribute of `<preferences>` (kiwi's documentation,
/// "Image Description Elements"). A section without it applies to all, so nothing is declared.
fn declared_archs(description: &str) -> Vec<Arch> {
    // A template need not be well-formed XML before it is rendered; in that case nothing is known either.
    archs_of_preferences(description).unwrap_or_default()
}

/// The same; `None` where it is not known. The description is read as a stream, which takes no longer for one that is
/// meant to take long.
fn archs_of_preferences(description: &str) -> Option<Vec<Arch>> {
    let mut reader = quick_xml::Reader::from_str(description);
    let mut archs = Vec::new();
    // The limits of the section that is being read.
    let mut section: Option<Option<String>> = None;
    let mut depth = 0_usize;
    loop {
        let (element, is_open) = match reader.read_event().ok()? {
            Event::Start(element) => (element, true),
            Event::Empty(element) => (element, false),
            Event::End(_) => {
                depth = depth.checked_sub(1)?;
                if depth == 1 {
                    section = None;
                }
                continue;
            }
            Event::Eof => break,
            _ => continue,
        };
        match (depth, element.name().as_ref(), &section) {
            (1, b"preferences", _) if is_open => section = Some(arch_attribute(&element)),
            // Without limits, it applies to all.
            (2, b"type", Some(None)) => return None,
            (2, b"type", Some(Some(names))) => {
                archs.extend(names.split(',').filter_map(|name| name.trim().parse::<Arch>().ok()));
            }
            _ => {}
        }
        depth += usize::from(is_open);
    }
    archs.sort_unstable();
    archs.dedup();
    (depth == 0).then_some(archs)
}

fn arch_attribute(element: &BytesStart<'_>) -> Option<String> {
    let mut attributes = element.attributes();
    // Without a look for doubles, which compares each with all others.
    let mut named = attributes.with_checks(false).filter_map(Result::ok);
    let arch = named.find(|attribute| attribute.key.as_ref() == b"arch")?;
    String::from_utf8(arch.value.into_owned()).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_recipe_declares_its_architecture_as_kiwi_says_it() {
        let with = |attribute: &str| {
            declared_archs(&format!(
                "<image><preferences{attribute}><type image='tbz'/></preferences></image>"
            ))
        };
        assert_eq!(with(" arch='aarch64'"), [Arch::Aarch64]);
        assert_eq!(with(" arch='x86_64,aarch64'"), [Arch::X86_64, Arch::Aarch64]);
        assert_eq!(with(""), []);
        assert_eq!(declared_archs("<image>{% if x < 1 %}</image>"), []);
        let both = "<preferences/><preferences arch='aarch64'><type/></preferences>";
        assert_eq!(declared_archs(&format!("<image>{both}</image>")), [Arch::Aarch64]);
        for unknown in [
            format!("<image>{both}<preferences><type/></preferences></image>"),
            format!("<image>{both}"),
            format!("<image><users>{both}</users></image>"),
        ] {
            assert_eq!(declared_archs(&unknown), [], "{unknown}");
        }
    }

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
