//! A server that records requests and answers as the test decides.

#![allow(dead_code, reason = "every test program uses another part")]

use std::sync::{Arc, Mutex};

use axum::{
    Router,
    body::{Body, to_bytes},
    extract::Request,
    response::Response,
};
use serde_json::{Value, json};

/// One request.
#[derive(Debug, Clone)]
pub struct Asked {
    pub method: String,
    /// Path and query.
    pub target: String,
    pub headers: axum::http::HeaderMap,
    pub body: Vec<u8>,
}

impl Asked {
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name)?.to_str().ok()
    }

    /// `METHOD target body`.
    pub fn line(&self) -> String {
        let body = String::from_utf8_lossy(&self.body);
        format!("{} {} {body}", self.method, self.target).trim_end().to_owned()
    }
}

/// The answer to a request.
#[derive(Debug)]
pub struct Answer {
    pub status: u16,
    pub headers: Vec<(&'static str, String)>,
    pub body: Vec<u8>,
}

impl Answer {
    pub fn json(status: u16, body: &Value) -> Self {
        let kind = if status < 400 {
            "application/json"
        } else {
            "application/problem+json"
        };
        Self {
            status,
            headers: vec![("content-type", kind.to_owned())],
            body: body.to_string().into_bytes(),
        }
    }

    pub fn empty() -> Self {
        Self {
            status: 204,
            headers: Vec::new(),
            body: Vec::new(),
        }
    }

    pub fn problem(status: u16, title: &str, detail: &str) -> Self {
        Self::json(status, &json!({ "status": status, "title": title, "detail": detail }))
    }

    #[must_use]
    pub fn header(mut self, name: &'static str, value: impl Into<String>) -> Self {
        self.headers.push((name, value.into()));
        self
    }
}

pub struct FakeServer {
    url: String,
    asked: Arc<Mutex<Vec<Asked>>>,
    _runtime: tokio::runtime::Runtime,
}

impl FakeServer {
    pub fn start(answer: impl Fn(&Asked) -> Answer + Send + Sync + 'static) -> Self {
        let (runtime, asked, router) = parts(answer);
        let listener = runtime.block_on(tokio::net::TcpListener::bind("127.0.0.1:0")).unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        runtime.spawn(async move { axum::serve(listener, router).await });
        Self {
            url,
            asked,
            _runtime: runtime,
        }
    }

    /// Starts a server with a certificate of an unknown authority. Returns the authority's certificate too, as PEM.
    pub fn start_tls(answer: impl Fn(&Asked) -> Answer + Send + Sync + 'static) -> (Self, String) {
        let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
        let made = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).unwrap();
        let (runtime, asked, router) = parts(answer);
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        let url = format!("https://localhost:{}", listener.local_addr().unwrap().port());
        let (certificate, key) = (made.cert.pem(), made.signing_key.serialize_pem());
        let authority = certificate.clone();
        runtime.spawn(async move {
            let config = axum_server::tls_rustls::RustlsConfig::from_pem(certificate.into(), key.into())
                .await
                .unwrap();
            let server = axum_server::from_tcp_rustls(listener, config).unwrap();
            server.serve(router.into_make_service()).await
        });
        let server = Self {
            url,
            asked,
            _runtime: runtime,
        };
        (server, authority)
    }

    /// Answers like an IMS without errors: records are made from the request, lists are empty.
    pub fn agreeable() -> Self {
        Self::start(|asked| match asked.method.as_str() {
            "DELETE" => Answer::empty(),
            "PATCH" if asked.target.contains("/deleted/") => Answer::empty(),
            "GET" if asked.target.ends_with("/version") => Answer::json(200, &json!({ "version": "1.2.3" })),
            "GET" if is_list(&asked.target) => Answer::json(200, &json!([])),
            _ => Answer::json(
                200,
                &json!({ "id": "11111111-2222-4333-8444-555555555555", "name": "n" }),
            ),
        })
    }

    pub fn url(&self) -> String {
        self.url.clone()
    }

    /// The number of requests since the last call of `take`, including unanswered ones.
    pub fn count(&self) -> usize {
        self.asked.lock().unwrap().len()
    }

    /// The requests since the last call.
    pub fn take(&self) -> Vec<Asked> {
        std::mem::take(&mut self.asked.lock().unwrap())
    }

    pub fn lines(&self) -> Vec<String> {
        self.take().iter().map(Asked::line).collect()
    }
}

type Parts = (tokio::runtime::Runtime, Arc<Mutex<Vec<Asked>>>, Router);

fn parts(answer: impl Fn(&Asked) -> Answer + Send + Sync + 'static) -> Parts {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .unwrap();
    let asked = Arc::new(Mutex::new(Vec::new()));
    let (answer, seen) = (Arc::new(answer), Arc::clone(&asked));
    let handle = move |request: Request| {
        let (answer, seen) = (Arc::clone(&answer), Arc::clone(&seen));
        async move {
            let (head, body) = request.into_parts();
            let asked = Asked {
                method: head.method.to_string(),
                // HTTP/2 has the whole address.
                target: head.uri.path_and_query().map(ToString::to_string).unwrap_or_default(),
                headers: head.headers,
                body: to_bytes(body, usize::MAX).await.unwrap_or_default().to_vec(),
            };
            seen.lock().unwrap().push(asked.clone());
            // It may wait, and other requests go on meanwhile.
            let answer = tokio::task::block_in_place(|| answer(&asked));
            let mut response = Response::builder().status(answer.status);
            for (name, value) in answer.headers {
                response = response.header(name, value);
            }
            response.body(Body::from(answer.body)).unwrap()
        }
    };
    (runtime, asked, Router::new().fallback(handle))
}

fn is_list(target: &str) -> bool {
    let path = target.split('?').next().unwrap_or_default();
    let lists = [
        "recipes",
        "images",
        "jobs",
        "public-keys",
        "remote-build-nodes",
        "status",
    ];
    lists.iter().any(|list| path.ends_with(list))
}
