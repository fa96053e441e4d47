//! A server that writes down what it is asked and answers what the test says.

use std::{
    net::SocketAddr,
    sync::{Arc, Mutex},
};

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

/// What the server says to a request.
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
    address: SocketAddr,
    asked: Arc<Mutex<Vec<Asked>>>,
    _runtime: tokio::runtime::Runtime,
}

impl FakeServer {
    pub fn start(answer: impl Fn(&Asked) -> Answer + Send + Sync + 'static) -> Self {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
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
                    target: head.uri.to_string(),
                    headers: head.headers,
                    body: to_bytes(body, usize::MAX).await.unwrap_or_default().to_vec(),
                };
                let answer = answer(&asked);
                seen.lock().unwrap().push(asked);
                let mut response = Response::builder().status(answer.status);
                for (name, value) in answer.headers {
                    response = response.header(name, value);
                }
                response.body(Body::from(answer.body)).unwrap()
            }
        };
        let listener = runtime.block_on(tokio::net::TcpListener::bind("127.0.0.1:0")).unwrap();
        let address = listener.local_addr().unwrap();
        runtime.spawn(async move { axum::serve(listener, Router::new().fallback(handle)).await });
        Self {
            address,
            asked,
            _runtime: runtime,
        }
    }

    /// Answers as IMS does when all goes well: records are made of what was sent, lists are empty.
    pub fn agreeable() -> Self {
        Self::start(|asked| match asked.method.as_str() {
            "DELETE" => Answer {
                status: 204,
                headers: Vec::new(),
                body: Vec::new(),
            },
            "PATCH" if asked.target.contains("/deleted/") => Answer {
                status: 204,
                headers: Vec::new(),
                body: Vec::new(),
            },
            "GET" if asked.target.ends_with("/version") => Answer::json(200, &json!({ "version": "1.2.3" })),
            "GET" if is_list(&asked.target) => Answer::json(200, &json!([])),
            _ => Answer::json(
                200,
                &json!({ "id": "11111111-2222-4333-8444-555555555555", "name": "n" }),
            ),
        })
    }

    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// What was asked since the last time.
    pub fn take(&self) -> Vec<Asked> {
        std::mem::take(&mut self.asked.lock().unwrap())
    }

    pub fn lines(&self) -> Vec<String> {
        self.take().iter().map(Asked::line).collect()
    }
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
