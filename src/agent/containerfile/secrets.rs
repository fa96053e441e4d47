//! The secrets that commands of a Containerfile may have. Writes them to the sandbox's own memory, and looks for them in what
//! was made.

use std::{
    fs::{DirBuilder, Permissions},
    io::{self, Read, Write},
    os::unix::fs::{DirBuilderExt, PermissionsExt},
    path::{Path, PathBuf},
};

use fs_err::os::unix::fs::OpenOptionsExt;
use kiln_records::{Code, Failure, protocol::BuildSecret};
use memchr::memmem::Finder;
use rustix::fs::{Mode, OFlags};

use crate::outputs::remove;

/// The directory of the secrets. It is in memory, and in no root.
const DIR: &str = "/run/kiln-secrets";

/// Shorter texts are in every image by chance.
const SHORTEST: usize = 8;

/// Read at once, in bytes.
const PIECE: usize = 1 << 20;

/// Writes the secrets. Returns buildah's options for them.
pub(super) fn write(secrets: &[BuildSecret]) -> io::Result<Vec<String>> {
    remove(Path::new(DIR))?;
    if secrets.is_empty() {
        return Ok(Vec::new());
    }
    DirBuilder::new().mode(0o700).create(DIR)?;
    let mut options = Vec::with_capacity(secrets.len());
    for secret in secrets {
        let path = Path::new(DIR).join(&secret.name);
        let mut file = fs_err::OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o400)
            .open(&path)?;
        file.write_all(&secret.content)?;
        file.set_permissions(Permissions::from_mode(0o400))?;
        options.push(format!("--secret=id={},src={}", secret.name, path.display()));
    }
    Ok(options)
}

/// What logs must not show of the secrets: each line of each.
pub(super) fn to_conceal(secrets: &[BuildSecret]) -> Vec<String> {
    let text = |secret: &BuildSecret| String::from_utf8_lossy(&secret.content).into_owned();
    let lines = |text: String| text.lines().map(|line| line.trim().to_owned()).collect::<Vec<_>>();
    secrets
        .iter()
        .map(text)
        .flat_map(lines)
        .filter(|line| !line.is_empty())
        .collect()
}

/// Looks for the secrets in a root, and in the configuration of the image.
///
/// # Errors
///
/// `secret_in_image` with the first place that has one.
pub(super) fn check(secrets: &[BuildSecret], root: &Path, configuration: &[u8]) -> Result<(), Failure> {
    let long = |secret: &&BuildSecret| secret.content.trim_ascii().len() >= SHORTEST;
    let finders: Vec<(&str, Finder<'_>)> = secrets
        .iter()
        .filter(long)
        .map(|secret| (secret.name.as_str(), Finder::new(secret.content.trim_ascii())))
        .collect();
    let longest = finders.iter().map(|(_, finder)| finder.needle().len()).max();
    let Some(longest) = longest else { return Ok(()) };
    let found = |name: &str, place: &dyn std::fmt::Display| {
        Failure::new(
            Code::SecretInImage,
            format!("the secret `{name}` is in {place} of the image"),
        )
        .hint("read it where it is mounted, /run/secrets/NAME unless the RUN says `target=`, and copy it nowhere")
    };
    let in_piece = |piece: &[u8]| {
        finders
            .iter()
            .find(|(_, finder)| finder.find(piece).is_some())
            .map(|(name, _)| *name)
    };
    if let Some(name) = in_piece(configuration) {
        return Err(found(name, &"the configuration"));
    }
    let unreadable = |error: io::Error| Failure::io("cannot look for secrets in the root", &error);
    let mut buffer = vec![0; longest + PIECE];
    let mut pending = vec![PathBuf::new()];
    while let Some(dir) = pending.pop() {
        for entry in fs_err::read_dir(root.join(&dir)).map_err(unreadable)? {
            let entry = entry.map_err(unreadable)?;
            let (path, kind) = (dir.join(entry.file_name()), entry.file_type().map_err(unreadable)?);
            if kind.is_dir() {
                pending.push(path);
            } else if kind.is_file()
                && let Some(name) = in_file(&entry.path(), longest, &mut buffer, &in_piece).map_err(unreadable)?
            {
                return Err(found(name, &format_args!("/{}", path.display())));
            }
        }
    }
    Ok(())
}

/// Looks into a file, piece by piece, with what may have been cut at the end of the piece before.
fn in_file<'n>(
    path: &Path,
    longest: usize,
    buffer: &mut [u8],
    in_piece: &impl Fn(&[u8]) -> Option<&'n str>,
) -> io::Result<Option<&'n str>> {
    let mut file = fs_err::File::from_parts(
        rustix::fs::open(path, OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())?.into(),
        path,
    );
    let mut kept = 0;
    loop {
        let read = file.read(&mut buffer[kept..])?;
        if read == 0 {
            return Ok(None);
        }
        let end = kept + read;
        if let Some(name) = in_piece(&buffer[..end]) {
            return Ok(Some(name));
        }
        kept = end.min(longest - 1);
        buffer.copy_within(end - kept..end, 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn secret(name: &str, content: &str) -> BuildSecret {
        BuildSecret {
            name: name.to_owned(),
            content: content.as_bytes().to_vec(),
        }
    }

    #[test]
    fn a_secret_is_found_in_every_place() {
        let root = tempfile::tempdir().unwrap();
        fs_err::create_dir_all(root.path().join("etc/a")).unwrap();
        let secrets = [secret("short", "abc"), secret("long", "0123456789abcdef\n")];
        fs_err::write(root.path().join("etc/plain"), "abc 0123456789abcde").unwrap();
        assert!(check(&secrets, root.path(), b"{}").is_ok());
        let code = |configuration: &[u8]| check(&secrets, root.path(), configuration).map_err(|failure| failure.code);
        assert_eq!(code(b"ENV=0123456789abcdef"), Err(Code::SecretInImage));
        // On the border of two pieces.
        let mut text = vec![b'x'; PIECE + 7];
        text.extend(b"0123456789abcdef");
        fs_err::write(root.path().join("etc/a/large"), text).unwrap();
        let failure = check(&secrets, root.path(), b"").unwrap_err();
        assert!(failure.detail.contains("`long` is in /etc/a/large"), "{failure}");
        assert!(!failure.detail.contains("0123456789"));
    }

    #[test]
    fn each_line_of_a_secret_is_concealed() {
        assert_eq!(
            to_conceal(&[secret("key", "BEGIN\nabcd \n\nEND\n")]),
            ["BEGIN", "abcd", "END"]
        );
    }
}
