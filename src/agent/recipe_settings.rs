//! Reads a recipe's own settings for Kiln. Reads one file of the recipe.

use std::{io, path::Path};

use kiln_records::{
    Code, Failure,
    recipe_settings::{LARGEST_SETTINGS, RECIPE_SETTINGS, RecipeSettings},
};

use crate::twins;

/// The settings of a recipe.
///
/// # Errors
///
/// `recipe_config_invalid`.
pub(crate) fn of_recipe(recipe: &Path) -> Result<RecipeSettings, Failure> {
    let opened = match twins::Root::open(recipe) {
        // Another attempt has made the root, and only that is left.
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(RecipeSettings::default()),
        opened => opened.map_err(|error| Failure::io("cannot read the recipe", &error))?,
    };
    let Some(text) = opened.text(Path::new(RECIPE_SETTINGS), LARGEST_SETTINGS) else {
        return Ok(RecipeSettings::default());
    };
    RecipeSettings::read(&text).map_err(|why| {
        Failure::new(Code::RecipeConfigInvalid, format!("{RECIPE_SETTINGS}: {why}")).hint(
            "[checks] has the name of a check and `fail`, `warn` or `off` in each line, docs/errors.md lists the checks; \
             [scripts] has `uname`, which is `image` or `builder`",
        )
    })
}
