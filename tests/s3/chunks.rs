//! Bodies in chunks, sent by hand: what a client sends that dies, or is cut off, in the middle of one.

use reqwest::Response;
use sha2::{Digest, Sha256};

use crate::s3::target::{Target, bytes};

const FORM: &str = "STREAMING-UNSIGNED-PAYLOAD-TRAILER";

/// Of "hello".
const CRC32: &str = "x-amz-checksum-crc32:NhCmhg==\r\n";

fn hmac(key: &[u8], text: &str) -> Vec<u8> {
    let pad = |byte: u8| -> Vec<u8> {
        let key = key.iter().copied().chain(std::iter::repeat(0));
        key.take(64).map(|it| it ^ byte).collect()
    };
    let inner = Sha256::digest([pad(0x36), text.as_bytes().to_vec()].concat());
    Sha256::digest([pad(0x5c), inner.to_vec()].concat()).to_vec()
}

/// Sends a request whose headers are signed, and whose body need not be what they promise.
async fn put(target: &Target, path: &str, query: &str, length: usize, body: impl Into<Vec<u8>>) -> Response {
    let settings = &target.settings;
    let endpoint = settings.endpoint.as_ref().unwrap();
    let now = jiff::Timestamp::now().strftime("%Y%m%dT%H%M%SZ").to_string();
    let headers = [
        ("host", endpoint.strip_prefix("http://").unwrap().to_owned()),
        ("x-amz-content-sha256", FORM.to_owned()),
        ("x-amz-date", now.clone()),
        ("x-amz-decoded-content-length", length.to_string()),
        ("x-amz-trailer", "x-amz-checksum-crc32".to_owned()),
    ];
    let names = headers.each_ref().map(|(name, _)| *name).join(";");
    let lines = headers
        .each_ref()
        .map(|(name, value)| format!("{name}:{value}\n"))
        .concat();
    let canonical = format!("PUT\n{path}\n{query}\n{lines}\n{names}\n{FORM}");
    let scope = format!("{}/us-east-1/s3/aws4_request", &now[..8]);
    let to_sign = format!(
        "AWS4-HMAC-SHA256\n{now}\n{scope}\n{}",
        hex::encode(Sha256::digest(canonical))
    );
    let secret = format!("AWS4{}", settings.secret_key.as_ref().unwrap().expose());
    let key = scope.split('/').fold(secret.into_bytes(), |key, part| hmac(&key, part));
    let signature = hex::encode(hmac(&key, &to_sign));
    let access = settings.access_key.as_ref().unwrap();
    let credential =
        format!("AWS4-HMAC-SHA256 Credential={access}/{scope}, SignedHeaders={names}, Signature={signature}");

    let url = format!("{endpoint}{path}{}{query}", if query.is_empty() { "" } else { "?" });
    let mut request = target.http.put(url).header("authorization", credential);
    for (name, value) in &headers[1..] {
        request = request.header(*name, value);
    }
    request
        .header("content-encoding", "aws-chunked")
        .body(body.into())
        .send()
        .await
        .unwrap()
}

pub async fn a_body_that_breaks_off_between_its_chunks_is_refused(target: Target) -> Target {
    let whole = format!("5\r\nhello\r\n0\r\n{CRC32}\r\n");
    let path = format!("/{}/k", target.bucket);
    for (what, length, body) in [
        ("without its final chunk", 5, "5\r\nhello\r\n"),
        ("in the middle of a chunk", 5, "5\r\nhel"),
        ("without its second chunk", 10, "5\r\nhello\r\n"),
        ("with nothing at all", 5, ""),
        ("with less than promised", 10, &whole),
        ("with more than promised", 4, &whole),
        ("without the promised checksum", 5, "5\r\nhello\r\n0\r\n\r\n"),
        (
            "with another checksum",
            5,
            "5\r\nhallo\r\n0\r\nx-amz-checksum-crc32:NhCmhg==\r\n\r\n",
        ),
    ] {
        let answer = put(&target, &path, "", length, body).await;
        assert_eq!(answer.status(), 400, "{what}");
        let text = answer.text().await.unwrap();
        assert!(
            text.contains("IncompleteBody") || text.contains("BadDigest"),
            "{what}: {text}"
        );
        assert!(target.keys().await.is_empty(), "{what}");
    }
    assert_eq!(put(&target, &path, "", 5, whole).await.status(), 200);
    assert_eq!(target.get("k").await, b"hello");
    target
}

pub async fn a_part_that_breaks_off_between_its_chunks_is_refused(target: Target) -> Target {
    let create = target.client.create_multipart_upload().bucket(&target.bucket).key("m");
    let upload = create.send().await.unwrap();
    let query = format!("partNumber=1&uploadId={}", upload.upload_id().unwrap());
    let path = format!("/{}/m", target.bucket);
    let cut = put(&target, &path, &query, 10, "5\r\nhello\r\n").await;
    assert_eq!(cut.status(), 400);
    let list = target.client.list_parts().bucket(&target.bucket).key("m");
    let list = list.upload_id(upload.upload_id().unwrap()).send().await.unwrap();
    assert!(list.parts().is_empty());
    target
}

/// Clients that know the length beforehand send one chunk, however large.
pub async fn a_large_body_may_be_one_chunk(target: Target) -> Target {
    let large = bytes(9 << 20);
    let mut crc = u32::MAX;
    for byte in &large {
        crc ^= u32::from(*byte);
        for _ in 0..8 {
            crc = (crc >> 1) ^ (0xedb8_8320 & (crc & 1).wrapping_neg());
        }
    }
    let crc = base64::Engine::encode(&base64::prelude::BASE64_STANDARD, (!crc).to_be_bytes());
    let body = [
        format!("{:x}\r\n", large.len()).into_bytes(),
        large.clone(),
        format!("\r\n0\r\nx-amz-checksum-crc32:{crc}\r\n\r\n").into_bytes(),
    ];
    let path = format!("/{}/large", target.bucket);
    let answer = put(&target, &path, "", large.len(), body.concat()).await;
    assert_eq!(answer.status(), 200);
    assert!(target.get("large").await == large);
    target
}
