//! The data directory: its permissions, the access key, and the lock under which one process at a time starts. Touches
//! files in that directory only.

use std::{
    fs::Permissions,
    io::{self, Write},
    os::unix::fs::{DirBuilderExt, PermissionsExt},
    path::{Path, PathBuf},
};

use kiln_records::Secret;
use serde::{Deserialize, Serialize};

use super::EmbeddedError;

/// The single access key of an embedded server.
#[derive(Debug, Clone)]
pub struct Credentials {
    /// The access key's identifier.
    pub access_key: String,
    /// The key that signs requests.
    pub secret_key: Secret,
}

/// The data directory, with the paths in it.
#[derive(Debug, Clone)]
pub(super) struct Directory {
    root: PathBuf,
}

impl Directory {
    /// Creates the directory if necessary, and restricts it to its owner.
    pub(super) fn open(root: &Path) -> Result<Self, EmbeddedError> {
        let directory = Self { root: root.to_owned() };
        for path in [root.to_owned(), directory.bodies(), directory.incoming()] {
            std::fs::DirBuilder::new()
                .recursive(true)
                .mode(0o700)
                .create(&path)
                .and_then(|()| fs_err::set_permissions(&path, Permissions::from_mode(0o700)))
                .map_err(|source| EmbeddedError::Directory { path, source })?;
        }
        Ok(directory)
    }

    /// The directory of finished bodies.
    pub(super) fn bodies(&self) -> PathBuf {
        self.root.join("bodies")
    }

    /// The directory of bodies that are still being received.
    pub(super) fn incoming(&self) -> PathBuf {
        self.root.join("incoming")
    }

    /// The database of names.
    pub(super) fn database(&self) -> PathBuf {
        self.root.join("names.sqlite")
    }

    /// Waits until no other process is starting in this directory. Dropping the file releases the lock.
    pub(super) fn lock(&self) -> Result<fs_err::File, EmbeddedError> {
        let path = self.root.join("lock");
        let lock = || {
            let file = fs_err::OpenOptions::new()
                .create(true)
                .truncate(false)
                .write(true)
                .open(&path)?;
            file.lock()?;
            Ok(file)
        };
        lock().map_err(|source| EmbeddedError::Directory {
            path: path.clone(),
            source,
        })
    }

    /// The access key, generated at the first start. Must be called under [`Directory::lock`].
    pub(super) fn credentials(&self) -> Result<Credentials, EmbeddedError> {
        let path = self.root.join("credentials.json");
        let text = match fs_err::read(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                self.create_credentials(&path)
                    .map_err(|source| EmbeddedError::Directory {
                        path: path.clone(),
                        source,
                    })?
            }
            Err(source) => return Err(EmbeddedError::Directory { path, source }),
        };
        let file: CredentialsFile =
            serde_json::from_slice(&text).map_err(|source| EmbeddedError::Credentials { path, source })?;
        Ok(Credentials {
            access_key: file.access_key,
            secret_key: file.secret_key.into(),
        })
    }

    fn create_credentials(&self, path: &Path) -> io::Result<Vec<u8>> {
        let text = serde_json::to_vec_pretty(&CredentialsFile {
            access_key: format!("kiln{}", hex::encode(rand::random::<[u8; 8]>())),
            secret_key: hex::encode(rand::random::<[u8; 20]>()),
        })?;
        // A temporary file has mode 0600.
        let mut file = tempfile::NamedTempFile::new_in(&self.root)?;
        file.write_all(&text)?;
        file.as_file().sync_all()?;
        file.persist(path)?;
        sync_directory(&self.root)?;
        Ok(text)
    }
}

#[derive(Serialize, Deserialize)]
struct CredentialsFile {
    access_key: String,
    secret_key: String,
}

/// Syncs a directory, so that names added or removed there survive a power cut.
pub(super) fn sync_directory(path: &Path) -> io::Result<()> {
    fs_err::File::open(path)?.sync_all()
}
