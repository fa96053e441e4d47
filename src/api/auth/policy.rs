//! Decides which role a request needs: one function, without state. Pure: no I/O.

use axum::http::Method;
use kiln_records::Role;

/// The right that a request needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Need {
    /// No right: every caller may.
    Nothing,
    /// The role `read`, unless the catalogue is public.
    Catalogue,
    /// This role, or one that includes it.
    Role(Role),
}

/// Collections of records under `/v3`, `/v2` and without a version.
const RECORDS: [&str; 4] = ["public-keys", "recipes", "images", "jobs"];

/// Collections under `/v3/deleted`.
const DELETED: [&str; 3] = ["public-keys", "recipes", "images"];

/// Whether a request with this method changes nothing.
pub fn is_look(method: &Method) -> bool {
    matches!(*method, Method::GET | Method::HEAD | Method::OPTIONS)
}

/// Decides by method and path, which has to be [normalized](crate::api::address::normalize).
///
/// An unknown path needs the highest role. A new route is thus closed until it is listed here, and an unusual spelling
/// of an address that only the router understands opens nothing.
pub fn need(method: &Method, path: &str) -> Need {
    let parts: Vec<&str> = path.strip_prefix('/').unwrap_or(path).split('/').collect();
    // An unusual spelling of an address counts as unknown; the function does not guess.
    let usual = |part: &&str| {
        let plain = |c: u8| c.is_ascii_alphanumeric() || b"-._~:".contains(&c);
        !["", ".", ".."].contains(part) && part.bytes().all(plain)
    };
    if !parts.iter().all(usual) {
        return Need::Role(Role::Admin);
    }
    let look = is_look(method);
    match parts.as_slice() {
        ["healthz", "live" | "ready"] | ["version" | "openapi.json" | "docs"] | ["docs", ..] if look => Need::Nothing,
        ["metrics"] if look => Need::Role(Role::Read),
        ["v3", "remote-build-nodes", ..] => Need::Role(if look { Role::Read } else { Role::Admin }),
        ["v3", "deleted", kind, rest @ ..] if DELETED.contains(kind) => Need::Role(record(method, look, rest)),
        ["v2" | "v3", kind, rest @ ..] | [kind, rest @ ..] if RECORDS.contains(kind) => {
            Need::Role(record(method, look, rest))
        }
        // The pages' own style, script and form for signing in. To send that form is to use a token.
        // The way to the issuer, and back with a code that only the issuer can make a token of, needs none either.
        ["ui", "login" | "style.css" | "script.js" | "icon.svg"] | ["ui", "login", "issuer" | "callback"] if look => {
            Need::Nothing
        }
        ["ui", "login" | "logout"] => Need::Role(Role::Read),
        ["kiln", "v1", "audit"] => Need::Role(Role::Admin),
        // What is sent by webhooks goes to other services.
        ["kiln", "v1", "prune"] | ["kiln", "v1", "webhooks", ..] => {
            Need::Role(if look { Role::Read } else { Role::Admin })
        }
        ["kiln", "v1", "catalogue"] if look => Need::Catalogue,
        ["kiln", "v1", "catalogue", _, "versions" | "channels", _, rest @ ..] if look && rest.len() <= 2 => {
            Need::Catalogue
        }
        // A recipe may have passwords, which no log shows.
        ["kiln", "v1", "recipes", _, "archive"] => Need::Role(Role::Write),
        ["ui", ..] | ["kiln", "v1", _, ..] => Need::Role(if look { Role::Read } else { Role::Write }),
        _ => Need::Role(Role::Admin),
    }
}

/// The role for a collection, by the part after its name.
fn record(method: &Method, look: bool, rest: &[&str]) -> Role {
    match (rest, method) {
        ([] | [_], _) if look => Role::Read,
        ([], &Method::POST) | ([_], &Method::PATCH | &Method::DELETE) => Role::Write,
        // A whole collection at once, or an unknown path.
        _ => Role::Admin,
    }
}

#[cfg(test)]
mod tests {
    use axum::{body::Body, extract::Request};

    use super::*;
    use crate::api::address::normalize;

    fn needed(method: &str, uri: &str) -> &'static str {
        let request = Request::builder().method(method).uri(uri).body(Body::empty()).unwrap();
        let request = normalize(request);
        match need(request.method(), request.uri().path()) {
            Need::Nothing => "nothing",
            Need::Catalogue => "catalogue",
            Need::Role(role) => role.name(),
        }
    }

    const ID: &str = "00000000-0000-4000-8000-000000000000";

    #[test]
    fn every_route_needs_what_it_should() {
        for (path, expected) in [
            ("/healthz/live", "nothing"),
            ("/healthz/ready", "nothing"),
            ("/version", "nothing"),
            ("/openapi.json", "nothing"),
            ("/docs", "nothing"),
            ("/docs/swagger-ui.css", "nothing"),
            ("/apis/ims/version", "nothing"),
            ("/v3/images", "read"),
            ("/v2/images", "read"),
            ("/images", "read"),
            ("/apis/ims/v3/images", "read"),
            ("/v3/deleted/images", "read"),
            ("/v3/remote-build-nodes/status/x1000c0s0b0n0", "read"),
            ("/kiln/v1/jobs/1/log", "read"),
            ("/kiln/v1/sets", "read"),
            ("/kiln/v1/audit", "admin"),
            ("/kiln/v1/packages", "read"),
            ("/kiln/v1/recipes/1/archive", "write"),
            ("/kiln/v1/channels/n/stable/history", "read"),
            ("/kiln/v1/exports/openstack", "read"),
            ("/kiln/v1/catalogue", "catalogue"),
            ("/kiln/v1/catalogue/n/channels/latest", "catalogue"),
            ("/kiln/v1/catalogue/n/versions/1/x86_64", "catalogue"),
            ("/kiln/v1/catalogue/n/versions/1/x86_64/kernel", "catalogue"),
            ("/kiln/v1/catalogue/n/versions/1/x86_64/kernel/more", "read"),
            ("/kiln/v1/catalogue/n", "read"),
            ("/kiln/v1/catalogue/n/secrets/1", "read"),
            ("/kiln/v1/catalogue/../jobs", "admin"),
            ("/kiln/v1/catalogue/n/versions/../../../v3/images", "admin"),
            ("/ui/login", "nothing"),
            ("/ui/login/issuer", "nothing"),
            ("/ui/login/callback", "nothing"),
            ("/ui/style.css", "nothing"),
            ("/ui", "read"),
            ("/ui/jobs/1/lines", "read"),
            ("/ui/", "admin"),
            ("/ui/login/x", "read"),
            ("/", "admin"),
            ("/metrics", "read"),
            ("/v4/images", "admin"),
            ("/v2/deleted/images", "admin"),
            ("/v3/deleted/jobs", "admin"),
            ("/healthz", "admin"),
            ("/healthz/secret", "admin"),
            ("/kiln/v1", "admin"),
        ] {
            for method in ["GET", "HEAD", "OPTIONS"] {
                assert_eq!(needed(method, path), expected, "{method} {path}");
            }
        }
        for kind in RECORDS {
            for version in ["/v3/", "/v2/", "/", "/apis/ims/v3/", "//v3/"] {
                let all = format!("{version}{kind}");
                let one = format!("{all}/{ID}");
                for (method, path, expected) in [
                    ("GET", &one, "read"),
                    ("POST", &all, "write"),
                    ("PATCH", &one, "write"),
                    ("DELETE", &one, "write"),
                    ("DELETE", &all, "admin"),
                    ("PATCH", &all, "admin"),
                    ("PUT", &one, "admin"),
                    ("POST", &one, "admin"),
                ] {
                    assert_eq!(needed(method, path), expected, "{method} {path}");
                }
            }
        }
        for (method, path, expected) in [
            ("PATCH", "/v3/deleted/images/1", "write"),
            ("DELETE", "/v3/deleted/images/1", "write"),
            ("PATCH", "/v3/deleted/images", "admin"),
            ("DELETE", "/v3/deleted/recipes", "admin"),
            ("POST", "/v3/remote-build-nodes", "admin"),
            ("DELETE", "/v3/remote-build-nodes", "admin"),
            ("DELETE", "/v3/remote-build-nodes/x1", "admin"),
            ("GET", "/v3/remote-build-nodes", "read"),
            ("POST", "/kiln/v1/jobs/1/cancel", "write"),
            ("POST", "/ui/login", "read"),
            ("POST", "/ui/jobs/1/cancel", "write"),
            ("DELETE", "/kiln/v1/schedules/1", "write"),
            ("POST", "/version", "admin"),
            ("POST", "/metrics", "admin"),
            ("GET", "/metrics/x", "admin"),
            ("DELETE", "/healthz/live", "admin"),
            ("POST", "/docs", "admin"),
            ("BREW", "/v3/images", "admin"),
            ("CONNECT", "/v3/images", "admin"),
        ] {
            assert_eq!(needed(method, path), expected, "{method} {path}");
        }
    }

    /// Each of these could be taken for deleting every image, and must not need less.
    #[test]
    fn unusual_addresses_open_nothing() {
        for path in [
            "//v3//images",
            "/v3/images/",
            "/v3//images",
            "/v3/images//",
            "/v3/images/.",
            "/v3/images/..",
            "/v3/images/%2e",
            "/v3/images/%2F",
            "/v3/images/%2e%2e",
            "/v3%2Fimages",
            "/v3/%69mages",
            "/V3/images",
            "/v3/Images",
            "/v3/IMAGES",
            "/v3/images;a=b",
            "/v3/images/;a",
            "/v3/images/%00",
            "/v3/images/*",
            "/v3/images/a/..",
            "/healthz/../v3/images",
            "/healthz/live/../../v3/images",
            "/docs/../v3/images",
            "/docs/%2e%2e/v3/images",
            "/version/",
            "/apis/ims/apis/ims/v3/images",
            "/apis/IMS/v3/images",
            "/apis/ims/../v3/images",
            "/kiln/v1/../../v3/images",
            "/kiln/v1/%2e%2e/images",
            "/v3/deleted/../images",
        ] {
            assert_eq!(needed("DELETE", path), "admin", "{path}");
        }
        // An unusual spelling must not show more than the usual one.
        for path in [
            "/docs/../v3/images",
            "/healthz/live/../../v3/images",
            "/version/../v3/jobs",
            "/docs//x",
        ] {
            assert_eq!(needed("GET", path), "admin", "{path}");
        }
    }
}
