//! Computes the digests by which repositories list packages. Reads files only.

use std::{
    io::{self, Read},
    path::Path,
};

use fs_err::File;
use kiln_records::{DigestKind, PackageDigest};
use sha2::{Sha256, Sha384, Sha512, digest::DynDigest};

/// How much is read between two rounds of hashing.
const PIECE: usize = 128 * 1024;

/// Computes a digest of this kind.
pub fn hasher(kind: DigestKind) -> Box<dyn DynDigest + Send> {
    match kind {
        DigestKind::Sha256 => Box::new(Sha256::default()),
        DigestKind::Sha384 => Box::new(Sha384::default()),
        DigestKind::Sha512 => Box::new(Sha512::default()),
    }
}

/// The digests of a package's file, of these kinds.
pub fn of_package(path: &Path, kinds: impl IntoIterator<Item = DigestKind>) -> io::Result<Vec<PackageDigest>> {
    let (mut file, mut piece) = (File::open(path)?, vec![0; PIECE]);
    let mut hashers: Vec<_> = kinds.into_iter().map(hasher).collect();
    loop {
        match file.read(&mut piece)? {
            0 => break,
            read => hashers.iter_mut().for_each(|hasher| hasher.update(&piece[..read])),
        }
    }
    let digests = hashers.into_iter().map(|hasher| hex::encode(hasher.finalize()));
    Ok(digests.filter_map(|text| PackageDigest::parse(&text)).collect())
}

/// Whether a file has this digest.
pub fn is(path: &Path, digest: &PackageDigest) -> io::Result<bool> {
    Ok(of_package(path, [digest.kind()])?.contains(digest))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_kinds_are_computed_at_once() {
        let file = tempfile::NamedTempFile::new().unwrap();
        fs_err::write(file.path(), "abc").unwrap();
        let kinds = [DigestKind::Sha256, DigestKind::Sha384, DigestKind::Sha512];
        let digests = of_package(file.path(), kinds).unwrap();
        let begin: Vec<_> = digests.iter().map(|digest| &digest.as_str()[..8]).collect();
        // FIPS 180-2 has these as its examples.
        assert_eq!(begin, ["ba7816bf", "cb00753f", "ddaf35a1"]);
        for digest in &digests {
            assert!(is(file.path(), digest).unwrap());
        }
        fs_err::write(file.path(), "abd").unwrap();
        assert!(!is(file.path(), &digests[2]).unwrap());
    }
}
