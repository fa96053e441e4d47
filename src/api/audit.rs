//! Notes in the audit log each request that could change something, and carries it out within its caller's budgets. Touches
//! the database.
//!
//! The entry is there before the request is carried out: what cannot be noted is not done. The answer's status follows. A
//! request without one was cut off, and what it did is not known.

use std::net::SocketAddr;

use axum::{
    body::{Body, HttpBody, to_bytes},
    extract::{ConnectInfo, Request, State},
    http::{Method, StatusCode},
    middleware::Next,
    response::{IntoResponse, Response},
};
use kiln_records::{
    Moment,
    audit::{AuditEntry, KnownBy, LONGEST_TEXT},
    names,
};
use serde::Deserialize;
use uuid::Uuid;

use super::{
    Api,
    auth::{Principal, PrincipalKind, policy::is_look},
    problem::Problem,
    request_log::RequestId,
};
use crate::store::Allowance;

/// The largest answer that is searched for the id of the record that its request made, in bytes.
const LARGEST_ANSWER: u64 = 64 << 10;

/// The middleware.
pub(super) async fn note(State(api): State<Api>, request: Request, next: Next) -> Response {
    if is_look(request.method()) {
        return next.run(request).await;
    }
    let caller = request.extensions().get::<Principal>().map(Principal::caller);
    let allowance = Allowance {
        caller: caller.unwrap_or_default(),
        most: Some(api.most_records),
    };
    allowance.scope(carry_out(&api, request, next)).await
}

async fn carry_out(api: &Api, request: Request, next: Next) -> Response {
    let entry = entry(&request);
    // Whoever makes room, or ends what uses the disk, can do so while it is full.
    let removes = *request.method() == Method::DELETE || request.uri().path().ends_with("/cancel");
    let number = match api.store.add_audit_entry(&entry, removes).await {
        Ok(number) => number,
        Err(error) => return Problem::from(error).into_response(),
    };
    let answer = next.run(request).await;
    let status = answer.status();
    let (answer, made) = if entry.record_id.is_none() && status.is_success() {
        with_id(answer).await
    } else {
        (answer, None)
    };
    if let Err(error) = api.store.end_audit_entry(number, status.as_u16(), made).await {
        tracing::warn!(
            number,
            status = status.as_u16(),
            "an answer is not in the audit log: {error}"
        );
    }
    answer
}

fn entry(request: &Request) -> AuditEntry {
    let short = |text: &str| -> String { text.chars().take(LONGEST_TEXT).collect() };
    let path = request.uri().path();
    let peer = request.extensions().get::<ConnectInfo<SocketAddr>>();
    let (who, known_by, identity) = match request.extensions().get::<Principal>() {
        None => ("-".to_owned(), KnownBy::Host, None),
        Some(Principal { name, kind, .. }) => {
            let (known_by, identity) = match kind {
                PrincipalKind::Local => (KnownBy::Host, None),
                PrincipalKind::Network(_) => (KnownBy::Network, None),
                PrincipalKind::Token(id) => (KnownBy::Token, Some(id.to_string())),
                PrincipalKind::Subject(subject) => (KnownBy::Issuer, Some(short(&names::shown(subject)))),
            };
            (short(&names::shown(name)), known_by, identity)
        }
    };
    AuditEntry {
        number: 0,
        at: Moment::now(),
        who,
        known_by,
        identity,
        from: peer.map(|info| info.0.ip().to_string()),
        method: short(request.method().as_str()),
        path: short(path),
        record_id: path.split('/').find_map(|part| part.parse().ok()),
        request_id: request.extensions().get::<RequestId>().map(|id| id.0.clone()),
        status: None,
    }
}

/// An answer, and the id of the record that it shows.
async fn with_id(answer: Response) -> (Response, Option<Uuid>) {
    #[derive(Deserialize)]
    struct Made {
        id: Uuid,
    }
    let is_small = answer
        .body()
        .size_hint()
        .upper()
        .is_some_and(|size| size <= LARGEST_ANSWER);
    if !is_small || answer.status() == StatusCode::NO_CONTENT {
        return (answer, None);
    }
    let (head, body) = answer.into_parts();
    let Ok(bytes) = to_bytes(body, usize::MAX).await else {
        // Its size was known, so all of it was there.
        let problem = Problem::new(StatusCode::INTERNAL_SERVER_ERROR, "The answer broke off.");
        return (problem.into_response(), None);
    };
    let made = serde_json::from_slice::<Made>(&bytes).ok().map(|made| made.id);
    (Response::from_parts(head, Body::from(bytes)), made)
}
