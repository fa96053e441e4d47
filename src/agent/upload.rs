//! Sending artifacts to S3: parts in parallel, through presigned addresses, digested in the same read.

use std::{path::Path, sync::Arc, time::Duration};

use reqwest::{
    Client, StatusCode,
    header::{CONTENT_LENGTH, ETAG},
};
use tokio::{sync::Semaphore, task::JoinSet};

use super::{
    channel::{Channel, Events, unexpected},
    digest::{Part, PartReader},
};
use crate::records::{
    ArtifactKind, Digests, Failure,
    protocol::{Answer, Call, NewUpload, OpenUpload, PartNumbers, PartReceipt, PartUrls, SentParts, What},
};

/// Parts on their way at the same time. Each holds one part in memory.
const IN_FLIGHT: usize = 4;

/// How often a part is tried; the pauses double from half a second, so a part gives up after some 15 s of refusals.
const TRIES: u32 = 6;

/// Sends one file.
///
/// # Errors
///
/// `upload_failed` when S3 keeps refusing a part; failures of the server's side as they are.
pub async fn upload(
    kind: ArtifactKind,
    path: &Path,
    http: &Client,
    channel: &Channel,
    events: &Events,
) -> Result<Digests, Failure> {
    let unreadable = |error: std::io::Error| Failure::io(format!("cannot read the {}", kind.key_name()), &error);
    let size = fs_err::metadata(path).map_err(unreadable)?.len();
    let (upload, part_size) = match channel.call(Call::CreateUpload(NewUpload { kind, size })).await? {
        Answer::Upload(OpenUpload { upload, part_size, .. }) => (upload, part_size),
        other => return Err(unexpected(&other)),
    };
    let part_size = usize::try_from(part_size).map_err(|error| Failure::new("protocol", error))?;
    let mut reader = PartReader::open(path, part_size).map_err(unreadable)?;
    let slots = Arc::new(Semaphore::new(IN_FLIGHT));
    let mut sending = JoinSet::new();
    let mut receipts = Vec::new();
    let mut sent = 0;
    loop {
        // Waiting for a slot before reading bounds the memory to the parts in flight.
        let slot = Arc::clone(&slots)
            .acquire_owned()
            .await
            .map_err(|error| Failure::new("protocol", error))?;
        let read = tokio::task::spawn_blocking(move || (reader.next_part(), reader));
        let (part, returned) = read.await.map_err(|error| Failure::new("upload_failed", error))?;
        reader = returned;
        let Some(part) = part.map_err(unreadable)? else { break };
        let (http, channel) = (http.clone(), channel.clone());
        sending.spawn(async move {
            let bytes = part.bytes.len() as u64;
            let receipt = send_part(upload, part, &http, &channel).await;
            drop(slot);
            receipt.map(|receipt| (receipt, bytes))
        });
        while let Some(finished) = sending.try_join_next() {
            sent += keep(finished, &mut receipts)?;
            events
                .send(What::Progress {
                    done: sent,
                    total: size,
                })
                .await;
        }
    }
    while let Some(finished) = sending.join_next().await {
        sent += keep(finished, &mut receipts)?;
        events
            .send(What::Progress {
                done: sent,
                total: size,
            })
            .await;
    }
    receipts.sort_by_key(|receipt: &PartReceipt| receipt.number);
    let digests = reader.finish();
    channel
        .tell(Call::CompleteUpload {
            upload,
            sent: SentParts {
                parts: receipts,
                digests: digests.clone(),
            },
        })
        .await?;
    Ok(digests)
}

type Sent = Result<(PartReceipt, u64), Failure>;

fn keep(finished: Result<Sent, tokio::task::JoinError>, receipts: &mut Vec<PartReceipt>) -> Result<u64, Failure> {
    let (receipt, bytes) = finished.map_err(|error| Failure::new("upload_failed", error))??;
    receipts.push(receipt);
    Ok(bytes)
}

async fn send_part(upload: u32, part: Part, http: &Client, channel: &Channel) -> Result<PartReceipt, Failure> {
    let mut pause = Duration::from_millis(500);
    let mut last = String::new();
    for attempt in 1..=TRIES {
        // A new address each time: the old one may have expired while S3 was away.
        let url = match channel
            .call(Call::GetPartUrls {
                upload,
                parts: PartNumbers {
                    numbers: vec![part.number],
                },
            })
            .await?
        {
            Answer::PartUrls(PartUrls { urls }) if urls.len() == 1 => urls,
            other => return Err(unexpected(&other)),
        };
        // Some services want a length even of nothing, which the client would leave out.
        let put = http
            .put(&url[0])
            .header(CONTENT_LENGTH, part.bytes.len())
            .body(part.bytes.clone());
        match put.send().await {
            Ok(response) if response.status().is_success() => {
                let etag = response
                    .headers()
                    .get(ETAG)
                    .and_then(|value| value.to_str().ok())
                    .unwrap_or_default();
                return Ok(PartReceipt {
                    number: part.number,
                    etag: etag.to_owned(),
                    md5: part.md5_hex,
                });
            }
            Ok(response) => {
                let status = response.status();
                last = status.to_string();
                let transient = status.is_server_error()
                    || matches!(status, StatusCode::REQUEST_TIMEOUT | StatusCode::TOO_MANY_REQUESTS);
                if !transient {
                    break;
                }
            }
            // The address holds a signature; it must not reach a log.
            Err(error) => last = error.without_url().to_string(),
        }
        if attempt < TRIES {
            tokio::time::sleep(pause).await;
            pause *= 2;
        }
    }
    Err(
        Failure::new("upload_failed", format!("S3 refused part {}: {last}", part.number))
            .hint("check the S3 server's health and that it is reachable from the sandbox (s3.public_endpoint)"),
    )
}
