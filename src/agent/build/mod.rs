//! Building a root file system from a recipe: one file per kind of recipe.

pub mod kiwi;
