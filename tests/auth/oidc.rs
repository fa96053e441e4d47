//! Tokens of an issuer, good ones and forged ones.

use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use jsonwebtoken::{Algorithm, EncodingKey, Header, encode};
use serde_json::{Value, json};

use super::not_let_in;
use crate::support::{
    self, Kiln,
    authority::Authority,
    issuer::{SigningKey, TestIssuer, now, sign},
    serve::Server,
};

/// Nothing of these tests is about that.
const NO_LIMIT: (&str, &str) = ("KILN__LIMITS__FAILED_LOGINS_PER_MINUTE", "0");

fn start(issuer: &TestIssuer) -> Server {
    Server::start(&[&issuer.variables()[..], &[NO_LIMIT]].concat())
}

async fn status(server: &Server, token: &str) -> u16 {
    server.ask(token, "GET", "/v3/images", None).await.status
}

#[test(threads = 2)]
async fn every_asymmetric_algorithm_is_accepted() {
    use Algorithm::{ES256, ES384, EdDSA, PS256, PS384, PS512, RS256, RS384, RS512};
    let all = [RS256, RS384, RS512, PS256, PS384, PS512, ES256, ES384, EdDSA];
    let keys: Vec<_> = all
        .iter()
        .map(|one| SigningKey::new(&format!("{one:?}"), *one))
        .collect();
    let issuer = TestIssuer::start(&keys.iter().collect::<Vec<_>>()).await;
    let server = start(&issuer);
    for key in &keys {
        let answer = server
            .ask(&issuer.token(key, "kiln-read"), "GET", "/v3/images", None)
            .await;
        assert_eq!(answer.status, 200, "{:?}: {}", key.algorithm, answer.text);
    }
    let ran = server.stop();
    assert!(
        ran.stdout
            .contains(&format!("auth       tokens, of Kiln and of {}", issuer.url())),
        "{}",
        ran.stdout
    );
}

#[test(threads = 2)]
async fn roles_come_from_the_issuer() {
    let key = SigningKey::new("one", Algorithm::ES256);
    let issuer = TestIssuer::start(&[&key]).await;
    let server = start(&issuer);
    let image = || Some(json!({ "name": "x" }));
    let (read, write, admin) = (
        issuer.token(&key, "kiln-read"),
        issuer.token(&key, "kiln-write"),
        issuer.token(&key, "kiln-admin"),
    );
    let refused = server.ask(&read, "POST", "/v3/images", image()).await.problem(403);
    assert_eq!(refused, "This needs the role `write`; `ada` has `read`.");
    assert_eq!(server.ask(&write, "POST", "/v3/images", image()).await.status, 201);
    server.ask(&write, "DELETE", "/v3/images", None).await.problem(403);
    assert_eq!(server.ask(&admin, "DELETE", "/v3/images", None).await.status, 204);
    let nobody = server
        .ask(&issuer.token(&key, "offline_access"), "GET", "/v3/images", None)
        .await;
    assert!(nobody.problem(403).contains("no role that Kiln knows"));
    // Kiln's own tokens work beside.
    assert_eq!(status(&server, &server.token("read")).await, 200);
    assert_eq!(status(&server, "").await, 401);
    let ran = server.stop();
    assert!(ran.stderr.contains("principal=\"ada\""), "{}", ran.stderr);
    assert!(!ran.stderr.contains(&read[..40]), "{}", ran.stderr);
}

#[test(threads = 2)]
async fn claims_are_checked() {
    let key = SigningKey::new("one", Algorithm::ES256);
    let issuer = TestIssuer::start(&[&key]).await;
    let server = start(&issuer);
    let with = |changes: Value| {
        let mut claims = issuer.claims("kiln-admin");
        for (name, value) in changes.as_object().unwrap() {
            match value {
                Value::Null => drop(claims.as_object_mut().unwrap().remove(name)),
                value => claims[name] = value.clone(),
            }
        }
        sign(&key, &claims)
    };
    for (changes, reason) in [
        (json!({ "exp": now() - 60 }), "The token has expired."),
        (json!({ "nbf": now() + 60 }), "The token is not valid yet."),
        (
            json!({ "iss": "https://other.example.org" }),
            "The token is from another issuer.",
        ),
        (
            json!({ "iss": format!("{}/", issuer.url()) }),
            "The token is from another issuer.",
        ),
        (json!({ "aud": "account" }), "The token is for another audience."),
        (
            json!({ "aud": ["account", "kiln2", "KILN"] }),
            "The token is for another audience.",
        ),
        (json!({ "aud": [] }), "The token is for another audience."),
        (
            json!({ "exp": null }),
            "The token lacks one of the claims exp, iss, aud and sub.",
        ),
        (
            json!({ "iss": null }),
            "The token lacks one of the claims exp, iss, aud and sub.",
        ),
        (
            json!({ "aud": null }),
            "The token lacks one of the claims exp, iss, aud and sub.",
        ),
        (
            json!({ "sub": null }),
            "The token lacks one of the claims exp, iss, aud and sub.",
        ),
        (
            json!({ "sub": "" }),
            "The token lacks one of the claims exp, iss, aud and sub.",
        ),
        (json!({ "exp": "soon" }), ""),
        (json!({ "nbf": "soon" }), ""),
    ] {
        let answer = server.ask(&with(changes.clone()), "GET", "/v3/images", None).await;
        let told = not_let_in(&answer);
        assert!(reason.is_empty() || told == reason, "{changes}: {told}");
    }
    // Clocks are never quite the same.
    for fine in [
        json!({ "exp": now() - 5 }),
        json!({ "nbf": now() + 5 }),
        json!({ "aud": "kiln" }),
    ] {
        assert_eq!(status(&server, &with(fine.clone())).await, 200, "{fine}");
    }
    server.stop();
}

#[test(threads = 2)]
async fn forged_tokens_are_refused() {
    let key = SigningKey::new("one", Algorithm::RS256);
    let issuer = TestIssuer::start(&[&key]).await;
    let server = start(&issuer);
    let good = issuer.token(&key, "kiln-read");
    assert_eq!(status(&server, &good).await, 200);
    let parts: Vec<&str> = good.split('.').collect();
    let encoded = |value: &Value| URL_SAFE_NO_PAD.encode(value.to_string());
    let claims = encoded(&issuer.claims("kiln-admin"));

    // Claims changed, the signature kept, left out, or cut.
    let mut forged = vec![
        format!("{}.{claims}.{}", parts[0], parts[2]),
        format!("{}.{claims}.", parts[0]),
        format!("{}.{}.{}", parts[0], parts[1], &parts[2][..100]),
        format!("{}.{}.{}", parts[0], parts[1], "A".repeat(342)),
    ];
    // Without a signature at all.
    for none in ["none", "None", "NONE", "nOnE", ""] {
        forged.push(format!(
            "{}.{claims}.",
            encoded(&json!({ "alg": none, "typ": "JWT", "kid": "one" }))
        ));
    }
    // Signed with the public key as if it were a shared secret.
    for secret in [
        key.public_pem.as_bytes().to_vec(),
        key.public_pem.trim().as_bytes().to_vec(),
        key.public["n"].as_str().unwrap().as_bytes().to_vec(),
        URL_SAFE_NO_PAD.decode(key.public["n"].as_str().unwrap()).unwrap(),
    ] {
        for algorithm in [Algorithm::HS256, Algorithm::HS384, Algorithm::HS512] {
            let mut header = Header::new(algorithm);
            header.kid = Some(key.id.clone());
            let admin = issuer.claims("kiln-admin");
            forged.push(encode(&header, &admin, &EncodingKey::from_secret(&secret)).unwrap());
        }
    }
    // Signed with a key of the forger's own, under the issuer's name for its key, or bringing the key along.
    let own = SigningKey::new("one", Algorithm::RS256);
    forged.push(issuer.token(&own, "kiln-admin"));
    let mut header = Header::new(Algorithm::RS256);
    header.kid = Some("one".to_owned());
    header.jwk = serde_json::from_value(own.public.clone()).unwrap();
    forged.push(encode(&header, &issuer.claims("kiln-admin"), &own.encoding).unwrap());
    header.jwk = None;
    header.jku = Some("http://127.0.0.1:1/keys".to_owned());
    forged.push(encode(&header, &issuer.claims("kiln-admin"), &own.encoding).unwrap());
    // The issuer's key, but with another algorithm than the key's, or with critical extensions.
    for change in [
        json!({ "alg": "PS256" }),
        json!({ "alg": "RS512" }),
        json!({ "alg": "ES256" }),
    ] {
        forged.push(format!("{}.{}.{}", encoded(&change), parts[1], parts[2]));
    }
    let mut critical = Header::new(Algorithm::RS256);
    critical.kid = Some("one".to_owned());
    critical.crit = Some(vec!["b64".to_owned()]);
    forged.push(encode(&critical, &issuer.claims("kiln-admin"), &key.encoding).unwrap());
    // Hardly a token.
    forged.extend([
        "..".to_owned(),
        "a.b.c".to_owned(),
        format!("{}.{}", parts[0], parts[1]),
        "e30.e30.e30".to_owned(),
    ]);
    forged.push(format!("{good}.{}", parts[2]));
    forged.push(format!("{}.{}.{}", parts[0], "A".repeat(30_000), parts[2]));

    for token in forged {
        let answer = server.ask(&token, "GET", "/v3/images", None).await;
        not_let_in(&answer);
    }
    server.stop();
}

#[test(threads = 2)]
async fn keys_are_exchanged_without_a_restart() {
    let (old, new) = (
        SigningKey::new("old", Algorithm::ES256),
        SigningKey::new("new", Algorithm::EdDSA),
    );
    let issuer = TestIssuer::start(&[&old]).await;
    let refresh = ("KILN__OIDC__JWKS_REFRESH", "2s");
    let server = Server::start(&[&issuer.variables()[..], &[NO_LIMIT, refresh]].concat());
    assert_eq!(status(&server, &issuer.token(&old, "kiln-read")).await, 200);
    issuer.set_keys(std::slice::from_ref(&new.public));
    support::eventually_async(|| async { status(&server, &issuer.token(&new, "kiln-read")).await == 200 }).await;
    // A withdrawn key is worthless.
    let told = server
        .ask(&issuer.token(&old, "kiln-read"), "GET", "/v3/images", None)
        .await;
    assert_eq!(
        not_let_in(&told),
        "The token is signed with a key that the issuer does not have."
    );
    server.stop();
}

#[test(threads = 2)]
async fn an_unknown_key_is_looked_for_at_most_once_a_minute() {
    let key = SigningKey::new("one", Algorithm::ES256);
    let issuer = TestIssuer::start(&[&key]).await;
    let server = start(&issuer);
    assert_eq!(status(&server, &issuer.token(&key, "kiln-read")).await, 200);
    let before = issuer.fetches();
    assert_eq!(before, 1);
    let storm = (0..200).map(|number| {
        let unknown = SigningKey {
            id: format!("unknown-{number}"),
            ..key.clone()
        };
        let (server, token) = (&server, issuer.token(&unknown, "kiln-read"));
        async move { status(server, &token).await }
    });
    let statuses = futures::future::join_all(storm).await;
    assert!(statuses.iter().all(|status| *status == 401), "{statuses:?}");
    assert!(issuer.fetches() - before <= 1, "{}", issuer.fetches());
    // Other callers are not affected.
    assert_eq!(status(&server, &issuer.token(&key, "kiln-read")).await, 200);
    server.stop();
}

#[test(threads = 2)]
async fn an_issuer_that_is_down_shuts_out_its_own_tokens_only() {
    let key = SigningKey::new("one", Algorithm::ES256);
    let issuer = TestIssuer::start(&[&key]).await;
    issuer.set_down(true);
    let server = start(&issuer);
    let own = server.token("read");
    let good = issuer.token(&key, "kiln-read");
    assert_eq!(status(&server, &own).await, 200);
    let answer = server.ask(&good, "GET", "/v3/images", None).await;
    assert!(answer.problem(503).contains("cannot be asked for its keys"));
    assert_eq!(answer.header("retry-after"), "5");
    assert_eq!(server.ask("", "GET", "/healthz/ready", None).await.status, 200);
    issuer.set_down(false);
    support::eventually_async(|| async { status(&server, &good).await == 200 }).await;
    // Once its keys are known, they do for a while.
    issuer.set_down(true);
    assert_eq!(status(&server, &good).await, 200);
    server.stop();
}

#[test(threads = 2)]
async fn an_issuer_has_to_prove_itself() {
    let (key, authority, kiln) = (SigningKey::new("one", Algorithm::ES256), Authority::new(), Kiln::bare());
    let file = |name: &str| kiln.data().join(name);
    authority.write(&file("tls.pem"), &file("tls.key"));
    fs_err::write(file("ca.pem"), &authority.pem).unwrap();
    fs_err::write(file("other-ca.pem"), Authority::new().pem).unwrap();
    let issuer = TestIssuer::start_tls(&[&key], &file("tls.pem"), &file("tls.key"));
    for (bundle, expected) in [(Some("ca.pem"), 200), (Some("other-ca.pem"), 503), (None, 503)] {
        let bundle = bundle.map(file);
        let mut variables = issuer.variables().to_vec();
        variables.extend(
            bundle
                .as_ref()
                .map(|path| ("KILN__OIDC__CA_BUNDLE", path.to_str().unwrap())),
        );
        let server = Server::start(&variables);
        assert_eq!(
            status(&server, &issuer.token(&key, "kiln-read")).await,
            expected,
            "{bundle:?}"
        );
        server.stop();
    }
}

/// A description of another issuer, or keys that are not meant for tokens.
#[test(threads = 2)]
async fn what_the_issuer_says_is_checked() {
    let key = SigningKey::new("one", Algorithm::ES256);
    let issuer = TestIssuer::start(&[&key]).await;
    issuer.set_name(Some("https://other.example.org"));
    let server = start(&issuer);
    let good = issuer.token(&key, "kiln-read");
    server.ask(&good, "GET", "/v3/images", None).await.problem(503);
    let ran = server.stop();
    assert!(ran.stderr.contains("is about another issuer"), "{}", ran.stderr);

    issuer.set_name(None);
    let mut for_encryption = key.public.clone();
    for_encryption["use"] = "enc".into();
    let mut for_another_algorithm = key.public.clone();
    for_another_algorithm["alg"] = "ES384".into();
    let secret = json!({ "kty": "oct", "kid": "one", "k": "c2VjcmV0", "alg": "HS256", "use": "sig" });
    let strange = json!({ "kty": "PQC", "kid": "one", "x": "y" });
    issuer.set_keys(&[for_encryption, for_another_algorithm, secret, strange.clone()]);
    let server = start(&issuer);
    server.ask(&good, "GET", "/v3/images", None).await.problem(503);
    server.stop();
    // A strange key does not spoil the others.
    issuer.set_keys(&[strange, key.public.clone()]);
    let server = start(&issuer);
    assert_eq!(status(&server, &good).await, 200);
    server.stop();
}
