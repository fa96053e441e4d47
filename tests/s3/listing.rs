//! Listings of a bucket.

use aws_sdk_s3::operation::list_objects_v2::ListObjectsV2Output;

use crate::s3::target::{Target, md5};

pub async fn listing_in_pages(target: Target) -> Target {
    let keys: Vec<_> = (0..25).map(|number| format!("p/{number:02}")).collect();
    for key in &keys {
        target.put(key, "").await;
    }
    target.put("q", "").await;
    let list = target
        .client
        .list_objects_v2()
        .bucket(&target.bucket)
        .prefix("p/")
        .max_keys(10);
    let pages: Vec<_> = list.into_paginator().send().collect::<Result<_, _>>().await.unwrap();
    assert_eq!(
        pages.iter().map(|page| page.contents().len()).collect::<Vec<_>>(),
        [10, 10, 5]
    );
    let listed: Vec<_> = pages
        .iter()
        .flat_map(ListObjectsV2Output::contents)
        .map(|it| it.key().unwrap())
        .collect();
    assert_eq!(listed, keys);
    assert_eq!(pages[0].contents()[0].e_tag().unwrap(), format!("\"{}\"", md5(b"")));

    let first = target
        .client
        .list_objects()
        .bucket(&target.bucket)
        .max_keys(20)
        .send()
        .await
        .unwrap();
    assert_eq!(first.is_truncated(), Some(true));
    let marker = first.contents().last().unwrap().key().unwrap();
    let rest = target
        .client
        .list_objects()
        .bucket(&target.bucket)
        .marker(marker)
        .send()
        .await
        .unwrap();
    assert_eq!((first.contents().len(), rest.contents().len()), (20, 6));
    let after = target
        .client
        .list_objects_v2()
        .bucket(&target.bucket)
        .start_after("p/23")
        .send()
        .await
        .unwrap();
    assert_eq!(after.key_count(), Some(2));
    target
}

pub async fn listing_with_a_delimiter(target: Target) -> Target {
    for key in ["a/1", "a/2", "a/b/3", "b", "c/4", "d"] {
        target.put(key, "").await;
    }
    let list = || target.client.list_objects_v2().bucket(&target.bucket).delimiter("/");
    let all = list().send().await.unwrap();
    let prefixes: Vec<_> = all.common_prefixes().iter().map(|it| it.prefix().unwrap()).collect();
    let keys: Vec<_> = all.contents().iter().map(|it| it.key().unwrap()).collect();
    assert_eq!((prefixes, keys), (vec!["a/", "c/"], vec!["b", "d"]));

    let inner = list().prefix("a/").send().await.unwrap();
    assert_eq!(inner.contents().len(), 2);
    assert_eq!(inner.common_prefixes()[0].prefix(), Some("a/b/"));

    // Entries of both sorts count, and a page may end after either.
    let mut seen = Vec::new();
    let mut pages = list().max_keys(1).into_paginator().send();
    while let Some(page) = pages.next().await.transpose().unwrap() {
        seen.extend(page.common_prefixes().iter().map(|it| it.prefix().unwrap().to_owned()));
        seen.extend(page.contents().iter().map(|it| it.key().unwrap().to_owned()));
    }
    assert_eq!(seen, ["a/", "b", "c/", "d"]);

    let old = target
        .client
        .list_objects()
        .bucket(&target.bucket)
        .delimiter("/")
        .max_keys(1);
    let first = old.clone().send().await.unwrap();
    assert_eq!(first.next_marker(), Some("a/"));
    let second = old.marker("a/").send().await.unwrap();
    assert_eq!(second.contents()[0].key(), Some("b"));
    target
}
