//! Serves the agents' protocol over HTTP. It touches only connections: [`AgentCalls`] carries out the calls.
//!
//! These routes are not part of the users' API: no role opens them, only the token of the job in the address. They are
//! mounted beside the API, and alone on the socket that sandboxes see.

use std::{sync::Arc, time::Duration};

use axum::{
    Json, Router,
    extract::{DefaultBodyLimit, FromRequest, FromRequestParts, Path, Query, Request, State},
    http::{StatusCode, header, request::Parts},
    middleware::{self, Next},
    response::{IntoResponse, Response},
    routing::{get, post},
};
use bytes::Bytes;
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;
use kiln_records::{
    Account, Code, Failure, Installed, JobId,
    protocol::{
        Answer, Call, EventBatch, JobQuery, LayerInputs, NewUpload, Outcome, Packages, PartNumbers, Reading, SentParts,
        SettledLayer, ToolboxName, shell,
    },
};
use serde::de::DeserializeOwned;
use tracing::Instrument;

use super::{
    bodies::{self, Bodies, Refused},
    connections::CameBy,
    rate::Key,
};
use crate::orchestrate::{
    agents::{AgentCalls, Line, PASSED_ON, Refusal},
    job_span,
};

/// The longest time for a body.
const BODY_TIME: Duration = Duration::from_mins(1);

/// The memory for the bodies of all agents, and of the agent of one job, in bytes.
const MEMORY: (usize, usize) = (128 << 20, 16 << 20);

/// The largest accepted body, in bytes. An agent's batches of events contain up to 1 MiB of text, which JSON's escapes
/// can make six times as long; the receipts of 10 000 parts take half of that.
const LARGEST_BODY: u64 = 8 * 1024 * 1024;

type Calls = State<Arc<dyn AgentCalls>>;

/// The routes of the protocol, answered by `calls`.
pub fn router(calls: Arc<dyn AgentCalls>) -> Router {
    let routes = Router::new()
        .route("/", get(get_job))
        .route("/events", post(post_events))
        .route("/uploads", post(create_upload))
        .route("/uploads/{upload}/parts", post(get_part_urls))
        .route("/uploads/{upload}/complete", post(complete_upload))
        .route("/packages", post(find_packages))
        .route("/toolboxes/{toolbox}/{tag}", get(find_toolbox))
        .route("/installed", post(keep_installed))
        .route("/layers/find", post(find_layer))
        .route("/layers", post(settle_layer))
        .route("/programs", post(keep_account))
        .route("/reading", post(keep_reading))
        .route("/shell", get(open_line))
        .route("/proxy", get(open_proxy))
        .route("/registry", get(open_registry))
        .route("/finish", post(finish));
    Router::new()
        .nest("/agent/v1/jobs/{job}", routes)
        .route_layer(middleware::from_fn_with_state(
            (Arc::clone(&calls), Bodies::new(MEMORY.0, MEMORY.1)),
            admit,
        ))
        // The size of bodies has been checked by then.
        .layer(DefaultBodyLimit::disable())
        .with_state(calls)
}

/// Lets in who has the token of the job in the address. Only then is the body received.
async fn admit(State((calls, bodies)): State<(Arc<dyn AgentCalls>, Bodies)>, request: Request, next: Next) -> Response {
    let (mut parts, body) = request.into_parts();
    let known = async {
        let agent = Agent::from_request_parts(&mut parts, &()).await?;
        let admitted = calls.admit(agent.job, &agent.token).await;
        admitted.map_err(IntoResponse::into_response)?;
        Ok(agent.job)
    };
    let job = match known.await {
        Ok(job) => job,
        Err(refused) => {
            bodies::discard(&parts.headers, body).await;
            return refused;
        }
    };
    CameBy::admitted(&parts.extensions);
    let mut share = bodies.share(Key::Agent(job));
    match bodies::receive(&parts.headers, body, LARGEST_BODY, BODY_TIME, &mut share).await {
        Ok(body) => next.run(Request::from_parts(parts, axum::body::Body::from(body))).await,
        Err(refused) => {
            let status = match refused {
                Refused::TooLarge(_) => StatusCode::PAYLOAD_TOO_LARGE,
                Refused::Slow => StatusCode::REQUEST_TIMEOUT,
                Refused::Full => StatusCode::SERVICE_UNAVAILABLE,
                Refused::Broken(_) => StatusCode::BAD_REQUEST,
            };
            (status, Json(Failure::new(Code::Protocol, refused))).into_response()
        }
    }
}

async fn get_job(State(calls): Calls, agent: Agent, Query(query): Query<JobQuery>) -> Response {
    agent.call(&*calls, Call::GetJob(query)).await
}

async fn post_events(State(calls): Calls, agent: Agent, Body(batch): Body<EventBatch>) -> Response {
    agent.call(&*calls, Call::PostEvents(batch)).await
}

async fn create_upload(State(calls): Calls, agent: Agent, Body(object): Body<NewUpload>) -> Response {
    agent.call(&*calls, Call::CreateUpload(object)).await
}

async fn get_part_urls(
    State(calls): Calls,
    agent: Agent,
    Path((_, upload)): Path<(JobId, u32)>,
    Body(parts): Body<PartNumbers>,
) -> Response {
    agent.call(&*calls, Call::GetPartUrls { upload, parts }).await
}

async fn complete_upload(
    State(calls): Calls,
    agent: Agent,
    Path((_, upload)): Path<(JobId, u32)>,
    Body(sent): Body<SentParts>,
) -> Response {
    agent.call(&*calls, Call::CompleteUpload { upload, sent }).await
}

async fn find_packages(State(calls): Calls, agent: Agent, Body(packages): Body<Packages>) -> Response {
    agent.call(&*calls, Call::FindPackages(packages)).await
}

async fn find_toolbox(
    State(calls): Calls,
    agent: Agent,
    Path((_, toolbox, tag)): Path<(JobId, String, String)>,
) -> Response {
    agent
        .call(&*calls, Call::FindToolbox(ToolboxName { toolbox, tag }))
        .await
}

async fn keep_installed(State(calls): Calls, agent: Agent, Body(installed): Body<Installed>) -> Response {
    agent.call(&*calls, Call::KeepInstalled(installed)).await
}

async fn find_layer(State(calls): Calls, agent: Agent, Body(inputs): Body<LayerInputs>) -> Response {
    agent.call(&*calls, Call::FindLayer(inputs)).await
}

async fn settle_layer(State(calls): Calls, agent: Agent, Body(settled): Body<SettledLayer>) -> Response {
    agent.call(&*calls, Call::SettleLayer(settled)).await
}

async fn keep_account(State(calls): Calls, agent: Agent, Body(account): Body<Account>) -> Response {
    agent.call(&*calls, Call::KeepAccount(account)).await
}

async fn keep_reading(State(calls): Calls, agent: Agent, Body(reading): Body<Box<Reading>>) -> Response {
    agent.call(&*calls, Call::KeepReading(reading)).await
}

/// Answers a call with 101, and then has the connection taken.
async fn hand_over<F: Future<Output = ()> + Send>(
    calls: Arc<dyn AgentCalls>,
    agent: Agent,
    mut request: Request,
    call: Call,
    take: impl FnOnce(Arc<dyn AgentCalls>, JobId, String, Line) -> F + Send + 'static,
) -> Response {
    let Some(upgrade) = request.extensions_mut().remove::<OnUpgrade>() else {
        let failure = Failure::new(Code::Protocol, "a line is asked for with an Upgrade header");
        return (StatusCode::UPGRADE_REQUIRED, Json(failure)).into_response();
    };
    let (job, token) = (agent.job, agent.token.clone());
    let response = agent.call(&*calls, call).await;
    if response.status() == StatusCode::SWITCHING_PROTOCOLS {
        tokio::spawn(async move {
            // An agent that has gone away meanwhile asks again.
            if let Ok(line) = upgrade.await {
                take(calls, job, token, Box::new(TokioIo::new(line))).await;
            }
        });
    }
    response
}

/// Answers 101 and hands the connection over.
async fn open_line(State(calls): Calls, agent: Agent, request: Request) -> Response {
    let passed_on = request.headers().contains_key(PASSED_ON);
    hand_over(
        calls,
        agent,
        request,
        Call::OpenLine,
        move |calls, job, token, line| async move {
            calls.take_line(job, &token, line, passed_on).await;
        },
    )
    .await
}

/// Answers 101, and then as a proxy.
async fn open_proxy(State(calls): Calls, agent: Agent, request: Request) -> Response {
    hand_over(
        calls,
        agent,
        request,
        Call::OpenProxy,
        |calls, job, _, line| async move {
            calls.take_proxied(job, line).await;
        },
    )
    .await
}

/// Answers 101, and then as a registry.
async fn open_registry(State(calls): Calls, agent: Agent, request: Request) -> Response {
    hand_over(
        calls,
        agent,
        request,
        Call::OpenRegistry,
        |calls, job, token, line| async move {
            calls.take_registry(job, &token, line).await;
        },
    )
    .await
}

async fn finish(State(calls): Calls, agent: Agent, Body(outcome): Body<Outcome>) -> Response {
    agent.call(&*calls, Call::Finish(outcome)).await
}

/// The caller: the job in the address and the token in the header. [`AgentCalls`] checks whether they match.
struct Agent {
    job: JobId,
    token: String,
}

impl Agent {
    async fn call(self, calls: &dyn AgentCalls, call: Call) -> Response {
        let answer = calls.answer(self.job, &self.token, call);
        match answer.instrument(job_span(self.job)).await {
            Ok(Answer::Job(job)) => Json(job).into_response(),
            Ok(Answer::Events(kept)) => Json(kept).into_response(),
            Ok(Answer::Upload(upload)) => Json(upload).into_response(),
            Ok(Answer::PartUrls(urls)) => Json(urls).into_response(),
            Ok(Answer::Packages(urls)) => Json(urls).into_response(),
            Ok(Answer::Layer(found)) => Json(found).into_response(),
            Ok(Answer::LayerUrl(url)) => Json(url).into_response(),
            Ok(Answer::Toolbox(source)) => Json(source).into_response(),
            Ok(Answer::Line) => {
                let headers = [(header::CONNECTION, "upgrade"), (header::UPGRADE, shell::UPGRADE)];
                (StatusCode::SWITCHING_PROTOCOLS, headers).into_response()
            }
            Ok(Answer::Done) => StatusCode::NO_CONTENT.into_response(),
            Err(refusal) => refusal.into_response(),
        }
    }
}

impl<S: Send + Sync> FromRequestParts<S> for Agent {
    type Rejection = Response;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Response> {
        /// The member of every address; some routes have further ones.
        #[derive(serde::Deserialize)]
        struct OfJob {
            job: JobId,
        }
        let unknown = || Refusal::Unknown.into_response();
        let Path(OfJob { job }) = Path::from_request_parts(parts, state).await.map_err(|_| unknown())?;
        let header = parts.headers.get(header::AUTHORIZATION);
        let token = header.and_then(|value| value.to_str().ok()?.strip_prefix("Bearer "));
        let token = token.ok_or_else(unknown)?.to_owned();
        Ok(Self { job, token })
    }
}

/// A JSON body. An unreadable one is refused like any other request.
struct Body<T>(T);

impl<S: Send + Sync, T: DeserializeOwned> FromRequest<S> for Body<T> {
    type Rejection = Response;

    async fn from_request(request: Request, state: &S) -> Result<Self, Response> {
        let bytes = Bytes::from_request(request, state)
            .await
            .map_err(|error| (error.status(), Json(Failure::new(Code::Protocol, error.body_text()))).into_response())?;
        serde_json::from_slice(&bytes).map(Self).map_err(|error| {
            let failure = Failure::new(
                Code::Protocol,
                format_args!("a message of the agent cannot be read: {error}"),
            );
            (StatusCode::BAD_REQUEST, Json(failure)).into_response()
        })
    }
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        let (status, failure) = match self {
            Refusal::Unknown => (
                StatusCode::UNAUTHORIZED,
                Failure::new(Code::AgentUnknown, "there is no such job, or that is not its token"),
            ),
            Refusal::Over => (StatusCode::GONE, Failure::new(Code::JobOver, "the job is over")),
            Refusal::Hole(next) => (
                StatusCode::CONFLICT,
                Failure::new(
                    Code::Protocol,
                    format_args!("events are missing: the one to come next has the number {next}"),
                ),
            ),
            Refusal::Later(failure) => (StatusCode::SERVICE_UNAVAILABLE, failure),
            Refusal::Failed(failure) => (StatusCode::UNPROCESSABLE_ENTITY, failure),
        };
        (status, Json(failure)).into_response()
    }
}
