//! Buckets and whole objects.

use std::time::{Duration, SystemTime};

use aws_sdk_s3::{
    config::RequestChecksumCalculation,
    error::SdkError,
    presigning::PresigningConfig,
    primitives::{ByteStream, DateTime},
    types::{Delete, MetadataDirective, ObjectIdentifier},
};
use kiln::artifacts::ArtifactStore;

use crate::s3::target::{Target, bytes, client, code, md5};

pub async fn an_object_comes_back_as_it_was_put(target: Target) -> Target {
    let body = bytes(3_000_001);
    let put = target
        .client
        .put_object()
        .bucket(&target.bucket)
        .key("a")
        .body(ByteStream::from(body.clone()));
    let put = put
        .content_type("text/x-test")
        .cache_control("no-store")
        .metadata("Some-Thing", "value")
        .send()
        .await;
    assert_eq!(put.unwrap().e_tag().unwrap(), format!("\"{}\"", md5(&body)));
    assert!(target.get("a").await == body);

    let head = target
        .client
        .head_object()
        .bucket(&target.bucket)
        .key("a")
        .send()
        .await
        .unwrap();
    assert_eq!(head.content_length(), Some(3_000_001));
    assert_eq!(head.content_type(), Some("text/x-test"));
    assert_eq!(head.cache_control(), Some("no-store"));
    assert_eq!(head.metadata().unwrap().get("some-thing").unwrap(), "value");
    assert_eq!(head.e_tag().unwrap(), format!("\"{}\"", md5(&body)));

    target.put("a", "replaced").await;
    assert_eq!(target.get("a").await, b"replaced");
    target.put("empty", "").await;
    assert_eq!(target.get("empty").await, b"");
    target
}

pub async fn a_missing_thing_has_its_own_code(target: Target) -> Target {
    let get = target.client.get_object();
    assert_eq!(code(get.bucket(&target.bucket).key("x").send().await), "NoSuchKey");
    assert_eq!(
        code(target.client.get_object().bucket("kiln-no-such").key("x").send().await),
        "NoSuchBucket"
    );
    assert_eq!(
        code(target.client.list_objects_v2().bucket("kiln-no-such").send().await),
        "NoSuchBucket"
    );
    let head = target.client.head_object().bucket(&target.bucket).key("x").send().await;
    assert!(head.unwrap_err().into_service_error().is_not_found());
    let bucket = target.client.head_bucket().bucket("kiln-no-such").send().await;
    assert!(bucket.unwrap_err().into_service_error().is_not_found());
    target
}

pub async fn keys_are_only_names(target: Target) -> Target {
    let keys = [
        "../../etc/passwd",
        "x",
        "x/y",
        "x/y/z",
        "a b+c&d=e?f#g%h",
        "Übergröße/日本/🦀",
        "a//b",
        "trailing/",
    ];
    for key in keys {
        target.put(key, key).await;
    }
    for key in keys {
        assert_eq!(target.get(key).await, key.as_bytes(), "{key}");
    }
    let mut sorted = keys.to_vec();
    sorted.sort_unstable();
    assert_eq!(target.keys().await, sorted);
    target
}

pub async fn a_range_is_served(target: Target) -> Target {
    target.put("r", "0123456789").await;
    for (range, expected, content_range) in [
        ("bytes=2-4", "234", "bytes 2-4/10"),
        ("bytes=7-", "789", "bytes 7-9/10"),
        ("bytes=-3", "789", "bytes 7-9/10"),
        ("bytes=8-99", "89", "bytes 8-9/10"),
    ] {
        let answer = target
            .client
            .get_object()
            .bucket(&target.bucket)
            .key("r")
            .range(range)
            .send()
            .await
            .unwrap();
        assert_eq!(answer.content_range(), Some(content_range));
        assert_eq!(answer.body.collect().await.unwrap().to_vec(), expected.as_bytes());
    }
    let beyond = target
        .client
        .get_object()
        .bucket(&target.bucket)
        .key("r")
        .range("bytes=10-")
        .send()
        .await;
    assert_eq!(code(beyond), "InvalidRange");
    target
}

pub async fn conditions_on_reading(target: Target) -> Target {
    let etag = target.put("c", "c").await;
    let get = || target.client.get_object().bucket(&target.bucket).key("c");
    let status = |result: Result<_, SdkError<_>>| match result {
        Ok(_) => 200,
        Err(error) => {
            let error: SdkError<aws_sdk_s3::operation::get_object::GetObjectError> = error;
            error.raw_response().unwrap().status().as_u16()
        }
    };
    let hour = Duration::from_hours(1);
    let (past, future) = (
        DateTime::from(SystemTime::now() - hour),
        DateTime::from(SystemTime::now() + hour),
    );
    assert_eq!(status(get().if_match(&etag).send().await), 200);
    assert_eq!(status(get().if_match("\"other\"").send().await), 412);
    assert_eq!(status(get().if_none_match(&etag).send().await), 304);
    assert_eq!(status(get().if_none_match("\"other\"").send().await), 200);
    assert_eq!(status(get().if_modified_since(past).send().await), 200);
    assert_eq!(status(get().if_unmodified_since(past).send().await), 412);
    assert_eq!(status(get().if_unmodified_since(future).send().await), 200);
    target
}

pub async fn conditions_on_writing(target: Target) -> Target {
    let put = |key: &str| {
        target
            .client
            .put_object()
            .bucket(&target.bucket)
            .key(key)
            .body(ByteStream::from_static(b"1"))
    };
    put("w").if_none_match("*").send().await.unwrap();
    assert_eq!(code(put("w").if_none_match("*").send().await), "PreconditionFailed");
    target
}

pub async fn a_damaged_body_is_refused(target: Target) -> Target {
    let put = || {
        target
            .client
            .put_object()
            .bucket(&target.bucket)
            .key("d")
            .body(ByteStream::from_static(b"hello"))
    };
    // Of "hello", and of nothing.
    put().content_md5("XUFAKrxLKna5cZ2REBfFkg==").send().await.unwrap();
    assert_eq!(
        code(put().content_md5("1B2M2Y8AsgTpgAmY7PhCfg==").send().await),
        "BadDigest"
    );
    assert_eq!(code(put().content_md5("short").send().await), "InvalidDigest");
    assert_eq!(target.get("d").await, b"hello");
    target
}

pub async fn checksums_are_checked(target: Target) -> Target {
    let put = || {
        target
            .client
            .put_object()
            .bucket(&target.bucket)
            .key("s")
            .body(ByteStream::from_static(b"hello"))
    };
    put()
        .checksum_sha256("LPJNul+wow4m6DsqxbninhsWHlwfp0JecwQzYpOLmCQ=")
        .send()
        .await
        .unwrap();
    put().checksum_crc32("NhCmhg==").send().await.unwrap();
    let nothing = "47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU=";
    let refused = code(put().checksum_sha256(nothing).send().await);
    assert!(
        matches!(refused.as_str(), "BadDigest" | "XAmzContentChecksumMismatch"),
        "{refused}"
    );
    target
}

/// SDKs send one unless told otherwise.
pub async fn a_checksum_may_follow_the_body(target: Target) -> Target {
    let modern = client(&target.settings, RequestChecksumCalculation::WhenSupported);
    let body = bytes(200_000);
    let put = modern
        .put_object()
        .bucket(&target.bucket)
        .key("t")
        .body(ByteStream::from(body.clone()));
    put.send().await.unwrap();
    assert!(target.get("t").await == body);
    target
}

pub async fn copying(target: Target) -> Target {
    let put = target
        .client
        .put_object()
        .bucket(&target.bucket)
        .key("von/ä b")
        .body(ByteStream::from_static(b"copy"));
    put.metadata("one", "1").content_type("text/a").send().await.unwrap();
    let source = format!("{}/von/%C3%A4%20b", target.bucket);
    let copy = |key: &str| {
        target
            .client
            .copy_object()
            .bucket(&target.bucket)
            .key(key)
            .copy_source(&source)
    };
    copy("kept").send().await.unwrap();
    let replace = copy("replaced")
        .metadata_directive(MetadataDirective::Replace)
        .metadata("two", "2");
    replace.content_type("text/b").send().await.unwrap();
    target
        .client
        .delete_object()
        .bucket(&target.bucket)
        .key("von/ä b")
        .send()
        .await
        .unwrap();

    for (key, metadata, kind) in [("kept", ("one", "1"), "text/a"), ("replaced", ("two", "2"), "text/b")] {
        assert_eq!(target.get(key).await, b"copy");
        let head = target
            .client
            .head_object()
            .bucket(&target.bucket)
            .key(key)
            .send()
            .await
            .unwrap();
        assert_eq!(head.metadata().unwrap().len(), 1);
        assert_eq!(head.metadata().unwrap().get(metadata.0).unwrap(), metadata.1);
        assert_eq!(head.content_type(), Some(kind));
    }
    let onto_itself = target.client.copy_object().bucket(&target.bucket).key("kept");
    let onto_itself = onto_itself.copy_source(format!("{}/kept", target.bucket));
    assert_eq!(code(onto_itself.clone().send().await), "InvalidRequest");
    onto_itself
        .metadata_directive(MetadataDirective::Replace)
        .metadata("three", "3")
        .send()
        .await
        .unwrap();
    assert_eq!(target.get("kept").await, b"copy");
    let missing = target.client.copy_object().bucket(&target.bucket).key("n");
    assert_eq!(
        code(missing.copy_source(format!("{}/none", target.bucket)).send().await),
        "NoSuchKey"
    );
    target
}

pub async fn deleting(target: Target) -> Target {
    for key in ["1", "2", "3"] {
        target.put(key, key).await;
    }
    target
        .client
        .delete_object()
        .bucket(&target.bucket)
        .key("1")
        .send()
        .await
        .unwrap();
    target
        .client
        .delete_object()
        .bucket(&target.bucket)
        .key("1")
        .send()
        .await
        .unwrap();
    let named = |key: &str| ObjectIdentifier::builder().key(key).build().unwrap();
    let both = Delete::builder()
        .objects(named("2"))
        .objects(named("none"))
        .build()
        .unwrap();
    let answer = target
        .client
        .delete_objects()
        .bucket(&target.bucket)
        .delete(both)
        .send()
        .await
        .unwrap();
    assert_eq!((answer.deleted().len(), answer.errors().len()), (2, 0));
    assert_eq!(target.keys().await, ["3"]);
    target
}

pub async fn a_bucket_with_objects_stays(target: Target) -> Target {
    target.put("k", "").await;
    assert_eq!(
        code(target.client.delete_bucket().bucket(&target.bucket).send().await),
        "BucketNotEmpty"
    );
    assert_eq!(target.keys().await, ["k"]);
    let buckets = target.client.list_buckets().send().await.unwrap();
    assert!(
        buckets
            .buckets()
            .iter()
            .any(|bucket| bucket.name() == Some(&target.bucket))
    );
    target
        .client
        .get_bucket_location()
        .bucket(&target.bucket)
        .send()
        .await
        .unwrap();
    target
}

pub async fn presigned_urls(target: Target) -> Target {
    let valid = || PresigningConfig::expires_in(Duration::from_mins(1)).unwrap();
    let put = target
        .client
        .put_object()
        .bucket(&target.bucket)
        .key("ü/s")
        .presigned(valid())
        .await
        .unwrap();
    let body = bytes(1_000_000);
    let answer = target.http.put(put.uri()).body(body.clone()).send().await.unwrap();
    assert_eq!(answer.status(), 200);
    assert_eq!(answer.headers()["etag"], format!("\"{}\"", md5(&body)));

    let store = ArtifactStore::connect(&target.settings).await.unwrap();
    let url = store
        .presign_get(&target.bucket, "ü/s", Duration::from_mins(1))
        .await
        .unwrap();
    let answer = target.http.get(&url).send().await.unwrap();
    assert!(answer.bytes().await.unwrap() == body);
    let forged = url.replace("%C3%BC/s", "other");
    assert_ne!(forged, url);
    assert_eq!(target.http.get(forged).send().await.unwrap().status(), 403);
    let bare = url.split_once('?').unwrap().0;
    assert_eq!(target.http.get(bare).send().await.unwrap().status(), 403);
    target
}

pub async fn a_wrong_key_is_refused(target: Target) -> Target {
    let mut settings = target.settings.clone();
    settings.secret_key = Some("wrong".to_owned().into());
    let failure = ArtifactStore::connect(&settings).await.unwrap_err();
    assert_eq!(failure.code.name(), "s3_denied", "{failure:?}");
    settings.endpoint = Some("http://127.0.0.1:9".to_owned());
    let failure = ArtifactStore::connect(&settings).await.unwrap_err();
    assert_eq!(failure.code.name(), "s3_unreachable", "{failure:?}");
    target
}
