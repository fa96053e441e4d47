//! What builds of this site trust: certificate authorities, and keys that sign packages. Reads files, which may be replaced while
//! Kiln runs.

use std::{
    io,
    path::{Path, PathBuf},
    sync::OnceLock,
};

use kiln_records::{Code, Failure, protocol::SigningKey};

/// Where distributions keep the authorities that a host trusts, PEM.
const BUNDLES: [&str; 3] = [
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
];

/// The variable by which programs are told of another file, as OpenSSL has it.
const VARIABLE: &str = "SSL_CERT_FILE";

/// The first line of a key in the form that every package manager reads.
const ARMOUR: &str = "-----BEGIN PGP PUBLIC KEY BLOCK-----";

/// What the configuration names: a file or directory of authorities, and a directory of keys.
#[derive(Debug)]
struct Named {
    ca: Option<PathBuf>,
    keep_ca: bool,
    signing_keys: Option<PathBuf>,
}

/// There is one in a process.
static NAMED: OnceLock<Named> = OnceLock::new();

/// Trusts, from now on, what the configuration names: authorities, and whether images keep them, and keys that sign packages.
pub fn use_files(ca: Option<PathBuf>, keep_ca: bool, signing_keys: Option<PathBuf>) {
    // The first ones hold: a process reads one configuration, if it reads it more than once.
    let _ = NAMED.set(Named {
        ca,
        keep_ca,
        signing_keys,
    });
}

/// The certificate authorities that builds trust, PEM: those of this host, or those that `SSL_CERT_FILE` names, and those of the
/// configuration.
pub fn ca_bundle() -> Option<String> {
    let own = std::env::var_os(VARIABLE).filter(|file| !file.is_empty());
    let mut bundle = match own {
        Some(file) => said(read(Path::new(&file)), Path::new(&file)),
        None => BUNDLES.iter().find_map(|path| fs_err::read_to_string(path).ok()),
    }
    .unwrap_or_default();
    if let Some(path) = NAMED.get().and_then(|named| named.ca.as_ref()) {
        for text in said(texts(path), path).unwrap_or_default() {
            if !bundle.is_empty() && !bundle.ends_with('\n') {
                bundle.push('\n');
            }
            bundle.push_str(&text);
        }
    }
    (!bundle.is_empty()).then_some(bundle)
}

/// The certificate authorities that every image keeps, PEM.
///
/// # Errors
///
/// `keep_ca` in `[trust]` is set, and those of `ca` cannot be read: an image would lack them.
pub fn kept_authorities() -> Result<Option<String>, Failure> {
    let kept = NAMED.get().filter(|named| named.keep_ca);
    let Some(path) = kept.and_then(|named| named.ca.as_ref()) else {
        return Ok(None);
    };
    let texts = texts(path).map_err(|error| {
        Failure::new(Code::ConfigInvalid, format_args!("[trust] ca: {error}"))
            .hint("images are to keep these authorities, as `keep_ca` says")
    })?;
    Ok(Some(texts.join("\n")))
}

/// The keys that sign this site's packages.
///
/// # Errors
///
/// `signing_keys` in `[trust]` is set, and a key there cannot be used.
pub fn signing_keys() -> Result<Vec<SigningKey>, Failure> {
    let Some(dir) = NAMED.get().and_then(|named| named.signing_keys.as_ref()) else {
        return Ok(Vec::new());
    };
    keys_in(dir).map_err(|error| {
        Failure::new(Code::ConfigInvalid, format_args!("[trust] signing_keys: {error}"))
            .hint("each file of that directory is a key: `gpg --armor --export KEY > FILE.asc`")
    })
}

/// The keys in a directory.
pub(crate) fn keys_in(dir: &Path) -> io::Result<Vec<SigningKey>> {
    let mut keys = Vec::new();
    for path in files(dir)? {
        let text = fs_err::read_to_string(&path)?;
        if !text.contains(ARMOUR) {
            let what = format!("{} is no public key in ASCII armour", path.display());
            return Err(io::Error::new(io::ErrorKind::InvalidData, what));
        }
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        keys.push(SigningKey { name, text });
    }
    Ok(keys)
}

/// The files of a directory in their order, without hidden ones; or the file itself.
pub(crate) fn files(path: &Path) -> io::Result<Vec<PathBuf>> {
    if !fs_err::metadata(path)?.is_dir() {
        return Ok(vec![path.to_owned()]);
    }
    let mut files = Vec::new();
    for entry in fs_err::read_dir(path)? {
        let path = entry?.path();
        let is_hidden = path
            .file_name()
            .is_none_or(|name| name.as_encoded_bytes().starts_with(b"."));
        if !is_hidden && fs_err::metadata(&path)?.is_file() {
            files.push(path);
        }
    }
    files.sort();
    Ok(files)
}

fn texts(path: &Path) -> io::Result<Vec<String>> {
    files(path)?.iter().map(fs_err::read_to_string).collect()
}

fn read(path: &Path) -> io::Result<String> {
    fs_err::read_to_string(path)
}

/// What was read, or a warning in Kiln's log.
fn said<T>(result: io::Result<T>, path: &Path) -> Option<T> {
    result
        .inspect_err(|error| tracing::warn!("builds do not trust the authorities in {}: {error}", path.display()))
        .ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_of_keys_has_nothing_else() {
        let dir = tempfile::tempdir().unwrap();
        let key = format!("{ARMOUR}\n\nmQ==\n-----END PGP PUBLIC KEY BLOCK-----\n");
        for name in ["b.asc", "a.asc", ".hidden"] {
            fs_err::write(
                dir.path().join(name),
                if name == ".hidden" { "no key" } else { key.as_str() },
            )
            .unwrap();
        }
        fs_err::create_dir(dir.path().join("older")).unwrap();
        let names: Vec<_> = keys_in(dir.path()).unwrap().into_iter().map(|key| key.name).collect();
        assert_eq!(names, ["a.asc", "b.asc"]);
        fs_err::write(dir.path().join("c.gpg"), [0x99, 1, 2]).unwrap();
        keys_in(dir.path()).unwrap_err();
        fs_err::write(dir.path().join("c.gpg"), "a note").unwrap();
        let why = keys_in(dir.path()).unwrap_err().to_string();
        assert!(why.contains("c.gpg is no public key"), "{why}");
        keys_in(&dir.path().join("nowhere")).unwrap_err();
    }

    #[test]
    fn a_file_or_a_directory_of_authorities_is_read() {
        let dir = tempfile::tempdir().unwrap();
        for name in ["2.crt", "1.pem"] {
            fs_err::write(dir.path().join(name), name).unwrap();
        }
        assert_eq!(texts(dir.path()).unwrap(), ["1.pem", "2.crt"]);
        assert_eq!(texts(&dir.path().join("2.crt")).unwrap(), ["2.crt"]);
        assert!(said(texts(&dir.path().join("3")), dir.path()).is_none());
    }
}
