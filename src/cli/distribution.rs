//! Which distribution an image is of, by the `os-release` in its root. Runs unsquashfs, which reads the image.

use std::{
    io::Read,
    path::Path,
    process::{Command, Stdio},
};

/// The most that is read of the file, in bytes.
const LONGEST: u64 = 64 << 10;

/// The places of the file (os-release(5)). The first is usually a link to the second.
const PLACES: [&str; 2] = ["usr/lib/os-release", "etc/os-release"];

/// The `ID` and `VERSION_ID` of the distribution in a squashfs; each is `None` if the root does not say it.
pub(super) fn of(rootfs: &Path) -> (Option<String>, Option<String>) {
    let text = PLACES.iter().find_map(|place| read(rootfs, place)).unwrap_or_default();
    (value(&text, "ID"), value(&text, "VERSION_ID"))
}

/// The beginning of a file in a squashfs; none if it is not there, or is empty.
fn read(rootfs: &Path, place: &str) -> Option<String> {
    let mut child = Command::new("unsquashfs")
        .arg("-cat")
        .arg(rootfs)
        .arg(place)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .ok()?;
    let mut bytes = Vec::new();
    let read = child
        .stdout
        .take()
        .map(|output| output.take(LONGEST).read_to_end(&mut bytes));
    // It may have more to say than anyone wants to read.
    let _ = child.kill();
    let _ = child.wait();
    read?.ok()?;
    let text = String::from_utf8_lossy(&bytes).into_owned();
    (!text.trim().is_empty()).then_some(text)
}

/// The value of a variable, if it is a plain word, as the specification wants both of these.
fn value(text: &str, name: &str) -> Option<String> {
    let value = text
        .lines()
        .find_map(|line| line.strip_prefix(name)?.strip_prefix('='))?;
    let value = value.trim().trim_matches(['"', '\'']);
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    (!value.is_empty() && value.len() <= 64 && value.bytes().all(is_plain)).then(|| value.to_ascii_lowercase())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_plain_words_are_believed() {
        let text = "NAME=\"Debian GNU/Linux\"\nVERSION_ID=\"12\"\nID=debian\nBUILD_ID='a b'\nVARIANT_ID=$(x)\n";
        assert_eq!(value(text, "ID").as_deref(), Some("debian"));
        assert_eq!(value(text, "VERSION_ID").as_deref(), Some("12"));
        assert_eq!(
            (value(text, "BUILD_ID"), value(text, "VARIANT_ID"), value(text, "X")),
            (None, None, None)
        );
    }
}
