//! Tests lists: IMS's plain answer, and Kiln's optional parameters, which do not affect other clients.

use std::collections::{BTreeSet, HashSet};

use futures::{StreamExt, stream};
use serde_json::{Value, json};

use crate::api::server::{Answer, Server, id_of, unique};

/// The address of the next page, out of the header `Link`.
fn next(answer: &Answer) -> Option<String> {
    let link = answer.header("link");
    let address = link.strip_prefix('<')?.strip_suffix(">; rel=\"next\"")?;
    Some(address.to_owned())
}

/// Follows a list page by page; the names in it, and how many pages there were.
async fn pages(api: &Server, path: &str, member: &str) -> (Vec<String>, usize) {
    let (mut all, mut count, mut path) = (Vec::new(), 0, path.to_owned());
    loop {
        let answer = api.get(&path).await.is(200);
        let page = answer.json();
        let page = page.as_array().unwrap();
        all.extend(page.iter().map(|record| record[member].as_str().unwrap().to_owned()));
        count += 1;
        match next(&answer) {
            Some(more) => path = more,
            None => return (all, count),
        }
    }
}

#[test]
async fn w18_pages_make_up_the_list() {
    let api = Server::own();
    let names = ["b", "a", "ü/ö &?=", "c", "a", "C", "a", "%", "10", "9"];
    let mut ids = Vec::new();
    for name in names {
        ids.push(id_of(&api.make("/v3/images", json!({ "name": name })).await));
    }
    let plain = api.get("/v3/images").await.is(200);
    assert_eq!(plain.header("link"), "", "nobody asked for pages");
    let mut sorted: Vec<_> = names.iter().zip(&ids).collect();
    sorted.sort();
    let by_name: Vec<_> = sorted.into_iter().map(|(_, id)| id.clone()).collect();
    for version in ["/v3", "/v2", "", "/apis/ims/v3"] {
        for (sort, expected) in [("", &ids), ("&sort=created", &ids), ("&sort=name", &by_name)] {
            for limit in [1, 3, 9, 10, 11, 10_000] {
                let path = format!("{version}/images?limit={limit}{sort}");
                let (found, count) = pages(&api, &path, "id").await;
                assert_eq!(found, *expected, "{path}");
                assert_eq!(count, 10_usize.div_ceil(limit), "{path}");
                let (found, _) = pages(&api, &path.replace("sort=", "sort=-"), "id").await;
                if !sort.is_empty() {
                    let reverse: Vec<_> = expected.iter().rev().cloned().collect();
                    assert_eq!(found, reverse, "{path} backwards");
                }
            }
        }
    }
    // A page knows what else was asked.
    let answer = api
        .get("/v3/images?name=a&limit=1&sort=-name&colour=blue")
        .await
        .is(200);
    let address = next(&answer).unwrap();
    assert!(address.starts_with("/v3/images?") && address.contains("name=a") && address.contains("sort=-name"));
    assert_eq!(pages(&api, &address, "name").await, (vec!["a".to_owned(); 2], 2));
}

#[test]
async fn w18_records_are_found_by_name_id_and_architecture() {
    let api = Server::shared();
    let name = unique("50%_off 'x' \\ * [a]");
    let made = api.make("/v3/images", json!({"name": name, "arch": "s390x"})).await;
    let id = id_of(&made);
    let found = json!([made]);
    let encode = |text: &str| {
        let bytes: Vec<_> = text.bytes().map(|byte| format!("%{byte:02X}")).collect();
        bytes.concat()
    };
    for (query, expected) in [
        (format!("name={}", encode(&name)), &found),
        (format!("name={}&arch=s390x", encode(&name)), &found),
        (format!("name={}&arch=aarch64", encode(&name)), &json!([])),
        (format!("name={}", encode(&name[..10])), &json!([])),
        (format!("name={}", encode(&name.replace('%', "_"))), &json!([])),
        (format!("id_prefix={id}"), &found),
        (format!("id_prefix={}", &id[..13]), &found),
        (format!("id_prefix={}", id[..13].to_uppercase()), &found),
        (format!("id_prefix={}&name=other", &id[..13]), &json!([])),
        (format!("id_prefix={id}0"), &json!([])),
        ("id_prefix=%25".to_owned(), &json!([])),
        (format!("id_prefix={}_", &id[..7]), &json!([])),
        ("id_prefix=%27%20OR%201=1".to_owned(), &json!([])),
    ] {
        assert_eq!(api.read(&format!("/v3/images?{query}")).await, *expected, "{query}");
    }
    api.delete(&format!("/v3/images/{id}")).await.done();
    let gone = api
        .read(&format!("/v3/deleted/images?id_prefix={}&arch=s390x", &id[..13]))
        .await;
    assert_eq!(gone[0]["id"], id);
}

#[test]
async fn what_is_no_parameter_is_told() {
    let api = Server::shared();
    api.key().await;
    assert_ne!(
        api.read("/v3/public-keys?arch=s390x").await,
        json!([]),
        "keys have no architecture"
    );
    for kind in ["images", "recipes", "public-keys", "jobs", "deleted/images"] {
        for query in [
            "limit=0",
            "limit=-1",
            "limit=x",
            "limit=",
            "limit=10001",
            "limit=1.5",
            "sort=size",
            "sort=",
            "sort=--name",
            "name=%00",
            "id_prefix=a%00",
            "cursor=x",
            "cursor=%00",
            "cursor=%ff",
            "cursor=AAAA",
            "cursor=aWQva2V5",
        ] {
            api.get(&format!("/v3/{kind}?{query}")).await.problem(400);
        }
        // Parameters of other lists are ignored, as in IMS.
        if kind == "public-keys" {
            api.get("/v3/public-keys?arch=armv7").await.is(200);
        } else {
            api.get(&format!("/v3/{kind}?arch=armv7")).await.problem(400);
        }
        if kind != "jobs" {
            api.get(&format!("/v3/{kind}?status=error&job_type=x")).await.is(200);
        }
        for query in ["", "&", "=", "=x", "page=2", "limits=0", "%ff=%zz&a=%", "a[]=1"] {
            api.get(&format!("/v3/{kind}?{query}")).await.is(200);
        }
    }
}

#[test]
async fn a_list_of_thousands_is_whole() {
    const COUNT: usize = 2_345;
    let api = Server::own();
    let made: Vec<Value> = stream::iter(0..COUNT)
        .map(|number| {
            let body = json!({"name": format!("key {number}"), "public_key": "k".repeat(200)});
            api.make("/v3/public-keys", body)
        })
        .buffer_unordered(16)
        .collect()
        .await;
    let made: HashSet<_> = made.iter().map(id_of).collect();
    assert_eq!(made.len(), COUNT);
    let list = api.read("/v3/public-keys").await;
    let list = list.as_array().unwrap();
    assert_eq!(list.len(), COUNT);
    assert_eq!(list.iter().map(id_of).collect::<HashSet<_>>(), made);
    let moments: Vec<_> = list.iter().map(|key| key["created"].as_str().unwrap()).collect();
    let mut unique: Vec<_> = moments.clone();
    unique.sort_unstable();
    let late = moments.iter().zip(&unique).filter(|(a, b)| a != b).count();
    // Requests at the same time may be noted in another order than they began, but not by much.
    assert!(late < COUNT / 2, "{late} of {COUNT} are out of the order of creation");

    let (paged, count) = pages(&api, "/v3/public-keys?limit=1000", "id").await;
    assert_eq!((paged.len(), count), (COUNT, 3));
    let same: Vec<_> = list.iter().map(id_of).collect();
    assert_eq!(paged, same);

    let answer = api.request("GET", "/v3/public-keys").header("accept-encoding", "gzip");
    let answer = Answer::of(answer, "GET, gzipped".to_owned()).await.is(200);
    assert_eq!(answer.header("content-encoding"), "gzip");
    assert!(answer.body.len() < 500_000 && answer.body.starts_with(&[0x1f, 0x8b]));

    api.delete("/v3/public-keys").await.done();
    assert_eq!(api.read("/v3/public-keys").await, json!([]));
    assert_eq!(api.ids("/v3/deleted/public-keys").await, same);
}

#[test]
async fn w18_pages_stay_right_while_records_come_and_go() {
    let api = Server::own();
    let make = |number: usize| {
        let api = &api;
        async move {
            let body = json!({"name": format!("{:03}", number % 7), "public_key": "k"});
            id_of(&api.make("/v3/public-keys", body).await)
        }
    };
    let mut before = Vec::new();
    for number in 0..60 {
        before.push(make(number).await);
    }
    let (kept, going) = before.split_at(40);
    for sort in ["created", "-created", "name", "-name"] {
        let walk = async {
            let path = format!("/v3/public-keys?limit=3&sort={sort}");
            pages(&api, &path, "id").await.0
        };
        let change = async {
            for (number, id) in going.iter().enumerate() {
                make(number).await;
                api.delete(&format!("/v3/public-keys/{id}")).await;
                let back = json!({"operation": "undelete"});
                api.patch(&format!("/v3/deleted/public-keys/{id}"), back).await;
            }
        };
        let (found, ()) = tokio::join!(walk, change);
        let unique: BTreeSet<_> = found.iter().collect();
        for id in kept {
            assert!(
                unique.contains(id),
                "sort={sort}: {id} was there all the time and is missing"
            );
        }
        if !sort.contains("created") {
            // By creation, a restored record is at the end, and rightly met once more.
            assert_eq!(unique.len(), found.len(), "sort={sort}: a record came twice");
        }
        for id in kept {
            assert_eq!(found.iter().filter(|one| *one == id).count(), 1, "sort={sort}");
        }
    }
}

#[test]
async fn creating_at_the_same_time_loses_nothing() {
    let api = Server::shared();
    let name = unique("together");
    let made: Vec<Value> = stream::iter(0..100)
        .map(|_| api.make("/v3/images", json!({ "name": name })))
        .buffer_unordered(20)
        .collect()
        .await;
    let ids: HashSet<_> = made.iter().map(id_of).collect();
    assert_eq!(ids.len(), 100);
    let found: HashSet<_> = api.ids(&format!("/v3/images?name={name}")).await.into_iter().collect();
    assert_eq!(found, ids);
}
