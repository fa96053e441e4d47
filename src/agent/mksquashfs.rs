//! Builds mksquashfs's command line, runs it, reads its output, and prepares the root for it. Changes modes of files in
//! the root.

use std::{ffi::OsString, fs::Permissions, io, os::unix::fs::PermissionsExt, path::Path};

use jiff::{civil::DateTime, tz::TimeZone};
use kiln_records::{
    Code, Failure,
    protocol::{Compressor, SquashfsOptions},
};
use tokio::process::Command;

use crate::{cause, events::Events, process, squashfs::Device};

/// Memory that mksquashfs may use for its queues, in MiB.
pub const MEMORY_MIB: u64 = 512;

/// Runs mksquashfs with these arguments.
///
/// # Errors
///
/// `squashfs_failed`, or a more specific code.
pub async fn run(args: impl IntoIterator<Item = OsString>, events: &Events) -> Result<(), Failure> {
    let mut command = Command::new("mksquashfs");
    command.args(args);
    let finished = process::run(command, None, events, |line| parse_progress(line).is_some()).await?;
    finished.check_own(|tool| {
        cause::known_cause(&tool.tail).unwrap_or_else(|| {
            let last = tool.last_words().unwrap_or("it printed nothing");
            Failure::new(Code::SquashfsFailed, format!("mksquashfs failed: {last}"))
        })
    })
}

/// Zstandard level of images. mksquashfs's default is 15, which takes several times the CPU for files a few percent
/// smaller; an image is made once and booted a few times, so the build's time matters more.
const ZSTD_LEVEL: u32 = 3;

/// The arguments with which mksquashfs packs `root` into the file `out`, with `cpus` threads and about `memory_mib`
/// MiB of buffers. The level is only passed for compressors that have levels (zstd, gzip).
///
/// The progress bar stays enabled: mksquashfs prints it to a pipe as well, and [`parse_progress`] reads it.
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
    // An unreadable file must fail the build, not be missing from the image.
    args.extend(["-noappend", "-quiet", "-xattrs", "-exit-on-error", "-comp", name].map(OsString::from));
    if let Some(level) = level {
        args.extend(["-Xcompression-level".into(), level.to_string().into()]);
    }
    args.extend(["-processors".into(), cpus.max(1).to_string().into()]);
    args.extend(["-mem".into(), format!("{}M", memory_mib.max(64)).into()]);
    args
}

/// Arguments for the time at which the squashfs was made, in seconds since 1970, unless that is now.
pub fn time_args(made: Option<u32>) -> Vec<OsString> {
    made.map_or_else(Vec::new, |made| vec!["-mkfs-time".into(), made.to_string().into()])
}

/// The device nodes in a list printed by `unsquashfs -d "" -llnumeric -full-precision -UTC`.
pub fn parse_devices(list: &str) -> Vec<Device> {
    list.lines().filter_map(parse_device).collect()
}

/// `crw-rw-rw- 0/0   1,  3 2025-01-01 00:00:00 /dev/null`
fn parse_device(line: &str) -> Option<Device> {
    let kind = line.chars().next().filter(|kind| matches!(kind, 'c' | 'b'))?;
    let (permissions, rest) = line.split_once(' ')?;
    let (owner, rest) = rest.trim_start().split_once(' ')?;
    let (uid, gid) = owner.split_once('/')?;
    let (major, rest) = rest.trim_start().split_once(',')?;
    let (minor, rest) = rest.trim_start().split_once(' ')?;
    let (date, rest) = rest.trim_start().split_once(' ')?;
    let (clock, path) = rest.split_once(' ')?;
    let time: DateTime = format!("{date}T{clock}").parse().ok()?;
    Some(Device {
        path: path.trim_start_matches('/').to_owned(),
        kind,
        mode: mode_of(permissions),
        owner: (uid.parse().ok()?, gid.parse().ok()?),
        number: number((major.trim().parse().ok()?, minor.parse().ok()?)),
        time: time.to_zoned(TimeZone::UTC).ok()?.timestamp().as_second(),
    })
}

/// The number of a device. unsquashfs shows the upper bits of a large minor number in the major number, which has
/// twelve.
fn number((major, minor): (u32, u32)) -> (u32, u32) {
    (major & 0xfff, minor | (major >> 12) << 8)
}

/// The mode that `ls` writes as `rwsr-x--T`, as a number.
fn mode_of(letters: &str) -> u32 {
    let letters = letters.chars().skip(1).take(9).enumerate();
    letters.fold(0, |mode, (at, letter)| {
        let plain = 0o400 >> at;
        let special = 0o4000 >> (at / 3);
        mode | match letter {
            '-' => 0,
            'S' | 'T' => special,
            's' | 't' => special | plain,
            _ => plain,
        }
    })
}

/// Arguments with which mksquashfs adds device nodes where they [belong](Device::belongs).
pub fn device_args(root: &Path, devices: &[Device]) -> Vec<OsString> {
    let definition = |device: &Device| {
        let Device {
            kind,
            mode,
            owner,
            number,
            time,
            ..
        } = device;
        let path = device.path.replace('\\', "\\\\").replace('"', "\\\"");
        let kind = kind.to_ascii_uppercase();
        format!(
            "\"{path}\" {kind} {time} {mode:o} {} {} {} {}",
            owner.0, owner.1, number.0, number.1
        )
    };
    let wanted = devices.iter().filter(|device| device.belongs(root));
    wanted
        .flat_map(|device| ["-p".into(), definition(device).into()])
        .collect()
}

/// Reads mksquashfs's progress bar, `[=====|   ] 1158/4000  28%`: blocks done and total. The bar's lines end in
/// carriage returns.
pub fn parse_progress(line: &str) -> Option<(u64, u64)> {
    let bar = line.trim().strip_prefix('[')?.strip_suffix('%')?;
    let (_, numbers) = bar.rsplit_once(']')?;
    let (done, rest) = numbers.trim_start().split_once('/')?;
    let (total, _percent) = rest.split_once(' ')?;
    Some((done.parse().ok()?, total.parse().ok()?))
}

/// Makes everything under `<root>/image`, where kiwi leaves its configuration, accessible to root only: directories
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
    fn device_nodes_are_found_in_a_list_and_put_back() {
        let list = "drwxr-xr-x 0/0                  32 2025-01-01 00:00:00 /dev\n\
                    crw-rw-rw- 0/5             1,  3 1970-01-01 00:01:00 /dev/my \"null\n\
                    brw-rwS--T 0/6             8, 10 2025-01-01 00:00:00 /gone/sda\n\
                    -rw-r--r-- 0/0                 2 2025-01-01 00:00:00 /c, 1\n";
        let devices = parse_devices(list);
        assert_eq!(devices.len(), 2);
        assert_eq!((devices[1].mode, devices[1].number), (0o3660, (8, 10)));
        let [large] = &parse_devices("brw-rw---- 0/6 1118461,113 2020-09-13 12:26:40 /dev/mapper/root")[..] else {
            panic!("a large number is none");
        };
        assert_eq!(large.number, (253, 70_001));
        let root = tempfile::tempdir().unwrap();
        fs_err::create_dir(root.path().join("dev")).unwrap();
        assert_eq!(
            device_args(root.path(), &devices),
            ["-p", r#""dev/my \"null" C 60 666 0 5 1 3"#].map(OsString::from)
        );
        fs_err::write(root.path().join("dev/my \"null"), "").unwrap();
        assert!(device_args(root.path(), &devices).is_empty());
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
