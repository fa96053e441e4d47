//! Connects to S3: to the service of the configuration, or to Kiln's own, which it starts.

use std::net::{Ipv4Addr, SocketAddr};

use kiln_records::Failure;
use kiln_s3::{EmbeddedError, EmbeddedS3};

use super::descriptors::Descriptors;
use crate::{artifacts::ArtifactStore, config::Config};

/// The S3 service to use, and the embedded one if it is used, which stops when the returned value is dropped.
pub async fn artifact_store(config: &Config) -> Result<(ArtifactStore, Option<EmbeddedS3>), Failure> {
    if let Some(settings) = &config.s3 {
        return Ok((ArtifactStore::connect(settings).await?, None));
    }
    over(embedded_s3(config, 0).await?).await
}

/// Like [`artifact_store`], with the embedded service at the address of the configuration.
pub(super) async fn served_artifact_store(config: &Config) -> Result<(ArtifactStore, Option<EmbeddedS3>), Failure> {
    if let Some(settings) = &config.s3 {
        return Ok((ArtifactStore::connect(settings).await?, None));
    }
    let started = start(config, config.embedded_s3.listen).await;
    let embedded = started.map_err(|error| {
        let hint = "something else listens there; stop it, or set another address as `listen` in [embedded_s3] or as \
                    KILN__EMBEDDED_S3__LISTEN";
        match error {
            EmbeddedError::NotLoopback(_) | EmbeddedError::Listen { .. } => Failure::from(error).hint(hint),
            _ => error.into(),
        }
    })?;
    over(embedded).await
}

/// Starts the embedded S3 service on a loopback port; 0 means any free one.
pub async fn embedded_s3(config: &Config, port: u16) -> Result<EmbeddedS3, Failure> {
    Ok(start(config, SocketAddr::from((Ipv4Addr::LOCALHOST, port))).await?)
}

async fn start(config: &Config, address: SocketAddr) -> Result<EmbeddedS3, EmbeddedError> {
    let most = Descriptors::of_this_process().s3();
    EmbeddedS3::start_with(&config.data_dir.join("s3"), address, most).await
}

async fn over(embedded: EmbeddedS3) -> Result<(ArtifactStore, Option<EmbeddedS3>), Failure> {
    Ok((ArtifactStore::connect(&(&embedded).into()).await?, Some(embedded)))
}
