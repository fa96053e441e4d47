//! A running `kiln serve`, asked over HTTP.

use std::{
    io::{Read, Write},
    net::{SocketAddr, TcpStream},
    sync::Once,
    time::Duration,
};

use nix::sys::signal::Signal;
use reqwest::{Client, Method, RequestBuilder, header};
use serde_json::Value;

use super::{Kiln, Ran, Started};

/// Variables for a server that is in nobody's way, and whose jobs begin on hosts with little free space.
pub const MODEST: [(&str, &str); 3] = [
    ("KILN__SERVER__LISTEN", "127.0.0.1:0"),
    ("KILN__EMBEDDED_S3__LISTEN", "127.0.0.1:0"),
    ("KILN__CAPACITY__FIRST_DISK", "1GiB"),
];

/// A server with a data directory of its own.
pub struct Server {
    pub kiln: Kiln,
    pub started: Started,
    pub url: String,
    pub client: Client,
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

    /// Checks that it says no as everything does that says no; what it says.
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

/// A client of which neither the environment nor the system says how it works.
pub fn client(authority: Option<&str>) -> Client {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
    });
    let trusted = authority.map(|pem| reqwest::Certificate::from_pem(pem.as_bytes()).unwrap());
    Client::builder()
        .no_proxy()
        .timeout(Duration::from_secs(30))
        .tls_certs_only(trusted)
        .build()
        .unwrap()
}

impl Server {
    /// With these variables.
    pub fn start(variables: &[(&str, &str)]) -> Self {
        Self::start_in(Kiln::bare(), variables)
    }

    /// In a data directory that is there already.
    pub fn start_in(kiln: Kiln, variables: &[(&str, &str)]) -> Self {
        let mut command = kiln.command(["serve"]);
        command.envs(MODEST).envs(variables.iter().copied());
        let mut started = Started::new(command);
        let line = started.wait_for("server ");
        started.wait_for("ready");
        let url = line.split_whitespace().nth(1).unwrap().to_owned();
        let client = client(None);
        Self {
            kiln,
            started,
            url,
            client,
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

    /// Asks with a token; an empty one is none.
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

    /// As [`Server::ask`], the address exactly as it is: a client would tidy it up.
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

    /// A connection on which nothing was said yet.
    pub fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(self.address()).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
        stream
    }

    /// Makes a token with the command line.
    pub fn token(&self, role: &str) -> String {
        token(&self.kiln, &["--name", &format!("{role}-er"), "--role", role])
    }

    /// Stops it, and checks that it did so cleanly.
    #[track_caller]
    pub fn stop(self) -> Ran {
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
