//! No page of another site shows an answer in a frame, or takes it for what it is not.

use crate::{
    doors::operations,
    support::server::{NOBODY, Server},
    web::browser::{Browser, no_browser},
};

/// What every answer says, whatever else.
fn must_be_safe(answer: &reqwest::Response, what: &str) {
    let header = |name: &str| {
        let values: Vec<_> = answer.headers().get_all(name).iter().collect();
        assert_eq!(values.len(), 1, "{what}, {}: {name}: {values:?}", answer.status());
        values[0].to_str().unwrap().to_owned()
    };
    let policy = header("content-security-policy");
    assert!(policy.starts_with("default-src 'none'; "), "{what}: {policy}");
    assert!(policy.contains("frame-ancestors 'none'"), "{what}: {policy}");
    assert_eq!(header("x-frame-options"), "DENY", "{what}");
    assert_eq!(header("x-content-type-options"), "nosniff", "{what}");
    assert_eq!(header("referrer-policy"), "same-origin", "{what}");
}

async fn try_one(api: &Server, method: &str, path: &str, body: Option<Vec<u8>>) -> u16 {
    let mut request = api.request(method, path);
    if let Some(body) = body {
        request = request.header("content-type", "application/json").body(body);
    }
    let answer = request.send().await.unwrap();
    must_be_safe(&answer, &format!("{method} {path}"));
    answer.status().as_u16()
}

#[test]
async fn every_answer_keeps_browsers_from_harm() {
    // Everything is tried, and some of it removes all records.
    let api = Server::own();
    for operation in operations(&api).await {
        let body = operation.described.get("requestBody").map(|_| b"{}".to_vec());
        try_one(&api, &operation.method, &operation.path, body).await;
        let status = try_one(&api, "TRACE", &operation.path, None).await;
        assert_eq!(status, 405, "{}", operation.path);
    }
    for (path, status) in [
        ("/", 404),
        ("/docs/", 200),
        ("/docs/index.html", 200),
        ("/docs/swagger-ui.css", 200),
        ("/docs/swagger-ui-bundle.js", 200),
        ("/docs/nothing", 404),
        ("/apis/ims/docs/", 200),
        ("/openapi.json", 200),
        ("/metrics", 200),
        ("/nothing", 404),
        ("/ui", 200),
        ("/ui/style.css", 200),
        ("/ui/nothing", 404),
        ("/v3/images/%ff", 404),
    ] {
        assert_eq!(try_one(&api, "GET", path, None).await, status, "{path}");
    }
    // A body that is too large, is no JSON, or brings a wrong token.
    let large = vec![b' '; 2 << 20];
    assert_eq!(try_one(&api, "POST", "/v3/images", Some(large)).await, 413);
    assert_eq!(try_one(&api, "POST", "/v3/images", Some(b"{".to_vec())).await, 400);
    let guarded = Server::with(&[("KILN__AUTH__MODE", "required")]);
    assert_eq!(try_one(&guarded, "GET", "/v3/images", None).await, 401);
    // Objects are opened by presigned addresses, and may be whatever a recipe has made.
    let object = api.http().get(format!("{}/boot-images/x.html", api.s3_endpoint()));
    must_be_safe(&object.send().await.unwrap(), "the embedded S3");
}

#[test]
async fn a_redirect_keeps_browsers_from_harm() {
    let api = Server::shared();
    let client = reqwest::Client::builder()
        .no_proxy()
        .redirect(reqwest::redirect::Policy::none())
        .build()
        .unwrap();
    for path in ["/", "/docs", "/ui/", &format!("/ui/images/{NOBODY}/")] {
        let request = client
            .get(format!("{}{path}", api.base()))
            .header("accept", "text/html");
        must_be_safe(&request.send().await.unwrap(), path);
    }
}

/// The policy lets the page's own script and style work, and whoever reads it try an operation.
#[test(threads = 2)]
async fn the_description_is_readable_under_its_policy() {
    needs!(no_browser());
    let api = Server::shared();
    let browser = Browser::open().await;
    browser
        .goto(&format!("{}/docs/#/service/get_version", api.base()))
        .await;
    browser.click("#operations-service-get_version .try-out__btn").await;
    browser.click("#operations-service-get_version .execute").await;
    browser
        .until(
            "document.querySelector('#operations-service-get_version .live-responses-table').innerText.includes('200')",
        )
        .await;
    browser.close().await;
}
