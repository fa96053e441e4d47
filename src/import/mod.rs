//! Imports and exports the data of an IMS installation. Touches the given path, the store, and S3 for manifests.
//!
//! IMS keeps each kind of record in one JSON file below `/var/ims/data`. [`read_ims`] reads such a directory, or an
//! export that CSM made, and tolerates the output of old releases and records that IMS itself rejects; [`import_into`] adds the records to the
//! store with their identities, times and order; [`write_ims`] writes the files for IMS again.
//!
//! Nothing is skipped silently: every record that was changed or left out has a [`Note`].

mod added;
mod exported;
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
use kiln_records::{Image, Job, PublicKey, Recipe, RemoteBuildNode};

/// All the data of IMS, each kind in the order of its list.
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
    /// The number of records.
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

    /// Whether there are no records.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// A record that was left out or changed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Note {
    /// The file, or the API's name of the records.
    pub file: String,
    /// The index of the record in the file, counted from 0.
    pub index: Option<usize>,
    /// The record's identity, if it has one.
    pub id: Option<String>,
    /// Whether it was left out; otherwise it was changed.
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
