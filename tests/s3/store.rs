//! The artifact store on top of S3.

use std::time::Duration;

use kiln::artifacts::{ArtifactStore, manifest::Manifest};
use kiln_records::{
    ArtifactKind, Digests, ImageId, JobId, Upload, UploadedArtifact, arch::Arch, protocol::PartReceipt,
};
use sha2::{Digest, Sha256};

use crate::s3::target::{Target, bytes, md5};

const MINUTE: Duration = Duration::from_mins(1);

fn digests(body: &[u8]) -> Digests {
    Digests {
        size: body.len() as u64,
        sha256: hex::encode(Sha256::digest(body)),
        md5: md5(body),
    }
}

/// Sends the parts as an agent does.
async fn send(target: &Target, store: &ArtifactStore, upload: &Upload, body: &[u8]) -> Vec<PartReceipt> {
    let numbers: Vec<u32> = (1..=u32::try_from(upload.parts()).unwrap()).collect();
    let urls = store.part_urls(upload, &numbers, MINUTE).await.unwrap();
    let mut receipts = Vec::new();
    for (number, url) in numbers.into_iter().zip(urls) {
        let from = (u64::from(number - 1) * upload.part_size)
            .try_into()
            .unwrap_or(usize::MAX);
        let part = &body[from..body.len().min(from + usize::try_from(upload.part_size).unwrap())];
        // Ceph refuses an empty part without a length, and HTTP clients like to leave out a length of 0.
        let answer = target
            .http
            .put(url)
            .header("content-length", part.len())
            .body(part.to_vec())
            .send()
            .await
            .unwrap();
        assert_eq!(answer.status(), 200);
        receipts.push(PartReceipt {
            number,
            etag: answer.headers()["etag"].to_str().unwrap().to_owned(),
            md5: md5(part),
        });
    }
    receipts
}

async fn upload(
    target: &Target,
    store: &ArtifactStore,
    image: ImageId,
    kind: ArtifactKind,
    body: &[u8],
) -> UploadedArtifact {
    let upload = store
        .open_upload(image, JobId::new(), "Näme", kind, body.len() as u64)
        .await
        .unwrap();
    let receipts = send(target, store, &upload, body).await;
    let first = store.complete_upload(&upload, &receipts, &digests(body)).await.unwrap();
    // As after an answer that got lost.
    assert_eq!(
        store.complete_upload(&upload, &receipts, &digests(body)).await.unwrap(),
        first
    );
    first
}

fn manifest_of(artifacts: &[UploadedArtifact]) -> Vec<u8> {
    let manifest = Manifest::new(artifacts, Arch::Aarch64, jiff::Timestamp::now()).unwrap();
    manifest.to_json().unwrap()
}

pub async fn an_image_from_upload_to_manifest(target: Target) -> Target {
    let store = ArtifactStore::connect(&target.settings).await.unwrap();
    let image = ImageId::new();
    let body = bytes(16 * 1024 * 1024 + 5);
    let rootfs = upload(&target, &store, image, ArtifactKind::Rootfs, &body).await;
    let parameters = upload(&target, &store, image, ArtifactKind::BootParameters, b"").await;
    let log = upload(&target, &store, image, ArtifactKind::Log, b"log").await;
    assert_eq!(rootfs.key, format!("{image}/rootfs"));
    assert!(rootfs.etag.ends_with("-2"), "{}", rootfs.etag);

    let head = target
        .client
        .head_object()
        .bucket(&target.bucket)
        .key(&rootfs.key)
        .send()
        .await
        .unwrap();
    let metadata = head.metadata().unwrap();
    assert_eq!(metadata.get("x-shasta-ims-image-id").unwrap(), &image.to_string());
    assert_eq!(metadata.get("x-shasta-ims-image-name").unwrap(), "N%C3%A4me");
    assert!(metadata.contains_key("x-shasta-ims-job-id"));

    let artifacts = [rootfs.clone(), parameters, log];
    let link = store
        .write_manifest(image, manifest_of(&artifacts), &artifacts)
        .await
        .unwrap();
    let (bucket, key) = link.bucket_and_key().unwrap();
    assert_eq!(
        (bucket, key),
        (target.bucket.as_str(), format!("{image}/manifest.json").as_str())
    );
    let manifest = Manifest::from_json(&target.get(key).await).unwrap();
    assert_eq!(manifest.artifacts.len(), 2);
    assert_eq!(manifest.rootfs().unwrap().link.path, rootfs.path());
    let listed = store.list(&target.bucket, &format!("{image}/")).await.unwrap();
    assert_eq!(listed.len(), 4);
    assert!(
        listed
            .iter()
            .any(|object| object.key == rootfs.key && object.etag == rootfs.etag)
    );
    target
}

pub async fn a_changed_artifact_gets_no_manifest(target: Target) -> Target {
    let store = ArtifactStore::connect(&target.settings).await.unwrap();
    let image = ImageId::new();
    let rootfs = upload(&target, &store, image, ArtifactKind::Rootfs, b"rootfs").await;
    target.put(&rootfs.key, "changed").await;
    let artifacts = [rootfs.clone()];
    let failure = store
        .write_manifest(image, manifest_of(&artifacts), &artifacts)
        .await
        .unwrap_err();
    assert_eq!(failure.code.name(), "artifact_mismatch");
    store.delete(&rootfs.bucket, &rootfs.key).await.unwrap();
    assert_eq!(
        store
            .write_manifest(image, manifest_of(&artifacts), &artifacts)
            .await
            .unwrap_err()
            .code
            .name(),
        "artifact_mismatch"
    );
    assert!(target.keys().await.is_empty());
    target
}

pub async fn a_discarded_image_leaves_nothing(target: Target) -> Target {
    let store = ArtifactStore::connect(&target.settings).await.unwrap();
    let image = ImageId::new();
    upload(&target, &store, image, ArtifactKind::Kernel, b"kernel").await;
    let open = store
        .open_upload(image, JobId::new(), "n", ArtifactKind::Rootfs, 3)
        .await
        .unwrap();
    send(&target, &store, &open, b"abc").await;
    target.put("other/object", "").await;
    store.discard_image(image).await.unwrap();
    store.discard_image(image).await.unwrap();
    store.abort_upload(&open).await.unwrap();
    assert_eq!(target.keys().await, ["other/object"]);
    let uploads = target
        .client
        .list_multipart_uploads()
        .bucket(&target.bucket)
        .send()
        .await
        .unwrap();
    assert!(uploads.uploads().is_empty());
    target
}

pub async fn downloads_are_checked(target: Target) -> Target {
    let store = ArtifactStore::connect(&target.settings).await.unwrap();
    let body = bytes(1_000_000);
    store
        .put_bytes(&target.bucket, "f", "text/plain", body.clone())
        .await
        .unwrap();
    let dir = tempfile::tempdir().unwrap();
    let to = dir.path().join("f");
    let got = store
        .download(&target.bucket, "f", &to, Some(&digests(&body)))
        .await
        .unwrap();
    assert_eq!(got, digests(&body));
    assert!(fs_err::read(&to).unwrap() == body);

    let other = dir.path().join("g");
    let failure = store
        .download(&target.bucket, "f", &other, Some(&digests(b"x")))
        .await
        .unwrap_err();
    assert_eq!(failure.code.name(), "artifact_mismatch");
    assert_eq!(
        store
            .download(&target.bucket, "none", &other, None)
            .await
            .unwrap_err()
            .code
            .name(),
        "s3_missing"
    );
    assert_eq!(fs_err::read_dir(dir.path()).unwrap().count(), 1);
    target
}

pub async fn a_part_that_differs_is_found(target: Target) -> Target {
    let store = ArtifactStore::connect(&target.settings).await.unwrap();
    let upload = store
        .open_upload(ImageId::new(), JobId::new(), "n", ArtifactKind::Rootfs, 4)
        .await
        .unwrap();
    let mut receipts = send(&target, &store, &upload, b"good").await;
    receipts[0].md5 = md5(b"evil");
    let failure = store
        .complete_upload(&upload, &receipts, &digests(b"evil"))
        .await
        .unwrap_err();
    assert_eq!(failure.code.name(), "artifact_mismatch");
    assert!(target.keys().await.is_empty());
    let beyond = store.part_urls(&upload, &[2], MINUTE).await.unwrap_err();
    assert_eq!(beyond.code.name(), "upload_invalid");
    target
}
