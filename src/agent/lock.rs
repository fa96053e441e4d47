//! Reads the lock file of a recipe. Reads files of the recipe only.

use std::{io, path::Path};

use kiln_records::{
    Failure,
    arch::Arch,
    lock::{self, BadLock, FILE, LARGEST, Lock, Locked},
    protocol::JobDescription,
};

use crate::twins::Root;

/// What is locked for the image of a job, if it may have that only.
///
/// # Errors
///
/// `lock_missing`, `lock_invalid`.
pub(crate) fn of_job(job: &JobDescription, recipe: &Path) -> Result<Option<Locked>, Failure> {
    if job.locked {
        of_recipe(recipe, job.arch).map(Some)
    } else {
        Ok(None)
    }
}

fn of_recipe(recipe: &Path, arch: Arch) -> Result<Locked, Failure> {
    let unreadable = |error: io::Error| Failure::io("cannot read the recipe", &error);
    let root = Root::open(recipe).map_err(unreadable)?;
    if fs_err::symlink_metadata(recipe.join(FILE)).is_err() {
        return Err(lock::missing(format!(
            "the recipe has no {FILE} beside its description"
        )));
    }
    let text = root.content(Path::new(FILE), LARGEST).ok_or(BadLock::TooLarge)?;
    Lock::parse(&text)?.demand(arch).cloned()
}

#[cfg(test)]
mod tests {
    use kiln_records::Code;

    use super::*;

    #[test]
    fn a_recipe_without_what_is_demanded_is_refused() {
        let recipe = tempfile::tempdir().unwrap();
        let code = || {
            of_recipe(recipe.path(), Arch::X86_64)
                .map_err(|failure| failure.code)
                .err()
        };
        assert_eq!(code(), Some(Code::LockMissing));
        let file = recipe.path().join(FILE);
        for (text, expected) in [
            ("version = 1", Some(Code::LockMissing)),
            ("version = 1\n[arch.aarch64]\npackage = []", Some(Code::LockMissing)),
            ("version = 7", Some(Code::LockInvalid)),
            ("version = 1\n[arch.x86_64]\npackage = []", None),
        ] {
            fs_err::write(&file, text).unwrap();
            assert_eq!(code(), expected, "{text}");
        }
        fs_err::File::create(&file).unwrap().set_len(LARGEST + 1).unwrap();
        assert_eq!(code(), Some(Code::LockInvalid));
    }
}
