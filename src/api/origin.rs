//! Refuses requests that a web page of another site makes through its reader's browser. Touches the request only.
//!
//! Such a page needs no leave for a POST without a body, or with one that is called text; and where no token is needed,
//! or a gateway adds it, its request would count as that of the reader. Browsers say where a request comes from; programs
//! that are none say nothing about it.

use axum::{
    extract::Request,
    http::{HeaderMap, HeaderValue, StatusCode, Uri, header, uri::Authority},
    middleware::Next,
    response::{IntoResponse, Response},
};

use super::{auth::policy::is_look, problem::Problem};

/// The middleware that refuses.
pub(super) async fn check(request: Request, next: Next) -> Response {
    let changes = !is_look(request.method());
    match foreign(request.uri(), request.headers()).filter(|_| changes) {
        Some(why) => {
            let detail = format!("{why}, and only pages of this server may change anything here.");
            Problem::new(StatusCode::FORBIDDEN, detail).into_response()
        }
        None => next.run(request).await,
    }
}

/// How a request shows that it comes from a page of another site.
fn foreign(uri: &Uri, headers: &HeaderMap) -> Option<String> {
    let is_own_site = |value: &HeaderValue| matches!(value.as_bytes(), b"same-origin" | b"none");
    if !headers.get_all("sec-fetch-site").iter().all(is_own_site) {
        return Some("A page of another site sent this request (Sec-Fetch-Site)".to_owned());
    }
    let named = uri.authority().map(Authority::as_str);
    let named = named.or_else(|| headers.get(header::HOST)?.to_str().ok());
    let is_own = |origin: &HeaderValue| {
        let host = origin.to_str().ok().and_then(|origin| origin.split_once("://"));
        host.zip(named)
            .is_some_and(|((_, host), named)| host.eq_ignore_ascii_case(named))
    };
    let other = headers.get_all(header::ORIGIN).iter().find(|origin| !is_own(origin))?;
    let other = String::from_utf8_lossy(other.as_bytes()).into_owned();
    Some(format!("A page of {other} sent this request (Origin)"))
}

#[cfg(test)]
mod tests {
    use axum::http::HeaderName;

    use super::*;

    fn is_foreign(named: &[(&'static str, &'static str)]) -> bool {
        let headers = named.iter().map(|(name, value)| {
            let name = HeaderName::from_static(name);
            (name, HeaderValue::from_static(value))
        });
        foreign(&Uri::from_static("/v3/jobs"), &headers.collect()).is_some()
    }

    #[test]
    fn only_this_servers_pages_and_programs_are_no_strangers() {
        let host = ("host", "localhost:9000");
        for own in [
            &[host][..],
            &[host, ("origin", "http://localhost:9000")],
            &[host, ("origin", "https://LocalHost:9000")],
            &[host, ("sec-fetch-site", "same-origin")],
            &[host, ("sec-fetch-site", "none")],
        ] {
            assert!(!is_foreign(own), "{own:?}");
        }
        for other in [
            &[host, ("origin", "http://evil.example")][..],
            &[host, ("origin", "http://localhost")],
            &[host, ("origin", "http://localhost:9000.evil.example")],
            &[host, ("origin", "null")],
            &[host, ("origin", "")],
            &[("origin", "http://localhost:9000")],
            &[host, ("sec-fetch-site", "cross-site")],
            &[host, ("sec-fetch-site", "same-site")],
            &[host, ("sec-fetch-site", "Same-Origin")],
            &[
                host,
                ("sec-fetch-site", "same-origin"),
                ("origin", "http://evil.example"),
            ],
        ] {
            assert!(is_foreign(other), "{other:?}");
        }
    }
}
