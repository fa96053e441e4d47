//! Keeps the toolboxes that servers share: each is an archive under its digest, and a small object that names the current one.
//! Keeps the toolboxes of pods, too: layers, and a small object that names them. Talks to S3, and reads and writes files.
//!
//! ```text
//! toolboxes/<description>/<SHA-256>.tar                  the archive
//! toolboxes/<description>/current.json                   its digests
//! toolboxes/<description>/pods/<tag>/<SHA-256>.tar.gz    a layer
//! toolboxes/<description>/pods/<tag>.json                the digests of the layers, in order; written last
//! ```

use std::{
    path::{Path, PathBuf},
    time::Duration,
};

use bytes::Bytes;
use futures::{Stream, TryStreamExt};
use kiln_records::{
    Code, Digests, Failure,
    artifact::Digesting,
    protocol::{ObjectSource, ToolboxName},
};
use tokio_util::io::ReaderStream;

use super::store::{ArtifactStore, ReadError};

/// The media types of an archive, and of a layer.
const TAR: &str = "application/x-tar";
const LAYER: &str = "application/gzip";

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
            let is_of_pods = object.key.starts_with(&pods(name));
            if object.key != key && object.key != current_key(name) && !is_of_pods {
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

    /// The address of the toolbox of pods with this name, and whether it is there.
    ///
    /// # Errors
    ///
    /// S3 fails.
    pub async fn find_layers(&self, name: &ToolboxName) -> Result<(String, bool), Failure> {
        let (bucket, key) = (self.recipes_bucket(), layers_key(name));
        let is_there = self.exists(bucket, &key).await?;
        Ok((format!("s3://{bucket}/{key}"), is_there))
    }

    /// Stores the layers of a toolbox for pods, in this order.
    ///
    /// # Errors
    ///
    /// A file cannot be read, or S3 fails: then pods find none of it.
    pub async fn put_layers(&self, name: &ToolboxName, layers: &[PathBuf]) -> Result<(), Failure> {
        let bucket = self.recipes_bucket();
        let mut kept = Vec::new();
        for layer in layers {
            let digests = digests_of(layer).await?;
            let key = layer_key(name, &digests.sha256);
            Box::pin(self.put_stream((bucket, &key), LAYER, content_of(layer).await?)).await?;
            kept.push(digests);
        }
        let kept = serde_json::to_vec(&kept).map_err(|error| Failure::new(Code::ToolboxFacts, error))?;
        self.put_bytes(bucket, &layers_key(name), "application/json", kept)
            .await
            .map(drop)
    }

    /// The layers of the toolbox of pods with this name, at addresses that are valid for that long.
    ///
    /// # Errors
    ///
    /// `image_missing` when it is not there, `protocol` when that is no name; S3 fails.
    pub async fn layers(&self, name: &ToolboxName, valid: Duration) -> Result<Vec<ObjectSource>, Failure> {
        if !name.is_valid() {
            return Err(Failure::new(Code::Protocol, "that is no name of a toolbox"));
        }
        let bucket = self.recipes_bucket();
        let key = layers_key(name);
        let what = "the description of a toolbox in S3";
        let text = match self.read_small(bucket, &key, SMALL).await {
            Ok(text) => text.ok_or_else(|| {
                Failure::new(
                    Code::ImageMissing,
                    format!("the toolbox of pods is not in S3: there is no s3://{bucket}/{key}"),
                )
                .hint("`kiln toolbox push` of this version puts it there; for pods in virtual machines with `--vm`")
            })?,
            Err(error @ ReadError::TooLarge(_)) => {
                return Err(Failure::new(Code::ToolboxFacts, format!("{what}: {error}")));
            }
            Err(ReadError::S3(failure)) => return Err(failure),
        };
        let kept: Vec<Digests> = serde_json::from_slice(&text)
            .map_err(|error| Failure::new(Code::ToolboxFacts, format!("{what}: {error}")))?;
        let mut layers = Vec::new();
        for Digests { size, sha256, md5 } in kept {
            let url = self.presign_get(bucket, &layer_key(name, &sha256), valid).await?;
            layers.push(ObjectSource {
                url,
                size,
                md5: Some(md5),
                sha256: Some(sha256),
            });
        }
        Ok(layers)
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

fn pods(name: &str) -> String {
    format!("toolboxes/{name}/pods/")
}

fn layer_key(ToolboxName { toolbox, tag }: &ToolboxName, sha256: &str) -> String {
    format!("{}{tag}/{sha256}.tar.gz", pods(toolbox))
}

fn layers_key(ToolboxName { toolbox, tag }: &ToolboxName) -> String {
    format!("{}{tag}.json", pods(toolbox))
}
