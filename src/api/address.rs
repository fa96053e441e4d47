//! Normalizes the addresses of requests, and answers those of no route. Pure: no I/O.

use axum::{
    Json,
    extract::{self, FromRequestParts, Request},
    http::{HeaderMap, Method, StatusCode, Uri, request::Parts},
    response::{IntoResponse, Response},
};
use serde::de::DeserializeOwned;
use serde_json::json;

use super::problem::Problem;

/// The prefix at IMS's gateway; its clients know no other one.
const GATEWAY_PREFIX: &str = "/apis/ims";

/// Removes the gateway's prefix and a doubled slash at the beginning; IMS's clients send both. Runs before any other
/// code reads the address.
pub fn normalize(mut request: Request) -> Request {
    let path = request.uri().path();
    let single = format!("/{}", path.trim_start_matches('/'));
    let inner = match single.strip_prefix(GATEWAY_PREFIX) {
        Some("") => "/",
        Some(inner) if inner.starts_with('/') => inner,
        _ => single.as_str(),
    };
    let inner = format!("/{}", inner.trim_start_matches('/'));
    if inner != path {
        let query = request
            .uri()
            .query()
            .map(|query| format!("?{query}"))
            .unwrap_or_default();
        // A valid address stays valid without its beginning.
        if let Ok(uri) = format!("{inner}{query}").parse::<Uri>() {
            *request.uri_mut() = uri;
        }
    }
    request
}

/// The variable parts of an address. A part that is not UTF-8 names nothing, so the answer is 404.
#[derive(Debug)]
pub(super) struct Path<T>(pub T);

impl<T: DeserializeOwned + Send, S: Send + Sync> FromRequestParts<S> for Path<T> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Problem> {
        let path = extract::Path::from_request_parts(parts, state).await;
        path.map(|extract::Path(path)| Self(path))
            .map_err(|_| Problem::not_found())
    }
}

/// 404: no such address.
pub(super) async fn unknown() -> Problem {
    Problem::new(
        StatusCode::NOT_FOUND,
        "The requested URL was not found on the server. Check the address.",
    )
}

/// 405: no such method here. OPTIONS is answered with the methods that exist; the router adds the header `Allow`.
pub(super) async fn wrong_method(method: Method, uri: Uri) -> Response {
    if method == Method::OPTIONS {
        return (StatusCode::OK, HeaderMap::new()).into_response();
    }
    let message = format!("The method {method} is not allowed for the requested URL.");
    let body = if uri.path().starts_with("/healthz") || uri.path() == "/version" {
        json!({ "message": message })
    } else {
        json!({ "message": message, "status": 405, "title": "Method Not Allowed", "detail": message })
    };
    (StatusCode::METHOD_NOT_ALLOWED, Json(body)).into_response()
}

#[cfg(test)]
mod tests {
    use axum::body::Body;

    use super::*;

    fn normal(uri: &str) -> String {
        normalize(Request::builder().uri(uri).body(Body::empty()).unwrap())
            .uri()
            .to_string()
    }

    #[test]
    fn the_gateways_prefix_and_doubled_slashes_are_taken_off() {
        for (uri, expected) in [
            ("/v3/images", "/v3/images"),
            ("//v3/images?a=b", "/v3/images?a=b"),
            ("/apis/ims/v3/images?x=1", "/v3/images?x=1"),
            ("/apis/ims//images", "/images"),
            ("/apis/ims", "/"),
            ("/apis/imsx/images", "/apis/imsx/images"),
            ("/v3/images/", "/v3/images/"),
            ("/v3//images", "/v3//images"),
            ("/apis/ims/apis/ims/images", "/apis/ims/images"),
        ] {
            assert_eq!(normal(uri), expected, "{uri}");
        }
    }
}
