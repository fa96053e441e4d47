//! Answers sandboxes as the registries that the site reads with a login of its own, or from a mirror. Talks to registries, and reads
//! files of logins.
//!
//! ```text
//!  buildah ──▶ 127.0.0.1 in the sandbox, agent ──GET …/registry, Upgrade──▶ server: bases ──▶ registry
//! ```
//!
//! The login stays here. What a sandbox asks for is to read, and its jobs' user may have it: others see no such registry.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    convert::Infallible,
    path::PathBuf,
    sync::Arc,
    time::Duration,
};

use axum::body::Body;
use hyper::{Method, Request, Response, StatusCode, body::Incoming, header, service::service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use kiln_records::{
    Code, Failure, Run,
    protocol::registry::{USER, encoded, password},
    run::Plan,
};
use kiln_registry::{
    Access, Remote,
    credentials::Logins,
    pull::{Asked, pull},
    reference::is_repository,
};
use tokio::sync::{Mutex, Semaphore};

use super::agents::Line;
use crate::{
    config::{RegistryLogin, SiteRegistry},
    proxy,
};

/// How long a caller may take for the head of a request.
const PATIENCE: Duration = Duration::from_secs(30);

/// The most connections at the same time; others wait.
const MOST: usize = 64;

/// The registries.
#[derive(Debug)]
pub(super) struct Bases {
    registries: Vec<SiteRegistry>,
    /// Authorities to trust beside the system's.
    authorities: Option<PathBuf>,
    places: Semaphore,
}

/// The repositories that one connection has asked for.
type Opened = Mutex<HashMap<(String, String), Remote>>;

impl Bases {
    pub(super) fn new(registries: Vec<SiteRegistry>, authorities: Option<PathBuf>) -> Self {
        Self {
            registries,
            authorities,
            places: Semaphore::new(MOST),
        }
    }

    /// Those that a job reads.
    pub(super) fn of(&self, plan: &Plan) -> impl Iterator<Item = &SiteRegistry> {
        let who = plan.who.clone();
        self.registries
            .iter()
            .filter(move |registry| registry.is_for(who.as_deref()))
    }

    /// Their names.
    pub(super) fn names(&self, plan: &Plan) -> Vec<String> {
        let names: BTreeSet<String> = self.of(plan).map(|registry| registry.name.clone()).collect();
        names.into_iter().collect()
    }

    /// Serves a connection of the agent of a job, which has this token, until it is closed.
    pub(super) async fn serve(self: Arc<Self>, run: &Run, token: &str, line: Line) {
        // It is never closed.
        let Ok(_place) = self.places.acquire().await else {
            return;
        };
        // Of several entries for one name, the first counts.
        let mut known = BTreeMap::new();
        for registry in self.of(&run.plan) {
            known.entry(encoded(&registry.name)).or_insert_with(|| registry.clone());
        }
        let known = Arc::new(known);
        let expected: Arc<str> = proxy::basic(&format!("{USER}:{}", password(token))).into();
        let opened = Arc::new(Opened::default());
        let service = service_fn(|request: Request<Incoming>| {
            let (bases, known, opened) = (Arc::clone(&self), Arc::clone(&known), Arc::clone(&opened));
            let given = request.headers().get(header::AUTHORIZATION);
            // Whoever knows the password has the token of the job: others share its loopback where it shares the host's.
            let is_known = given.is_some_and(|given| proxy::same(given.as_bytes(), expected.as_bytes()));
            async move {
                Ok::<_, Infallible>(if is_known {
                    bases.answer(&known, &opened, &request).await
                } else {
                    let mut refused = refused(StatusCode::UNAUTHORIZED, "UNAUTHORIZED", "authentication required");
                    let challenge = header::HeaderValue::from_static("Basic realm=\"kiln\"");
                    refused.headers_mut().insert(header::WWW_AUTHENTICATE, challenge);
                    refused
                })
            }
        });
        let served = hyper::server::conn::http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(PATIENCE)
            .serve_connection(TokioIo::new(line), service)
            .await;
        if let Err(error) = served {
            tracing::debug!(%error, "a connection to the site's registries ended");
        }
    }

    async fn answer(
        &self,
        known: &BTreeMap<String, SiteRegistry>,
        opened: &Opened,
        request: &Request<Incoming>,
    ) -> Response<Body> {
        let is_head = request.method() == Method::HEAD;
        if request.method() != Method::GET && !is_head {
            return refused(StatusCode::METHOD_NOT_ALLOWED, "UNSUPPORTED", "images can be read only");
        }
        let Some(rest) = request.uri().path().strip_prefix("/v2/") else {
            return refused(
                StatusCode::NOT_FOUND,
                "NAME_UNKNOWN",
                "there is nothing else than images",
            );
        };
        if rest.is_empty() {
            return Response::new(Body::empty());
        }
        let Some((registry, repository, asked)) = parse(known, rest) else {
            return refused(StatusCode::NOT_FOUND, "NAME_UNKNOWN", "name unknown");
        };
        let pulled = async {
            let remote = self.remote(opened, registry, repository).await?;
            pull(&remote, &asked).await
        };
        match pulled.await {
            Ok(Some(pulled)) => {
                let response = Response::builder()
                    .header(header::CONTENT_TYPE, pulled.media_type)
                    .header(header::CONTENT_LENGTH, pulled.size)
                    .header("docker-content-digest", pulled.digest.as_str());
                let body = if is_head {
                    Body::empty()
                } else {
                    Body::from_stream(pulled.content)
                };
                response
                    .body(body)
                    .unwrap_or_else(|error| refused(StatusCode::BAD_GATEWAY, "UNKNOWN", &error.to_string()))
            }
            Ok(None) => refused(StatusCode::NOT_FOUND, "MANIFEST_UNKNOWN", "manifest unknown"),
            // Clients show the message of these only.
            Err(failure) if failure.code == Code::RegistryLogin => {
                refused(StatusCode::FORBIDDEN, "DENIED", &failure.to_string())
            }
            Err(failure) => refused(StatusCode::BAD_REQUEST, "UNKNOWN", &failure.to_string()),
        }
    }

    async fn remote(&self, opened: &Opened, registry: &SiteRegistry, repository: &str) -> Result<Remote, Failure> {
        let asked = registry.ask(repository);
        let mut opened = opened.lock().await;
        if let Some(remote) = opened.get(&asked) {
            return Ok(remote.clone());
        }
        let logins = match &registry.login {
            Some(RegistryLogin::OfUser) => Logins::of_user(),
            Some(RegistryLogin::File(path)) => Logins {
                own: None,
                docker: Some(path.clone()),
            },
            None => Logins::default(),
        };
        let access = Access {
            authorities: self.authorities.clone(),
            logins,
            ..Access::default()
        };
        let remote = Remote::open(&asked.0, &asked.1, &access).await?;
        opened.insert(asked, remote.clone());
        Ok(remote)
    }
}

/// What an address asks for: `REGISTRY/NAME/manifests/TAG`, and the like.
fn parse<'a, 'r>(
    known: &'r BTreeMap<String, SiteRegistry>,
    rest: &'a str,
) -> Option<(&'r SiteRegistry, &'a str, Asked)> {
    let (registry, rest) = rest.split_once('/')?;
    let registry = known.get(registry)?;
    let (rest, which) = rest.rsplit_once('/')?;
    let (repository, kind) = rest.rsplit_once('/')?;
    let asked = Asked::parse(kind, which)?;
    is_repository(repository).then_some((registry, repository, asked))
}

/// An error as registries write it.
fn refused(status: StatusCode, code: &str, message: &str) -> Response<Body> {
    let errors = serde_json::json!({ "errors": [{ "code": code, "message": message }] });
    let mut response = Response::new(Body::from(errors.to_string()));
    *response.status_mut() = status;
    let json = header::HeaderValue::from_static("application/json");
    response.headers_mut().insert(header::CONTENT_TYPE, json);
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_lead_to_known_registries_only() {
        let mut site = SiteRegistry::of_command("r.example:5000".to_owned());
        site.users = vec!["alice".to_owned()];
        let known = BTreeMap::from([(encoded("r.example:5000"), site)]);
        let at = |rest: &str| parse(&known, rest).map(|(site, repository, _)| format!("{} {repository}", site.name));
        let own = encoded("r.example:5000");
        assert_eq!(
            at(&format!("{own}/a/b/manifests/1.0")).as_deref(),
            Some("r.example:5000 a/b")
        );
        for wrong in [
            format!("{}/a/manifests/1.0", encoded("other.example")),
            format!("{own}/manifests/1.0"),
            format!("{own}/../x/manifests/1.0"),
            format!("{own}/a/tags/list"),
            own,
        ] {
            assert_eq!(at(&wrong), None, "{wrong}");
        }
    }
}
