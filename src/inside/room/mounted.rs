//! The mounts that this process sees. Reads the kernel's list of them.

use std::{
    ffi::OsString,
    io,
    os::unix::ffi::OsStringExt,
    path::{Path, PathBuf},
};

/// The places of all mounts at a directory and below it, each after those that it lies in.
///
/// # Errors
///
/// The list cannot be read.
pub fn mounted_below(dir: &Path) -> io::Result<Vec<PathBuf>> {
    let list = fs_err::read("/proc/self/mountinfo")?;
    let lines = list.split(|byte| *byte == b'\n');
    let places = lines.filter_map(|line| line.split(|byte| *byte == b' ').nth(4).map(unescaped));
    Ok(places.filter(|place| place.starts_with(dir)).collect())
}

/// A path of mountinfo, where spaces and the like are octal numbers (proc_pid_mountinfo(5)).
fn unescaped(text: &[u8]) -> PathBuf {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some((first, more)) = rest.split_first() {
        let number = more.get(..3).filter(|_| *first == b'\\');
        let number = number.and_then(|digits| std::str::from_utf8(digits).ok());
        if let Some(byte) = number.and_then(|digits| u8::from_str_radix(digits, 8).ok()) {
            bytes.push(byte);
            rest = &more[3..];
        } else {
            bytes.push(*first);
            rest = more;
        }
    }
    OsString::from_vec(bytes).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_of_mounts_are_read() {
        for (text, path) in [
            ("/scratch/root/proc", "/scratch/root/proc"),
            (r"/a\040b\134c", r"/a b\c"),
            (r"/end\04", r"/end\04"),
        ] {
            assert_eq!(unescaped(text.as_bytes()), Path::new(path));
        }
    }
}
