//! What people do on pages: each form becomes a request to the API in the name of its sender, so that it is checked and
//! carried out exactly like any other.

use axum::{
    body::{Body, Bytes, to_bytes},
    extract::{Path, Request, State},
    http::{Method, StatusCode, Uri, header, request::Builder},
    response::{IntoResponse, Redirect, Response},
};
use kiln_records::{JobId, RecipeId, Role, ScheduleId};
use maud::html;
use serde_json::{Map, Value, json};
use tower::ServiceExt;

use super::{
    Dashboard,
    forms::{self, NotSent},
    layout,
    text::shown,
    viewer::Viewer,
};
use crate::api::{
    auth::policy::{Need, need},
    limits::Memory,
    problem::Problem,
};

/// The largest answer of the API that is read, in bytes.
const LARGEST_ANSWER: usize = 1 << 20;

/// The fields of a form.
struct Form(Vec<(String, String)>);

impl Form {
    fn get(&self, name: &str) -> &str {
        let field = self.0.iter().find(|(key, _)| key == name);
        field.map_or("", |(_, value)| value.trim())
    }

    /// A number that need not be given.
    fn number(&self, name: &str) -> Option<Value> {
        let text = self.get(name);
        // What is no number is left for the API to refuse.
        (!text.is_empty()).then(|| text.parse::<u64>().map_or_else(|_| json!(text), |number| json!(number)))
    }
}

impl Dashboard {
    /// Sends a request to the API in somebody's name.
    pub(super) async fn ask(
        &self,
        viewer: &Viewer,
        method: Method,
        path: &str,
        body: Option<Value>,
    ) -> (StatusCode, Value) {
        let body = body.map_or_else(Body::empty, |body| Body::from(body.to_string()));
        let request = Request::builder().header(header::CONTENT_TYPE, "application/json");
        self.send(viewer, (method, path), request, body).await
    }

    /// Sends a file to the API in somebody's name.
    pub(super) async fn put(&self, viewer: &Viewer, path: &str, body: Body, memory: Memory) -> (StatusCode, Value) {
        let request = Request::builder().extension(memory);
        self.send(viewer, (Method::PUT, path), request, body).await
    }

    async fn send(
        &self,
        viewer: &Viewer,
        (method, path): (Method, &str),
        request: Builder,
        body: Body,
    ) -> (StatusCode, Value) {
        let refused = |status, detail: &str| (status, json!({ "detail": detail }));
        let role = viewer.principal.as_ref().map(|principal| principal.role);
        let needed = match need(&method, path) {
            Need::Nothing => None,
            Need::Catalogue => Some(Role::Read),
            Need::Role(needed) => Some(needed),
        };
        if let Some(needed) = needed
            && role.is_none_or(|role| role < needed)
        {
            let detail = format!("This needs the role `{}`.", needed.name());
            return refused(StatusCode::FORBIDDEN, &detail);
        }
        let Ok(mut request) = request.method(method).uri(path).body(body) else {
            return refused(StatusCode::BAD_REQUEST, "That is no address.");
        };
        if let Some(principal) = &viewer.principal {
            request.extensions_mut().insert(principal.clone());
        }
        if let Some(peer) = viewer.peer {
            request.extensions_mut().insert(peer);
        }
        let Ok(response) = self.routes.clone().oneshot(request).await;
        let status = response.status();
        let answer = to_bytes(response.into_body(), LARGEST_ANSWER).await.unwrap_or_default();
        (status, serde_json::from_slice(&answer).unwrap_or_default())
    }

    /// Sends a request and leads to a page; shows why not, with a way back to the form, which browsers keep filled in.
    pub(super) async fn act(
        &self,
        viewer: &Viewer,
        (method, path): (Method, &str),
        body: Option<Value>,
        lead: impl FnOnce(&Value) -> String,
    ) -> Response {
        let (status, answer) = self.ask(viewer, method, path, body).await;
        if status.is_success() {
            return Redirect::to(&lead(&answer)).into_response();
        }
        self.refused(viewer, (status, answer))
    }

    /// The page that says why the API refused a request.
    #[expect(clippy::unused_self, reason = "it belongs to what is asked")]
    pub(super) fn refused(&self, viewer: &Viewer, (status, answer): (StatusCode, Value)) -> Response {
        let text = |name: &str| answer[name].as_str().map(str::to_owned);
        let detail = text("detail")
            .or_else(|| text("message"))
            .unwrap_or_else(|| status.to_string());
        let errors = answer["errors"].as_object().cloned().unwrap_or_default();
        let body = html! {
            h1 { "That was refused" }
            p.note.bad role="alert" { (shown(&detail)) }
            @if !errors.is_empty() { ul { @for (field, why) in flat(&errors) { li { code { (shown(&field)) } ": " (shown(&why)) } } } }
            @if let Some(hint) = text("hint") { p { "Hint: " (shown(&hint)) } }
            p { "Nothing was changed. The browser's way back leads to what you typed." }
        };
        (status, layout::page(viewer, "Refused", "", None, &body)).into_response()
    }
}

fn flat(errors: &Map<String, Value>) -> Vec<(String, String)> {
    let words = |why: &Value| match why {
        Value::String(text) => text.clone(),
        Value::Array(list) => list.iter().filter_map(Value::as_str).collect::<Vec<_>>().join(" "),
        other => other.to_string(),
    };
    errors.iter().map(|(field, why)| (field.clone(), words(why))).collect()
}

type Done = Result<Response, NotSent>;

fn checked(viewer: &Viewer, uri: &Uri, body: &Bytes) -> Result<Form, NotSent> {
    forms::check(viewer, uri, body).map(Form)
}

pub(super) async fn cancel(
    State(web): State<Dashboard>,
    viewer: Viewer,
    Path(job): Path<JobId>,
    uri: Uri,
    body: Bytes,
) -> Done {
    checked(&viewer, &uri, &body)?;
    let path = format!("/kiln/v1/jobs/{job}/cancel");
    Ok(web
        .act(&viewer, (Method::POST, &path), None, |_| format!("/ui/jobs/{job}"))
        .await)
}

pub(super) async fn retry(
    State(web): State<Dashboard>,
    viewer: Viewer,
    Path(job): Path<JobId>,
    uri: Uri,
    body: Bytes,
) -> Done {
    let form = checked(&viewer, &uri, &body)?;
    let from = form.get("from");
    let body = (!from.is_empty()).then(|| json!({ "from": from }));
    let path = format!("/kiln/v1/jobs/{job}/retry");
    Ok(web.act(&viewer, (Method::POST, &path), body, to_job).await)
}

pub(super) async fn build(
    State(web): State<Dashboard>,
    viewer: Viewer,
    Path(recipe): Path<RecipeId>,
    uri: Uri,
    body: Bytes,
) -> Done {
    let form = checked(&viewer, &uri, &body)?;
    let mut job = json!({
        "job_type": "create",
        "artifact_id": recipe,
        "image_root_archive_name": form.get("name"),
        "public_key_id": form.get("key"),
        "enable_debug": form.get("debug") == "true",
    });
    for (member, field) in [("job_mem_size", "memory"), ("build_env_size", "disk")] {
        if let Some(number) = form.number(field) {
            job[member] = number;
        }
    }
    let profiles: Vec<&str> = form.get("profiles").split_whitespace().collect();
    if !profiles.is_empty() {
        job["profiles"] = json!(profiles);
    }
    Ok(web.act(&viewer, (Method::POST, "/v3/jobs"), Some(job), to_job).await)
}

fn to_job(job: &Value) -> String {
    format!("/ui/jobs/{}", job["id"].as_str().unwrap_or_default())
}

pub(super) async fn new_schedule(State(web): State<Dashboard>, viewer: Viewer, uri: Uri, body: Bytes) -> Done {
    let form = checked(&viewer, &uri, &body)?;
    let schedule = json!({
        "name": form.get("name"),
        "recipe_id": form.get("recipe"),
        "image_root_archive_name": form.get("image"),
        "cron": form.get("cron"),
        "timezone": form.get("zone"),
    });
    let lead = |made: &Value| format!("/ui/schedules/{}", made["id"].as_str().unwrap_or_default());
    Ok(web
        .act(&viewer, (Method::POST, "/kiln/v1/schedules"), Some(schedule), lead)
        .await)
}

pub(super) async fn schedule(
    State(web): State<Dashboard>,
    viewer: Viewer,
    Path((schedule, what)): Path<(ScheduleId, String)>,
    uri: Uri,
    body: Bytes,
) -> Done {
    checked(&viewer, &uri, &body)?;
    if !["pause", "resume", "run"].contains(&what.as_str()) {
        return Err(Problem::not_found().into_response().into());
    }
    let path = format!("/kiln/v1/schedules/{schedule}/{what}");
    Ok(web
        .act(&viewer, (Method::POST, &path), None, |_| {
            format!("/ui/schedules/{schedule}")
        })
        .await)
}
