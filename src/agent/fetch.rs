//! Downloads the recipe archive, and makes the HTTP clients of the agent. Talks HTTP, and writes the downloaded file.

use std::{path::Path, time::Duration};

use futures::StreamExt;
use kiln_records::{
    Code, Digests, Failure,
    artifact::Digesting,
    protocol::{ObjectSource, RecipeSource},
};
use reqwest::{Certificate, Client, ClientBuilder, NoProxy, Proxy};
use tokio::io::AsyncWriteExt;

/// Attempts to download the recipe, two seconds apart.
const TRIES: u32 = 5;

/// A client for servers outside the sandbox; see [`client`].
///
/// # Errors
///
/// `ca_bundle_invalid` when the bundle cannot be read or contains no certificate.
pub fn http_client(ca_bundle: Option<&str>) -> Result<Client, Failure> {
    let client = client(ca_bundle)?.read_timeout(Duration::from_mins(2));
    client.build().map_err(|error| unusable(&error))
}

/// A client for what recipes name, which may have to be asked of the site's proxy.
///
/// # Errors
///
/// `ca_bundle_invalid` as [`client`].
pub fn web_client(ca_bundle: Option<&str>) -> Result<Client, Failure> {
    let mut client = client(ca_bundle)?.read_timeout(Duration::from_mins(2));
    let variable = |name| std::env::var(name).ok().filter(|value| !value.is_empty());
    for (name, proxy) in [
        ("http_proxy", Proxy::http as fn(String) -> _),
        ("https_proxy", Proxy::https),
    ] {
        if let Some(url) = variable(name) {
            let proxy = proxy(url).map_err(|error| Failure::new(Code::Protocol, error))?;
            client = client.proxy(proxy.no_proxy(NoProxy::from_env()));
        }
    }
    client.build().map_err(|error| unusable(&error))
}

/// A client builder that trusts the authorities in `ca_bundle` (PEM) and no others: a sandbox has none of its own.
/// Without a bundle the client speaks plain HTTP only.
///
/// # Errors
///
/// `ca_bundle_invalid` when the bundle cannot be read or contains no certificate.
pub fn client(ca_bundle: Option<&str>) -> Result<ClientBuilder, Failure> {
    // An error means that a provider is installed already.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let certificates = match ca_bundle {
        Some(bundle) => Certificate::from_pem_bundle(bundle.as_bytes()).map_err(|error| unusable(&error))?,
        None => Vec::new(),
    };
    if ca_bundle.is_some() && certificates.is_empty() {
        return Err(unusable(&"the bundle contains none"));
    }
    Ok(Client::builder()
        .tls_certs_only(certificates)
        // The variables of the sandbox's programs are not for the server and S3.
        .no_proxy()
        .connect_timeout(Duration::from_secs(10)))
}

fn unusable(why: &dyn std::fmt::Display) -> Failure {
    Failure::new(
        Code::CaBundleInvalid,
        format!("the trusted certificates cannot be used: {why}"),
    )
    .hint("the CA bundle must be a PEM file of certificates")
}

/// Downloads an object to `to` and digests it on the way. `progress` is called with the bytes done and the total.
///
/// # Errors
///
/// `code` after the last attempt.
pub async fn object(
    http: &Client,
    source: &ObjectSource,
    to: &Path,
    code: Code,
    progress: &(dyn Fn(u64, u64) + Sync),
) -> Result<Digests, Failure> {
    let mut last = String::new();
    for attempt in 1..=TRIES {
        let mut reading = Digesting::default();
        let done = save(http, &source.url, to, |bytes| {
            reading.update(bytes);
            progress(reading.size(), source.size);
        });
        match done.await {
            Ok(()) => return Ok(reading.finish()),
            Err(Attempt::Disk(error)) => return Err(Failure::io("cannot store a fetched object", &error)),
            Err(Attempt::Network(error)) => last = error.without_url().to_string(),
        }
        if attempt < TRIES {
            tokio::time::sleep(Duration::from_secs(2)).await;
        }
    }
    Err(Failure::new(code, format!("cannot get an object from S3: {last}"))
        .hint("check that the S3 endpoint can be reached from the sandbox"))
}

/// Downloads the archive to `to`.
///
/// # Errors
///
/// `recipe_unreachable` after the last attempt.
pub async fn fetch(http: &Client, source: &RecipeSource, to: &Path) -> Result<(), Failure> {
    let mut last = String::new();
    for attempt in 1..=TRIES {
        match save(http, &source.url, to, |_| {}).await {
            Ok(()) => return Ok(()),
            Err(Attempt::Disk(error)) => return Err(Failure::io("cannot store the recipe", &error)),
            Err(Attempt::Network(error)) => last = error.without_url().to_string(),
        }
        if attempt < TRIES {
            tokio::time::sleep(Duration::from_secs(2)).await;
        }
    }
    Err(Failure::new(
        Code::RecipeUnreachable,
        format!("cannot get the recipe from S3: {last}"),
    )
    .hint("check that the S3 endpoint can be reached from the sandbox"))
}

enum Attempt {
    Network(reqwest::Error),
    Disk(std::io::Error),
}

async fn save(http: &Client, url: &str, to: &Path, mut look: impl FnMut(&[u8])) -> Result<(), Attempt> {
    let response = http.get(url).send().await.and_then(reqwest::Response::error_for_status);
    let mut body = response.map_err(Attempt::Network)?.bytes_stream();
    let mut file = fs_err::tokio::File::create(to).await.map_err(Attempt::Disk)?;
    while let Some(bytes) = body.next().await {
        let bytes = bytes.map_err(Attempt::Network)?;
        look(&bytes);
        file.write_all(&bytes).await.map_err(Attempt::Disk)?;
    }
    file.flush().await.map_err(Attempt::Disk)
}
