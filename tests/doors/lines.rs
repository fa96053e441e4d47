//! What strangers can have written to the log.

use crate::support::serve::Server;

#[test]
async fn a_stranger_at_the_embedded_s3_writes_no_line() {
    let quiet = tries("warn,kiln=info").await;
    assert!(
        !quiet.contains("SignatureDoesNotMatch") && !quiet.contains("ERROR"),
        "{quiet}"
    );
    let debug = tries("warn,kiln=debug").await;
    assert!(debug.contains("embedded S3: a request was refused"), "{debug}");
    assert!(!debug.contains("ERROR"), "{debug}");
}

/// The log of a server after requests that nobody has signed, or somebody with other keys.
async fn tries(level: &str) -> String {
    let mut server = Server::start(&[("KILN_LOG", level)]);
    let said = server.started.wait_for("s3 ");
    let endpoint = said.split_whitespace().last().unwrap();
    let signed = "AWS4-HMAC-SHA256 Credential=AKIDEXAMPLE/20260101/us-east-1/s3/aws4_request, \
        SignedHeaders=host;x-amz-date, Signature=00";
    for authorization in [None, Some(signed), Some("AWS4-HMAC-SHA256 nonsense"), Some("AWS a:b")] {
        let mut request = server.client.get(format!("{endpoint}/boot-images/x"));
        if let Some(authorization) = authorization {
            request = request
                .header("authorization", authorization)
                .header("x-amz-date", "20260101T000000Z")
                .header("x-amz-content-sha256", "UNSIGNED-PAYLOAD");
        }
        let answer = request.send().await.unwrap();
        assert!(answer.status().is_client_error(), "{answer:?}");
    }
    server.stop().stderr
}
