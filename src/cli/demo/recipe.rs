//! The recipe of a demonstration: that of `recipes/debian-minimal`, so that a program without its files has it too. Writes to
//! a temporary directory.

use std::{fs::Permissions, io, os::unix::fs::PermissionsExt};

use kiln_records::Failure;

use crate::orchestrate::recipe::RecipeArchive;

const NAME: &str = "debian-minimal";

/// The files, with their modes.
const FILES: [(&str, u32, &str); 3] = [
    (
        ".ims_recipe_template.yaml",
        0o644,
        include_str!("../../../recipes/debian-minimal/.ims_recipe_template.yaml"),
    ),
    (
        "config.xml",
        0o644,
        include_str!("../../../recipes/debian-minimal/config.xml"),
    ),
    (
        "config.sh",
        0o755,
        include_str!("../../../recipes/debian-minimal/config.sh"),
    ),
];

/// The recipe, packed as if it were read from its directory.
pub(super) fn minimal() -> Result<RecipeArchive, Failure> {
    let unwritable = |error: io::Error| Failure::io("cannot write the recipe", &error);
    let parent = tempfile::tempdir().map_err(unwritable)?;
    let dir = parent.path().join(NAME);
    fs_err::create_dir(&dir).map_err(unwritable)?;
    for (name, mode, text) in FILES {
        let file = dir.join(name);
        fs_err::write(&file, text).map_err(unwritable)?;
        fs_err::set_permissions(&file, Permissions::from_mode(mode)).map_err(unwritable)?;
    }
    RecipeArchive::read(&dir)
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn it_is_the_recipe_that_lies_beside_the_sources() {
        let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("recipes").join(NAME);
        let (own, theirs) = (minimal().unwrap(), RecipeArchive::read(&dir).unwrap());
        assert_eq!((own.name, own.sha256), (theirs.name, theirs.sha256));
    }
}
