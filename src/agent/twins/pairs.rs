//! Finds the counterpart of a file of the target's package in the host's package. Pure: no I/O.

use super::layout;
use kiln_records::arch::Arch;

/// Directories that some distributions have moved below `/usr`.
const MERGED: [&str; 4] = ["bin/", "lib/", "lib64/", "sbin/"];

/// Where the host's package may have the target's file at `path`, likeliest first.
///
/// `path` is absolute; the results are relative to the top of the package. Packages of two architectures differ in the
/// names of library directories and of modules (`_ssl.cpython-311-aarch64-linux-gnu.so`).
pub fn counterparts(path: &str, target: Arch, host: Arch) -> impl Iterator<Item = String> {
    let path = path.trim_start_matches('/');
    let renamed = path.replace(target.multiarch(), host.multiarch());
    let by_kernel = path.replace(target.name(), host.name());
    [path.to_owned(), renamed, by_kernel]
        .into_iter()
        .flat_map(|path| [other_side_of_the_merge(&path), Some(path)].into_iter().rev().flatten())
}

/// `usr/bin/x` for `bin/x`, and the reverse.
fn other_side_of_the_merge(path: &str) -> Option<String> {
    let is_merged = |path: &str| MERGED.iter().any(|dir| path.starts_with(dir));
    match path.strip_prefix("usr/") {
        Some(rest) => is_merged(rest).then(|| rest.to_owned()),
        None => is_merged(path).then(|| format!("usr/{path}")),
    }
}

/// Whether the loader searches the directory of `path`, a path of the host's package, by default.
pub fn is_in_library_directory(path: &str, host: Arch) -> bool {
    let path = path.strip_prefix("usr/").unwrap_or(path);
    let Some((dir, _)) = path.rsplit_once('/') else {
        return false;
    };
    dir == "lib" || dir == "lib64" || dir.strip_prefix("lib/") == Some(host.multiarch())
}

/// The name by which programs of `arch` know the dynamic loader of glibc.
pub const fn loader_name(arch: Arch) -> &'static str {
    match arch {
        Arch::X86_64 => "ld-linux-x86-64.so.2",
        Arch::Aarch64 => "ld-linux-aarch64.so.1",
        Arch::Ppc64le => "ld64.so.2",
        Arch::S390x => "ld64.so.1",
        Arch::Riscv64 => "ld-linux-riscv64-lp64d.so.1",
    }
}

/// The place in the directory of twins for tables and modules of character sets. `None` for other files.
///
/// The C library loads them from a fixed path, not by name, and reads lists of them that are not programs.
pub fn data_name(path: &str) -> Option<String> {
    let (_, name) = path.rsplit_once("/gconv/")?;
    let is_plain = !name.strip_prefix("gconv-modules.d/").unwrap_or(name).contains('/');
    is_plain.then(|| format!("lib/gconv/{name}"))
}

/// The content of the file `path`, which [`data_name`] has moved: directories in it are replaced, in the same length.
pub fn moved_data(path: &str, mut content: Vec<u8>) -> Vec<u8> {
    let Some((dir, "gconv-modules.cache")) = path.rsplit_once('/') else {
        return content;
    };
    let new = format!("{}/", layout::LIB);
    for top in ["/usr/", "/"] {
        let old = format!("{top}{}/", dir.trim_start_matches("usr/"));
        let Some(slashes) = old.len().checked_sub(new.len() + "gconv/".len()) else {
            continue;
        };
        let new = format!("{new}{}gconv/", "/".repeat(slashes));
        let places: Vec<usize> = content
            .windows(old.len())
            .enumerate()
            .filter(|(_, bytes)| *bytes == old.as_bytes())
            .map(|(at, _)| at)
            .collect();
        for at in places {
            content[at..at + old.len()].copy_from_slice(new.as_bytes());
        }
    }
    content
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(path: &str) -> Vec<String> {
        counterparts(path, Arch::Aarch64, Arch::X86_64).collect()
    }

    #[test]
    fn names_of_the_architecture_are_the_hosts() {
        let path = "/usr/lib/python3/dist-packages/_cffi.cpython-311-aarch64-linux-gnu.so";
        assert!(all(path).contains(&"usr/lib/python3/dist-packages/_cffi.cpython-311-x86_64-linux-gnu.so".to_owned()));
        let path = "/usr/lib/perl5/5.26.1/aarch64-linux-thread-multi/auto/POSIX/POSIX.so";
        assert!(all(path).contains(&"usr/lib/perl5/5.26.1/x86_64-linux-thread-multi/auto/POSIX/POSIX.so".to_owned()));
    }

    #[test]
    fn merged_and_unmerged_directories_are_the_same() {
        assert_eq!(all("/bin/bash")[..2], ["bin/bash", "usr/bin/bash"]);
        assert_eq!(all("/usr/sbin/fsck")[..2], ["usr/sbin/fsck", "sbin/fsck"]);
        assert_eq!(all("/opt/tool")[0], "opt/tool");
        let path = "/lib/aarch64-linux-gnu/libz.so.1.2.13";
        assert!(all(path).contains(&"usr/lib/x86_64-linux-gnu/libz.so.1.2.13".to_owned()));
    }

    #[test]
    fn character_sets_are_found_where_they_are_moved_to() {
        let path = "usr/lib/x86_64-linux-gnu/gconv/gconv-modules.cache";
        assert_eq!(data_name(path).as_deref(), Some("lib/gconv/gconv-modules.cache"));
        assert_eq!(data_name("lib/gconv/x/y"), None);
        assert_eq!(data_name("usr/lib/x86_64-linux-gnu/libz.so.1"), None);
        let moved = moved_data(path, b"abc\0/usr/lib/x86_64-linux-gnu/gconv/\0def".to_vec());
        assert_eq!(moved, b"abc\0/.kiln/lib////////////////gconv/\0def");
        let module = b"/usr/lib/x86_64-linux-gnu/gconv/".to_vec();
        assert_eq!(
            moved_data("usr/lib/x86_64-linux-gnu/gconv/UTF-7.so", module.clone()),
            module
        );
    }

    #[test]
    fn private_directories_are_not_the_loaders() {
        let public = |path| is_in_library_directory(path, Arch::X86_64);
        assert!(public("usr/lib/x86_64-linux-gnu/libz.so.1"));
        assert!(public("lib/x86_64-linux-gnu/libz.so.1"));
        assert!(public("usr/lib64/libz.so.1"));
        assert!(public("lib64/ld-linux-x86-64.so.2"));
        assert!(!public("usr/lib/x86_64-linux-gnu/systemd/libsystemd-shared-252.so"));
        assert!(!public("usr/bin/x"));
        assert!(!public("x"));
    }
}
