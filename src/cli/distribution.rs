//! Which distribution an image is of, by the `os-release` in its root. Runs unsquashfs, which reads the image.

use std::{
    io::Read,
    path::Path,
    process::{Command, Stdio},
};

use kiln_records::os_release;

/// The `ID` and `VERSION_ID` of the distribution in a squashfs; each is `None` if the root does not say it.
pub(super) fn of(rootfs: &Path) -> (Option<String>, Option<String>) {
    // The other way round than in a root: what unsquashfs prints of a link is nothing.
    let mut places = os_release::PLACES.iter().rev();
    let text = places.find_map(|place| read(rootfs, place)).unwrap_or_default();
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
        .map(|output| output.take(os_release::LONGEST).read_to_end(&mut bytes));
    // It may have more to say than anyone wants to read.
    let _ = child.kill();
    let _ = child.wait();
    read?.ok()?;
    let text = String::from_utf8_lossy(&bytes).into_owned();
    (!text.trim().is_empty()).then_some(text)
}

/// The value of a variable, if it is a plain word, as the specification wants both of these.
fn value(text: &str, name: &str) -> Option<String> {
    let value = os_release::value(text, name)?;
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    (value.len() <= 64 && value.bytes().all(is_plain)).then(|| value.to_ascii_lowercase())
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
