//! The headers by which browsers keep an answer from harm: no page of another site shows it in a frame, none of it is
//! taken for something else than its type says, and no address is told elsewhere. Pure: no I/O.
//!
//! Every answer has them, a refusal as well as a file: where no token is needed, what a reader does in a frame is done on
//! this server.

use axum::{
    http::{HeaderName, HeaderValue, header},
    response::Response,
};

/// What an answer that is no page may load: nothing.
const NOTHING: &str = "default-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

/// What the page of the API's description may: its own script and style, and requests to this server. It sets styles of
/// its elements in its markup, and has pictures in its style.
const DESCRIPTION: &str = "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; \
    img-src 'self' data:; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

/// The headers of every answer.
const HEADERS: [(HeaderName, &str); 4] = [
    (header::CONTENT_SECURITY_POLICY, NOTHING),
    (header::X_FRAME_OPTIONS, "DENY"),
    (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
    (header::REFERRER_POLICY, "same-origin"),
];

/// Adds the headers that an answer lacks: a page has brought a policy of its own.
pub(super) fn complete(answer: &mut Response) {
    for (name, value) in HEADERS {
        let headers = answer.headers_mut();
        headers.entry(name).or_insert(HeaderValue::from_static(value));
    }
}

/// Sets the policy of the page of the API's description.
pub(super) async fn describing(mut answer: Response) -> Response {
    let policy = HeaderValue::from_static(DESCRIPTION);
    answer.headers_mut().insert(header::CONTENT_SECURITY_POLICY, policy);
    answer
}
