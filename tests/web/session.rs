//! Signing in, and what a session may do.

use reqwest::header;
use serde_json::json;

use super::{
    browser::{Browser, no_browser},
    night::Night,
};
use crate::support::serve::{Answer, Server, send};

const GUARDED: [(&str, &str); 1] = [("KILN__AUTH__MODE", "required")];

async fn page(server: &Server, path: &str, cookie: &str) -> Answer {
    let request = server
        .request("GET", path)
        .header("accept", "text/html")
        .header("cookie", cookie);
    send(request).await
}

async fn form(
    server: &Server,
    path: &str,
    cookie: &str,
    fields: &[(&str, &str)],
    more: &[(&'static str, &str)],
) -> Answer {
    let body: String = form_urlencoded::Serializer::new(String::new())
        .extend_pairs(fields)
        .finish();
    let mut request = server
        .request("POST", path)
        .header("accept", "text/html")
        .header("cookie", cookie);
    for (name, value) in more {
        request = request.header(*name, *value);
    }
    send(
        request
            .header(header::CONTENT_TYPE, "application/x-www-form-urlencoded")
            .body(body),
    )
    .await
}

/// Signs in, and returns the cookie.
async fn signed_in(server: &Server, token: &str) -> String {
    let answer = form(server, "/ui/login", "", &[("token", token)], &[]).await;
    let cookie = answer.header("set-cookie").to_owned();
    assert!(cookie.contains("; HttpOnly; SameSite=Strict"), "{cookie}");
    cookie.split(';').next().unwrap().to_owned()
}

fn form_token(page: &Answer) -> String {
    let (_, rest) = page
        .text
        .split_once("name=\"form_token\" value=\"")
        .unwrap_or_else(|| panic!("{}", page.text));
    rest.split('"').next().unwrap().to_owned()
}

/// Follows no redirect: it is what is tested.
fn server() -> Server {
    let mut server = Server::start(&GUARDED);
    server.client = reqwest::Client::builder()
        .no_proxy()
        .redirect(reqwest::redirect::Policy::none())
        .build()
        .unwrap();
    server
}

#[test]
async fn only_a_session_opens_pages_and_no_session_opens_the_api() {
    let server = server();
    let (read, write) = (server.token("read"), server.token("write"));
    let night = Night::at(&server).await;
    let recipe = night.recipe("r", "x86_64").await;

    let answer = page(&server, "/ui/jobs?status=error", "").await;
    assert_eq!(
        (answer.status, answer.header("location")),
        (303, "/ui/login?next=%2Fui%2Fjobs%3Fstatus%3Derror")
    );
    let login = page(&server, "/ui/login?next=//evil.example", "").await;
    assert_eq!(login.status, 200);
    assert!(!login.text.contains("evil.example"));
    let root = page(&server, "/", "").await;
    assert_eq!((root.status, root.header("location")), (303, "/ui"));
    // A program that asks there is answered as before.
    assert_eq!(server.ask("", "GET", "/", None).await.status, 401);
    assert_eq!(server.ask("", "GET", "/ui", None).await.status, 401);
    assert_eq!(server.ask(&read, "GET", "/ui", None).await.status, 200);
    assert_eq!(server.ask(&read, "GET", "/apis/ims/ui", None).await.status, 404);

    let wrong = form(
        &server,
        "/ui/login",
        "",
        &[("token", "kiln_nonsense"), ("next", "/ui/jobs")],
        &[],
    )
    .await;
    assert_eq!(wrong.status, 401);
    assert!(wrong.text.contains("The token is not valid") && !wrong.text.contains("kiln_nonsense"));
    let foreign = form(
        &server,
        "/ui/login",
        "",
        &[("token", &read)],
        &[("origin", "https://evil.example")],
    )
    .await;
    assert_eq!(foreign.status, 403);
    assert!(foreign.headers.get("set-cookie").is_none());

    let reader = signed_in(&server, &read).await;
    let overview = page(&server, "/ui", &reader).await;
    assert_eq!(overview.status, 200);
    assert!(overview.text.contains("read-er"));
    let policy = overview.header("content-security-policy");
    assert!(
        policy.starts_with("default-src 'none'; script-src 'self'; style-src 'self';"),
        "{policy}"
    );
    assert!(
        policy.ends_with("frame-ancestors 'none'") && !policy.contains("unsafe"),
        "{policy}"
    );
    for (name, value) in [
        ("x-frame-options", "DENY"),
        ("x-content-type-options", "nosniff"),
        ("referrer-policy", "same-origin"),
        ("cache-control", "no-store"),
    ] {
        assert_eq!(overview.header(name), value);
    }
    // The cookie is of no use elsewhere.
    for path in ["/v3/images", "/kiln/v1/schedules", "/apis/ims/ui"] {
        assert_eq!(page(&server, path, &reader).await.status, 401, "{path}");
    }

    // A reader sees no form, and cannot send one.
    let schedules = page(&server, "/ui/schedules", &reader).await;
    assert!(!schedules.text.contains("New schedule"));
    let token = form_token(&schedules);
    let fields = |token| {
        [
            ("form_token", token),
            ("name", "n"),
            ("recipe", "r"),
            ("image", "i"),
            ("cron", "0 3 * * *"),
            ("zone", "UTC"),
        ]
    };
    assert_eq!(
        form(&server, "/ui/schedules", &reader, &fields(&token), &[])
            .await
            .status,
        403
    );

    // Somebody who may write can, with the form of this session only, and from this site only.
    let writer = signed_in(&server, &write).await;
    let own = form_token(&page(&server, "/ui/schedules", &writer).await);
    assert_ne!(own, token);
    let id = recipe.id.to_string();
    let fields = |token| {
        [
            ("form_token", token),
            ("name", "n<b>"),
            ("recipe", id.as_str()),
            ("image", "{recipe}-{date}"),
            ("cron", "0 3 * * *"),
            ("zone", "Europe/Berlin"),
        ]
    };
    for (why, token, more) in [
        ("another session's form", token.as_str(), &[][..]),
        ("no form", "", &[]),
        ("another site", own.as_str(), &[("origin", "https://evil.example")]),
        (
            "a page of another site",
            own.as_str(),
            &[("sec-fetch-site", "cross-site")],
        ),
    ] {
        let refused = form(&server, "/ui/schedules", &writer, &fields(token), more).await;
        assert_eq!(refused.status, 403, "{why}");
    }
    let none = server.ask(&read, "GET", "/kiln/v1/schedules", None).await;
    assert_eq!(none.json(), json!([]));
    let wrong = fields(&own).map(|(name, value)| {
        if name == "cron" {
            (name, "61 * * * *")
        } else {
            (name, value)
        }
    });
    let refused = form(&server, "/ui/schedules", &writer, &wrong, &[]).await;
    assert_eq!(refused.status, 422);
    assert!(refused.text.contains("cron"), "{}", refused.text);
    let made = form(&server, "/ui/schedules", &writer, &fields(&own), &[]).await;
    assert_eq!(made.status, 303, "{}", made.text);
    let schedule = made.header("location").to_owned();
    let shown = page(&server, &schedule, &writer).await;
    assert!(
        shown.text.contains("n&lt;b&gt;") && shown.text.contains("Europe/Berlin"),
        "{}",
        shown.text
    );
    for (what, paused) in [("pause", true), ("resume", false)] {
        let done = form(
            &server,
            &format!("{schedule}/{what}"),
            &writer,
            &[("form_token", &own)],
            &[],
        )
        .await;
        assert_eq!(done.status, 303, "{}", done.text);
        let id = schedule.rsplit('/').next().unwrap();
        let now = server
            .ask(&read, "GET", &format!("/kiln/v1/schedules/{id}"), None)
            .await
            .json();
        assert_eq!(now["paused"], paused);
    }
    assert_eq!(
        form(
            &server,
            &format!("{schedule}/purge"),
            &writer,
            &[("form_token", &own)],
            &[]
        )
        .await
        .status,
        404
    );

    // A deleted token ends its sessions at once.
    let list = server.kiln.run(["tokens", "list"]).ok().stdout;
    let of_writer = list.lines().find(|line| line.contains("write-er")).unwrap();
    server
        .kiln
        .run(["tokens", "delete", of_writer.split(' ').next().unwrap()])
        .ok();
    assert_eq!(page(&server, "/ui", &writer).await.status, 303);
    // Signing out ends the session, too.
    let out = form(&server, "/ui/logout", &reader, &[("form_token", &token)], &[]).await;
    assert_eq!((out.status, out.header("location")), (303, "/ui/login"));
    assert_eq!(page(&server, "/ui", &reader).await.status, 303);
}

#[test(threads = 2)]
async fn nothing_typed_is_lost_when_a_session_ends() {
    needs!(no_browser());
    let server = server();
    let write = server.token("write");
    let night = Night::at(&server).await;
    night.recipe("compute-node", "aarch64").await;
    let browser = Browser::open().await;
    browser.goto(&format!("{}/ui/schedules", server.url)).await;
    let sign_in = async || browser.keys("#token", &format!("{write}\u{e007}")).await;
    browser.is_accessible("login").await;
    sign_in().await;
    browser
        .until("location.pathname === '/ui/schedules' && document.querySelector('details summary')")
        .await;
    browser.click("details summary").await;
    browser.is_accessible("form").await;
    browser.fill("#schedule-name", "typed \"for long\" <b>").await;
    browser.fill("#schedule-cron", "15 4 * * mon").await;
    browser.fill("#schedule-zone", "Asia/Tokyo").await;
    // The next runs are shown while one types, in the schedule's zone.
    browser.until("document.querySelectorAll('#preview li').length === 5 && document.querySelector('#preview').innerText.includes('Mon ')").await;
    browser
        .until("document.querySelector('#preview').innerText.includes('04:15 +09:00')")
        .await;

    browser.forget_cookies().await;
    browser.click("#new-schedule button").await;
    browser.until_text("what you typed is kept").await;
    sign_in().await;
    browser.until_text("typed \"for long\" <b>").await;
    browser.click("form button").await;
    browser.until("location.pathname.startsWith('/ui/schedules/')").await;
    browser.until_text("15 4 * * mon").await;
    browser.close().await;
}
