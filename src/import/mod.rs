//! What an IMS installation has stored, in and out.
//!
//! IMS keeps each kind of record in one JSON file below `/var/ims/data`. [`read_ims`] reads such a directory, forgiving
//! what old releases wrote and what IMS itself would stumble over; [`import_into`] puts the records into the store with
//! their identities, moments and order; [`write_ims`] writes the files again, for IMS to read.
//!
//! Nothing is passed over in silence: every record that was not taken as it is has a [`Note`].

mod added;
mod fields;
mod files;
mod kinds;
mod objects;
mod stored;

use std::fmt;

pub use self::{
    added::{Imported, import_into},
    files::{read_ims, write_ims},
    objects::objects_of,
    stored::records_of,
};
use crate::records::{Image, Job, PublicKey, Recipe, RemoteBuildNode};

/// Everything that IMS stores, each kind in the order of its list.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Records {
    /// Public keys.
    pub public_keys: Vec<PublicKey>,
    /// Deleted public keys.
    pub deleted_public_keys: Vec<PublicKey>,
    /// Recipes.
    pub recipes: Vec<Recipe>,
    /// Deleted recipes.
    pub deleted_recipes: Vec<Recipe>,
    /// Images.
    pub images: Vec<Image>,
    /// Deleted images.
    pub deleted_images: Vec<Image>,
    /// Jobs.
    pub jobs: Vec<Job>,
    /// Remote build nodes.
    pub remote_build_nodes: Vec<RemoteBuildNode>,
}

impl Records {
    /// How many there are.
    pub fn len(&self) -> usize {
        self.public_keys.len()
            + self.deleted_public_keys.len()
            + self.recipes.len()
            + self.deleted_recipes.len()
            + self.images.len()
            + self.deleted_images.len()
            + self.jobs.len()
            + self.remote_build_nodes.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// A record that was not taken, or not as it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Note {
    /// The file, or what the records are called in the API.
    pub file: String,
    /// Which of the file's records, counted from 0.
    pub index: Option<usize>,
    /// Its identity, as far as it has one.
    pub id: Option<String>,
    /// Whether it was left out; else it was taken with a change.
    pub left_out: bool,
    /// Why, or what was changed.
    pub reason: String,
}

impl fmt::Display for Note {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.file)?;
        if let Some(index) = self.index {
            write!(f, "[{index}]")?;
        }
        if let Some(id) = &self.id {
            write!(f, " {id}")?;
        }
        let verdict = if self.left_out { "left out: " } else { "" };
        write!(f, ": {verdict}{}", self.reason)
    }
}
