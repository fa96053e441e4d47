//! Multipart uploads.

use aws_sdk_s3::{
    primitives::ByteStream,
    types::{CompletedMultipartUpload, CompletedPart},
};

use crate::s3::target::{Target, bytes, code, md5};

const MIN: usize = 5 * 1024 * 1024;

impl Target {
    async fn open(&self, key: &str) -> String {
        let create = self
            .client
            .create_multipart_upload()
            .bucket(&self.bucket)
            .key(key)
            .metadata("m", "v");
        create.send().await.unwrap().upload_id().unwrap().to_owned()
    }

    async fn part(&self, key: &str, id: &str, number: i32, body: &[u8]) -> CompletedPart {
        let part = self
            .client
            .upload_part()
            .bucket(&self.bucket)
            .key(key)
            .upload_id(id)
            .part_number(number);
        let answer = part.body(ByteStream::from(body.to_vec())).send().await.unwrap();
        completed(number, answer.e_tag().unwrap())
    }

    fn complete(
        &self,
        key: &str,
        id: &str,
        parts: &[CompletedPart],
    ) -> aws_sdk_s3::operation::complete_multipart_upload::builders::CompleteMultipartUploadFluentBuilder {
        let parts = CompletedMultipartUpload::builder()
            .set_parts(Some(parts.to_vec()))
            .build();
        self.client
            .complete_multipart_upload()
            .bucket(&self.bucket)
            .key(key)
            .upload_id(id)
            .multipart_upload(parts)
    }
}

fn completed(number: i32, etag: &str) -> CompletedPart {
    CompletedPart::builder().part_number(number).e_tag(etag).build()
}

fn joined_etag(parts: &[&[u8]]) -> String {
    let digests: Vec<u8> = parts.iter().flat_map(|part| hex::decode(md5(part)).unwrap()).collect();
    format!("\"{}-{}\"", md5(&digests), parts.len())
}

pub async fn parts_become_an_object(target: Target) -> Target {
    let body = bytes(2 * MIN + 17);
    let (first, rest) = body.split_at(MIN);
    let (second, third) = rest.split_at(MIN);
    let id = target.open("m").await;
    // The order of sending does not matter.
    let three = target.part("m", &id, 3, third).await;
    let one = target.part("m", &id, 1, first).await;
    let two = target.part("m", &id, 2, second).await;
    assert!(target.keys().await.is_empty());
    target.complete("m", &id, &[one, two, three]).send().await.unwrap();
    assert!(target.get("m").await == body);
    let head = target
        .client
        .head_object()
        .bucket(&target.bucket)
        .key("m")
        .send()
        .await
        .unwrap();
    assert_eq!(head.e_tag().unwrap(), joined_etag(&[first, second, third]));
    assert_eq!(head.metadata().unwrap().get("m").unwrap(), "v");

    // A range over the seam.
    let range = format!("bytes={}-{}", MIN - 2, MIN + 1);
    let answer = target
        .client
        .get_object()
        .bucket(&target.bucket)
        .key("m")
        .range(range)
        .send()
        .await
        .unwrap();
    assert_eq!(answer.body.collect().await.unwrap().to_vec(), body[MIN - 2..MIN + 2]);
    target
}

pub async fn wrong_parts_are_refused(target: Target) -> Target {
    let id = target.open("w").await;
    let one = target.part("w", &id, 1, &bytes(MIN)).await;
    let two = target.part("w", &id, 2, b"end").await;
    let wrong = completed(2, &format!("\"{}\"", md5(b"other")));
    assert_eq!(
        code(target.complete("w", &id, &[one.clone(), wrong]).send().await),
        "InvalidPart"
    );
    let absent = completed(3, two.e_tag().unwrap());
    assert_eq!(
        code(target.complete("w", &id, &[one.clone(), absent]).send().await),
        "InvalidPart"
    );
    assert_eq!(
        code(target.complete("w", &id, &[two.clone(), one.clone()]).send().await),
        "InvalidPartOrder"
    );
    assert_eq!(
        code(
            target
                .complete("w", "nonsense", std::slice::from_ref(&one))
                .send()
                .await
        ),
        "NoSuchUpload"
    );
    target.complete("w", &id, &[one, two]).send().await.unwrap();
    target
}

pub async fn small_parts_are_refused(target: Target) -> Target {
    let id = target.open("s").await;
    let one = target.part("s", &id, 1, b"small").await;
    let two = target.part("s", &id, 2, b"end").await;
    assert_eq!(
        code(target.complete("s", &id, &[one, two]).send().await),
        "EntityTooSmall"
    );
    target
}

pub async fn part_numbers_may_have_gaps(target: Target) -> Target {
    let first = bytes(MIN);
    let id = target.open("g").await;
    let one = target.part("g", &id, 3, &first).await;
    let two = target.part("g", &id, 10_000, b"end").await;
    target.complete("g", &id, &[one, two]).send().await.unwrap();
    assert!(target.get("g").await == [&first[..], b"end"].concat());
    target
}

pub async fn parts_may_be_left_out(target: Target) -> Target {
    let id = target.open("o").await;
    target.part("o", &id, 1, b"unused").await;
    let two = target.part("o", &id, 2, b"used").await;
    target.part("o", &id, 3, b"unused").await;
    target.complete("o", &id, &[two]).send().await.unwrap();
    assert_eq!(target.get("o").await, b"used");
    target
}

pub async fn parts_and_uploads_are_listed(target: Target) -> Target {
    let (one, two) = (target.open("l/1").await, target.open("l/2").await);
    let part = target.part("l/1", &one, 1, b"a").await;
    target.part("l/1", &one, 7, b"bc").await;
    let list = || {
        target
            .client
            .list_parts()
            .bucket(&target.bucket)
            .key("l/1")
            .upload_id(&one)
    };
    let parts = list().send().await.unwrap();
    let seen: Vec<_> = parts
        .parts()
        .iter()
        .map(|part| (part.part_number().unwrap(), part.size().unwrap()))
        .collect();
    assert_eq!(seen, [(1, 1), (7, 2)]);
    assert_eq!(parts.parts()[0].e_tag(), part.e_tag());
    let page = list().max_parts(1).send().await.unwrap();
    assert_eq!(page.is_truncated(), Some(true));
    let page = list()
        .part_number_marker(page.next_part_number_marker().unwrap())
        .send()
        .await
        .unwrap();
    assert_eq!(page.parts()[0].part_number(), Some(7));

    let list = || {
        target
            .client
            .list_multipart_uploads()
            .bucket(&target.bucket)
            .prefix("l/")
    };
    let ids = |page: &aws_sdk_s3::operation::list_multipart_uploads::ListMultipartUploadsOutput| {
        page.uploads()
            .iter()
            .map(|upload| upload.upload_id().unwrap().to_owned())
            .collect::<Vec<_>>()
    };
    assert_eq!(ids(&list().send().await.unwrap()), [one.clone(), two.clone()]);
    let page = list().max_uploads(1).send().await.unwrap();
    assert_eq!(ids(&page), std::slice::from_ref(&one));
    let next = list().key_marker(page.next_key_marker().unwrap());
    let next = next
        .upload_id_marker(page.next_upload_id_marker().unwrap())
        .send()
        .await
        .unwrap();
    assert_eq!(ids(&next), std::slice::from_ref(&two));

    let abort = target
        .client
        .abort_multipart_upload()
        .bucket(&target.bucket)
        .key("l/1")
        .upload_id(&one);
    abort.clone().send().await.unwrap();
    assert_eq!(ids(&list().send().await.unwrap()), [two]);
    let gone = target
        .client
        .list_parts()
        .bucket(&target.bucket)
        .key("l/1")
        .upload_id(&one)
        .send()
        .await;
    // Ceph takes an upload for a key.
    assert!(matches!(code(gone).as_str(), "NoSuchUpload" | "NoSuchKey"));
    target
}

pub async fn completing_twice(target: Target) -> Target {
    let id = target.open("t").await;
    let one = target.part("t", &id, 1, b"once").await;
    let first = target
        .complete("t", &id, std::slice::from_ref(&one))
        .send()
        .await
        .unwrap();
    let second = target.complete("t", &id, &[one]).send().await.unwrap();
    assert_eq!(first.e_tag(), second.e_tag());
    assert_eq!(target.get("t").await, b"once");
    target
}

pub async fn completing_only_when_absent(target: Target) -> Target {
    target.put("o", "old").await;
    let id = target.open("o").await;
    let one = target.part("o", &id, 1, b"new").await;
    let parts = [one];
    assert_eq!(
        code(target.complete("o", &id, &parts).if_none_match("*").send().await),
        "PreconditionFailed"
    );
    assert_eq!(target.get("o").await, b"old");
    target.complete("o", &id, &parts).send().await.unwrap();
    assert_eq!(target.get("o").await, b"new");
    target
}

pub async fn copying_a_part(target: Target) -> Target {
    let body = bytes(MIN + 100);
    target.put("source", body.clone()).await;
    let id = target.open("c").await;
    let copy = |number| {
        let copy = target
            .client
            .upload_part_copy()
            .bucket(&target.bucket)
            .key("c")
            .upload_id(&id);
        copy.part_number(number)
            .copy_source(format!("{}/source", target.bucket))
    };
    let etag = |answer: aws_sdk_s3::operation::upload_part_copy::UploadPartCopyOutput| {
        answer.copy_part_result().unwrap().e_tag().unwrap().to_owned()
    };
    let one = etag(copy(1).send().await.unwrap());
    let two = etag(copy(2).copy_source_range("bytes=10-19").send().await.unwrap());
    assert_eq!(two, format!("\"{}\"", md5(&body[10..20])));
    target
        .complete("c", &id, &[completed(1, &one), completed(2, &two)])
        .send()
        .await
        .unwrap();
    assert!(target.get("c").await == [&body[..], &body[10..20]].concat());
    target
}

pub async fn a_part_can_be_replaced(target: Target) -> Target {
    let id = target.open("r").await;
    let old = target.part("r", &id, 1, b"old").await;
    let new = target.part("r", &id, 1, b"new").await;
    assert_eq!(code(target.complete("r", &id, &[old]).send().await), "InvalidPart");
    target.complete("r", &id, &[new]).send().await.unwrap();
    assert_eq!(target.get("r").await, b"new");
    target
}
