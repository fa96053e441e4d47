//! Mounts what a bundle names into the root of a working container. Makes mounts, and mount points in the root.
//!
//! The root is that of an image that others made: links in it lead anywhere, and are followed within the root only.

use std::{
    io,
    os::{fd::OwnedFd, unix::fs::FileTypeExt},
    path::{Component, Path, PathBuf},
};

use kiln_inside::room::mounts::{DEV_LINKS, DEVICES};
use nix::{
    errno::Errno,
    fcntl::{OFlag, OpenHow, ResolveFlag, open, openat, openat2},
    mount::{MsFlags, mount},
    sys::stat::{Mode, mkdirat},
    unistd::symlinkat,
};

use super::bundle::Mount;
use crate::{root::quietly, twins::by_fd};

/// The entries that were made in a root for mounts, so that they can be removed again.
#[derive(Debug, Default)]
pub(super) struct Made(Vec<PathBuf>);

impl Made {
    /// The list as text, for [`remove`].
    pub(super) fn text(&self) -> io::Result<Vec<u8>> {
        Ok(serde_json::to_vec(&self.0)?)
    }
}

/// Removes the mount points of this list that are still empty.
pub(super) fn remove(list: &[u8]) -> io::Result<()> {
    let made: Vec<PathBuf> = serde_json::from_slice(list)?;
    for path in made.iter().rev() {
        let is_empty_file = fs_err::symlink_metadata(path).is_ok_and(|found| found.is_file() && found.len() == 0);
        // What was put into a directory, or written to a file, belongs to the image.
        let _ = quietly(path, || {
            if is_empty_file {
                fs_err::remove_file(path)
            } else {
                fs_err::remove_dir(path)
            }
        });
    }
    Ok(())
}

/// Makes the mount points and mounts everything, in the given order. `root` is a mount of this process's own namespace.
pub(super) fn mount_all(root: &Path, mounts: &[Mount], made: &mut Made) -> io::Result<()> {
    for mount in mounts {
        let wrong = |error: io::Error| {
            let text = format!(
                "cannot mount {} on {}: {error}",
                mount.source.display(),
                mount.destination.display()
            );
            io::Error::new(error.kind(), text)
        };
        mount_one(root, mount, made).map_err(wrong)?;
        if mount.destination == Path::new("/dev") && mount.kind == "tmpfs" {
            devices(root)?;
        }
    }
    Ok(())
}

fn mount_one(root: &Path, asked: &Mount, made: &mut Made) -> io::Result<()> {
    let options = Options::of(&asked.options);
    let none = None::<&Path>;
    let is_bind = asked.kind == "bind" || options.flags.contains(MsFlags::MS_BIND);
    let source = if is_bind && !asked.source.is_absolute() {
        return Err(io::Error::other("its source is no absolute path"));
    } else {
        &asked.source
    };
    // What the sandbox itself has none of cannot be shared.
    if is_bind && asked.destination.starts_with("/dev") && !source.exists() {
        return Ok(());
    }
    let is_dir = !is_bind || fs_err::metadata(source)?.is_dir();
    let place = point(root, &asked.destination, is_dir, made)?;
    if is_bind {
        let flags = MsFlags::MS_BIND | (options.flags & MsFlags::MS_REC);
        mount(Some(source), &by_fd(&place), none, flags, none)?;
        let wanted = options.flags & Options::OF_A_BIND;
        if !wanted.is_empty() {
            let mounted = inside(root, &asked.destination)?;
            let flags = MsFlags::MS_BIND | MsFlags::MS_REMOUNT | wanted;
            match mount(none, &by_fd(&mounted), none, flags, none) {
                // The sandbox's own mount forbids more than is asked for.
                Ok(()) | Err(Errno::EPERM) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
        return Ok(());
    }
    let data = options.data.join(",");
    let data = Some(data.as_str()).filter(|data| !data.is_empty());
    let flags = options.flags - MsFlags::MS_REC;
    Ok(mount(
        Some(source),
        &by_fd(&place),
        Some(asked.kind.as_str()),
        flags,
        data,
    )?)
}

/// Gives a container the sandbox's own device files, since a sandbox can make none, and the usual links.
fn devices(root: &Path) -> io::Result<()> {
    let dir = inside(root, Path::new("/dev"))?;
    for name in DEVICES {
        let from = Path::new("/dev").join(name);
        if !fs_err::metadata(&from).is_ok_and(|found| found.file_type().is_char_device()) {
            continue;
        }
        let flags = OFlag::O_CREAT | OFlag::O_WRONLY | OFlag::O_CLOEXEC | OFlag::O_NOFOLLOW;
        let file = openat(&dir, name, flags, Mode::from_bits_truncate(0o666))?;
        mount(
            Some(&from),
            &by_fd(&file),
            None::<&Path>,
            MsFlags::MS_BIND,
            None::<&Path>,
        )?;
    }
    for (target, name) in DEV_LINKS {
        symlinkat(target, &dir, name)?;
    }
    Ok(())
}

/// A directory or file at `path` in the root, which is made if it is not there.
fn point(root: &Path, path: &Path, is_dir: bool, made: &mut Made) -> io::Result<OwnedFd> {
    let names: Vec<_> = path
        .components()
        .filter_map(|part| match part {
            Component::Normal(name) => Some(name),
            _ => None,
        })
        .collect();
    let mut sofar = PathBuf::from("/");
    let mut place = inside(root, &sofar)?;
    for (number, name) in names.iter().enumerate() {
        sofar.push(name);
        place = match inside(root, &sofar) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                let above = fs_err::read_link(by_fd(&place))?.join(name);
                quietly(&above, || {
                    if number + 1 < names.len() || is_dir {
                        return Ok(mkdirat(&place, *name, Mode::from_bits_truncate(0o755))?);
                    }
                    let flags = OFlag::O_CREAT | OFlag::O_EXCL | OFlag::O_WRONLY | OFlag::O_CLOEXEC;
                    Ok(openat(&place, *name, flags, Mode::from_bits_truncate(0o644)).map(drop)?)
                })?;
                made.0.push(above);
                inside(root, &sofar)?
            }
            found => found?,
        };
    }
    Ok(place)
}

/// What is at a path in the root, as a process in it would find it. Opened as a reference only.
pub(super) fn inside(root: &Path, path: &Path) -> io::Result<OwnedFd> {
    let flags = OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
    let root = open(root, flags, Mode::empty())?;
    let how = OpenHow::new()
        .flags(OFlag::O_PATH | OFlag::O_CLOEXEC)
        .resolve(ResolveFlag::RESOLVE_IN_ROOT | ResolveFlag::RESOLVE_NO_MAGICLINKS);
    Ok(openat2(&root, path, how)?)
}

/// A mount's options, as flags and as the rest.
#[derive(Debug)]
struct Options<'a> {
    flags: MsFlags,
    data: Vec<&'a str>,
}

impl<'a> Options<'a> {
    /// The flags that a bind mount takes at its second call only.
    const OF_A_BIND: MsFlags = MsFlags::MS_RDONLY
        .union(MsFlags::MS_NOSUID)
        .union(MsFlags::MS_NODEV)
        .union(MsFlags::MS_NOEXEC);

    fn of(options: &'a [String]) -> Self {
        let mut all = Self {
            flags: MsFlags::empty(),
            data: Vec::new(),
        };
        for option in options {
            let flag = match option.as_str() {
                "ro" => MsFlags::MS_RDONLY,
                "nosuid" => MsFlags::MS_NOSUID,
                "nodev" => MsFlags::MS_NODEV,
                "noexec" => MsFlags::MS_NOEXEC,
                "bind" => MsFlags::MS_BIND,
                "rbind" => MsFlags::MS_BIND | MsFlags::MS_REC,
                "strictatime" => MsFlags::MS_STRICTATIME,
                "noatime" => MsFlags::MS_NOATIME,
                "relatime" => MsFlags::MS_RELATIME,
                // Nothing is propagated in a namespace of its own, and labels are nothing that a sandbox could set.
                "rw" | "private" | "rprivate" | "slave" | "rslave" | "shared" | "rshared" | "z" | "Z" | "suid"
                | "dev" | "exec" | "tmpcopyup" | "notmpcopyup" => continue,
                other => {
                    all.data.push(other);
                    continue;
                }
            };
            all.flags |= flag;
        }
        all
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn mount_points_are_made_within_the_root_and_removed_if_empty() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().join("root");
        fs_err::create_dir_all(root.join("usr/lib")).unwrap();
        symlink("/usr/lib", root.join("lib")).unwrap();
        symlink(dir.path(), root.join("out")).unwrap();
        let mut made = Made::default();
        point(&root, Path::new("/lib/a/b"), true, &mut made).unwrap();
        point(&root, Path::new("/etc/resolv.conf"), false, &mut made).unwrap();
        point(&root, Path::new("/kept/file"), false, &mut made).unwrap();
        assert!(root.join("usr/lib/a/b").is_dir() && root.join("etc/resolv.conf").is_file());
        // A link that leads out of the root leads to a place in it, where there is nothing.
        assert!(point(&root, Path::new("/out/x"), true, &mut made).is_err());
        assert!(!dir.path().join("x").exists());
        fs_err::write(root.join("kept/file"), "of the image").unwrap();
        remove(&made.text().unwrap()).unwrap();
        assert!(root.join("kept/file").is_file() && root.join("usr/lib").is_dir());
        assert!(!root.join("usr/lib/a").exists() && !root.join("etc").exists());
    }

    #[test]
    fn options_are_flags_or_data() {
        let options: Vec<String> = ["nosuid", "mode=755", "rbind", "ro", "rprivate", "size=65536k"]
            .map(str::to_owned)
            .into();
        let all = Options::of(&options);
        assert_eq!(all.data, ["mode=755", "size=65536k"]);
        let flags = MsFlags::MS_NOSUID | MsFlags::MS_BIND | MsFlags::MS_REC | MsFlags::MS_RDONLY;
        assert_eq!(all.flags, flags);
    }
}
