//! Reads how many programs were started as twins and how many under the emulator. Reads one file.

use std::path::Path;

/// Reads the two counters that `kiln-exec` increments, see [`layout::COUNTS`](super::layout::COUNTS): execs of twins,
/// and execs under the emulator. Programs started during the call may be missing.
///
/// # Errors
///
/// The file cannot be read, or is not a file of counters.
pub fn read(file: &Path) -> std::io::Result<(u64, u64)> {
    let bytes = fs_err::read(file)?;
    let (counters, rest) = bytes.as_chunks::<8>();
    match (counters, rest) {
        ([twins, emulated], []) => Ok((u64::from_ne_bytes(*twins), u64::from_ne_bytes(*emulated))),
        _ => Err(std::io::Error::other(format!(
            "{} has {} bytes instead of 16",
            file.display(),
            bytes.len()
        ))),
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_file_is_two_counters_or_an_error() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("counts");
        fs_err::write(&file, [5_u64.to_ne_bytes(), u64::MAX.to_ne_bytes()].concat()).unwrap();
        assert_eq!(super::read(&file).unwrap(), (5, u64::MAX));
        for wrong in [0, 8, 15, 17, 24] {
            fs_err::write(&file, vec![0; wrong]).unwrap();
            assert!(super::read(&file).is_err(), "{wrong}");
        }
        fs_err::remove_file(&file).unwrap();
        assert!(super::read(&file).is_err());
    }
}
