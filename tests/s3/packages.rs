//! Packages that jobs share.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use kiln::artifacts::ArtifactStore;
use kiln_records::{
    PackageDigest,
    protocol::{PackageFile, PackageUrl},
};
use sha2::{Digest, Sha256, Sha512};

use crate::s3::target::{Target, bytes};

const VALID: Duration = Duration::from_mins(1);

fn package(content: &[u8]) -> PackageFile {
    PackageFile {
        digest: PackageDigest::parse(&hex::encode(Sha256::digest(content))).unwrap(),
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
        assert!(old[0].key.ends_with(package.digest.as_str()), "{old:?}");
    }
    let key = format!("packages/{}", package.digest);
    store.delete(store.recipes_bucket(), &key).await.unwrap();
    assert!(matches!(url(&store, &package).await, PackageUrl::Put { .. }));
    target
}

/// S3 knows no SHA-512: readers check.
pub async fn packages_of_other_digests_are_shared_too(target: Target) -> Target {
    let store = ArtifactStore::connect(&target.settings).await.unwrap();
    let body = bytes(1000);
    let package = PackageFile {
        digest: PackageDigest::parse(&hex::encode(Sha512::digest(&body))).unwrap(),
        size: 1000,
    };
    assert_eq!(share(&target, &store, &package, body).await, 200);
    assert!(matches!(url(&store, &package).await, PackageUrl::Get(_)));
    let key = format!("packages/{}", package.digest);
    store.delete(store.recipes_bucket(), &key).await.unwrap();
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
    let large = PackageFile {
        size: u64::MAX,
        ..package
    };
    let refused = store.package_urls(vec![large], VALID).await;
    assert_eq!(refused.unwrap_err().code.name(), "upload_invalid");
    target
}
