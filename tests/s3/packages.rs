//! Packages that jobs share.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use kiln::artifacts::ArtifactStore;
use kiln_records::protocol::{PackageFile, PackageUrl};
use sha2::{Digest, Sha256};

use crate::s3::target::{Target, bytes};

const VALID: Duration = Duration::from_mins(1);

fn package(content: &[u8]) -> PackageFile {
    PackageFile {
        sha256: hex::encode(Sha256::digest(content)),
        size: content.len() as u64,
    }
}

async fn url(store: &ArtifactStore, package: &PackageFile) -> PackageUrl {
    store
        .package_urls(vec![package.clone()], VALID)
        .await
        .unwrap()
        .remove(0)
}

/// PUTs `body` where `package` is to go; the status of the answer.
async fn share(target: &Target, store: &ArtifactStore, package: &PackageFile, body: Vec<u8>) -> u16 {
    let PackageUrl::Put { url, headers } = url(store, package).await else {
        panic!("the package is there already");
    };
    let request = headers.iter().fold(target.http.put(url), |request, (name, value)| {
        request.header(name, value)
    });
    request.body(body).send().await.unwrap().status().as_u16()
}

pub async fn packages_are_shared_by_their_digest(target: Target) -> Target {
    let store = ArtifactStore::connect(&target.settings).await.unwrap();
    let body = bytes(300_000);
    let package = package(&body);
    assert_eq!(share(&target, &store, &package, body.clone()).await, 200);
    let PackageUrl::Get(address) = url(&store, &package).await else {
        panic!("the package is not there");
    };
    let got = target.http.get(address).send().await.unwrap().bytes().await.unwrap();
    assert!(got == body);

    let now = Timestamp::now();
    let (earlier, later) = (now - SignedDuration::from_mins(1), now + SignedDuration::from_mins(1));
    assert_eq!(store.old_packages(earlier, 300_000).await.unwrap(), []);
    for (before, bytes) in [(later, 300_000), (earlier, 299_999)] {
        let old = store.old_packages(before, bytes).await.unwrap();
        assert_eq!(old.len(), 1);
        assert!(old[0].key.ends_with(&package.sha256), "{old:?}");
    }
    let key = format!("packages/{}", package.sha256);
    store.delete(store.recipes_bucket(), &key).await.unwrap();
    assert!(matches!(url(&store, &package).await, PackageUrl::Put { .. }));
    target
}

pub async fn nothing_else_goes_under_a_packages_name(target: Target) -> Target {
    let store = ArtifactStore::connect(&target.settings).await.unwrap();
    let body = bytes(1000);
    let package = package(&body);
    let mut other = body.clone();
    other[500] ^= 1;
    assert_eq!(share(&target, &store, &package, other).await, 400);
    assert!(share(&target, &store, &package, vec![0; 2000]).await >= 400);
    assert!(matches!(url(&store, &package).await, PackageUrl::Put { .. }));
    for (sha256, size) in [("../../recipes/x", 1), ("00", 1), (package.sha256.as_str(), u64::MAX)] {
        let sha256 = sha256.to_owned();
        let refused = store.package_urls(vec![PackageFile { sha256, size }], VALID).await;
        assert_eq!(refused.unwrap_err().code.name(), "upload_invalid");
    }
    target
}
