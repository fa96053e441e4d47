//! How mksquashfs is called, and what is done to the root beforehand.

use std::{ffi::OsString, fs::Permissions, io, os::unix::fs::PermissionsExt, path::Path};

use crate::records::{
    Failure,
    protocol::{Compressor, SquashfsOptions},
};

/// Zstandard level of images. mksquashfs itself would take 15, which costs several times the CPU for files a few
/// percent smaller; an image is made once and booted a few times, so the build's time weighs more.
const ZSTD_LEVEL: u32 = 3;

/// The arguments that make mksquashfs turn `root` into the file `out`, with `cpus` threads and about `memory_mib` MiB
/// of buffers. The level is passed on only for compressors that have levels (zstd, gzip).
///
/// The progress bar stays on: mksquashfs prints it to a pipe as well, and [`parse_progress`] reads it.
pub fn mksquashfs_args(
    root: &Path,
    out: &Path,
    options: &SquashfsOptions,
    cpus: u32,
    memory_mib: u64,
) -> Vec<OsString> {
    let (name, level) = match options.compressor {
        Compressor::Zstd => ("zstd", Some(options.level.unwrap_or(ZSTD_LEVEL))),
        Compressor::Gzip => ("gzip", options.level),
        Compressor::Xz => ("xz", None),
        Compressor::Lz4 => ("lz4", None),
    };
    let mut args: Vec<OsString> = vec![root.into(), out.into()];
    // A file that cannot be read must fail the build, not be missing from the image.
    args.extend(["-noappend", "-quiet", "-xattrs", "-exit-on-error", "-comp", name].map(OsString::from));
    if let Some(level) = level {
        args.extend(["-Xcompression-level".into(), level.to_string().into()]);
    }
    args.extend(["-processors".into(), cpus.max(1).to_string().into()]);
    args.extend(["-mem".into(), format!("{}M", memory_mib.max(64)).into()]);
    args
}

/// Reads mksquashfs's progress bar, `[=====|   ] 1158/4000  28%`: blocks done and blocks in all. The bar's lines end
/// in carriage returns.
pub fn parse_progress(line: &str) -> Option<(u64, u64)> {
    let bar = line.trim().strip_prefix('[')?.strip_suffix('%')?;
    let (_, numbers) = bar.rsplit_once(']')?;
    let (done, rest) = numbers.trim_start().split_once('/')?;
    let (total, _percent) = rest.split_once(' ')?;
    Some((done.parse().ok()?, total.parse().ok()?))
}

/// Makes everything under `<root>/image`, where kiwi leaves its configuration, readable by root only: directories
/// 0700, files 0600. Symbolic links are neither followed nor changed.
pub fn restrict_image_dir(root: &Path) -> Result<(), Failure> {
    let top = root.join("image");
    match fs_err::symlink_metadata(&top) {
        Ok(found) if found.is_dir() => {
            restrict(&top).map_err(|error| Failure::io(format!("cannot restrict {}", top.display()), &error))
        }
        Ok(_) => Ok(()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(Failure::io("cannot restrict the image's configuration files", &error)),
    }
}

fn restrict(dir: &Path) -> io::Result<()> {
    fs_err::set_permissions(dir, Permissions::from_mode(0o700))?;
    for entry in fs_err::read_dir(dir)? {
        let entry = entry?;
        let kind = entry.file_type()?;
        if kind.is_dir() {
            restrict(&entry.path())?;
        } else if kind.is_file() {
            fs_err::set_permissions(entry.path(), Permissions::from_mode(0o600))?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn args(compressor: Compressor, level: Option<u32>) -> String {
        let options = SquashfsOptions { compressor, level };
        let args = mksquashfs_args(Path::new("/r"), Path::new("/o"), &options, 4, 2048);
        args.join(" ".as_ref()).into_string().unwrap()
    }

    #[test]
    fn arguments() {
        let common = "/r /o -noappend -quiet -xattrs -exit-on-error -comp";
        let sizes = "-processors 4 -mem 2048M";
        for (compressor, level, middle) in [
            (Compressor::Zstd, None, "zstd -Xcompression-level 3"),
            (Compressor::Zstd, Some(19), "zstd -Xcompression-level 19"),
            (Compressor::Gzip, None, "gzip"),
            (Compressor::Gzip, Some(1), "gzip -Xcompression-level 1"),
            (Compressor::Xz, Some(1), "xz"),
            (Compressor::Lz4, None, "lz4"),
        ] {
            assert_eq!(args(compressor, level), format!("{common} {middle} {sizes}"));
        }
    }

    #[test]
    fn progress_bar() {
        for (line, expected) in [
            ("[=====|                  ] 1158/4000  28%", Some((1158, 4000))),
            ("[============|] 1158/1158 100%", Some((1158, 1158))),
            ("[\\                       ]    100/123456   0%", Some((100, 123_456))),
            ("", None),
            ("Parallel mksquashfs: Using 2 processors", None),
            ("[a] b/c 5%", None),
        ] {
            assert_eq!(parse_progress(line), expected, "{line}");
        }
    }

    #[test]
    fn image_dir_becomes_private_and_links_are_left_alone() {
        let root = tempfile::tempdir().unwrap();
        let mode = |path: &str| fs_err::metadata(root.path().join(path)).unwrap().permissions().mode() & 0o7777;
        let write = |path: &str, mode: u32| {
            let path = root.path().join(path);
            fs_err::write(&path, "x").unwrap();
            fs_err::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
        };
        fs_err::create_dir_all(root.path().join("image/sub")).unwrap();
        write("outside", 0o644);
        write("image/config.xml", 0o644);
        write("image/sub/run.sh", 0o4755);
        std::os::unix::fs::symlink("../outside", root.path().join("image/link")).unwrap();
        std::os::unix::fs::symlink("/nowhere", root.path().join("image/broken")).unwrap();
        restrict_image_dir(root.path()).unwrap();
        assert_eq!(mode("outside"), 0o644);
        assert_eq!(mode("image"), 0o700);
        assert_eq!(mode("image/sub"), 0o700);
        assert_eq!(mode("image/config.xml"), 0o600);
        assert_eq!(mode("image/sub/run.sh"), 0o600);
    }

    #[test]
    fn a_root_without_image_dir_is_fine_and_a_linked_one_is_not_entered() {
        let root = tempfile::tempdir().unwrap();
        restrict_image_dir(root.path()).unwrap();
        let elsewhere = tempfile::tempdir().unwrap();
        let file = elsewhere.path().join("file");
        fs_err::write(&file, "x").unwrap();
        fs_err::set_permissions(&file, Permissions::from_mode(0o644)).unwrap();
        std::os::unix::fs::symlink(elsewhere.path(), root.path().join("image")).unwrap();
        restrict_image_dir(root.path()).unwrap();
        assert_eq!(fs_err::metadata(&file).unwrap().permissions().mode() & 0o777, 0o644);
    }
}
