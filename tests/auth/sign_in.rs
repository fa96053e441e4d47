//! Signing in to the dashboard at an issuer, with good answers and forged ones.

use std::collections::BTreeMap;

use base64::{
    Engine,
    engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD},
};
use jsonwebtoken::Algorithm;
use reqwest::{Url, redirect::Policy};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use crate::support::{
    Kiln, eventually_async,
    issuer::{SigningKey, TestIssuer, now, sign},
    serve::{Answer, Server, client, send},
};

const CLIENT: &str = "kiln-dashboard";
const PUBLIC: &str = "https://kiln.example.org";

/// A server whose dashboard signs people in at an issuer.
struct Site {
    server: Server,
    issuer: TestIssuer,
    key: SigningKey,
}

/// A browser on its way to the issuer.
struct Begun {
    /// The issuer's page, with its query.
    query: BTreeMap<String, String>,
    cookie: String,
}

impl Site {
    async fn start() -> Self {
        client(None);
        let key = SigningKey::new("one", Algorithm::ES256);
        let issuer = TestIssuer::start(&[&key]).await;
        let kiln = Kiln::bare();
        let secret = kiln.data().join("client-secret");
        fs_err::write(&secret, "s3cret:/\n").unwrap();
        let own = [
            ("KILN__OIDC__CLIENT_ID", CLIENT),
            ("KILN__OIDC__CLIENT_SECRET_FILE", secret.to_str().unwrap()),
            ("KILN__SERVER__PUBLIC_URL", PUBLIC),
        ];
        let mut server = Server::start_in(kiln, &[&issuer.variables()[..], &own].concat());
        let unfollowed = reqwest::Client::builder().no_proxy().redirect(Policy::none());
        server.client = unfollowed.build().unwrap();
        Self { server, issuer, key }
    }

    async fn get(&self, path: &str, cookie: &str) -> Answer {
        let request = self.server.request("GET", path).header("accept", "text/html");
        send(request.header("cookie", cookie)).await
    }

    async fn begin(&self, next: &str) -> Begun {
        let answer = self.get(&format!("/ui/login/issuer?next={next}"), "").await;
        assert_eq!(answer.status, 303, "{}", answer.text);
        let url = Url::parse(answer.header("location")).unwrap();
        assert_eq!(url.path(), "/realms/site/authorize");
        let cookie = answer.header("set-cookie");
        assert!(cookie.starts_with("__Host-kiln_sign_in="), "{cookie}");
        assert!(
            cookie.ends_with("; Path=/; Max-Age=600; HttpOnly; SameSite=Lax; Secure"),
            "{cookie}"
        );
        Begun {
            query: url.query_pairs().into_owned().collect(),
            cookie: cookie.split(';').next().unwrap().to_owned(),
        }
    }

    /// The issuer's answer to a code: an access token and an ID token, with changes to their claims.
    fn tokens(&self, begun: &Begun, role: &str, access: &Value, id: &Value) -> Value {
        let changed = |mut claims: Value, changes: &Value| {
            for (name, value) in changes.as_object().unwrap() {
                claims[name] = value.clone();
            }
            sign(&self.key, &claims)
        };
        let about = json!({
            "iss": self.issuer.url(), "aud": CLIENT, "sub": "0b1c", "iat": now(), "exp": now() + 300,
            "nonce": begun.query["nonce"],
        });
        json!({
            "token_type": "Bearer", "expires_in": 300, "refresh_token": "again-1",
            "access_token": changed(self.issuer.claims(role), access),
            "id_token": changed(about, id),
        })
    }

    async fn back(&self, begun: &Begun, query: &[(&str, &str)]) -> Answer {
        let query = form_urlencoded::Serializer::new(String::new())
            .extend_pairs(query)
            .finish();
        self.get(&format!("/ui/login/callback?{query}"), &begun.cookie).await
    }

    /// Signs in with these tokens, and returns the session's cookie.
    async fn signed_in(&self, access: &Value) -> String {
        let begun = self.begin("/ui/jobs").await;
        self.issuer
            .will_answer(200, self.tokens(&begun, "kiln-write", access, &json!({})));
        let answer = self
            .back(&begun, &[("code", "c0de"), ("state", &begun.query["state"])])
            .await;
        assert_eq!(answer.status, 200, "{}", answer.text);
        session(&answer)
    }
}

/// The cookie of the session that an answer begins.
fn session(answer: &Answer) -> String {
    let cookies = answer.headers.get_all("set-cookie").iter();
    let mut cookies = cookies.map(|cookie| cookie.to_str().unwrap());
    let session = cookies.find(|cookie| cookie.starts_with("__Host-kiln_session="));
    let session = session.unwrap_or_else(|| panic!("{answer:?}"));
    assert!(session.ends_with("; HttpOnly; SameSite=Strict; Secure"), "{session}");
    session.split(';').next().unwrap().to_owned()
}

#[test(threads = 2)]
async fn a_person_of_the_issuer_gets_a_session() {
    let site = Site::start().await;
    let login = site.get("/ui/login?next=/ui/jobs", "").await;
    assert!(login.text.contains("Sign in at 127.0.0.1"), "{}", login.text);
    assert!(
        login.text.contains("/ui/login/issuer?next=%2Fui%2Fjobs"),
        "{}",
        login.text
    );

    let begun = site.begin("/ui/jobs").await;
    let asked = |name: &str| begun.query[name].as_str();
    assert_eq!(
        (asked("response_type"), asked("client_id"), asked("scope")),
        ("code", CLIENT, "openid profile")
    );
    assert_eq!(asked("redirect_uri"), format!("{PUBLIC}/ui/login/callback"));
    assert_eq!((asked("code_challenge_method"), asked("kc")), ("S256", "1"));

    let tokens = site.tokens(&begun, "kiln-write", &json!({}), &json!({}));
    site.issuer.will_answer(200, tokens.clone());
    let query = [
        ("code", "c0de"),
        ("state", asked("state")),
        ("iss", site.issuer.url()),
        ("session_state", "x"),
    ];
    let answer = site.back(&begun, &query).await;
    assert_eq!(
        (answer.status, answer.header("refresh")),
        (200, "0; url=/ui/jobs"),
        "{}",
        answer.text
    );
    let cookie = session(&answer);
    let form = site.issuer.was_asked().remove(0);
    assert_eq!(
        (form["grant_type"].as_str(), form["code"].as_str()),
        ("authorization_code", "c0de")
    );
    assert_eq!(form["redirect_uri"], asked("redirect_uri"));
    // RFC 6749, section 2.3.1: each half is encoded as in a form.
    let basic = STANDARD.encode(format!("{CLIENT}:s3cret%3A%2F"));
    assert_eq!(form["authorization"], format!("Basic {basic}"));
    let challenge = URL_SAFE_NO_PAD.encode(Sha256::digest(&form["code_verifier"]));
    assert_eq!(challenge, asked("code_challenge"));

    let jobs = site.get("/ui/jobs", &cookie).await;
    assert!(jobs.status == 200 && jobs.text.contains("ada"), "{}", jobs.text);
    assert_eq!(site.get("/v3/jobs", &cookie).await.status, 401);
    let ran = site.server.stop();
    for secret in ["c0de", "again-1", "s3cret", tokens["access_token"].as_str().unwrap()] {
        assert!(!ran.stderr.contains(secret), "{secret}: {}", ran.stderr);
    }
}

#[test(threads = 2)]
async fn whatever_is_not_the_issuers_answer_to_this_browser_signs_nobody_in() {
    let site = Site::start().await;
    let begun = site.begin("/ui").await;
    let other = site.begin("/ui").await;
    let state = begun.query["state"].as_str();
    let none = json!({});
    let good = || site.tokens(&begun, "kiln-write", &none, &none);
    let refused = async |what: &str, status: u16, query: &[(&str, &str)], answer: Option<(u16, Value)>| {
        if let Some((status, answer)) = answer {
            site.issuer.will_answer(status, answer);
        }
        let got = site.back(&begun, query).await;
        assert_eq!(got.status, status, "{what}: {}", got.text);
        assert!(got.headers.get("set-cookie").is_none(), "{what}");
    };
    let code = [("code", "c0de"), ("state", state)];
    // The issuer is not asked.
    refused("no state", 400, &[("code", "c")], None).await;
    refused(
        "another browser's state",
        400,
        &[("code", "c"), ("state", &other.query["state"])],
        None,
    )
    .await;
    refused(
        "another issuer",
        400,
        &[code[0], code[1], ("iss", "https://evil.example")],
        None,
    )
    .await;
    refused(
        "the person said no",
        403,
        &[("error", "access_denied"), ("state", state)],
        None,
    )
    .await;
    let stranger = Begun {
        query: BTreeMap::new(),
        cookie: String::new(),
    };
    assert_eq!(site.back(&stranger, &code).await.status, 400);
    assert_eq!(site.issuer.was_asked().len(), 0);
    // It is, and says no, or nothing that fits.
    let no = json!({ "error": "invalid_grant", "error_description": "<b>Code not valid</b>" });
    refused("a used code", 403, &code, Some((400, no))).await;
    refused("a broken issuer", 503, &code, Some((502, none.clone()))).await;
    refused("no tokens", 400, &code, Some((200, none.clone()))).await;
    let wrong = |access: &Value, id: &Value| Some((200, site.tokens(&begun, "kiln-write", access, id)));
    refused(
        "another sign-in",
        400,
        &code,
        wrong(&none, &json!({ "nonce": other.query["nonce"] })),
    )
    .await;
    refused("another client", 400, &code, wrong(&none, &json!({ "aud": "other" }))).await;
    refused(
        "an old ID token",
        400,
        &code,
        wrong(&none, &json!({ "exp": now() - 60 })),
    )
    .await;
    refused("two people", 400, &code, wrong(&json!({ "sub": "other" }), &none)).await;
    refused(
        "tokens for others",
        403,
        &code,
        wrong(&json!({ "aud": "account" }), &none),
    )
    .await;
    let mut forged = good();
    forged["id_token"] = sign(
        &SigningKey::new("one", Algorithm::ES256),
        &site.issuer.claims("kiln-admin"),
    )
    .into();
    refused("a forged ID token", 400, &code, Some((200, forged))).await;
    let nobody = site.tokens(&begun, "offline_access", &none, &none);
    refused("no role", 403, &code, Some((200, nobody))).await;

    // The ID token will do where the API takes it, and nobody is led elsewhere.
    let begun = site.begin("//evil.example").await;
    let mut tokens = site.tokens(
        &begun,
        "",
        &none,
        &json!({
            "aud": [CLIENT, "kiln"], "realm_access": { "roles": ["kiln-read"] }, "preferred_username": "grace",
        }),
    );
    tokens["access_token"] = "opaque".into();
    site.issuer.will_answer(200, tokens);
    let answer = site
        .back(&begun, &[("code", "c"), ("state", &begun.query["state"])])
        .await;
    assert_eq!(answer.header("refresh"), "0; url=/ui", "{}", answer.text);
    assert!(site.get("/ui", &session(&answer)).await.text.contains("grace"));
    site.server.stop();
}

#[test(threads = 2)]
async fn the_issuer_replaces_tokens_before_they_expire_or_ends_the_session() {
    let site = Site::start().await;
    let begun = site.begin("/ui").await;
    let fresh = |life: u64, refresh: Option<&str>| {
        let mut tokens = site.tokens(&begun, "kiln-read", &json!({ "exp": now() + life }), &json!({}));
        let tokens = tokens.as_object_mut().unwrap();
        tokens.remove("id_token");
        match refresh {
            Some(refresh) => tokens.insert("refresh_token".to_owned(), refresh.into()),
            None => tokens.remove("refresh_token"),
        };
        json!(tokens)
    };
    let cookie = site.signed_in(&json!({ "exp": now() + 20 })).await;
    site.issuer.was_asked();

    // Pages that are looked at together have it asked once.
    site.issuer.will_answer(200, fresh(20, Some("again-2")));
    site.issuer.will_answer(200, fresh(300, None));
    let (one, two, three) = tokio::join!(
        site.get("/ui", &cookie),
        site.get("/ui", &cookie),
        site.get("/ui", &cookie)
    );
    assert_eq!([one.status, two.status, three.status], [200; 3]);
    let asked = site.issuer.was_asked();
    let with: Vec<_> = asked.iter().map(|form| form["refresh_token"].as_str()).collect();
    assert_eq!(
        with,
        ["again-1", "again-2"],
        "the second one was to live 20 seconds, too"
    );
    assert!(asked.iter().all(|form| form["grant_type"] == "refresh_token"));

    // While the issuer is away, a token is good for as long as it is.
    let cookie = site.signed_in(&json!({ "exp": now() + 20 })).await;
    assert_eq!(site.get("/ui", &cookie).await.status, 200);
    let cookie = site.signed_in(&json!({ "exp": now() - 5 })).await;
    let away = site.get("/ui/jobs", &cookie).await;
    assert!(
        away.status == 503 && away.text.contains("cannot be asked"),
        "{}",
        away.text
    );
    // There are other ways to sign in meanwhile, and the issuer is asked again when it had some peace.
    assert_eq!(site.get("/ui/login", &cookie).await.status, 200);
    site.issuer.was_asked();
    site.issuer.will_answer(200, fresh(300, None));
    eventually_async(async || site.get("/ui/jobs", &cookie).await.status == 200).await;
    assert_eq!(site.issuer.was_asked().len(), 1);

    // Once it refuses, the session is over, and stays so.
    let cookie = site.signed_in(&json!({ "exp": now() + 20 })).await;
    site.issuer.will_answer(400, json!({ "error": "invalid_grant" }));
    for _ in 0..2 {
        let ended = site.get("/ui/jobs", &cookie).await;
        assert_eq!(
            (ended.status, ended.header("location")),
            (303, "/ui/login?next=%2Fui%2Fjobs")
        );
    }
    site.server.stop();
}

/// What cannot work is said before the server starts.
#[test]
fn settings_that_sign_nobody_in_are_refused() {
    let kiln = Kiln::bare();
    let issuer = [
        ("KILN__OIDC__ISSUER", "https://keycloak.example.org/realms/site"),
        ("KILN__OIDC__AUDIENCE", "kiln"),
    ];
    let client = ("KILN__OIDC__CLIENT_ID", CLIENT);
    for (variables, told) in [
        (&[client][..], "without an https address"),
        (
            &[client, ("KILN__SERVER__PUBLIC_URL", "http://kiln.example.org")],
            "without an https address",
        ),
        (
            &[("KILN__OIDC__CLIENT_SECRET_FILE", "/x")],
            "it is set without client_id",
        ),
    ] {
        let mut command = kiln.command(["config", "check"]);
        command.envs(issuer).envs(variables.iter().copied());
        let ran = crate::support::run(command);
        assert!(
            ran.code != Some(0) && ran.stderr.contains(told),
            "{variables:?}: {}",
            ran.stderr
        );
    }
}
