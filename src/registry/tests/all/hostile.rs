//! What a hostile or broken registry can do: nothing but fail.

use std::{
    net::SocketAddr,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
};

use bytes::Bytes;
use kiln_records::{Code, Failure};
use kiln_registry::{
    Access, Location, Place, Which,
    credentials::Login,
    digest::Digest,
    inspect, mirror,
    model::{Descriptor, Index, Manifest, media, to_json},
    open,
};

use crate::{
    rig::{access, notes},
    scripted::{Asked, Body, Reply, start},
};

async fn place(address: SocketAddr) -> Place {
    place_with(address, &access()).await
}

async fn place_with(address: SocketAddr, access: &Access) -> Place {
    let location: Location = format!("{address}/x").parse().unwrap();
    open(&location, access, true).await.unwrap()
}

fn tag() -> Which {
    Which::Tag("1".to_owned())
}

async fn inspected(place: &Place) -> Failure {
    inspect::inspect(place, Some(&tag())).await.unwrap_err()
}

/// Answers every request alike.
async fn all(reply: Reply) -> Place {
    place(start(move |_| reply.clone()).await).await
}

fn index_of(entries: Vec<Descriptor>) -> Vec<u8> {
    to_json(&Index::new(entries))
}

fn document(media_type: &str, bytes: Vec<u8>) -> Reply {
    Reply::new(200).header("content-type", media_type).body(bytes)
}

#[test]
async fn answers_have_limits_of_size_and_time() {
    let endless = Reply::new(200)
        .header("content-type", media::INDEX)
        .comes(Body::Endless);
    let huge = Reply::new(200)
        .header("content-type", media::INDEX)
        .header("content-length", "5000000000");
    let drip = Reply::new(200).header("content-type", media::INDEX).comes(Body::Drip);
    let cut = Reply::new(200)
        .header("content-type", media::INDEX)
        .comes(Body::Cut(b"{\"schemaVersion\"".to_vec()));
    for (reply, code) in [
        (endless.clone(), Code::RegistryAnswer),
        (huge, Code::RegistryAnswer),
        (drip, Code::RegistryTimeout),
        (cut, Code::RegistryLost),
        (document(media::INDEX, b"{".to_vec()), Code::RegistryAnswer),
        (document(media::INDEX, b"[1]".to_vec()), Code::RegistryAnswer),
        (Reply::new(500).comes(Body::Endless), Code::RegistryBroken),
        (Reply::new(418).comes(Body::Drip), Code::RegistryRefused),
    ] {
        let shown = format!("{reply:?}");
        let failure = inspected(&all(reply).await).await;
        assert_eq!(failure.code, code, "{failure}: {shown}");
    }
    // A registry that accepts and says nothing at all.
    let silent = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let failure = inspected(&place(silent.local_addr().unwrap()).await).await;
    assert_eq!(failure.code, Code::RegistryTimeout);
}

#[test]
async fn digests_are_not_taken_on_trust() {
    let bytes = index_of(Vec::new());
    let other = Digest::of(b"other");
    let lies = document(media::INDEX, bytes.clone()).header("docker-content-digest", other.as_str());
    let place = all(lies).await;
    assert_eq!(inspected(&place).await.code, Code::RegistryDigest);
    let by_digest = inspect::inspect(&place, Some(&Which::Digest(other))).await.unwrap_err();
    assert_eq!(by_digest.code, Code::RegistryDigest);
}

#[test]
async fn redirects_lead_nowhere_that_the_registry_is_not() {
    for (to, is_followed) in [
        ("http://10.0.0.1/x", false),
        ("http://169.254.169.254/latest/meta-data", false),
        ("http://[fd00::1]/", false),
        ("http://0.0.0.0:1/", false),
        ("http://me:secret@127.0.0.1/", false),
        ("file:///etc/passwd", false),
        ("ftp://127.0.0.1/", false),
        ("http://localhost:1/", true),
    ] {
        let failure = inspected(&all(Reply::new(307).header("location", to)).await).await;
        let expected = if is_followed {
            Code::RegistryUnreachable
        } else {
            Code::RegistryRedirect
        };
        // Nothing listens there.
        let expected = if is_followed && failure.code == Code::RegistryLost {
            Code::RegistryLost
        } else {
            expected
        };
        assert_eq!(failure.code, expected, "{to}: {failure}");
    }
    let asked = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&asked);
    let circle = start(move |asked: &Asked| {
        count.fetch_add(1, Ordering::Relaxed);
        Reply::new(302).header("location", asked.target.clone())
    });
    let failure = inspected(&place(circle.await).await).await;
    assert_eq!((failure.code, asked.load(Ordering::Relaxed)), (Code::RegistryAnswer, 6));
}

#[test]
async fn passwords_go_to_the_registry_and_its_token_service_only() {
    let seen: Arc<Mutex<Vec<String>>> = Arc::default();
    let note = Arc::clone(&seen);
    let elsewhere = start(move |asked: &Asked| {
        note.lock().unwrap().push(asked.head.clone());
        Reply::new(404)
    })
    .await;
    let with_login = Access {
        login: Some(Login::Password {
            user: "me".to_owned(),
            password: "secret".to_owned(),
        }),
        ..access()
    };
    let registry = start(move |asked: &Asked| {
        if asked.head.contains("authorization: basic") {
            return Reply::new(307).header("location", format!("http://{elsewhere}/blob"));
        }
        Reply::new(401).header("www-authenticate", "Basic realm=x")
    });
    let place = place_with(registry.await, &with_login).await;
    let failure = inspect::inspect(&place, Some(&tag())).await.unwrap_err();
    assert_eq!(failure.code, Code::RegistryMissing, "{failure}");
    {
        let seen = seen.lock().unwrap();
        assert!(seen.len() == 1 && !seen[0].contains("authorization"), "{seen:?}");
    }

    for realm in ["http://10.1.1.1/token", "https://169.254.169.254/", "nonsense"] {
        let challenge = format!("Bearer realm=\"{realm}\",service=\"s\"");
        let refused = all_with(Reply::new(401).header("www-authenticate", challenge), &with_login).await;
        assert!(
            matches!(
                inspected(&refused).await.code,
                Code::RegistryRedirect | Code::RegistryAnswer
            ),
            "{realm}"
        );
    }
}

#[test]
async fn a_password_goes_to_no_other_address_of_this_machine_by_plain_http() {
    let with_login = Access {
        login: Some(Login::Password {
            user: "me".to_owned(),
            password: "secret".to_owned(),
        }),
        ..access()
    };
    for own in kiln_addresses::own()
        .unwrap()
        .into_iter()
        .filter(std::net::IpAddr::is_ipv4)
    {
        let listener = tokio::net::TcpListener::bind((own, 0)).await.unwrap();
        let realm = format!("http://{}/token", listener.local_addr().unwrap());
        let challenge = format!("Bearer realm=\"{realm}\",service=\"s\"");
        let refused = all_with(Reply::new(401).header("www-authenticate", challenge), &with_login).await;
        assert_eq!(inspected(&refused).await.code, Code::RegistryRedirect, "{own}");
        let came = tokio::time::timeout(std::time::Duration::ZERO, listener.accept()).await;
        assert!(came.is_err(), "{own} was asked");
    }
    // The loopback itself, by whatever name, is asked.
    for host in ["127.0.0.1", "localhost"] {
        let asked = Arc::new(Mutex::new(Vec::new()));
        let seen = Arc::clone(&asked);
        let tokens = start(move |asked: &Asked| {
            seen.lock().unwrap().push(asked.head.clone());
            Reply::new(403)
        });
        let realm = format!("http://{host}:{}/token", tokens.await.port());
        let challenge = format!("Bearer realm=\"{realm}\",service=\"s\"");
        let refused = all_with(Reply::new(401).header("www-authenticate", challenge), &with_login).await;
        assert_eq!(inspected(&refused).await.code, Code::RegistryUnauthorized, "{host}");
        let asked = asked.lock().unwrap();
        assert!(
            asked.len() == 1 && asked[0].contains("authorization: basic "),
            "{asked:?}"
        );
    }
}

async fn all_with(reply: Reply, access: &Access) -> Place {
    place_with(start(move |_| reply.clone()).await, access).await
}

#[test]
async fn tokens_have_limits_too() {
    for (token, code) in [
        (Reply::new(200).comes(Body::Endless), Code::RegistryAnswer),
        (Reply::new(200).body("{}"), Code::RegistryAnswer),
        (Reply::new(200).body("{\"token\": \"a\\nb\"}"), Code::RegistryAnswer),
        (Reply::new(403), Code::RegistryUnauthorized),
        // It is never satisfied.
        (Reply::new(200).body("{\"token\": \"t\"}"), Code::RegistryUnauthorized),
    ] {
        let count = Arc::new(AtomicUsize::new(0));
        let tokens = Arc::clone(&count);
        let address = start(move |asked: &Asked| {
            if asked.target.starts_with("/token") {
                tokens.fetch_add(1, Ordering::Relaxed);
                return token.clone();
            }
            let host = asked
                .head
                .lines()
                .find_map(|line| line.strip_prefix("host: "))
                .unwrap()
                .trim();
            Reply::new(401).header("www-authenticate", format!("Bearer realm=\"http://{host}/token\""))
        })
        .await;
        let failure = inspected(&place(address).await).await;
        assert_eq!(failure.code, code, "{failure}");
        assert_eq!(count.load(Ordering::Relaxed), 1);
    }
}

#[test]
async fn refusals_have_their_causes() {
    let said = r#"{"errors": [{"code": "DENIED", "message": "over quota\u001b[31m\nfor x"}]}"#;
    for (status, code) in [
        (413, Code::RegistryFull),
        (507, Code::RegistryFull),
        (403, Code::RegistryDenied),
        (401, Code::RegistryUnauthorized),
        (400, Code::RegistryRefused),
    ] {
        let failure = inspected(&all(Reply::new(status).body(said)).await).await;
        assert_eq!(failure.code, code);
        assert!(failure.detail.contains("over quota\\u{1b}[31m"), "{failure}");
        assert!(failure.hint.is_some());
    }
    let busy = all(Reply::new(429).header("retry-after", "3600")).await;
    let failure = inspected(&busy).await;
    assert_eq!(failure.code, Code::RegistryBusy);
    assert!(failure.hint.unwrap().contains("3600 s"));
    // One that is busy for a moment is waited for.
    let count = AtomicUsize::new(0);
    let moment = start(move |_| match count.fetch_add(1, Ordering::Relaxed) {
        0 => Reply::new(429).header("retry-after", "0"),
        1 => Reply::new(503),
        _ => document(media::INDEX, index_of(Vec::new())),
    });
    inspect::inspect(&place(moment.await).await, Some(&tag()))
        .await
        .unwrap();
}

/// A registry with these documents by digest, one of which has the tag; and lists of referrers.
async fn with_documents(
    documents: Vec<(&'static str, Vec<u8>)>,
    tagged: usize,
    referrers: impl Fn(&str) -> Vec<Descriptor> + Send + Sync + 'static,
) -> Place {
    let address = start(move |asked: &Asked| {
        let last = asked.target.rsplit('/').next().unwrap();
        if asked.target.contains("/referrers/") {
            return document(media::INDEX, index_of(referrers(last)));
        }
        let found = documents.iter().find(|(_, bytes)| Digest::of(bytes).as_str() == last);
        let found = found.or_else(|| (last == "1").then(|| &documents[tagged]));
        match found {
            Some((media_type, bytes)) if asked.target.contains("/manifests/") == media_type.contains("json") => {
                document(media_type, bytes.clone())
            }
            _ => Reply::new(404),
        }
    });
    place(address.await).await
}

#[test]
async fn lists_of_referrers_have_a_limit_in_bytes() {
    let root = index_of(Vec::new());
    let documents = root.clone();
    let pages = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&pages);
    let address = start(move |asked: &Asked| {
        if !asked.target.contains("/referrers/") {
            return document(media::INDEX, documents.clone());
        }
        // One entry each, of which little can be of use.
        let page = count.fetch_add(1, Ordering::Relaxed);
        let entry = Descriptor::of(media::INDEX, &page.to_be_bytes()).annotated("x", "y".repeat(4_000_000));
        let next = format!("<{}?n={page}>; rel=\"next\"", asked.target.split('?').next().unwrap());
        document(media::INDEX, index_of(vec![entry])).header("link", next)
    });
    let place = place(address.await).await;
    let dir = tempfile::tempdir().unwrap();
    let to: Location = format!("oci:{}", dir.path().join("x").display()).parse().unwrap();
    let to = open(&to, &access(), true).await.unwrap();
    let failure = mirror::mirror(&place, Some(&tag()), &to, None, &notes().0)
        .await
        .unwrap_err();
    assert_eq!(failure.code, Code::RegistryGraph, "{failure}");
    let pages = pages.load(Ordering::Relaxed);
    assert!(pages < 20, "{pages} pages of 4 MB were read");
}

#[test]
async fn what_refers_to_itself_ends() {
    let inner = index_of(Vec::new());
    let root = index_of(vec![Descriptor::of(media::INDEX, &inner)]);
    let (root_entry, inner_entry) = (
        Descriptor::of(media::INDEX, &root),
        Descriptor::of(media::INDEX, &inner),
    );
    // Everything refers to everything, says the registry.
    let both = vec![root_entry, inner_entry];
    let place = with_documents(
        vec![(media::INDEX, root.clone()), (media::INDEX, inner)],
        0,
        move |_| both.clone(),
    )
    .await;
    let dir = tempfile::tempdir().unwrap();
    let to: Location = format!("oci:{}", dir.path().join("x").display()).parse().unwrap();
    let to = open(&to, &access(), true).await.unwrap();
    let mirrored = mirror::mirror(&place, Some(&tag()), &to, None, &notes().0)
        .await
        .unwrap();
    assert_eq!((mirrored.manifests, mirrored.digest), (2, Digest::of(&root)));
    inspect::inspect(&place, Some(&tag())).await.unwrap();
}

#[test]
async fn false_referrers_are_left_out_and_depth_ends() {
    let root = index_of(Vec::new());
    let stranger = to_json(&Index {
        artifact_type: Some("stranger".to_owned()),
        ..Index::new(Vec::new())
    });
    let listed = Descriptor::of(media::INDEX, &stranger);
    let gone = Descriptor::of(media::MANIFEST, b"gone");
    let of_root = Digest::of(&root).to_string();
    let place = with_documents(vec![(media::INDEX, root), (media::INDEX, stranger)], 0, move |digest| {
        if digest == of_root {
            vec![listed.clone(), gone.clone()]
        } else {
            Vec::new()
        }
    })
    .await;
    let dir = tempfile::tempdir().unwrap();
    let to: Location = format!("oci:{}", dir.path().join("x").display()).parse().unwrap();
    let to = open(&to, &access(), true).await.unwrap();
    let (notes, said) = notes();
    let mirrored = mirror::mirror(&place, Some(&tag()), &to, None, &notes).await.unwrap();
    assert_eq!(mirrored.manifests, 1);
    assert_eq!(
        said.lock()
            .unwrap()
            .iter()
            .filter(|line| line.contains("left out"))
            .count(),
        2
    );

    let mut chain = vec![(media::INDEX, index_of(Vec::new()))];
    for _ in 0..20 {
        let last = Descriptor::of(media::INDEX, &chain.last().unwrap().1);
        chain.push((media::INDEX, index_of(vec![last])));
    }
    let deep = with_documents(chain, 20, |_| Vec::new()).await;
    let failure = mirror::mirror(&deep, Some(&tag()), &to, Some(&Which::Tag("deep".to_owned())), &notes)
        .await
        .unwrap_err();
    assert_eq!(failure.code, Code::RegistryGraph, "{failure}");
    // Nothing of it has a name.
    let nothing = inspect::inspect(&to, Some(&Which::Tag("deep".to_owned())))
        .await
        .unwrap_err();
    assert_eq!(nothing.code, Code::RegistryMissing);
}

#[test]
async fn unknown_kinds_are_listed_and_copied_as_they_are() {
    let odd = br#"{"schemaVersion": 2,   "something": "else"}"#.to_vec();
    let blob = b"not even a document".to_vec();
    let root = index_of(vec![
        Descriptor::of("application/vnd.example.odd+json", &odd),
        Descriptor::of("application/vnd.example.blob", &blob),
    ]);
    let documents = vec![
        (media::INDEX, root.clone()),
        ("application/vnd.example.odd+json", odd),
        ("application/vnd.example.blob", blob),
    ];
    let place = with_documents(documents, 0, |_| Vec::new()).await;
    let seen = inspect::inspect(&place, Some(&tag())).await.unwrap();
    let kinds: Vec<_> = seen
        .entries
        .iter()
        .map(|entry| (entry.kind.name(), entry.media_type.as_str()))
        .collect();
    assert_eq!(
        kinds,
        [
            ("unknown", "application/vnd.example.odd+json"),
            ("unknown", "application/vnd.example.blob")
        ]
    );
    let dir = tempfile::tempdir().unwrap();
    let mut from = place;
    for name in ["one", "two"] {
        let to: Location = format!("oci:{}", dir.path().join(name).display()).parse().unwrap();
        let to = open(&to, &access(), true).await.unwrap();
        let mirrored = mirror::mirror(&from, Some(&tag()), &to, None, &notes().0)
            .await
            .unwrap();
        assert_eq!((mirrored.manifests, mirrored.blobs), (2, 1), "{name}");
        assert_eq!(mirrored.digest, Digest::of(&root));
        from = to;
    }
}

/// A registry that takes everything, and keeps what was asked.
async fn accepting(
    special: impl Fn(&Asked) -> Option<Reply> + Send + Sync + 'static,
) -> (Place, Arc<Mutex<Vec<String>>>) {
    let asked: Arc<Mutex<Vec<String>>> = Arc::default();
    let keep = Arc::clone(&asked);
    let address = start(move |request: &Asked| {
        keep.lock()
            .unwrap()
            .push(format!("{} {}", request.method, request.target));
        if let Some(reply) = special(request) {
            return reply;
        }
        match request.method.as_str() {
            "POST" | "PATCH" => Reply::new(202).header("location", "/upload/1"),
            "PUT" => Reply::new(201),
            _ => Reply::new(404),
        }
    })
    .await;
    (place(address).await, asked)
}

/// A directory with an image of one blob of this size.
async fn image_in(dir: &std::path::Path, size: usize) -> Place {
    let blob = Bytes::from(vec![7; size]);
    let manifest = to_json(&Manifest {
        schema_version: 2,
        media_type: Some(media::MANIFEST.to_owned()),
        artifact_type: Some("test".to_owned()),
        config: Descriptor::of(media::EMPTY, b"{}"),
        layers: vec![Descriptor::of("application/octet-stream", &blob)],
        subject: None,
        annotations: None,
    });
    let blobs = dir.join("blobs/sha256");
    fs_err::create_dir_all(&blobs).unwrap();
    for bytes in [&blob[..], b"{}", &manifest] {
        fs_err::write(blobs.join(Digest::of(bytes).parts().1), bytes).unwrap();
    }
    let entry = Descriptor::of(media::MANIFEST, &manifest).annotated("org.opencontainers.image.ref.name", "1");
    fs_err::write(dir.join("index.json"), index_of(vec![entry])).unwrap();
    fs_err::write(dir.join("oci-layout"), r#"{"imageLayoutVersion":"1.0.0"}"#).unwrap();
    open(&format!("oci:{}", dir.display()).parse().unwrap(), &access(), false)
        .await
        .unwrap()
}

#[test]
async fn a_registry_that_takes_no_more_gets_no_tag() {
    let dir = tempfile::tempdir().unwrap();
    let from = image_in(dir.path(), 1000).await;
    let full: fn(&Asked) -> Option<Reply> = |asked| (asked.method == "PUT").then(|| Reply::new(413));
    let elsewhere: fn(&Asked) -> Option<Reply> =
        |asked| (asked.method == "POST").then(|| Reply::new(202).header("location", "http://10.0.0.1/upload"));
    let lies: fn(&Asked) -> Option<Reply> = |asked| {
        let other = Digest::of(b"other");
        (asked.method == "PUT").then(|| Reply::new(201).header("docker-content-digest", other.as_str()))
    };
    // It accepts the blob, and does not have it.
    let forgets: fn(&Asked) -> Option<Reply> = |_| None;
    for (special, code) in [
        (full, Code::RegistryFull),
        (elsewhere, Code::RegistryRedirect),
        (lies, Code::RegistryDigest),
        (forgets, Code::RegistryDigest),
    ] {
        let (to, asked) = accepting(special).await;
        let failure = mirror::mirror(&from, Some(&tag()), &to, None, &notes().0)
            .await
            .unwrap_err();
        assert_eq!(failure.code, code, "{failure}");
        let asked = asked.lock().unwrap();
        assert!(
            !asked
                .iter()
                .any(|line| line.starts_with("PUT") && line.contains("/manifests/")),
            "{asked:?}"
        );
    }
}

#[test]
async fn chunks_go_on_where_they_broke() {
    // Two whole chunks and a little.
    const SIZE: usize = (32 << 20) + 5000;
    let dir = tempfile::tempdir().unwrap();
    let from = image_in(dir.path(), SIZE).await;
    let received: Arc<Mutex<Vec<u8>>> = Arc::default();
    let broken = AtomicUsize::new(0);
    let kept = Arc::clone(&received);
    let (to, asked) = accepting(move |asked| {
        let mut kept = kept.lock().unwrap();
        let blob = Digest::of(&vec![7; SIZE]);
        match asked.method.as_str() {
            "PATCH" => {
                // The second chunk arrives in part only, and its answer says something else.
                let part = if kept.len() == 16 << 20 && broken.fetch_add(1, Ordering::Relaxed) == 0 {
                    5 << 20
                } else {
                    asked.body.len()
                };
                kept.extend(&asked.body[..part]);
                Some(if part == asked.body.len() {
                    Reply::new(202)
                        .header("location", "/upload/1")
                        .header("range", format!("0-{}", kept.len() - 1))
                } else {
                    Reply::new(502)
                })
            }
            "GET" if asked.target == "/upload/1" => Some(
                Reply::new(204)
                    .header("location", "/upload/1")
                    .header("range", format!("0-{}", kept.len() - 1)),
            ),
            "HEAD" if asked.target.ends_with(blob.as_str()) && kept.len() == SIZE => {
                Some(Reply::new(200).header("content-length", SIZE.to_string()))
            }
            "HEAD" if asked.target.contains(Digest::of(b"{}").as_str()) => {
                Some(Reply::new(200).header("content-length", "2"))
            }
            _ => None,
        }
    })
    .await;
    mirror::mirror(&from, Some(&tag()), &to, None, &notes().0)
        .await
        .unwrap();
    assert!(received.lock().unwrap().iter().all(|byte| *byte == 7));
    let asked = asked.lock().unwrap();
    assert_eq!(
        asked.iter().filter(|line| line.starts_with("PATCH")).count(),
        4,
        "{asked:?}"
    );
    assert_eq!(
        asked.iter().filter(|line| line.starts_with("POST")).count(),
        1,
        "{asked:?}"
    );
}

#[test]
async fn a_tag_that_moves_meanwhile_is_left_alone() {
    let dir = tempfile::tempdir().unwrap();
    let from = image_in(dir.path(), 1000).await;
    let looks = AtomicUsize::new(0);
    let (to, asked) = accepting(move |asked| {
        let is_tag = asked.target.ends_with("/manifests/1");
        match asked.method.as_str() {
            "HEAD" if is_tag => {
                let other = Digest::of(&looks.fetch_add(1, Ordering::Relaxed).to_le_bytes());
                Some(Reply::new(200).header("docker-content-digest", other.as_str()))
            }
            "HEAD" if asked.target.contains(Digest::of(b"{}").as_str()) => {
                Some(Reply::new(200).header("content-length", "2"))
            }
            "HEAD" if asked.target.contains("/blobs/") => Some(Reply::new(200).header("content-length", "1000")),
            _ => None,
        }
    })
    .await;
    let failure = mirror::mirror(&from, Some(&tag()), &to, None, &notes().0)
        .await
        .unwrap_err();
    assert_eq!(failure.code, Code::RegistryMoved, "{failure}");
    let asked = asked.lock().unwrap();
    assert!(
        !asked.iter().any(|line| line.starts_with("PUT /v2/x/manifests/1 ")),
        "{asked:?}"
    );
}
