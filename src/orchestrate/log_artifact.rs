//! Packs the whole log of a job as a stream, in constant memory. It reads rows of the store; the caller uploads what
//! comes.

use std::io::Write;

use bytes::Bytes;
use futures::{Stream, stream};
use jiff::tz::TimeZone;
use kiln_records::{Failure, JobId, LogRow, LogStream, Step};

use crate::store::SharedStore;

/// The number of lines read at a time.
const PAGE: u32 = 5000;

/// What is left to do.
enum Rest {
    /// The lines after this one.
    Lines(zstd::Encoder<'static, Vec<u8>>, Option<u64>),
    Nothing,
}

/// The log as text, packed with zstd.
pub(super) fn packed_log(store: SharedStore, job: JobId) -> impl Stream<Item = Result<Bytes, Failure>> + Send {
    let unpacked = |error: std::io::Error| Failure::io("cannot pack the log", &error);
    let begin = zstd::Encoder::new(Vec::new(), 0).map(|encoder| Rest::Lines(encoder, None));
    stream::try_unfold(begin, move |rest| {
        let store = store.clone();
        async move {
            let Rest::Lines(mut encoder, after) = rest.map_err(unpacked)? else {
                return Ok(None);
            };
            let page = store.log_page(job, after, PAGE).await?;
            let text: String = page.rows.iter().map(line).collect();
            // Packing one page is quick enough not to block other tasks.
            encoder.write_all(text.as_bytes()).map_err(unpacked)?;
            if page.more {
                let packed = std::mem::take(encoder.get_mut());
                let after = page.rows.last().map(|row| row.seq);
                return Ok(Some((Bytes::from(packed), Ok(Rest::Lines(encoder, after)))));
            }
            let packed = encoder.finish().map_err(unpacked)?;
            Ok(Some((Bytes::from(packed), Ok(Rest::Nothing))))
        }
    })
}

/// A line in the format of the log file of `kiln build`.
fn line(row: &LogRow) -> String {
    let time = row
        .line
        .time
        .to_zoned(TimeZone::UTC)
        .strftime("%Y-%m-%dT%H:%M:%S.%3fZ")
        .to_string();
    let step = row.line.step.map_or("-", Step::name);
    let mark = match row.line.stream {
        LogStream::Server => '#',
        LogStream::Agent => '*',
        LogStream::Stdout => ' ',
        LogStream::Stderr => '!',
    };
    format!("{time} {step:<8} {mark} {}\n", row.line.text)
}

#[cfg(test)]
mod tests {
    use std::{pin::pin, sync::Arc};

    use futures::TryStreamExt;
    use jiff::Timestamp;
    use kiln_records::{LogLine, Moment};

    use super::*;
    use crate::store::SqliteStore;

    #[tokio::test]
    async fn a_large_log_is_packed_piece_by_piece() {
        let dir = tempfile::tempdir().unwrap();
        let store: SharedStore = Arc::new(SqliteStore::open(&dir.path().join("records.sqlite")).await.unwrap());
        let job = JobId::new();
        // Letters that cannot be packed.
        let mut number = 1_u64;
        let mut noise = || {
            number = number.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            char::from(b'!' + u8::try_from((number >> 33) % 90).unwrap())
        };
        let line = |text: String| {
            Some(LogLine {
                time: Timestamp::UNIX_EPOCH,
                step: Some(Step::Build),
                stream: LogStream::Stdout,
                text,
            })
        };
        let lines: Vec<_> = (0..2000)
            .map(|_| line((0..16 * 1024).map(|_| noise()).collect()))
            .collect();
        let now = Moment::now();
        store.append((job, 1), 0, &lines, true, u64::MAX, now).await.unwrap();

        let (mut pieces, mut packed) = (Vec::new(), Vec::new());
        let mut stream = pin!(packed_log(store.clone(), job));
        while let Some(piece) = stream.try_next().await.unwrap() {
            pieces.push(piece.len());
            packed.extend_from_slice(&piece);
        }
        // 32 MiB of text.
        assert!(pieces.len() > 4, "{pieces:?}");
        assert!(pieces.iter().all(|piece| *piece < 8 << 20), "{pieces:?}");
        let text = String::from_utf8(zstd::decode_all(&*packed).unwrap()).unwrap();
        assert_eq!(text.lines().count(), 2000);
        let last = lines.last().unwrap().as_ref().unwrap();
        assert!(text.lines().last().unwrap().ends_with(&last.text));
    }
}
