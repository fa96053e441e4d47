//! Keeps the toolboxes that servers share: each is an archive under its digest, and a small object that names the current one.
//! Talks to S3, and reads and writes files.

use std::path::Path;

use bytes::Bytes;
use futures::{Stream, TryStreamExt};
use kiln_records::{Code, Digests, Failure, artifact::Digesting};
use tokio_util::io::ReaderStream;

use super::store::{ArtifactStore, ReadError};

/// The media type of an archive.
const TAR: &str = "application/x-tar";

/// The size that the object with the current digest may have, in bytes.
const SMALL: usize = 4096;

impl ArtifactStore {
    /// Stores the archive of the toolbox `name` for other servers. An archive that was stored before under this name is
    /// removed.
    ///
    /// # Errors
    ///
    /// The file cannot be read, or S3 fails.
    pub async fn put_toolbox(&self, name: &str, archive: &Path) -> Result<(), Failure> {
        let digests = digests_of(archive).await?;
        let (bucket, key) = (self.recipes_bucket(), key(name, &digests.sha256));
        Box::pin(self.put_stream((bucket, &key), TAR, content_of(archive).await?)).await?;
        let current = serde_json::to_vec(&digests).map_err(|error| Failure::new(Code::ToolboxFacts, error))?;
        self.put_bytes(bucket, &current_key(name), "application/json", current)
            .await?;
        for object in self.list(bucket, &format!("toolboxes/{name}/")).await? {
            if object.key != key && object.key != current_key(name) {
                self.delete(bucket, &object.key).await?;
            }
        }
        Ok(())
    }

    /// The digests of the archive of the toolbox `name`, if there is one.
    ///
    /// # Errors
    ///
    /// S3 fails, or the object is none of Kiln's.
    pub async fn toolbox(&self, name: &str) -> Result<Option<Digests>, Failure> {
        let what = "the description of a toolbox in S3";
        match self.read_small(self.recipes_bucket(), &current_key(name), SMALL).await {
            Ok(None) => Ok(None),
            Ok(Some(text)) => serde_json::from_slice(&text)
                .map(Some)
                .map_err(|error| Failure::new(Code::ToolboxFacts, format!("{what}: {error}"))),
            Err(error @ ReadError::TooLarge(_)) => Err(Failure::new(Code::ToolboxFacts, format!("{what}: {error}"))),
            Err(ReadError::S3(failure)) => Err(failure),
        }
    }

    /// Reads that archive into a file, which appears only when it is complete and has these digests.
    ///
    /// # Errors
    ///
    /// As for [`Self::download`].
    pub async fn get_toolbox(&self, name: &str, digests: &Digests, to: &Path) -> Result<(), Failure> {
        let key = key(name, &digests.sha256);
        self.download(self.recipes_bucket(), &key, to, Some(digests))
            .await
            .map(drop)
    }
}

async fn digests_of(archive: &Path) -> Result<Digests, Failure> {
    let mut reading = Digesting::default();
    let mut content = content_of(archive).await?;
    while let Some(bytes) = content.try_next().await? {
        reading.update(&bytes);
    }
    Ok(reading.finish())
}

async fn content_of(archive: &Path) -> Result<impl Stream<Item = Result<Bytes, Failure>> + Send + Unpin, Failure> {
    let failed = |error: std::io::Error| Failure::io("cannot read the archive of a toolbox", &error);
    let file = fs_err::tokio::File::open(archive).await.map_err(failed)?;
    Ok(ReaderStream::with_capacity(file, 1 << 20).map_err(failed))
}

fn key(name: &str, sha256: &str) -> String {
    format!("toolboxes/{name}/{sha256}.tar")
}

fn current_key(name: &str) -> String {
    format!("toolboxes/{name}/current.json")
}
