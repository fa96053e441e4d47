//! Packs the whole log of a job into one object. It reads rows of the store; the caller uploads the result.

use std::io::Write;

use jiff::tz::TimeZone;
use kiln_records::{Failure, JobId, LogRow, LogStream, Step};

use crate::store::SharedStore;

/// The number of lines read at a time.
const PAGE: u32 = 5000;

/// The log as text, packed with zstd.
pub(super) async fn packed_log(store: &SharedStore, job: JobId) -> Result<Vec<u8>, Failure> {
    let unpacked = |error: std::io::Error| Failure::io("cannot pack the log", &error);
    let mut encoder = zstd::Encoder::new(Vec::new(), 0).map_err(unpacked)?;
    let mut after = None;
    loop {
        let rows = store.log_page(job, after, PAGE).await?;
        let Some(last) = rows.last() else { break };
        after = Some(last.seq);
        let text: String = rows.iter().map(line).collect();
        // Packing one page is quick enough not to block other tasks.
        encoder.write_all(text.as_bytes()).map_err(unpacked)?;
    }
    encoder.finish().map_err(unpacked)
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
