//! Tests all layers before the handlers, with invented addresses.

use axum::{
    Router,
    body::Body,
    http::{StatusCode, Uri},
    routing::{any, delete},
};
use proptest::prelude::*;
use tower::ServiceExt;

use super::{token::record, *};
use crate::{
    api::{limits::Limits, serve},
    store::SqliteStore,
};

/// A server with two valuable addresses, and a token that is allowed neither.
struct Guarded {
    app: Router,
    token: TokenText,
    _dir: tempfile::TempDir,
}

impl Guarded {
    async fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let store = SqliteStore::open(&dir.path().join("records.sqlite")).await.unwrap();
        let token = TokenText::random();
        let writer = record("writer".to_owned(), Role::Write, None);
        crate::store::Tokens::insert_token(&store, &writer, &token.sha256())
            .await
            .unwrap();
        let settings = LimitSettings {
            requests_per_second: 0,
            failed_logins_per_minute: 0,
            ..LimitSettings::default()
        };
        let router = Router::new()
            .route("/v3/images", delete(|| async { "every image is gone" }))
            .route("/v3/images/{id}", delete(|| async { "one image is gone" }))
            .route("/v3/remote-build-nodes/{xname}", any(|| async { "a node is gone" }));
        let auth = Auth::guarded(Arc::new(store), None, Vec::new(), &settings);
        Self {
            app: serve::app(router, None, auth, Limits::from(&settings)),
            token,
            _dir: dir,
        }
    }

    async fn delete(&self, uri: Uri, token: bool) -> (StatusCode, String) {
        let mut request = Request::delete(uri);
        if token {
            request = request.header("authorization", format!("Bearer {}", self.token.expose()));
        }
        let request = request.body(Body::empty()).unwrap();
        let response = self.app.clone().oneshot(request).await.unwrap();
        let status = response.status();
        let body = axum::body::to_bytes(response.into_body(), 1 << 16).await.unwrap();
        (status, String::from_utf8_lossy(&body).into_owned())
    }
}

/// Pieces of addresses, including deceptive ones.
fn pieces() -> impl Strategy<Value = Vec<&'static str>> {
    let piece = prop::sample::select(vec![
        "/",
        "//",
        "v3",
        "V3",
        "images",
        "Images",
        "remote-build-nodes",
        "deleted",
        "apis",
        "ims",
        "/apis/ims",
        "x1",
        ".",
        "..",
        "%2f",
        "%2F",
        "%2e",
        "%69mages",
        ";",
        "?",
        "#",
        "%00",
        "%20",
        "healthz",
        "live",
        "docs",
        "version",
        "kiln",
        "v1",
        "/v3/images",
        "/v3/remote-build-nodes/",
    ]);
    prop::collection::vec(piece, 1..8)
}

#[test]
fn no_address_leads_where_the_token_does_not() {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    let guarded = runtime.block_on(Guarded::new());
    let delete = |uri: &str, token| {
        let uri = uri.parse().ok()?;
        Some(runtime.block_on(guarded.delete(uri, token)))
    };
    // The attacked address exists.
    assert_eq!(
        delete("/v3/images/1", true).unwrap(),
        (StatusCode::OK, "one image is gone".to_owned())
    );
    assert_eq!(delete("/v3/images", true).unwrap().0, StatusCode::FORBIDDEN);
    proptest!(ProptestConfig::with_cases(4000), |(pieces in pieces())| {
        let uri = format!("/{}", pieces.concat());
        if let Some((_, said)) = delete(&uri, true) {
            prop_assert!(!said.starts_with("every") && !said.starts_with("a node"), "{uri}: {said}");
        }
        if let Some((status, said)) = delete(&uri, false) {
            prop_assert!(status == StatusCode::UNAUTHORIZED, "{uri}: {status} {said}");
        }
    });
}
