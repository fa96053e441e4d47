//! What other clients than Kiln's own ask for.

use aws_sdk_s3::{
    config::RequestChecksumCalculation,
    primitives::{ByteStream, DateTime},
    types::{
        BucketCannedAcl, ChecksumAlgorithm, ChecksumMode, ChecksumType, CompletedMultipartUpload, CompletedPart,
        ObjectAttributes, ObjectCannedAcl, Permission, ServerSideEncryption, StorageClass,
    },
};

use crate::s3::target::{Target, bytes, client, code};

/// 5 MiB: the smallest part but the last.
const PART: usize = 5 << 20;

pub async fn what_nothing_here_has_is_said_to_be_absent(target: Target) -> Target {
    target.put("k", "k").await;
    let (client, bucket) = (&target.client, &target.bucket);
    let acl = client.get_object_acl().bucket(bucket).key("k").send().await.unwrap();
    assert_eq!(acl.grants()[0].permission(), Some(&Permission::FullControl));
    assert!(acl.owner().is_some());
    assert_eq!(
        client
            .get_bucket_acl()
            .bucket(bucket)
            .send()
            .await
            .unwrap()
            .grants()
            .len(),
        1
    );
    let tags = client
        .get_object_tagging()
        .bucket(bucket)
        .key("k")
        .send()
        .await
        .unwrap();
    assert!(tags.tag_set().is_empty());
    assert_eq!(
        client
            .get_bucket_versioning()
            .bucket(bucket)
            .send()
            .await
            .unwrap()
            .status(),
        None
    );
    client.get_bucket_location().bucket(bucket).send().await.unwrap();
    client.get_bucket_logging().bucket(bucket).send().await.unwrap();
    client.get_bucket_request_payment().bucket(bucket).send().await.unwrap();
    assert_eq!(
        code(client.get_bucket_tagging().bucket(bucket).send().await),
        "NoSuchTagSet"
    );
    assert_eq!(
        code(client.get_bucket_policy().bucket(bucket).send().await),
        "NoSuchBucketPolicy"
    );
    assert_eq!(
        code(client.get_bucket_cors().bucket(bucket).send().await),
        "NoSuchCORSConfiguration"
    );
    let lifecycle = client.get_bucket_lifecycle_configuration().bucket(bucket).send().await;
    assert_eq!(code(lifecycle), "NoSuchLifecycleConfiguration");
    let block = client
        .get_public_access_block()
        .bucket(bucket)
        .send()
        .await
        .unwrap_err();
    assert_eq!(block.raw_response().unwrap().status().as_u16(), 404);
    // And in a bucket that is not there, the bucket is what is absent.
    assert_eq!(
        code(client.get_bucket_acl().bucket("kiln-no-such").send().await),
        "NoSuchBucket"
    );
    assert_eq!(
        code(client.get_object_acl().bucket(bucket).key("x").send().await),
        "NoSuchKey"
    );
    target
}

/// Each of these was answered with 200 once, and forgotten.
pub async fn what_cannot_be_kept_is_refused(target: Target) -> Target {
    const NO_ACLS: &str = "AccessControlListNotSupported";
    const LACKING: &str = "NotImplemented";
    let bucket = &target.bucket;
    let put = || target.client.put_object().bucket(bucket).key("k");
    let copy = || {
        let from = format!("{bucket}/own");
        target.client.copy_object().bucket(bucket).key("k").copy_source(from)
    };
    let create = || target.client.create_multipart_upload().bucket(bucket).key("k");
    let make = || target.client.create_bucket().bucket("kiln-never-made");
    // What every object has may be asked for.
    for acl in [ObjectCannedAcl::Private, ObjectCannedAcl::BucketOwnerFullControl] {
        let own = put()
            .key("own")
            .acl(acl)
            .storage_class(StorageClass::Standard)
            .tagging("");
        own.send().await.unwrap();
    }
    for acl in [
        ObjectCannedAcl::PublicRead,
        ObjectCannedAcl::AuthenticatedRead,
        ObjectCannedAcl::AwsExecRead,
    ] {
        assert_eq!(code(put().acl(acl.clone()).send().await), NO_ACLS, "{acl}");
        assert_eq!(code(copy().acl(acl.clone()).send().await), NO_ACLS, "{acl}");
        assert_eq!(code(create().acl(acl.clone()).send().await), NO_ACLS, "{acl}");
    }
    let everyone = "uri=http://acs.amazonaws.com/groups/global/AllUsers";
    assert_eq!(code(put().grant_read(everyone).send().await), NO_ACLS);
    assert_eq!(code(copy().grant_full_control(everyone).send().await), NO_ACLS);
    assert_eq!(code(create().grant_read_acp(everyone).send().await), NO_ACLS);
    assert_eq!(code(make().acl(BucketCannedAcl::PublicRead).send().await), NO_ACLS);
    assert_eq!(code(make().grant_write(everyone).send().await), NO_ACLS);

    let (sse, frozen) = (ServerSideEncryption::Aes256, StorageClass::Glacier);
    let until = DateTime::from_secs(4_000_000_000);
    assert_eq!(code(put().tagging("a=b").send().await), LACKING);
    assert_eq!(code(put().storage_class(frozen.clone()).send().await), LACKING);
    assert_eq!(code(put().server_side_encryption(sse.clone()).send().await), LACKING);
    assert_eq!(code(put().object_lock_retain_until_date(until).send().await), LACKING);
    assert_eq!(code(put().website_redirect_location("/other").send().await), LACKING);
    assert_eq!(code(copy().tagging("a=b").send().await), LACKING);
    assert_eq!(code(copy().storage_class(frozen.clone()).send().await), LACKING);
    assert_eq!(code(create().server_side_encryption(sse).send().await), LACKING);
    assert_eq!(code(create().storage_class(frozen).send().await), LACKING);
    assert_eq!(code(make().object_lock_enabled_for_bucket(true).send().await), LACKING);

    // Nothing came of any of them.
    let buckets = target.client.list_buckets().send().await.unwrap();
    assert!(
        buckets
            .buckets()
            .iter()
            .all(|made| made.name() != Some("kiln-never-made"))
    );
    let listed = target.client.list_objects_v2().bucket(bucket).send().await.unwrap();
    let keys: Vec<_> = listed.contents().iter().filter_map(|object| object.key()).collect();
    assert_eq!(keys, ["own"]);
    let uploads = target
        .client
        .list_multipart_uploads()
        .bucket(bucket)
        .send()
        .await
        .unwrap();
    assert!(uploads.uploads().is_empty());
    target
}

pub async fn errors_say_what_is_wrong(target: Target) -> Target {
    let get = target.client.get_object().bucket(&target.bucket).key("x").send().await;
    assert_eq!(
        get.unwrap_err().into_service_error().meta().message(),
        Some("no such key")
    );
    let anonymous = target
        .http
        .get(target.settings.endpoint.as_ref().unwrap())
        .send()
        .await
        .unwrap();
    assert_eq!(anonymous.status(), 403);
    let text = anonymous.text().await.unwrap();
    assert!(text.contains("<Message>the request is not signed</Message>"), "{text}");
    target
}

pub async fn every_object_is_its_only_version(target: Target) -> Target {
    for key in ["a/1", "a/2", "b"] {
        target.put(key, key).await;
    }
    let list = || target.client.list_object_versions().bucket(&target.bucket);
    let first = list().max_keys(2).send().await.unwrap();
    let keys = |list: &[aws_sdk_s3::types::ObjectVersion]| -> Vec<String> {
        assert!(
            list.iter()
                .all(|version| version.version_id() == Some("null") && version.is_latest() == Some(true))
        );
        list.iter().map(|version| version.key().unwrap().to_owned()).collect()
    };
    assert_eq!(keys(first.versions()), ["a/1", "a/2"]);
    assert_eq!(first.is_truncated(), Some(true));
    let next = list().key_marker(first.next_key_marker().unwrap());
    let next = next
        .version_id_marker(first.next_version_id_marker().unwrap())
        .send()
        .await
        .unwrap();
    assert_eq!(keys(next.versions()), ["b"]);
    let rolled = list().delimiter("/").send().await.unwrap();
    assert_eq!(keys(rolled.versions()), ["b"]);
    assert_eq!(rolled.common_prefixes()[0].prefix(), Some("a/"));

    let get = |version| {
        target
            .client
            .get_object()
            .bucket(&target.bucket)
            .key("b")
            .version_id(version)
    };
    get("null").send().await.unwrap();
    assert_eq!(code(get("other").send().await), "NoSuchVersion");
    let delete = target
        .client
        .delete_object()
        .bucket(&target.bucket)
        .key("b")
        .version_id("other");
    assert_eq!(code(delete.send().await), "NoSuchVersion");
    assert_eq!(target.get("b").await, b"b");
    target
}

/// Uploads three parts, numbered 1, 2 and 4, with checksums.
async fn in_parts(target: &Target, key: &str, algorithm: ChecksumAlgorithm, kind: ChecksumType) -> Vec<u8> {
    let body = bytes(2 * PART + 3);
    let client = client(&target.settings, RequestChecksumCalculation::WhenSupported);
    let create = client.create_multipart_upload().bucket(&target.bucket).key(key);
    let create = create
        .checksum_algorithm(algorithm.clone())
        .checksum_type(kind)
        .send()
        .await
        .unwrap();
    let id = create.upload_id().unwrap();
    let mut parts = Vec::new();
    for (number, part) in [1, 2, 4].into_iter().zip(body.chunks(PART)) {
        let put = client
            .upload_part()
            .bucket(&target.bucket)
            .key(key)
            .upload_id(id)
            .part_number(number);
        let put = put
            .checksum_algorithm(algorithm.clone())
            .body(ByteStream::from(part.to_vec()));
        let put = put.send().await.unwrap();
        assert!(put.checksum_crc32().or(put.checksum_crc64_nvme()).is_some());
        let part = CompletedPart::builder().part_number(number).e_tag(put.e_tag().unwrap());
        let part = part.set_checksum_crc32(put.checksum_crc32().map(str::to_owned));
        parts.push(
            part.set_checksum_crc64_nvme(put.checksum_crc64_nvme().map(str::to_owned))
                .build(),
        );
    }
    let list = CompletedMultipartUpload::builder().set_parts(Some(parts)).build();
    let complete = client
        .complete_multipart_upload()
        .bucket(&target.bucket)
        .key(key)
        .upload_id(id);
    complete.multipart_upload(list).send().await.unwrap();
    body
}

pub async fn checksums_come_back(target: Target) -> Target {
    let put = || {
        target
            .client
            .put_object()
            .bucket(&target.bucket)
            .key("s")
            .body(ByteStream::from_static(b"hello"))
    };
    let crc32 = "NhCmhg==";
    assert_eq!(
        put().checksum_crc32(crc32).send().await.unwrap().checksum_crc32(),
        Some(crc32)
    );
    let head = |key| target.client.head_object().bucket(&target.bucket).key(key);
    assert_eq!(head("s").send().await.unwrap().checksum_crc32(), None, "nobody asked");
    let seen = head("s").checksum_mode(ChecksumMode::Enabled).send().await.unwrap();
    assert_eq!(
        (seen.checksum_crc32(), seen.checksum_type()),
        (Some(crc32), Some(&ChecksumType::FullObject))
    );
    // A copy has the same content.
    let source = format!("{}/s", target.bucket);
    target
        .client
        .copy_object()
        .bucket(&target.bucket)
        .key("copy")
        .copy_source(source)
        .send()
        .await
        .unwrap();
    let seen = head("copy").checksum_mode(ChecksumMode::Enabled).send().await.unwrap();
    assert_eq!(seen.checksum_crc32(), Some(crc32));

    // The SDK compares what it reads with the checksum.
    let body = in_parts(&target, "whole", ChecksumAlgorithm::Crc64Nvme, ChecksumType::FullObject).await;
    let get = target.client.get_object().bucket(&target.bucket).key("whole");
    let answer = get.checksum_mode(ChecksumMode::Enabled).send().await.unwrap();
    assert!(answer.checksum_crc64_nvme().is_some());
    assert!(answer.body.collect().await.unwrap().to_vec() == body);
    in_parts(&target, "parts", ChecksumAlgorithm::Crc32, ChecksumType::Composite).await;
    let seen = head("parts").checksum_mode(ChecksumMode::Enabled).send().await.unwrap();
    assert!(seen.checksum_crc32().is_some_and(|sum| sum.ends_with("-3")));
    assert_eq!(seen.checksum_type(), Some(&ChecksumType::Composite));
    target
}

pub async fn parts_are_read_by_their_numbers(target: Target) -> Target {
    let body = in_parts(&target, "m", ChecksumAlgorithm::Crc32, ChecksumType::Composite).await;
    target.put("plain", "plain").await;
    let get = |key, number| {
        target
            .client
            .get_object()
            .bucket(&target.bucket)
            .key(key)
            .part_number(number)
    };
    let head = |key, number| {
        target
            .client
            .head_object()
            .bucket(&target.bucket)
            .key(key)
            .part_number(number)
    };
    let second = get("m", 2).send().await.unwrap();
    assert_eq!(second.parts_count(), Some(3));
    assert_eq!(
        second.content_range(),
        Some(format!("bytes {PART}-{}/{}", 2 * PART - 1, body.len()).as_str())
    );
    assert!(second.body.collect().await.unwrap().to_vec() == body[PART..2 * PART]);
    let last = head("m", 4).send().await.unwrap();
    assert_eq!((last.content_length(), last.parts_count()), (Some(3), Some(3)));
    assert_eq!(code(get("m", 3).send().await), "InvalidPartNumber");
    let plain = get("plain", 1).send().await.unwrap();
    assert_eq!(plain.body.collect().await.unwrap().to_vec(), b"plain");
    assert_eq!(code(get("plain", 2).send().await), "InvalidPartNumber");

    let all = [
        ObjectAttributes::Etag,
        ObjectAttributes::ObjectSize,
        ObjectAttributes::Checksum,
    ];
    let asked = target.client.get_object_attributes().bucket(&target.bucket).key("m");
    let asked = asked
        .set_object_attributes(Some(all.to_vec()))
        .object_attributes(ObjectAttributes::ObjectParts);
    let seen = asked.max_parts(2).send().await.unwrap();
    assert_eq!(seen.object_size(), i64::try_from(body.len()).ok());
    assert!(seen.e_tag().is_some_and(|tag| tag.trim_matches('"').ends_with("-3")));
    assert!(seen.checksum().unwrap().checksum_crc32().is_some());
    let parts = seen.object_parts().unwrap();
    assert_eq!((parts.total_parts_count(), parts.is_truncated()), (Some(3), Some(true)));
    let numbers: Vec<_> = parts
        .parts()
        .iter()
        .map(|part| (part.part_number(), part.size()))
        .collect();
    let size = i64::try_from(PART).ok();
    assert_eq!(numbers, [(Some(1), size), (Some(2), size)]);
    target
}
