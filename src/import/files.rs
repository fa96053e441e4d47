//! Reads and writes the data files of an IMS installation. Touches only the given path.

use std::{io, io::Write, path::Path};

use kiln_records::{Code, Failure, LinuxDistribution, Recipe, arch::Arch};
use serde::Serialize;
use serde_json::Value;

use super::{
    Note, Records,
    exported::{self, Exported, LARGEST},
    fields::Fields,
    kinds::{Deleted, Stored},
};

// The file names of the newest release.
const PUBLIC_KEYS: &str = "v2_public_keys.json";
const DELETED_PUBLIC_KEYS: &str = "v3_deleted_public_keys.json";
const RECIPES: &str = "v2.2_recipes.json";
const DELETED_RECIPES: &str = "v3.2_deleted_recipes.json";
const IMAGES: &str = "v2.1_images.json";
const DELETED_IMAGES: &str = "v3.1_deleted_images.json";
const JOBS: &str = "v2.4_jobs.json";
const REMOTE_BUILD_NODES: &str = "v2.0_remote_build_nodes.json";

/// Reads the data of an IMS installation: a directory of its files, or what CSM's `export_ims_data.py` made of it, a
/// directory or a tar archive. If there are files of one kind from several releases, the newest counts.
///
/// # Errors
///
/// `io` when the path cannot be read, `not_ims_data` when it contains no such file. An unreadable file or record of a
/// directory is not an error but a note.
pub fn read_ims(path: &Path) -> Result<(Records, Vec<Note>), Failure> {
    match Exported::read(path) {
        Ok(Some(exported)) => return Ok(take_exported(exported)),
        Ok(None) if path.is_dir() => {}
        Ok(None) => return Err(not_ims_data(path)),
        Err(error) => return Err(cannot_read(path, &error)),
    }
    let dir = path;
    let mut names = Vec::new();
    for entry in fs_err::read_dir(dir).map_err(|error| cannot_read(dir, &error))? {
        let entry = entry.map_err(|error| cannot_read(dir, &error))?;
        names.extend(entry.file_name().into_string());
    }
    let mut from = Reader {
        dir,
        names: &names,
        found: false,
        notes: Vec::new(),
    };
    let records = Records {
        public_keys: from.read(PUBLIC_KEYS),
        deleted_public_keys: from.read_deleted(DELETED_PUBLIC_KEYS),
        recipes: from.read(RECIPES),
        deleted_recipes: from.read_deleted(DELETED_RECIPES),
        images: from.read(IMAGES),
        deleted_images: from.read_deleted(DELETED_IMAGES),
        jobs: from.read(JOBS),
        remote_build_nodes: from.read(REMOTE_BUILD_NODES),
    };
    if !from.found {
        return Err(not_ims_data(dir));
    }
    Ok((records, from.notes))
}

fn take_exported(exported: Exported) -> (Records, Vec<Note>) {
    let artifacts = exported.artifacts();
    let lists = exported.ims;
    let deleted = lists.deleted.map(|lists| *lists).unwrap_or_default();
    let notes = &mut Vec::new();
    let records = Records {
        public_keys: take_all("public_keys", lists.public_keys.0, notes),
        deleted_public_keys: take_all_deleted("deleted.public_keys", deleted.public_keys.0, notes),
        recipes: take_all("recipes", lists.recipes.0, notes),
        deleted_recipes: take_all_deleted("deleted.recipes", deleted.recipes.0, notes),
        images: take_all("images", lists.images.0, notes),
        deleted_images: take_all_deleted("deleted.images", deleted.images.0, notes),
        jobs: take_all("jobs", lists.jobs.0, notes),
        remote_build_nodes: Vec::new(),
    };
    if artifacts > 0 {
        notes.push(Note {
            file: exported::NAME.to_owned(),
            index: None,
            id: None,
            left_out: false,
            reason: format!("the artifacts beside it ({artifacts}) are not copied: they have to be in S3 already"),
        });
    }
    (records, std::mem::take(notes))
}

fn not_ims_data(path: &Path) -> Failure {
    let failure = Failure::new(
        Code::NotImsData,
        format_args!("{} holds no file of IMS", path.display()),
    );
    failure.hint(
        "IMS keeps its files, such as v2.1_images.json, in /var/ims/data; what CSM's export_ims_data.py writes can be \
         read as it is",
    )
}

/// Writes the files for IMS, each atomically. Records that would keep IMS from starting are left out.
///
/// # Errors
///
/// `io` and `disk_full`.
pub fn write_ims(dir: &Path, records: &Records) -> Result<Vec<Note>, Failure> {
    let mut to = Writer {
        dir,
        files: Vec::new(),
        notes: Vec::new(),
    };
    to.add(PUBLIC_KEYS, &records.public_keys, |_| Ok(()))?;
    to.add(DELETED_PUBLIC_KEYS, &records.deleted_public_keys, |_| Ok(()))?;
    to.add(RECIPES, &records.recipes, fits_recipe)?;
    to.add(DELETED_RECIPES, &records.deleted_recipes, fits_recipe)?;
    to.add(IMAGES, &records.images, |image| fits_arch(image.arch))?;
    to.add(DELETED_IMAGES, &records.deleted_images, |image| fits_arch(image.arch))?;
    to.add(JOBS, &records.jobs, |job| fits_arch(job.arch))?;
    to.add(REMOTE_BUILD_NODES, &records.remote_build_nodes, |_| Ok(()))?;
    to.finish()
}

struct Reader<'d> {
    dir: &'d Path,
    names: &'d [String],
    found: bool,
    notes: Vec<Note>,
}

impl Reader<'_> {
    fn read_deleted<R>(&mut self, newest: &str) -> Vec<R>
    where
        Deleted<R>: Stored,
    {
        without_mark(self.read::<Deleted<R>>(newest))
    }

    fn read<R: Stored>(&mut self, newest: &str) -> Vec<R> {
        let (_, kind) = version_and_kind(newest).unwrap_or_default();
        let candidates = self.names.iter().filter_map(|name| {
            let (version, of) = version_and_kind(name)?;
            (of == kind).then_some((version, name))
        });
        let Some((_, name)) = candidates.max() else {
            return Vec::new();
        };
        self.found = true;
        match read_list(self.dir, name) {
            Ok(list) => take_all(name, list, &mut self.notes),
            Err(reason) => {
                self.notes.push(Note {
                    file: name.clone(),
                    index: None,
                    id: None,
                    left_out: true,
                    reason,
                });
                Vec::new()
            }
        }
    }
}

fn take_all_deleted<R>(file: &str, list: Vec<Value>, notes: &mut Vec<Note>) -> Vec<R>
where
    Deleted<R>: Stored,
{
    without_mark(take_all::<Deleted<R>>(file, list, notes))
}

fn without_mark<R>(records: Vec<Deleted<R>>) -> Vec<R> {
    records.into_iter().map(|deleted| deleted.0).collect()
}

/// The records of a list in `file`.
fn take_all<R: Stored>(file: &str, list: Vec<Value>, notes: &mut Vec<Note>) -> Vec<R> {
    let records = list.into_iter().enumerate();
    records
        .filter_map(|(index, record)| take(file, index, record, notes))
        .collect()
}

fn take<R: Stored>(file: &str, index: usize, record: Value, notes: &mut Vec<Note>) -> Option<R> {
    let id = ["id", "xname"].iter().find_map(|name| record.get(name)?.as_str());
    let id = id.map(str::to_owned);
    let mut note = |left_out, reason| {
        notes.push(Note {
            file: file.to_owned(),
            index: Some(index),
            id: id.clone(),
            left_out,
            reason,
        });
    };
    let taken = Fields::of(record).and_then(|mut members| Ok((R::take(&mut members)?, members)));
    match taken {
        Ok((record, members)) => {
            for change in members.finish("") {
                note(false, change);
            }
            Some(record)
        }
        Err(reason) => {
            note(true, reason);
            None
        }
    }
}

fn read_list(dir: &Path, name: &str) -> Result<Vec<Value>, String> {
    let text = kiln_files::read_beneath(dir, Path::new(name), LARGEST).map_err(|error| error.to_string())?;
    match serde_json::from_slice(&text).map_err(|error| format!("not JSON: {error}"))? {
        Value::Array(list) => Ok(list),
        other => Err(format!("not a list but {}", super::fields::kind(&other))),
    }
}

/// `v2.1_images.json` is version 2.1 of `images`.
fn version_and_kind(name: &str) -> Option<((u32, u32), &str)> {
    let (version, kind) = name.strip_prefix('v')?.strip_suffix(".json")?.split_once('_')?;
    let (major, minor) = version.split_once('.').unwrap_or((version, "0"));
    Some(((major.parse().ok()?, minor.parse().ok()?), kind))
}

struct Writer<'d> {
    dir: &'d Path,
    files: Vec<(tempfile::NamedTempFile, &'static str)>,
    notes: Vec<Note>,
}

impl Writer<'_> {
    fn add<R: Serialize>(
        &mut self,
        name: &'static str,
        records: &[R],
        fits: impl Fn(&R) -> Result<(), String>,
    ) -> Result<(), Failure> {
        let mut list = Vec::new();
        for (index, record) in records.iter().enumerate() {
            match fits(record) {
                Ok(()) => list.push(record),
                Err(reason) => {
                    let value = serde_json::to_value(record).unwrap_or_default();
                    self.notes.push(Note {
                        file: name.to_owned(),
                        index: Some(index),
                        id: value.get("id").and_then(Value::as_str).map(str::to_owned),
                        left_out: true,
                        reason,
                    });
                }
            }
        }
        let write = || {
            let mut file = tempfile::NamedTempFile::new_in(self.dir)?;
            serde_json::to_writer_pretty(&mut file, &list)?;
            file.write_all(b"\n")?;
            file.as_file().sync_all()?;
            io::Result::Ok(file)
        };
        let file = write().map_err(|error| Failure::io(self.dir.join(name).display(), &error))?;
        self.files.push((file, name));
        Ok(())
    }

    /// Gives the files their names, now that all of them are on disk.
    fn finish(self) -> Result<Vec<Note>, Failure> {
        for (file, name) in self.files {
            let path = self.dir.join(name);
            file.persist(&path)
                .map_err(|error| Failure::io(path.display(), &error.error))?;
        }
        let synced = fs_err::File::open(self.dir).and_then(|dir| dir.sync_all());
        synced.map_err(|error| Failure::io("cannot write the directory", &error))?;
        Ok(self.notes)
    }
}

fn fits_recipe(recipe: &Recipe) -> Result<(), String> {
    use LinuxDistribution::{Centos7, Sles12, Sles15};
    let distribution = recipe.linux_distribution;
    if !matches!(distribution, Sles12 | Sles15 | Centos7) {
        return Err(format!("IMS does not know the distribution {}", distribution.name()));
    }
    fits_arch(recipe.arch)
}

fn fits_arch(arch: Arch) -> Result<(), String> {
    match arch {
        Arch::X86_64 | Arch::Aarch64 => Ok(()),
        other => Err(format!("IMS does not know the architecture {other}")),
    }
}

fn cannot_read(path: &Path, error: &io::Error) -> Failure {
    Failure::io(format_args!("cannot read {}", path.display()), error)
}
