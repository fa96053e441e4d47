//! Finds out which files of a root a recipe brings: those whose content a file of the recipe has, or one in an archive of it. It does
//! not matter how it comes into the root: by an overlay, an archive, `<file>` or a script. Reads the recipe and the root.

use std::{
    collections::{BTreeMap, BTreeSet},
    io::{self, BufRead, BufReader, Read},
    path::Path,
};

use kiln_records::compression::Compression;

use super::LARGEST;
use crate::twins::Root;

/// The ends of archives' names.
const ARCHIVES: [&str; 11] = [
    ".tar",
    ".tar.gz",
    ".tgz",
    ".tar.xz",
    ".txz",
    ".tar.bz2",
    ".tbz",
    ".tbz2",
    ".tar.zst",
    ".tzst",
    ".tar.lzma",
];

/// Files of a root, by their contents.
type Wanted = BTreeMap<Vec<u8>, Vec<String>>;

/// Those of the files `asked` for, which are paths in `root`, that the recipe brings. What cannot be read is not brought.
pub(super) fn of(recipe: &Path, root: &Root, asked: &[String]) -> BTreeSet<String> {
    let mut wanted = Wanted::new();
    for path in asked {
        if let Some(content) = root
            .content(Path::new(path), LARGEST)
            .filter(|content| !content.is_empty())
        {
            wanted.entry(content).or_default().push(path.clone());
        }
    }
    let mut brought = BTreeSet::new();
    let mut dirs = vec![recipe.to_owned()];
    while let Some(dir) = dirs.pop() {
        if wanted.is_empty() {
            break;
        }
        for entry in fs_err::read_dir(dir).into_iter().flatten().flatten() {
            match entry.file_type() {
                Ok(kind) if kind.is_dir() => dirs.push(entry.path()),
                Ok(kind) if kind.is_file() => {
                    let _ = look(&entry.path(), &mut wanted, &mut brought);
                }
                _ => {}
            }
        }
    }
    brought
}

/// Looks into a file of the recipe.
fn look(path: &Path, wanted: &mut Wanted, brought: &mut BTreeSet<String>) -> io::Result<()> {
    let (file, size) = {
        let file = fs_err::File::open(path)?;
        let size = file.metadata()?.len();
        (file, size)
    };
    let name = path.to_string_lossy();
    if !ARCHIVES.iter().any(|end| name.ends_with(end)) {
        return compare(file, size, wanted, brought);
    }
    let mut packed = BufReader::new(file);
    let compression = Compression::detect(packed.fill_buf()?);
    let plain: Box<dyn Read> = match compression {
        Some(compression) => compression.reader(packed)?,
        None => Box::new(packed),
    };
    for entry in tar::Archive::new(plain).entries()? {
        let entry = entry?;
        let size = entry.size();
        compare(entry, size, wanted, brought)?;
    }
    Ok(())
}

/// Notes the files with the content of `file`, of `size` bytes.
fn compare(file: impl Read, size: u64, wanted: &mut Wanted, brought: &mut BTreeSet<String>) -> io::Result<()> {
    if !wanted.keys().any(|content| content.len() as u64 == size) {
        return Ok(());
    }
    let mut content = Vec::new();
    file.take(LARGEST).read_to_end(&mut content)?;
    brought.extend(wanted.remove(&content).into_iter().flatten());
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_may_come_in_any_way() {
        let (recipe, root) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let write = |top: &Path, path: &str, content: &str| {
            let path = top.join(path);
            fs_err::create_dir_all(path.parent().unwrap()).unwrap();
            fs_err::write(path, content).unwrap();
        };
        let names = ["overlay", "profile", "file", "packed", "made", "empty"];
        for name in names {
            write(root.path(), name, if name == "empty" { "" } else { name });
        }
        let recipe = recipe.path();
        for (path, content) in [
            ("root/etc/key", "overlay"),
            ("compute/etc/key", "profile"),
            ("keys/a", "file"),
            ("made", "edam"),
            ("none", ""),
            ("broken.tar.gz", "\x1f\u{8b}no"),
        ] {
            write(recipe, path, content);
        }
        let mut archive = tar::Builder::new(flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast()));
        let mut header = tar::Header::new_gnu();
        header.set_size(6);
        archive.append_data(&mut header, "etc/key", &b"packed"[..]).unwrap();
        fs_err::write(recipe.join("site.tgz"), archive.into_inner().unwrap().finish().unwrap()).unwrap();
        let brought = of(recipe, &Root::open(root.path()).unwrap(), &names.map(str::to_owned));
        assert_eq!(
            brought.into_iter().collect::<Vec<_>>(),
            ["file", "overlay", "packed", "profile"]
        );
    }
}
