//! Reads what CSM's `export_ims_data.py` writes: `export.json`, in a directory or in a tar archive. Touches only the
//! given path.
//!
//! The file has the records of the API's lists, by identity, among listings of S3. An archive has the artifacts, too,
//! before the file; they are not read.

use std::{
    collections::BTreeMap,
    fmt,
    fs::File,
    io::{self, BufReader, Read},
    path::Path,
};

use serde::{
    Deserialize, Deserializer,
    de::{IgnoredAny, MapAccess, Visitor},
};
use serde_json::Value;

/// The file's name, in its directory and in an archive.
pub(super) const NAME: &str = "export.json";

/// The most bytes of a file that are read. The records of a large site have some megabytes.
pub(super) const LARGEST: u64 = 1 << 30;

/// The parts of the file that are read.
#[derive(Debug, Deserialize)]
pub(super) struct Exported {
    #[serde(rename = "ims_data")]
    pub(super) ims: Lists,
    #[serde(default)]
    s3_data: Option<Objects>,
}

/// The records of each kind; a kind that is not there has none.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Lists {
    pub(super) public_keys: InOrder,
    pub(super) recipes: InOrder,
    pub(super) images: InOrder,
    pub(super) jobs: InOrder,
    /// The deleted ones, if these were exported.
    pub(super) deleted: Option<Box<Lists>>,
}

/// The values of an object, in its order, which is that of the API's list.
#[derive(Debug, Default)]
pub(super) struct InOrder(pub(super) Vec<Value>);

#[derive(Debug, Deserialize)]
struct Objects {
    #[serde(default)]
    artifacts: BTreeMap<String, Artifact>,
}

/// An object in S3. One that was exported has a file.
#[derive(Debug, Deserialize)]
struct Artifact {
    relpath: Option<IgnoredAny>,
}

impl Exported {
    /// Reads the file in a directory or an archive. `None` if it is not there.
    ///
    /// # Errors
    ///
    /// The file or the archive cannot be read.
    pub(super) fn read(path: &Path) -> io::Result<Option<Self>> {
        if fs_err::metadata(path)?.is_dir() {
            return match kiln_files::open_beneath(path, Path::new(NAME)) {
                Ok(file) => parse(file.take(LARGEST)).map(Some),
                Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
                Err(error) => Err(error),
            };
        }
        let (file, _) = kiln_files::open(path)?.into_parts();
        let mut archive = tar::Archive::<File>::new(file);
        // Artifacts are skipped, not read.
        for entry in archive.entries_with_seek()? {
            let entry = entry?;
            let is_it = entry.path()?.strip_prefix(".").unwrap_or(&entry.path()?) == Path::new(NAME);
            if is_it && entry.header().entry_type().is_file() {
                return parse(entry.take(LARGEST)).map(Some);
            }
        }
        Ok(None)
    }

    /// How many artifacts were exported with the records.
    pub(super) fn artifacts(&self) -> usize {
        let artifacts = self.s3_data.iter().flat_map(|data| data.artifacts.values());
        artifacts.filter(|artifact| artifact.relpath.is_some()).count()
    }
}

fn parse(text: impl Read) -> io::Result<Exported> {
    serde_json::from_reader(BufReader::new(text))
        .map_err(|error| io::Error::other(format!("{NAME} is not what CSM exports: {error}")))
}

impl<'de> Deserialize<'de> for InOrder {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct Values;
        impl<'de> Visitor<'de> for Values {
            type Value = InOrder;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object of records")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<InOrder, A::Error> {
                let mut values = Vec::new();
                while let Some((IgnoredAny, value)) = map.next_entry()? {
                    values.push(value);
                }
                Ok(InOrder(values))
            }
        }
        from.deserialize_map(Values)
    }
}
