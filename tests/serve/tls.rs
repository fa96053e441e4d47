//! TLS: certificates that are used, followed, and refused.

use std::path::PathBuf;

use rcgen::KeyPair;

use super::refused;
use crate::support::{
    Kiln,
    authority::Authority,
    eventually_async,
    serve::{Server, client},
};

fn tls_files(kiln: &Kiln) -> (PathBuf, PathBuf) {
    (kiln.data().join("tls.pem"), kiln.data().join("tls.key"))
}

#[test]
async fn certificates_are_used_and_followed() {
    let (first, second) = (Authority::new(), Authority::new());
    let kiln = Kiln::bare();
    let (certificate, key) = tls_files(&kiln);
    first.write(&certificate, &key);
    let variables = [
        ("KILN__SERVER__TLS_CERTIFICATE", certificate.to_str().unwrap()),
        ("KILN__SERVER__TLS_KEY", key.to_str().unwrap()),
    ];
    let server = Server::start_in(kiln, &variables);
    assert!(server.url.starts_with("https://"), "{}", server.url);
    let version = format!("{}/version", server.url);
    let trusting = |authority: &Authority| client(Some(&authority.pem)).get(&version).send();
    let answer = trusting(&first).await.unwrap();
    assert_eq!(
        (answer.status().as_u16(), answer.version()),
        (200, reqwest::Version::HTTP_2)
    );
    assert!(trusting(&second).await.is_err());
    // A client without TLS gets no answer.
    assert!(client(None).get(version.replace("https", "http")).send().await.is_err());

    // In the middle of being replaced, when they do not fit together, the old ones stay in use.
    let good = fs_err::read(&key).unwrap();
    fs_err::write(&key, KeyPair::generate().unwrap().serialize_pem()).unwrap();
    let mut server = server;
    server.started.wait_for("the changed certificate cannot be used");
    assert!(trusting(&first).await.is_ok());
    fs_err::write(&key, good).unwrap();

    second.write(&certificate, &key);
    eventually_async(|| trusting(&second)).await;
    assert!(trusting(&first).await.is_err());
    server.stop();
}

#[test]
fn certificates_that_cannot_be_used() {
    let kiln = Kiln::bare();
    let (certificate, key) = tls_files(&kiln);
    let authority = Authority::new();
    authority.write(&certificate, &key);
    let (certificate, key) = (certificate.to_str().unwrap(), key.to_str().unwrap());
    let error = |certificate: &str, key: &str| {
        let both = [
            ("KILN__SERVER__TLS_CERTIFICATE", certificate),
            ("KILN__SERVER__TLS_KEY", key),
        ];
        let set: Vec<_> = both.into_iter().filter(|(_, value)| !value.is_empty()).collect();
        refused(&kiln, &set)
    };
    assert!(error(certificate, "").contains("tls_key is not set"));
    assert!(error("", key).contains("tls_certificate is not set"));
    assert!(error("/nowhere/tls.pem", key).contains("/nowhere/tls.pem"));
    assert!(error(key, key).contains("it contains no certificate"));
    assert!(error(certificate, certificate).contains("it contains no private key"));
    let other = kiln.data().join("other.key");
    fs_err::write(&other, KeyPair::generate().unwrap().serialize_pem()).unwrap();
    let error = error(certificate, other.to_str().unwrap());
    assert!(error.contains("cannot be used with"), "{error}");
}
