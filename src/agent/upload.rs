//! Uploads artifacts to S3: parts in parallel, through presigned addresses, digested while they are read. Parts that
//! S3 already has are not sent again. Reads files, and talks to S3 and the server.

use std::{collections::HashMap, path::Path, sync::Arc, time::Duration};

use kiln_records::{
    ArtifactKind, Code, Digests, Failure,
    protocol::{NewUpload, OpenUpload, PartReceipt, SentParts, StoredPart, What},
};
use reqwest::{
    Client, StatusCode,
    header::{CONTENT_LENGTH, ETAG},
};
use tokio::{
    sync::Semaphore,
    task::{JoinError, JoinSet},
    time::Instant,
};

use super::{
    channel::Channel,
    digest::{Part, PartReader},
    events::Events,
};

/// Parts sent at the same time. Each is held in memory.
const IN_FLIGHT: usize = 4;

/// The first and the longest pause before a part is sent again.
const PAUSE: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(10));

/// The clients that an upload needs.
#[derive(Debug, Clone)]
pub struct Uploader {
    /// The client for S3.
    pub http: Client,
    /// The channel to the server.
    pub channel: Channel,
    /// Takes progress events.
    pub events: Events,
    /// How long S3 may refuse a part.
    pub patience: Duration,
}

impl Uploader {
    /// Sends one file.
    ///
    /// # Errors
    ///
    /// `upload_failed` when S3 keeps refusing a part; failures of the server unchanged.
    pub async fn upload(&self, kind: ArtifactKind, path: &Path) -> Result<Digests, Failure> {
        let unreadable = |error: std::io::Error| Failure::io(format!("cannot read the {}", kind.key_name()), &error);
        let size = fs_err::metadata(path).map_err(unreadable)?.len();
        let OpenUpload {
            upload,
            part_size,
            parts,
        } = self.channel.create_upload(NewUpload { kind, size }).await?;
        let part_size = usize::try_from(part_size).map_err(|error| Failure::new(Code::Protocol, error))?;
        let stored: HashMap<u32, StoredPart> = parts.into_iter().map(|part| (part.number, part)).collect();
        if !stored.is_empty() {
            let text = format!("{}: S3 has {} parts already", kind.key_name(), stored.len());
            self.events.say(text).await;
        }
        let mut reader = PartReader::open(path, part_size).map_err(unreadable)?;
        let slots = Arc::new(Semaphore::new(IN_FLIGHT));
        let mut sending = JoinSet::new();
        let mut sent = Sent::new(size);
        loop {
            // Waiting for a slot before reading limits the memory to the parts in flight.
            let slot = Arc::clone(&slots)
                .acquire_owned()
                .await
                .map_err(|error| Failure::new(Code::Protocol, error))?;
            let read = tokio::task::spawn_blocking(move || (reader.next_part(), reader));
            let (part, returned) = read.await.map_err(|error| Failure::new(Code::UploadFailed, error))?;
            reader = returned;
            let Some(part) = part.map_err(unreadable)? else { break };
            let (uploader, stored) = (self.clone(), stored.get(&part.number).cloned());
            sending.spawn(async move {
                let bytes = part.bytes.len() as u64;
                let receipt = match stored.and_then(|stored| receipt_of(&stored, &part)) {
                    Some(receipt) => receipt,
                    None => uploader.send_part(upload, part).await?,
                };
                drop(slot);
                Ok((receipt, bytes))
            });
            while let Some(part) = sending.try_join_next() {
                sent.add(part, &self.events).await?;
            }
        }
        while let Some(part) = sending.join_next().await {
            sent.add(part, &self.events).await?;
        }
        sent.receipts.sort_by_key(|receipt| receipt.number);
        let sent = SentParts {
            parts: sent.receipts,
            digests: reader.finish(),
        };
        self.channel.complete_upload(upload, &sent).await?;
        Ok(sent.digests)
    }

    async fn send_part(&self, upload: u32, part: Part) -> Result<PartReceipt, Failure> {
        let begun = Instant::now();
        let mut pause = PAUSE.0;
        let last = loop {
            // A new address each time: the old one may have expired while S3 was unavailable.
            let url = self.channel.part_url(upload, part.number).await?;
            // Some services require a length even for an empty body, which the client would leave out.
            let put = self.http.put(url).header(CONTENT_LENGTH, part.bytes.len());
            let refusal = match put.body(part.bytes.clone()).send().await {
                Ok(response) if response.status().is_success() => {
                    let etag = response.headers().get(ETAG).and_then(|value| value.to_str().ok());
                    return Ok(PartReceipt {
                        number: part.number,
                        etag: etag.unwrap_or_default().to_owned(),
                        md5: part.md5_hex,
                    });
                }
                Ok(response) if !is_passing(response.status()) => break response.status().to_string(),
                Ok(response) => response.status().to_string(),
                // The address contains a signature, which must not reach a log.
                Err(error) => error.without_url().to_string(),
            };
            if begun.elapsed() + pause > self.patience {
                break refusal;
            }
            if pause == PAUSE.0 {
                let text = format!("part {} must be sent again: {refusal}", part.number);
                self.events.say(text).await;
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(PAUSE.1);
        };
        Err(
            Failure::new(Code::UploadFailed, format!("S3 refused part {}: {last}", part.number))
                .hint("check the S3 server's health and that it is reachable from the sandbox (s3.public_endpoint)"),
        )
    }
}

/// Whether a repetition may succeed.
fn is_passing(status: StatusCode) -> bool {
    status.is_server_error() || matches!(status, StatusCode::REQUEST_TIMEOUT | StatusCode::TOO_MANY_REQUESTS)
}

/// The receipt of a part that S3 already has, if it certainly is this one: an entity tag that is not an MD5 proves
/// nothing.
fn receipt_of(stored: &StoredPart, part: &Part) -> Option<PartReceipt> {
    let same =
        stored.size == part.bytes.len() as u64 && stored.etag.trim_matches('"').eq_ignore_ascii_case(&part.md5_hex);
    same.then(|| PartReceipt {
        number: part.number,
        etag: stored.etag.clone(),
        md5: part.md5_hex.clone(),
    })
}

/// The parts that S3 has so far.
struct Sent {
    receipts: Vec<PartReceipt>,
    done: u64,
    total: u64,
}

impl Sent {
    fn new(total: u64) -> Self {
        Self {
            receipts: Vec::new(),
            done: 0,
            total,
        }
    }

    async fn add(
        &mut self,
        part: Result<Result<(PartReceipt, u64), Failure>, JoinError>,
        events: &Events,
    ) -> Result<(), Failure> {
        let (receipt, bytes) = part.map_err(|error| Failure::new(Code::UploadFailed, error))??;
        self.receipts.push(receipt);
        self.done += bytes;
        let (done, total) = (self.done, self.total);
        events.send(What::Progress { done, total }).await;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_part_that_is_certainly_the_same_is_not_sent_again() {
        let part = Part {
            number: 3,
            bytes: bytes::Bytes::from_static(b"abc"),
            md5_hex: "900150983cd24fb0d6963f7d28e17f72".to_owned(),
        };
        let stored = |etag: &str, size| StoredPart {
            number: 3,
            etag: etag.to_owned(),
            size,
        };
        let same = stored("\"900150983CD24FB0D6963F7D28E17F72\"", 3);
        assert_eq!(receipt_of(&same, &part).unwrap().etag, same.etag);
        assert_eq!(receipt_of(&stored(&part.md5_hex, 2), &part), None);
        assert_eq!(receipt_of(&stored("opaque", 3), &part), None);
    }
}
