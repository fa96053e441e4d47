//! Reads an object at an address a part at a time, as if it were a file. Talks to S3; keeps what was read last in memory.
//!
//! A request asks for whole blocks, and for more of them the longer reading goes on from one block to the next. What comes
//! is never taken for something else: every answer must be the range that was asked for, of an object of the known size
//! and with the entity tag of the first answer.

use std::{
    collections::VecDeque,
    io::{self, Read, Seek, SeekFrom},
    time::Duration,
};

use kiln_records::{Code, Failure};
use reqwest::{
    Response, StatusCode,
    header::{CONTENT_RANGE, ETAG, HeaderValue, IF_MATCH, RANGE},
};
use tokio::runtime::Handle;
use tokio_util::sync::CancellationToken;

use super::{Object, refusal::innermost};

/// Bytes of a block.
const BLOCK: usize = 256 << 10;

/// The most blocks of one request, when reading goes on from block to block.
const MOST_AHEAD: u64 = 16;

/// The most blocks that are kept in memory: 16 MiB.
const KEPT: usize = 64;

/// How long one request may take. Even a slow network carries 4 MiB in that time.
const TIMEOUT: Duration = Duration::from_mins(2);

/// How often a request is sent until its answer comes whole.
const TRIES: u32 = 3;

/// The pause before the second try. The next one is twice as long.
const PAUSE: Duration = Duration::from_millis(500);

/// An object that is read in parts. Reading blocks, and is not for threads that drive the runtime.
#[derive(Debug)]
pub struct Ranges {
    object: Object,
    what: String,
    size: u64,
    cancelled: CancellationToken,
    runtime: Handle,
    tag: Option<HeaderValue>,
    at: u64,
    /// Blocks by number, the one that was used last at the end.
    kept: VecDeque<(u64, Vec<u8>)>,
    /// The block after those that came last, and how many those were.
    next: (u64, u64),
}

/// A request without a useful answer.
enum Problem {
    /// The same request may have one.
    Passing(Failure),
    Lasting(Failure),
}

impl Ranges {
    /// The object, of `size` bytes. Messages call it `what`. Nothing is read any more once `cancelled`.
    ///
    /// # Panics
    ///
    /// Outside of a runtime, which carries out the requests.
    pub fn new(object: Object, what: String, size: u64, cancelled: CancellationToken) -> Self {
        Self {
            object,
            what,
            size,
            cancelled,
            runtime: Handle::current(),
            tag: None,
            at: 0,
            kept: VecDeque::new(),
            next: (0, 0),
        }
    }

    /// The block with this number.
    fn block(&mut self, number: u64) -> Result<&[u8], Failure> {
        let known = self.kept.iter().position(|(kept, _)| *kept == number);
        if let Some(block) = known.and_then(|index| self.kept.remove(index)) {
            self.kept.push_back(block);
        } else {
            self.fetch(number)?;
        }
        Ok(self.kept.back().map_or(&[], |(_, bytes)| bytes))
    }

    /// Fetches a block, and perhaps some after it. It is the last one of those that are kept.
    fn fetch(&mut self, number: u64) -> Result<(), Failure> {
        let (next, before) = self.next;
        let wanted = if next == number {
            (before * 2).clamp(1, MOST_AHEAD)
        } else {
            1
        };
        let begin = number * BLOCK as u64;
        let end = (begin + wanted * BLOCK as u64).min(self.size);
        let runtime = self.runtime.clone();
        let bytes = runtime.block_on(self.range(begin, end))?;
        self.next = (number + wanted, wanted);
        for (index, block) in bytes.chunks(BLOCK).enumerate().rev() {
            let number = number + index as u64;
            self.kept.retain(|(kept, _)| *kept != number);
            self.kept.push_back((number, block.to_vec()));
        }
        while self.kept.len() > KEPT {
            self.kept.pop_front();
        }
        Ok(())
    }

    /// The bytes from `begin` to before `end`, of which there is at least one.
    async fn range(&mut self, begin: u64, end: u64) -> Result<Vec<u8>, Failure> {
        let (mut attempt, mut pause) = (1, PAUSE);
        loop {
            let cancelled = self.cancelled.clone();
            let problem = tokio::select! {
                () = cancelled.cancelled() => {
                    return Err(Failure::new(Code::Interrupted, format!("reading {} was interrupted", self.what)));
                }
                answer = self.try_range(begin, end) => match answer {
                    Ok(bytes) => return Ok(bytes),
                    Err(problem) => problem,
                },
            };
            match problem {
                Problem::Passing(_) if attempt < TRIES => {}
                Problem::Passing(failure) | Problem::Lasting(failure) => return Err(failure),
            }
            tokio::time::sleep(pause).await;
            attempt += 1;
            pause *= 2;
        }
    }

    async fn try_range(&mut self, begin: u64, end: u64) -> Result<Vec<u8>, Problem> {
        let mut request = self.object.http.get(self.object.url.clone()).timeout(TIMEOUT);
        request = request.header(RANGE, format!("bytes={begin}-{}", end - 1));
        if let Some(tag) = &self.tag {
            request = request.header(IF_MATCH, tag);
        }
        let mut answer = request.send().await.map_err(|error| self.lost(&error))?;
        self.check(&answer, begin, end)?;
        let wanted = end - begin;
        let mut bytes = Vec::new();
        while let Some(piece) = answer.chunk().await.map_err(|error| self.lost(&error))? {
            if (bytes.len() + piece.len()) as u64 > wanted {
                return Err(Problem::Lasting(
                    self.unreadable("the answer has more bytes than it says"),
                ));
            }
            bytes.extend_from_slice(&piece);
        }
        if bytes.len() as u64 != wanted {
            return Err(Problem::Passing(self.unreadable("the answer ended too early")));
        }
        if self.tag.is_none() {
            self.tag = strong_tag(&answer).cloned();
        }
        Ok(bytes)
    }

    /// Checks that an answer is this range of the same object.
    fn check(&self, answer: &Response, begin: u64, end: u64) -> Result<(), Problem> {
        let status = answer.status();
        match status {
            StatusCode::PARTIAL_CONTENT => {}
            StatusCode::FORBIDDEN | StatusCode::UNAUTHORIZED => {
                let detail = format!("S3 refuses to give {} ({status})", self.what);
                let hint = "its address is valid for a limited time: begin anew. The clocks of this machine, the server and \
                            S3 must agree";
                return Err(Problem::Lasting(Failure::new(Code::S3Denied, detail).hint(hint)));
            }
            StatusCode::PRECONDITION_FAILED => return Err(Problem::Lasting(self.changed())),
            status if status.is_server_error() || status == StatusCode::TOO_MANY_REQUESTS => {
                let detail = format!("S3 does not give {}: it answers {status}", self.what);
                let failure = Failure::new(Code::S3Unreachable, detail);
                return Err(Problem::Passing(failure.hint("try again in a while")));
            }
            StatusCode::OK => {
                let why = "S3, or a proxy on the way, gives all of it instead of a part";
                return Err(Problem::Lasting(self.unreadable(why)));
            }
            StatusCode::RANGE_NOT_SATISFIABLE => return Err(Problem::Lasting(self.changed())),
            status => return Err(Problem::Lasting(self.unreadable(&format!("S3 answers {status}")))),
        }
        let given = answer
            .headers()
            .get(CONTENT_RANGE)
            .and_then(|value| value.to_str().ok());
        let (range, total) = given.and_then(|given| given.rsplit_once('/')).unwrap_or_default();
        if range != format!("bytes {begin}-{}", end - 1) {
            let why = "the answer is not the part that was asked for";
            return Err(Problem::Lasting(self.unreadable(why)));
        }
        let is_same = match (&self.tag, strong_tag(answer)) {
            (Some(first), tag) => tag == Some(first),
            (None, _) => true,
        };
        if total.parse() != Ok(self.size) || !is_same {
            return Err(Problem::Lasting(self.changed()));
        }
        Ok(())
    }

    fn lost(&self, error: &reqwest::Error) -> Problem {
        let (code, why) = if error.is_timeout() {
            (Code::S3Timeout, "it does not come in time".to_owned())
        } else {
            (Code::S3Unreachable, innermost(error))
        };
        let failure = Failure::new(code, format!("cannot read {}: {why}", self.what));
        Problem::Passing(
            failure.hint("this machine must reach S3 at the address that the server gives (`s3.public_endpoint`)"),
        )
    }

    fn changed(&self) -> Failure {
        let detail = format!("{} is not the object any more that it was", self.what);
        Failure::new(Code::RootUnreadable, detail).hint("try again; `kiln verify` says whether the image is whole")
    }

    fn unreadable(&self, why: &str) -> Failure {
        Failure::new(
            Code::RootUnreadable,
            format!("cannot read a part of {}: {why}", self.what),
        )
        .hint("S3, and each proxy before it, must answer requests for ranges; `kiln artifacts get` downloads it whole")
    }
}

/// The entity tag of an answer, unless it is one that several contents may share.
fn strong_tag(answer: &Response) -> Option<&HeaderValue> {
    let tag = answer.headers().get(ETAG);
    tag.filter(|tag| !tag.as_bytes().starts_with(b"W/"))
}

impl Read for Ranges {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.at >= self.size || buffer.is_empty() {
            return Ok(0);
        }
        // The remainder is less than a block, so this fits.
        let offset = usize::try_from(self.at % BLOCK as u64).unwrap_or(0);
        let block = self.block(self.at / BLOCK as u64).map_err(io::Error::other)?;
        let rest = block.get(offset..).unwrap_or(&[]);
        let count = rest.len().min(buffer.len());
        buffer[..count].copy_from_slice(&rest[..count]);
        self.at += count as u64;
        Ok(count)
    }
}

impl Seek for Ranges {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        let at = match to {
            SeekFrom::Start(at) => Some(at),
            SeekFrom::End(by) => self.size.checked_add_signed(by),
            SeekFrom::Current(by) => self.at.checked_add_signed(by),
        };
        self.at = at.ok_or_else(|| io::Error::from(io::ErrorKind::InvalidInput))?;
        Ok(self.at)
    }
}

#[cfg(test)]
mod tests;
