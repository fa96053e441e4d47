//! Verifies a request's body against the length and digests that the request promises. Pure: no I/O.

use base64::{Engine, prelude::BASE64_STANDARD};
use md5::{Digest, Md5};
use s3s::{
    S3Error, S3ErrorCode, S3Request, TrailingHeaders,
    checksum::ChecksumHasher,
    crypto::{Checksum as _, Sha1, Sha256},
    dto::{Checksum, PutObjectInput, UploadPartInput},
};

use super::fault::Result;

/// The header that names the checksum after the body.
const TRAILER: &str = "x-amz-trailer";

/// The length and digests that a request promises.
#[derive(Debug, Default)]
pub(super) struct Expected {
    length: Option<u64>,
    md5: Option<[u8; 16]>,
    checksums: Checksum,
    /// Names of the checksum headers that follow the body, and the place where they will arrive.
    trailing: Option<(String, TrailingHeaders)>,
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
        let checksums = Checksum {
            checksum_crc32: input.checksum_crc32.clone(),
            checksum_crc32c: input.checksum_crc32c.clone(),
            checksum_crc64nvme: input.checksum_crc64nvme.clone(),
            checksum_sha1: input.checksum_sha1.clone(),
            checksum_sha256: input.checksum_sha256.clone(),
            checksum_type: None,
        };
        Self::new(request, input.content_length, input.content_md5.as_deref(), checksums)
    }

    /// The promises of an UploadPart request.
    pub(super) fn of_part(request: &S3Request<UploadPartInput>) -> Result<Self> {
        let input = &request.input;
        let checksums = Checksum {
            checksum_crc32: input.checksum_crc32.clone(),
            checksum_crc32c: input.checksum_crc32c.clone(),
            checksum_crc64nvme: input.checksum_crc64nvme.clone(),
            checksum_sha1: input.checksum_sha1.clone(),
            checksum_sha256: input.checksum_sha256.clone(),
            checksum_type: None,
        };
        Self::new(request, input.content_length, input.content_md5.as_deref(), checksums)
    }

    fn new<T>(request: &S3Request<T>, length: Option<i64>, md5: Option<&str>, checksums: Checksum) -> Result<Self> {
        let trailing = request.trailing_headers.clone().and_then(|headers| {
            let names = request.headers.get(TRAILER)?.to_str().ok()?;
            Some((names.to_ascii_lowercase(), headers))
        });
        // The length header of a chunk-signed body includes the signatures.
        let length = length.filter(|_| request.trailing_headers.is_none());
        Ok(Self {
            length: length.and_then(|length| length.try_into().ok()),
            md5: md5.map(parse_md5).transpose()?,
            checksums,
            trailing,
        })
    }

    /// A digester for everything that [`Expected::verify`] compares.
    pub(super) fn digester(&self) -> Digester {
        let promised = |given: &Option<String>, header: &str| {
            given.is_some() || self.trailing.as_ref().is_some_and(|(names, _)| names.contains(header))
        };
        let sums = &self.checksums;
        Digester {
            size: 0,
            md5: Md5::new(),
            checksums: ChecksumHasher {
                crc32: promised(&sums.checksum_crc32, "x-amz-checksum-crc32").then(Default::default),
                crc32c: promised(&sums.checksum_crc32c, "x-amz-checksum-crc32c").then(Default::default),
                sha1: promised(&sums.checksum_sha1, "x-amz-checksum-sha1").then(Sha1::new),
                sha256: promised(&sums.checksum_sha256, "x-amz-checksum-sha256").then(Sha256::new),
                crc64nvme: promised(&sums.checksum_crc64nvme, "x-amz-checksum-crc64nvme").then(Default::default),
            },
        }
    }

    /// Size and MD5 of the body, if they match the promises.
    pub(super) fn verify(self, digester: Digester) -> Result<(u64, [u8; 16])> {
        let md5: [u8; 16] = digester.md5.finalize().into();
        if self.length.is_some_and(|length| length != digester.size) {
            return Err(S3ErrorCode::IncompleteBody.into());
        }
        if self.md5.is_some_and(|promised| promised != md5) {
            return Err(bad_digest("Content-MD5"));
        }
        let computed = digester.checksums.finalize();
        let trailing = self.trailing.and_then(|(_, headers)| headers.take());
        let sums = [
            (
                "x-amz-checksum-crc32",
                self.checksums.checksum_crc32,
                computed.checksum_crc32,
            ),
            (
                "x-amz-checksum-crc32c",
                self.checksums.checksum_crc32c,
                computed.checksum_crc32c,
            ),
            (
                "x-amz-checksum-sha1",
                self.checksums.checksum_sha1,
                computed.checksum_sha1,
            ),
            (
                "x-amz-checksum-sha256",
                self.checksums.checksum_sha256,
                computed.checksum_sha256,
            ),
            (
                "x-amz-checksum-crc64nvme",
                self.checksums.checksum_crc64nvme,
                computed.checksum_crc64nvme,
            ),
        ];
        for (header, before, computed) in sums {
            let after = trailing.as_ref().and_then(|trailing| trailing.get(header));
            let after = after.map(|value| String::from_utf8_lossy(value.as_bytes()).into_owned());
            if before.or(after).is_some_and(|promised| Some(promised) != computed) {
                return Err(bad_digest(header));
            }
        }
        Ok((digester.size, md5))
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
