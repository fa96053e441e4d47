//! Checks the frame of `aws-chunked` bodies as they stream past. Pure: no I/O.
//!
//! ```text
//! <size in hex>[;chunk-signature=…]\r\n<bytes>\r\n … 0[;chunk-signature=…]\r\n[<trailing headers>]\r\n
//! ```
//!
//! The protocol's library reads the chunks and verifies their signatures, but takes a body that ends early for a whole
//! one, and keeps each chunk in memory. So this module requires the final chunk and the promised length, refuses
//! signed chunks that are too large, and cuts unsigned ones into pieces.

use bytes::{BufMut, Bytes, BytesMut};
use hyper::HeaderMap;

/// The header with the length of the object.
pub(super) const DECODED_LENGTH: &str = "x-amz-decoded-content-length";

/// The header that says whether the body is in chunks, and whether these are signed.
const FORM: &str = "x-amz-content-sha256";

/// The largest signed chunk, in bytes (1 MiB). Clients use 64 or 128 KiB.
const LARGEST: u64 = 1 << 20;

/// The longest line before a chunk.
const LONGEST_LINE: usize = 1024;

/// A body that is not as promised.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum Misframed {
    #[error("the body ends before its final chunk, after {0} bytes")]
    Truncated(u64),
    #[error("the body has {found} bytes instead of {promised}")]
    Length { promised: u64, found: u64 },
    #[error("a signed chunk has {0} bytes; allowed are {LARGEST}")]
    Chunk(u64),
    #[error("the body is not in chunks")]
    Malformed,
}

/// Where in the body the next byte is.
#[derive(Debug)]
enum At {
    /// In the line before a chunk, of which this was seen.
    Line(Vec<u8>),
    /// In the bytes of a chunk, of which so many are missing.
    Bytes(u64),
    /// In the line break after a chunk, of which so many bytes were seen.
    Break(usize),
    /// After the line of the final chunk.
    Trailer,
}

/// The state of a body.
#[derive(Debug)]
pub(super) struct Chunked {
    at: At,
    signed: bool,
    promised: Option<u64>,
    found: u64,
}

impl Chunked {
    /// A new body, if these headers say that it is in chunks.
    pub(super) fn of(headers: &HeaderMap) -> Option<Self> {
        let text = |name| headers.get(name).and_then(|value| value.to_str().ok());
        let form = text(FORM)?.strip_prefix("STREAMING-")?;
        Some(Self {
            at: At::Line(Vec::new()),
            signed: !form.starts_with("UNSIGNED-"),
            promised: text(DECODED_LENGTH).and_then(|length| length.parse().ok()),
            found: 0,
        })
    }

    /// Takes the next bytes of the body. Returns what takes their place.
    pub(super) fn pass(&mut self, bytes: Bytes) -> Result<Bytes, Misframed> {
        let (mut rest, mut out) = (bytes.clone(), BytesMut::new());
        while !rest.is_empty() {
            let step = match &mut self.at {
                At::Line(line) => {
                    let end = rest.iter().position(|byte| *byte == b'\n').map(|end| end + 1);
                    let step = rest.split_to(end.unwrap_or(rest.len()));
                    if line.len() + step.len() > LONGEST_LINE {
                        return Err(Misframed::Malformed);
                    }
                    line.extend_from_slice(&step);
                    if end.is_some() {
                        let line = std::mem::take(line);
                        self.begin(&line, &mut out)?;
                    }
                    continue;
                }
                At::Bytes(missing) => {
                    let here = usize::try_from(*missing).unwrap_or(usize::MAX).min(rest.len());
                    let step = rest.split_to(here);
                    *missing -= step.len() as u64;
                    if *missing == 0 {
                        self.at = At::Break(0);
                    }
                    step
                }
                At::Break(seen) => {
                    if rest.split_to(1)[0] != b"\r\n"[*seen] {
                        return Err(Misframed::Malformed);
                    }
                    *seen += 1;
                    if *seen == 2 {
                        self.at = At::Line(Vec::new());
                    }
                    continue;
                }
                At::Trailer => {
                    out.put(rest);
                    break;
                }
            };
            // Every run of unsigned bytes becomes a chunk.
            out.put(format!("{:x}\r\n", step.len()).as_bytes());
            out.put(step);
            out.put(&b"\r\n"[..]);
        }
        Ok(if self.signed { bytes } else { out.freeze() })
    }

    /// Takes note of a chunk.
    fn begin(&mut self, line: &[u8], out: &mut BytesMut) -> Result<(), Misframed> {
        let size = line.split(|byte| b";\r\n".contains(byte)).next().unwrap_or_default();
        let size = std::str::from_utf8(size).ok().filter(|size| !size.starts_with('+'));
        let size = size.and_then(|size| u64::from_str_radix(size, 16).ok());
        let size = size.ok_or(Misframed::Malformed)?;
        if self.signed && size > LARGEST {
            return Err(Misframed::Chunk(size));
        }
        self.found = self.found.saturating_add(size);
        let wrong = |promised: u64| {
            if size == 0 {
                self.found != promised
            } else {
                self.found > promised
            }
        };
        if let Some(promised) = self.promised.filter(|promised| wrong(*promised)) {
            return Err(Misframed::Length {
                promised,
                found: self.found,
            });
        }
        self.at = if size == 0 {
            out.put(line);
            At::Trailer
        } else {
            At::Bytes(size)
        };
        Ok(())
    }

    /// Takes note of the end of the body.
    pub(super) fn end(&self) -> Result<(), Misframed> {
        match self.at {
            At::Trailer => Ok(()),
            _ => Err(Misframed::Truncated(self.found)),
        }
    }
}

#[cfg(test)]
mod tests {
    use hyper::header::{HeaderName, HeaderValue};

    use super::*;

    const SIGNED: &str = "STREAMING-AWS4-HMAC-SHA256-PAYLOAD";
    const UNSIGNED: &str = "STREAMING-UNSIGNED-PAYLOAD-TRAILER";

    fn body(form: &'static str, length: &'static str) -> Chunked {
        let headers = [(FORM, form), (DECODED_LENGTH, length)];
        let headers = headers.map(|(name, value)| (HeaderName::from_static(name), HeaderValue::from_static(value)));
        Chunked::of(&headers.into_iter().collect()).unwrap()
    }

    /// What becomes of a body that arrives in pieces of `size`.
    fn pass(mut body: Chunked, text: &str, size: usize) -> Result<String, Misframed> {
        let mut out = Vec::new();
        for piece in text.as_bytes().chunks(size) {
            out.extend(body.pass(Bytes::copy_from_slice(piece))?);
        }
        body.end()?;
        Ok(String::from_utf8(out).unwrap())
    }

    #[test]
    fn whole_bodies_pass() {
        let text = "5;chunk-signature=ab\r\nhello\r\n0;chunk-signature=cd\r\n\r\n";
        let plain = "5\r\nhello\r\n0\r\nx-amz-checksum-crc32:abc\r\n\r\n";
        for size in 1..text.len() {
            assert_eq!(pass(body(SIGNED, "5"), text, size).unwrap(), text);
            let passed = pass(body(UNSIGNED, "5"), plain, size).unwrap();
            assert!(passed.ends_with("0\r\nx-amz-checksum-crc32:abc\r\n\r\n"), "{passed}");
        }
        assert_eq!(pass(body(UNSIGNED, "5"), plain, 99).unwrap(), plain);
        assert_eq!(pass(body(UNSIGNED, "0"), "0\r\n\r\n", 99).unwrap(), "0\r\n\r\n");
    }

    #[test]
    fn a_large_unsigned_chunk_is_cut_and_a_signed_one_refused() {
        let text = "a\r\n0123456789\r\n0\r\n\r\n";
        assert_eq!(
            pass(body(UNSIGNED, "10"), text, 7).unwrap(),
            "4\r\n0123\r\n6\r\n456789\r\n0\r\n\r\n"
        );
        assert_eq!(
            pass(body(SIGNED, "4294967295"), "ffffffff\r\n", 99),
            Err(Misframed::Chunk(0xffff_ffff))
        );
    }

    #[test]
    fn a_body_that_ends_early_is_found() {
        for form in [SIGNED, UNSIGNED] {
            for text in ["", "5", "5\r\nhel", "5\r\nhello", "5\r\nhello\r\n", "5\r\nhello\r\n0"] {
                let found = u64::from(text.contains('\n')) * 5;
                assert_eq!(
                    pass(body(form, "5"), text, 99),
                    Err(Misframed::Truncated(found)),
                    "{text:?}"
                );
            }
        }
    }

    #[test]
    fn another_length_than_the_promised_one_is_found() {
        let length = |promised, found| Err(Misframed::Length { promised, found });
        for form in [SIGNED, UNSIGNED] {
            assert_eq!(pass(body(form, "10"), "5\r\nhello\r\n0\r\n\r\n", 99), length(10, 5));
            assert_eq!(pass(body(form, "4"), "5\r\nhello\r\n0\r\n\r\n", 99), length(4, 5));
        }
    }

    #[test]
    fn what_is_not_in_chunks_is_refused() {
        for text in [
            "hello\r\n",
            "+5\r\nhello\r\n",
            "\r\n",
            "5\r\nhello!\r\n0\r\n\r\n",
            &"0".repeat(2000),
        ] {
            assert_eq!(
                pass(body(UNSIGNED, "5"), text, 99),
                Err(Misframed::Malformed),
                "{text:?}"
            );
        }
        assert!(Chunked::of(&HeaderMap::new()).is_none());
    }
}
