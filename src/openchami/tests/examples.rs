//! Real files, which are not of this repository: what is understood of them.

use std::{
    collections::BTreeMap,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
};

use super::*;
use crate::{Base, Entry, EntryKind, Inputs, form_of, read_manifest};

struct Disk {
    manifest: PathBuf,
    work: PathBuf,
}

impl Disk {
    fn place(&self, base: Base, path: &str) -> PathBuf {
        match base {
            Base::Manifest => self.manifest.join(path),
            Base::Work => self.work.join(path),
        }
    }
}

fn walk(top: &Path, dir: &Path, entries: &mut Vec<Entry>) {
    for entry in fs_err::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        let meta = fs_err::symlink_metadata(&path).unwrap();
        let kind = if meta.is_dir() {
            EntryKind::Directory
        } else if meta.is_symlink() {
            EntryKind::Link(fs_err::read_link(&path).unwrap().to_string_lossy().into_owned())
        } else {
            EntryKind::File(fs_err::read(&path).unwrap())
        };
        let name = path.strip_prefix(top).unwrap().to_string_lossy().into_owned();
        let (mode, uid, gid) = (meta.mode(), meta.uid(), meta.gid());
        entries.push(Entry {
            path: name,
            kind,
            mode,
            uid,
            gid,
        });
        if meta.is_dir() {
            walk(top, &path, entries);
        }
    }
}

impl Inputs for Disk {
    fn file(&mut self, base: Base, path: &str) -> Result<Vec<u8>, String> {
        fs_err::read(self.place(base, path)).map_err(|error| error.kind().to_string())
    }

    fn tree(&mut self, base: Base, path: &str) -> Result<Option<Vec<Entry>>, String> {
        let (top, mut entries) = (self.place(base, path), Vec::new());
        if !top.is_dir() {
            return Ok(None);
        }
        walk(&top, &top, &mut entries);
        Ok(Some(entries))
    }
}

fn all(dir: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs_err::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            all(&path, found);
        } else if path.extension().is_some_and(|end| end == "yaml" || end == "yml") {
            found.push(path);
        }
    }
}

#[test]
#[ignore = "asks for OPENCHAMI_EXAMPLES, a directory with layer files"]
fn what_is_understood_of_examples() {
    let top = PathBuf::from(std::env::var("OPENCHAMI_EXAMPLES").expect("OPENCHAMI_EXAMPLES"));
    let out = std::env::var("OPENCHAMI_OUT").ok().map(PathBuf::from);
    let (mut paths, mut counts) = (Vec::new(), BTreeMap::<&str, usize>::new());
    all(&top, &mut paths);
    paths.sort();
    let mut say = |path: String, what: std::thread::Result<Result<Translated, Wrong>>| {
        let (kind, text) = match what {
            Ok(Ok(translated)) => {
                if let Some(out) = &out {
                    for written in &files(&translated).written {
                        let file = out.join(&path).join(&written.path);
                        fs_err::create_dir_all(file.parent().unwrap()).unwrap();
                        fs_err::write(file, &written.bytes).unwrap();
                    }
                }
                let copies = files(&translated).copies.len();
                (
                    "understood",
                    format!("{copies} copies, {:?} {:?}", translated.publish, translated.warnings),
                )
            }
            Ok(Err(wrong)) => ("refused", wrong.to_string()),
            Err(_) => ("crashed", String::new()),
        };
        *counts.entry(kind).or_default() += 1;
        println!("{kind:10} {path}: {text}");
    };
    for path in &paths {
        let name = path.strip_prefix(&top).unwrap().to_string_lossy().into_owned();
        let text = fs_err::read_to_string(path).unwrap();
        match form_of(&text) {
            Some(Form::Manifest) => {
                let manifest = read_manifest(&text).unwrap_or_else(|wrong| panic!("{name}: {wrong}"));
                let mut disk = Disk {
                    manifest: path.parent().unwrap().to_owned(),
                    work: top.clone(),
                };
                let resolved = manifest.tags(&BTreeMap::new(), &mut disk);
                let resolved = resolved.unwrap_or_else(|wrong| panic!("{name}: {wrong}"));
                for (layer, resolved) in manifest.layers.iter().zip(resolved) {
                    let text = String::from_utf8(disk.file(Base::Manifest, &layer.config).unwrap()).unwrap();
                    let arch = layer.arch.clone().unwrap_or_else(|| "x86_64".to_owned());
                    let given = Given {
                        variables: resolved.variables,
                        arch,
                        ..Given::default()
                    };
                    let read = std::panic::catch_unwind(|| read(&text, Form::Layer, &given));
                    say(format!("{name}/{}/{}", layer.name(), resolved.tag), read);
                }
            }
            Some(form) => say(name, std::panic::catch_unwind(|| read(&text, form, &given()))),
            None => println!("no layer   {name}"),
        }
    }
    println!("{counts:?}");
    assert!(!counts.contains_key("crashed"));
}
