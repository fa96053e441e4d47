//! A running `kiln serve`, with an HTTP client.

use std::{
    io::{Read, Write},
    net::{SocketAddr, TcpStream},
    sync::Once,
};

use nix::sys::signal::Signal;
use reqwest::{Client, Method, RequestBuilder, header};
use serde_json::Value;

use super::{Kiln, PATIENCE, Ran, Started};

/// Variables for a server that runs beside others.
pub const MODEST: [(&str, &str); 2] = [
    ("KILN__SERVER__LISTEN", "127.0.0.1:0"),
    ("KILN__EMBEDDED_S3__LISTEN", "127.0.0.1:0"),
];

/// A server with its own data directory.
pub struct Server {
    pub kiln: Kiln,
    pub started: Started,
    pub url: String,
    pub client: Client,
    /// What commands need in their environment to be let in, beside the address.
    pub environment: Vec<(&'static str, String)>,
}

/// An answer.
#[derive(Debug)]
pub struct Answer {
    pub status: u16,
    pub headers: header::HeaderMap,
    pub text: String,
}

impl Answer {
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.text).unwrap_or_else(|error| panic!("{error}: {}", self.text))
    }

    pub fn header(&self, name: &str) -> &str {
        self.headers
            .get(name)
            .unwrap_or_else(|| panic!("no {name} in {:?}", self.headers))
            .to_str()
            .unwrap()
    }

    /// Checks that it is an error in the usual form. Returns the error's detail.
    #[track_caller]
    pub fn problem(&self, status: u16) -> String {
        assert_eq!(self.status, status, "{}", self.text);
        assert_eq!(self.header("content-type"), "application/problem+json");
        let body = self.json();
        assert_eq!(body["status"], status);
        assert!(body["title"].is_string());
        body["detail"].as_str().unwrap().to_owned()
    }
}

/// A client that is independent of the environment and the system's settings.
pub fn client(authority: Option<&str>) -> Client {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
    });
    let trusted = authority.map(|pem| reqwest::Certificate::from_pem(pem.as_bytes()).unwrap());
    Client::builder()
        .no_proxy()
        .timeout(PATIENCE)
        .tls_certs_only(trusted)
        .build()
        .unwrap()
}

impl Server {
    /// Starts a server with these variables.
    pub fn start(variables: &[(&str, &str)]) -> Self {
        Self::start_in(Kiln::bare(), variables)
    }

    /// Starts a server in an existing data directory.
    pub fn start_in(kiln: Kiln, variables: &[(&str, &str)]) -> Self {
        let mut command = kiln.command(["serve"]);
        command.envs(MODEST).envs(variables.iter().copied());
        let mut started = Started::new(command);
        let url = started.server_url();
        started.wait_until_ready();
        let client = client(None);
        Self {
            kiln,
            started,
            url,
            client,
            environment: Vec::new(),
        }
    }

    pub fn address(&self) -> SocketAddr {
        self.url.split_once("://").unwrap().1.parse().unwrap()
    }

    /// A request without credentials.
    pub fn request(&self, method: &str, path: &str) -> RequestBuilder {
        let method: Method = method.parse().unwrap();
        self.client.request(method, format!("{}{path}", self.url))
    }

    /// Sends a request with a token; an empty one is left out.
    pub async fn ask(&self, token: &str, method: &str, path: &str, body: Option<Value>) -> Answer {
        let mut request = self.request(method, path);
        if !token.is_empty() {
            request = request.bearer_auth(token);
        }
        if let Some(body) = body {
            request = request.json(&body);
        }
        send(request).await
    }

    /// Like [`Server::ask`], with the path unchanged: a client would normalise it.
    pub fn ask_raw(&self, token: &str, method: &str, path: &str) -> u16 {
        let mut stream = self.connect();
        write!(
            stream,
            "{method} {path} HTTP/1.1\r\nhost: {}\r\nauthorization: Bearer {token}\r\nconnection: close\r\n\r\n",
            self.address()
        )
        .unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        let status = answer.split(' ').nth(1).unwrap_or_else(|| panic!("{answer:?}"));
        status.parse().unwrap()
    }

    /// A new connection.
    pub fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(self.address()).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream
    }

    /// Makes a token with the command line.
    pub fn token(&self, role: &str) -> String {
        token(&self.kiln, &["--name", &format!("{role}-er"), "--role", role])
    }

    /// Stops the server, and checks that it ended cleanly.
    #[track_caller]
    pub fn stop(self) -> Ran {
        // What it has not cleared away by then is left to the next one.
        self.kiln.wait_until_cleared();
        self.started.signal(Signal::SIGTERM);
        let ran = self.started.end();
        assert_eq!(ran.code, Some(0), "{}", ran.stderr);
        self.kiln.assert_clean();
        ran
    }
}

pub async fn send(request: RequestBuilder) -> Answer {
    let response = request.send().await.unwrap();
    Answer {
        status: response.status().as_u16(),
        headers: response.headers().clone(),
        text: response.text().await.unwrap(),
    }
}

/// Makes a token with the command line.
#[track_caller]
pub fn token(kiln: &Kiln, args: &[&str]) -> String {
    let ran = kiln.run([&["tokens", "create"], args].concat()).ok();
    let token = ran.stdout.trim().to_owned();
    assert!(token.starts_with("kiln_") && token.len() == 48, "{}", ran.stdout);
    token
}
