//! Verifies a request's body against the length and digests that the request promises. Pure: no I/O.

use base64::{Engine, prelude::BASE64_STANDARD};
use md5::{Digest, Md5};
use s3s::{
    S3Error, S3ErrorCode, S3Request, TrailingHeaders,
    checksum::ChecksumHasher,
    crypto::{Checksum as _, Sha1, Sha256},
    dto::{PutObjectInput, UploadPartInput},
};

use super::{
    chunked::DECODED_LENGTH,
    fault::Result,
    sums::{Sums, sums_of},
};

/// The header that names the checksum after the body.
const TRAILER: &str = "x-amz-trailer";

/// The length and digests that a request promises.
#[derive(Debug, Default)]
pub(super) struct Expected {
    length: Option<u64>,
    md5: Option<[u8; 16]>,
    sums: Sums,
    trailing: Option<Trailing>,
}

/// Headers that follow the body.
#[derive(Debug)]
struct Trailing {
    names: Vec<String>,
    /// The place where they will arrive.
    headers: TrailingHeaders,
}

/// Computes digests of a body while it streams past.
pub(super) struct Digester {
    size: u64,
    md5: Md5,
    checksums: ChecksumHasher,
}

impl Digester {
    pub(super) fn update(&mut self, chunk: &[u8]) {
        self.size += chunk.len() as u64;
        self.md5.update(chunk);
        self.checksums.update(chunk);
    }
}

impl Expected {
    /// The promises of a PutObject request.
    pub(super) fn of_put(request: &S3Request<PutObjectInput>) -> Result<Self> {
        let input = &request.input;
        Self::new(
            request,
            input.content_length,
            input.content_md5.as_deref(),
            sums_of!(input),
        )
    }

    /// The promises of an UploadPart request.
    pub(super) fn of_part(request: &S3Request<UploadPartInput>) -> Result<Self> {
        let input = &request.input;
        Self::new(
            request,
            input.content_length,
            input.content_md5.as_deref(),
            sums_of!(input),
        )
    }

    fn new<T>(request: &S3Request<T>, length: Option<i64>, md5: Option<&str>, sums: Sums) -> Result<Self> {
        let header = |name| request.headers.get(name).and_then(|value| value.to_str().ok());
        // The library has this handle for every body in chunks, with trailing headers or without.
        let chunks = request.trailing_headers.clone();
        let length = match &chunks {
            // The length header of a body in chunks counts their frames too.
            Some(_) => header(DECODED_LENGTH).and_then(|length| length.parse().ok()),
            None => length.and_then(|length| length.try_into().ok()),
        };
        let trailing = chunks.zip(header(TRAILER)).map(|(headers, names)| Trailing {
            names: names.split(',').map(|name| name.trim().to_ascii_lowercase()).collect(),
            headers,
        });
        Ok(Self {
            length,
            md5: md5.map(parse_md5).transpose()?,
            sums,
            trailing,
        })
    }

    /// A digester for everything that [`Expected::verify`] compares.
    pub(super) fn digester(&self) -> Digester {
        let sums = &self.sums.each();
        let promised = |header: &str| {
            sums.iter().any(|(name, sum)| *name == header && sum.is_some())
                || self
                    .trailing
                    .as_ref()
                    .is_some_and(|it| it.names.iter().any(|name| name == header))
        };
        Digester {
            size: 0,
            md5: Md5::new(),
            checksums: ChecksumHasher {
                crc32: promised("x-amz-checksum-crc32").then(Default::default),
                crc32c: promised("x-amz-checksum-crc32c").then(Default::default),
                sha1: promised("x-amz-checksum-sha1").then(Sha1::new),
                sha256: promised("x-amz-checksum-sha256").then(Sha256::new),
                crc64nvme: promised("x-amz-checksum-crc64nvme").then(Default::default),
            },
        }
    }

    /// Size, MD5 and checksums of the body, if they match the promises.
    pub(super) fn verify(self, digester: Digester) -> Result<(u64, [u8; 16], Sums)> {
        let md5: [u8; 16] = digester.md5.finalize().into();
        if self.length.is_some_and(|length| length != digester.size) {
            return Err(S3ErrorCode::IncompleteBody.into());
        }
        if self.md5.is_some_and(|promised| promised != md5) {
            return Err(bad_digest("Content-MD5"));
        }
        let computed = digester.checksums.finalize();
        let computed = sums_of!(computed);
        if let Some(header) = computed.differs_from(&self.sums) {
            return Err(bad_digest(header));
        }
        if let Some(trailing) = &self.trailing {
            let headers = trailing.headers.take().unwrap_or_default();
            for name in &trailing.names {
                let Some(promised) = headers.get(name.as_str()) else {
                    let message = format!("the header {name} does not follow the body");
                    return Err(S3Error::with_message(S3ErrorCode::IncompleteBody, message).into());
                };
                let mut sums = computed.each().into_iter();
                if let Some((header, sum)) = sums.find(|(header, _)| header == name)
                    && sum.map(str::as_bytes) != Some(promised.as_bytes())
                {
                    return Err(bad_digest(header));
                }
            }
        }
        Ok((digester.size, md5, computed))
    }
}

fn parse_md5(header: &str) -> Result<[u8; 16]> {
    let bytes = BASE64_STANDARD.decode(header).ok();
    let digest = bytes.and_then(|bytes| bytes.try_into().ok());
    digest.ok_or_else(|| S3ErrorCode::InvalidDigest.into())
}

fn bad_digest(header: &str) -> super::fault::Fault {
    S3Error::with_message(S3ErrorCode::BadDigest, format!("the body does not match {header}")).into()
}
