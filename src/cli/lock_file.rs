//! The lock file of a recipe on this machine. Reads and writes that file only.

use std::{
    io::{self, Write},
    path::Path,
};

use kiln_records::{
    Failure,
    arch::Arch,
    lock::{self, BadLock, FILE, Lock},
};

/// Checks that a recipe on this machine has a lock for these architectures. Only the sandbox looks into an archive.
///
/// # Errors
///
/// `lock_missing`, `lock_invalid`.
pub(super) fn check(recipe: &Path, archs: &[Arch]) -> Result<(), Failure> {
    if !recipe.is_dir() {
        return Ok(());
    }
    let missing = || lock::missing(format!("{} has no {FILE}", recipe.display()));
    let lock = read(recipe)?.ok_or_else(missing)?;
    archs.iter().try_for_each(|arch| lock.demand(*arch).map(drop))
}

/// The lock file of a recipe, if it has one.
pub(super) fn read(recipe: &Path) -> Result<Option<Lock>, Failure> {
    match kiln_files::read_beneath(recipe, Path::new(FILE), lock::LARGEST) {
        Ok(text) => Ok(Some(Lock::parse(&text)?)),
        Err(error) => match error.kind() {
            io::ErrorKind::NotFound => Ok(None),
            io::ErrorKind::FileTooLarge => Err(BadLock::TooLarge.into()),
            _ => Err(Failure::io("cannot read the lock file", &error)),
        },
    }
}

/// Puts a lock file in the place of the old one, in one step.
pub(super) fn replace(recipe: &Path, text: &str) -> io::Result<()> {
    let mut file = tempfile::Builder::new()
        .permissions(permissions())
        .tempfile_in(recipe)?;
    file.write_all(text.as_bytes())?;
    file.persist(recipe.join(FILE))?;
    Ok(())
}

/// Those of a new file before the user's mask.
fn permissions() -> std::fs::Permissions {
    std::os::unix::fs::PermissionsExt::from_mode(0o666)
}

#[cfg(test)]
mod tests {
    use kiln_records::Code;

    use super::*;

    #[test]
    fn a_lock_file_is_replaced_in_one_step() {
        let recipe = tempfile::tempdir().unwrap();
        assert_eq!(read(recipe.path()).unwrap(), None);
        for text in ["version = 1\n", "version = 1\n# again\n"] {
            replace(recipe.path(), text).unwrap();
            assert_eq!(fs_err::read_to_string(recipe.path().join(FILE)).unwrap(), text);
            assert_eq!(read(recipe.path()).unwrap(), Some(Lock::default()));
        }
        assert_eq!(fs_err::read_dir(recipe.path()).unwrap().count(), 1);
        assert_eq!(
            check(recipe.path(), &[Arch::X86_64]).unwrap_err().code,
            Code::LockMissing
        );
    }
}
