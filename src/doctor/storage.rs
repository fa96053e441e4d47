//! Examines the disk, S3 and the clock. Talks to S3, and writes and removes test objects there.

use std::{path::Path, time::Duration};

use bytesize::ByteSize;
use jiff::{Timestamp, fmt::rfc2822::DateTimeParser};
use kiln_records::{ArtifactKind, Code, Failure, ImageId, JobId, arch::Arch};
use nix::sys::statvfs::statvfs;

use crate::{
    artifacts::{ArtifactStore, Copied},
    config::Config,
    doctor::{Finding, broken},
    site,
};

const AREA: &str = "storage";

/// How much the clocks of host and S3 may differ. S3 refuses signatures that are a quarter of an hour off.
const MOST_SKEW: Duration = Duration::from_mins(5);

pub(super) async fn examine(config: &Config) -> Vec<Finding> {
    let mut findings = vec![disk(config)];
    findings.push(
        match site::toolboxes(config).map(|toolboxes| toolboxes.find(Arch::host())) {
            Ok(Some(toolbox)) => Finding::ok(AREA, "toolbox", toolbox.name),
            Ok(None) => Finding::missing(AREA, "toolbox", "it is built by the first job", "kiln toolbox build"),
            Err(failure) => Finding::broken(AREA, "toolbox", failure, "kiln toolbox build"),
        },
    );
    let Some(s3) = &config.s3 else {
        findings.push(Finding::ok(
            AREA,
            "S3",
            "none is configured: Kiln has its own, in its data directory",
        ));
        return findings;
    };
    let endpoint = s3.endpoint.clone().unwrap_or_else(|| "AWS".to_owned());
    match ArtifactStore::connect(s3).await {
        Ok(store) => {
            findings.push(Finding::ok(AREA, "S3", format!("{endpoint} answers")));
            findings.push(dialect(&store).await);
        }
        Err(failure) => {
            findings.push(broken(AREA, "S3", &failure, "see [s3] in `kiln config show`").required());
        }
    }
    if let Some(endpoint) = &s3.endpoint {
        findings.extend(clock(endpoint).await);
    }
    findings
}

fn disk(config: &Config) -> Finding {
    const WHAT: &str = "disk";
    // The directory may not exist before it is first needed.
    let there = config
        .data_dir
        .ancestors()
        .find(|dir| dir.exists())
        .unwrap_or(Path::new("/"));
    let next = "point `data_dir` to a larger file system, or remove what is not needed: `kiln toolbox prune`";
    match statvfs(there) {
        Ok(disk) => {
            let free = disk.blocks_available() * disk.fragment_size();
            let wanted = config.capacity.disk_floor.0 + config.capacity.first_disk.0;
            let detail = format!("{} are free at {}", ByteSize(free), config.data_dir.display());
            if free >= wanted {
                Finding::ok(AREA, WHAT, detail)
            } else {
                let detail = format!("{detail}; a first job needs {}", ByteSize(wanted));
                Finding::broken(AREA, WHAT, detail, next).required()
            }
        }
        Err(errno) => Finding::broken(AREA, WHAT, errno, next).required(),
    }
}

/// Performs the S3 operations of jobs, on test objects that are removed again.
async fn dialect(store: &ArtifactStore) -> Finding {
    const WHAT: &str = "S3 operations";
    let image = ImageId::new();
    let lacks = try_out(store, image).await;
    let removed = store.discard_image(image).await;
    match (lacks, removed) {
        (Ok(()), Ok(())) => Finding::ok(AREA, WHAT, "write, read, copy, list, multipart upload, delete"),
        (Err(failure), _) | (Ok(()), Err(failure)) => Finding::broken(
            AREA,
            WHAT,
            failure,
            "give Kiln's user read and write access to the buckets, multipart uploads included",
        )
        .required(),
    }
}

async fn try_out(store: &ArtifactStore, image: ImageId) -> Result<(), Failure> {
    let bucket = store.images_bucket();
    let (key, copy) = (format!("{image}/doctor"), format!("{image}/doctor-copy"));
    let lacks = |what: &str| Failure::new(Code::S3Error, format!("s3://{bucket} {what}"));
    store.put_bytes(bucket, &key, "text/plain", "kiln doctor").await?;
    if !matches!(store.copy(bucket, &key, &copy).await?, Copied::As(_)) {
        return Err(lacks("does not copy objects"));
    }
    if store.list(bucket, &format!("{image}/")).await?.len() != 2 {
        return Err(lacks("does not list what was written"));
    }
    let upload = store
        .open_upload(image, JobId::new(), "doctor", ArtifactKind::Rootfs, 1)
        .await?;
    store.part_urls(&upload, &[1], Duration::from_mins(1)).await?;
    store.abort_upload(&upload).await?;
    for key in [&key, &copy] {
        store.delete(bucket, key).await?;
    }
    Ok(())
}

/// Compares the clocks, if S3 reports its time.
async fn clock(endpoint: &str) -> Option<Finding> {
    const WHAT: &str = "clock";
    let answer = reqwest::Client::new()
        .head(endpoint)
        .timeout(Duration::from_secs(10))
        .send()
        .await
        .ok()?;
    let date = answer.headers().get(reqwest::header::DATE)?.to_str().ok()?;
    let theirs = DateTimeParser::new().parse_timestamp(date).ok()?;
    let skew = Timestamp::now().duration_since(theirs).unsigned_abs();
    let detail = format!("{} s off the clock of S3", skew.as_secs());
    Some(if skew <= MOST_SKEW {
        Finding::ok(AREA, WHAT, detail)
    } else {
        Finding::broken(AREA, WHAT, detail, "timedatectl set-ntp true").required()
    })
}
