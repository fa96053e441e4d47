//! Finds the files of an image in a directory on this machine. Reads that directory only.

use std::{
    io::ErrorKind,
    path::{Path, PathBuf},
};

use kiln_records::{ArtifactKind, Code, Failure, arch::Arch};

use crate::{
    artifacts::manifest::{MAX_SIZE, Manifest},
    origin::MANIFEST,
};

/// The image found in a directory.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct ImageFiles {
    /// The files, in the order of their upload.
    pub(super) artifacts: Vec<(ArtifactKind, PathBuf)>,
    /// The architecture, if the directory tells it.
    pub(super) arch: Option<Arch>,
    /// A likely name for the image.
    pub(super) name: Option<String>,
}

/// The possible names of one kind of file. The first pattern that matches a single file decides.
struct Names {
    kind: ArtifactKind,
    what: &'static str,
    exact: &'static [&'static str],
    prefixes: &'static [&'static str],
    suffixes: &'static [&'static str],
}

const NAMES: [Names; 4] = [
    Names {
        kind: ArtifactKind::Rootfs,
        what: "root file system",
        exact: &["rootfs"],
        prefixes: &[],
        suffixes: &[".squashfs", ".sqsh"],
    },
    Names {
        kind: ArtifactKind::Kernel,
        what: "kernel",
        exact: &["kernel"],
        prefixes: &["vmlinuz", "Image"],
        suffixes: &[],
    },
    Names {
        kind: ArtifactKind::Initrd,
        what: "initrd",
        exact: &["initrd"],
        prefixes: &["initrd"],
        suffixes: &[],
    },
    Names {
        kind: ArtifactKind::BootParameters,
        what: "file of boot parameters",
        exact: &["boot_parameters", "kernel-parameters"],
        prefixes: &[],
        suffixes: &[],
    },
];

impl Names {
    fn admit(&self, name: &str) -> bool {
        self.exact.contains(&name)
            || self.prefixes.iter().any(|prefix| name.starts_with(prefix))
            || self.suffixes.iter().any(|suffix| name.ends_with(suffix))
    }
}

impl ImageFiles {
    /// Searches a directory.
    ///
    /// # Errors
    ///
    /// `image_files` when there is no root file system, or a choice is ambiguous.
    pub(super) fn find(dir: &Path) -> Result<Self, Failure> {
        let unreadable = |error: std::io::Error| Failure::io("cannot read the image's files", &error);
        let dir = fs_err::canonicalize(dir).map_err(unreadable)?;
        let mut names = Vec::new();
        for entry in fs_err::read_dir(&dir).map_err(unreadable)? {
            let entry = entry.map_err(unreadable)?;
            let Ok(name) = entry.file_name().into_string() else {
                continue;
            };
            if NAMES.iter().any(|kind| kind.admit(&name)) && is_file(&dir, &name)? {
                names.push(name);
            }
        }
        names.sort();
        let mut artifacts = Vec::new();
        for kind in NAMES {
            let mut found: Vec<&String> = names.iter().filter(|name| kind.admit(name)).collect();
            // `vmlinuz` beside `vmlinuz-6.1.0` is a link to it, as in /boot.
            found.dedup_by_key(|name| fs_err::canonicalize(dir.join(name)).unwrap_or_default());
            match (&found[..], kind.kind) {
                ([one], _) => artifacts.push((kind.kind, dir.join(one))),
                ([], ArtifactKind::Rootfs) => {
                    return Err(
                        Failure::new(Code::ImageFiles, format!("{} holds no root file system", dir.display()))
                            .hint("it must be a squashfs called rootfs, *.squashfs or *.sqsh"),
                    );
                }
                ([], _) => {}
                (several, _) => {
                    let list: Vec<_> = several.iter().map(|name| name.as_str()).collect();
                    return Err(Failure::new(
                        Code::ImageFiles,
                        format!(
                            "{} holds more than one {}: {}",
                            dir.display(),
                            kind.what,
                            list.join(", ")
                        ),
                    )
                    .hint("keep only one of them"));
                }
            }
        }
        let called = dir.file_name().and_then(|name| name.to_str());
        let arch_of_dir = called.and_then(|name| name.parse().ok());
        let manifest = match kiln_files::read_beneath(&dir, Path::new(MANIFEST), MAX_SIZE as u64) {
            Ok(manifest) => Some(manifest),
            Err(error) if error.kind() == ErrorKind::NotFound => None,
            Err(error) => return Err(unreadable(error)),
        };
        let arch_of_manifest = manifest.and_then(|text| Manifest::from_json(&text).ok()?.arch);
        Ok(Self {
            artifacts,
            arch: arch_of_manifest.or(arch_of_dir),
            // `kiln build --output OUT` makes OUT/ARCH, which is not a good name for an image.
            name: called.filter(|_| arch_of_dir.is_none()).map(str::to_owned),
        })
    }
}

/// Opens one of the files, which still has to be in its directory.
pub(super) fn open(path: &Path) -> Result<fs_err::File, Failure> {
    let (dir, name) = (path.parent().unwrap_or(path), path.file_name().unwrap_or_default());
    kiln_files::open_beneath(dir, Path::new(name)).map_err(|error| {
        Failure::new(
            Code::UploadUnreadable,
            format!("cannot read what is to be uploaded: {error}"),
        )
    })
}

/// Whether this is a file of the directory's own: what a link of somebody else's leads to elsewhere is not meant to be read.
fn is_file(dir: &Path, name: &str) -> Result<bool, Failure> {
    match kiln_files::open_beneath(dir, Path::new(name)) {
        Ok(_) => Ok(true),
        Err(error) if kiln_files::leads_out(&error) => Err(Failure::new(
            Code::ImageFiles,
            format!("{} is a link that leads out of the directory", dir.join(name).display()),
        )
        .hint("copy the file into the directory, if it belongs to the image")),
        Err(error) => match error.kind() {
            // Not a file, or a link to nothing.
            ErrorKind::NotFound | ErrorKind::IsADirectory | ErrorKind::InvalidInput => Ok(false),
            _ => Err(Failure::io("cannot read the image's files", &error)),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn dir_with(names: &[&str]) -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        for name in names {
            fs_err::write(dir.path().join(name), name).unwrap();
        }
        dir
    }

    fn found(dir: &Path) -> Vec<(ArtifactKind, String)> {
        let files = ImageFiles::find(dir).unwrap();
        let name = |path: PathBuf| path.file_name().unwrap().to_str().unwrap().to_owned();
        files
            .artifacts
            .into_iter()
            .map(|(kind, path)| (kind, name(path)))
            .collect()
    }

    #[test]
    fn names_tell_what_is_what() {
        let dir = dir_with(&[
            "a.squashfs",
            "vmlinuz-6.1.0",
            "initrd.img-6.1.0",
            "kernel-parameters",
            "notes.txt",
        ]);
        fs_err::os::unix::fs::symlink("vmlinuz-6.1.0", dir.path().join("vmlinuz")).unwrap();
        assert_eq!(
            found(dir.path()),
            [
                (ArtifactKind::Rootfs, "a.squashfs".to_owned()),
                (ArtifactKind::Kernel, "vmlinuz".to_owned()),
                (ArtifactKind::Initrd, "initrd.img-6.1.0".to_owned()),
                (ArtifactKind::BootParameters, "kernel-parameters".to_owned()),
            ]
        );
    }

    #[test]
    fn what_is_not_clear_is_refused() {
        for names in [
            &["kernel"][..],
            &["a.squashfs", "b.sqsh"],
            &["rootfs", "Image", "vmlinuz"],
        ] {
            let failure = ImageFiles::find(dir_with(names).path()).unwrap_err();
            assert_eq!(failure.code, Code::ImageFiles, "{names:?}");
        }
    }

    #[test]
    fn output_of_a_build_says_its_architecture() {
        let dir = tempfile::tempdir().unwrap();
        let out = dir.path().join("aarch64");
        fs_err::create_dir(&out).unwrap();
        fs_err::write(out.join("rootfs"), "x").unwrap();
        let files = ImageFiles::find(&out).unwrap();
        assert_eq!((files.arch, files.name), (Some(Arch::Aarch64), None));
    }
}
