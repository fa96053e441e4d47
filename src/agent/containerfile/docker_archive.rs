//! Makes an archive of an OCI image layout one that older tools take, too. Touches that file only.
//!
//! `docker load` before Docker 25 and `docker-archive:` of other tools look for `manifest.json`, which names the configuration and
//! the layers of each image (moby, `image/tarexport`). They may be anywhere in the archive, so those of the layout serve.

use std::{
    io::{self, Read, Seek, SeekFrom, Write},
    path::Path,
};

use serde::{Deserialize, de::DeserializeOwned};
use serde_json::json;

/// The size of tar's blocks, in bytes.
const BLOCK: u64 = 512;

/// The most bytes of a document in the archive.
const MOST: u64 = 4 << 20;

#[derive(Deserialize)]
struct Index {
    manifests: Vec<Blob>,
}

#[derive(Deserialize)]
struct Blob {
    digest: String,
}

#[derive(Deserialize)]
struct Manifest {
    config: Blob,
    layers: Vec<Blob>,
}

impl Blob {
    fn path(&self) -> String {
        format!("blobs/{}", self.digest.replacen(':', "/", 1))
    }
}

/// The name that tools give to the image when they load it: the job's, in the letters that names of containers have.
pub(super) fn name_of(image: &str) -> String {
    let plain = |c: char| {
        if c.is_ascii_alphanumeric() {
            c.to_ascii_lowercase()
        } else {
            '-'
        }
    };
    let text: String = image.chars().map(plain).collect();
    let parts: Vec<&str> = text.split('-').filter(|part| !part.is_empty()).collect();
    let name = if parts.is_empty() {
        "image".to_owned()
    } else {
        parts.join("-")
    };
    format!("localhost/{name}:latest")
}

/// Adds the list of a Docker archive to an archive with one image.
pub(super) fn add(archive: &Path, name: &str) -> io::Result<()> {
    let mut file = fs_err::OpenOptions::new().read(true).write(true).open(archive)?;
    let index: Index = document(&mut file, "index.json")?;
    let [image] = index.manifests.as_slice() else {
        return Err(io::Error::other("it has not exactly one image"));
    };
    let manifest: Manifest = document(&mut file, &image.path())?;
    let layers: Vec<String> = manifest.layers.iter().map(Blob::path).collect();
    let list = json!([{ "Config": manifest.config.path(), "RepoTags": [name], "Layers": layers }]);
    let list = serde_json::to_vec(&list)?;
    let end = end_of(&mut file)?;
    file.seek(SeekFrom::Start(end))?;
    let mut header = tar::Header::new_ustar();
    header.set_size(list.len() as u64);
    header.set_mode(0o644);
    header.set_mtime(0);
    let mut builder = tar::Builder::new(&mut file);
    builder.append_data(&mut header, "manifest.json", list.as_slice())?;
    builder.into_inner()?.flush()?;
    let length = file.stream_position()?;
    file.set_len(length)
}

/// Reads a document of the archive.
fn document<T: DeserializeOwned>(file: &mut (impl Read + Seek), path: &str) -> io::Result<T> {
    file.rewind()?;
    for entry in tar::Archive::new(&mut *file).entries_with_seek()? {
        let entry = entry?;
        if entry.path()?.as_ref() == Path::new(path) {
            return Ok(serde_json::from_reader(entry.take(MOST))?);
        }
    }
    Err(io::Error::other(format!("it has no {path}")))
}

/// Where the entries of the archive end.
fn end_of(file: &mut (impl Read + Seek)) -> io::Result<u64> {
    file.rewind()?;
    let mut end = 0;
    for entry in tar::Archive::new(&mut *file).entries_with_seek()? {
        let entry = entry?;
        end = entry.raw_file_position() + entry.size().next_multiple_of(BLOCK);
    }
    Ok(end)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_have_the_letters_of_containers() {
        for (image, name) in [
            ("my-app", "localhost/my-app:latest"),
            ("My App_1.0 (é)", "localhost/my-app-1-0:latest"),
            ("…", "localhost/image:latest"),
        ] {
            assert_eq!(name_of(image), name);
        }
    }

    #[test]
    fn the_list_names_what_the_layout_has() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.tar");
        let mut builder = tar::Builder::new(fs_err::File::create(&path).unwrap());
        for (name, text) in [
            (
                "blobs/sha256/aa",
                "{\"config\": {\"digest\": \"sha256:cc\"}, \"layers\": [{\"digest\": \"sha256:bb\"}]}",
            ),
            ("blobs/sha256/bb", "layer"),
            ("index.json", "{\"manifests\": [{\"digest\": \"sha256:aa\"}]}"),
        ] {
            let mut header = tar::Header::new_gnu();
            header.set_size(text.len() as u64);
            builder.append_data(&mut header, name, text.as_bytes()).unwrap();
        }
        builder.finish().unwrap();
        drop(builder);
        add(&path, "localhost/x:latest").unwrap();
        let mut archive = tar::Archive::new(fs_err::File::open(&path).unwrap());
        let mut found = Vec::new();
        for entry in archive.entries().unwrap() {
            let mut entry = entry.unwrap();
            let mut text = String::new();
            entry.read_to_string(&mut text).unwrap();
            found.push((entry.path().unwrap().display().to_string(), text));
        }
        assert_eq!(found.len(), 4);
        let (name, list) = found.pop().unwrap();
        assert_eq!(name, "manifest.json");
        let expected =
            json!([{"Config": "blobs/sha256/cc", "Layers": ["blobs/sha256/bb"], "RepoTags": ["localhost/x:latest"]}]);
        assert_eq!(serde_json::from_str::<serde_json::Value>(&list).unwrap(), expected);
    }
}
