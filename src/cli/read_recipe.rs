//! Reads the recipe that a user names, and tells of what is not packed with it. Reads its files.

use std::path::Path;

use kiln_records::Failure;

use super::printer::Printer;
use crate::orchestrate::recipe::RecipeArchive;

/// Files that a message names.
const MOST_NAMED: usize = 10;

/// As [`RecipeArchive::read`].
pub(super) fn read_recipe(path: &Path, printer: &Printer) -> Result<RecipeArchive, Failure> {
    read_recipe_as(path, None, printer)
}

/// As [`RecipeArchive::read_as`].
pub(super) fn read_recipe_as(
    path: &Path,
    containerfile: Option<&str>,
    printer: &Printer,
) -> Result<RecipeArchive, Failure> {
    let recipe = RecipeArchive::read_as(path, containerfile)?;
    tell_left_out(&recipe.left_out, printer);
    Ok(recipe)
}

/// Warns of files that are not in an archive.
pub(super) fn tell_left_out(left_out: &[String], printer: &Printer) {
    for what in left_out.iter().take(MOST_NAMED) {
        let hint = "remove it, or have config.sh make it in the image";
        printer.warning(format_args!("left out: {what}"), Some(hint));
    }
    if let Some(more @ 1..) = left_out.len().checked_sub(MOST_NAMED) {
        printer.warning(format_args!("left out: {more} more files of such kinds"), None);
    }
}
