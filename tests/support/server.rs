//! The service under test: `kiln serve` with its own data directory and ports, used over HTTP and S3 only.

#![allow(dead_code, reason = "every test program uses another part")]

use std::{
    collections::BTreeMap,
    io::{BufRead, BufReader},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::{Arc, Mutex, Weak, mpsc},
    time::Instant,
};

use aws_sdk_s3::{
    Client as S3,
    config::{BehaviorVersion, Credentials, Region, RequestChecksumCalculation},
};
use kiln::artifacts::S3Settings;
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use reqwest::{Client, Method};
use serde_json::Value;
use tempfile::TempDir;

use super::{PATIENCE, wait::try_within};

#[path = "server/answer.rs"]
mod answer;
#[path = "server/things.rs"]
mod things;

#[allow(unused_imports, reason = "only some test programs use what these make")]
pub use self::{answer::Answer, things::*};

/// A running server, with clients that belong to one test.
pub struct Server {
    http: Client,
    s3: S3,
    process: Arc<Process>,
}

/// An environment variable that sets a key of the configuration.
pub type Setting<'a> = (&'a str, &'a str);

/// The server's process.
struct Process {
    child: Mutex<Child>,
    base: String,
    s3: S3Access,
    dir: Option<TempDir>,
}

#[derive(Clone)]
struct S3Access {
    endpoint: String,
    access_key: String,
    secret_key: String,
}

impl Process {
    /// Starts it on a directory and waits until it reports that it is ready.
    fn start(dir: TempDir, settings: &[Setting<'_>]) -> Self {
        let log = fs_err::OpenOptions::new()
            .create(true)
            .append(true)
            .open(dir.path().join("log"))
            .unwrap();
        let mut command = Command::new(super::kiln_program());
        for (name, _) in std::env::vars_os() {
            let text = name.to_string_lossy();
            if ["KILN_", "AWS_", "XDG_"].iter().any(|start| text.starts_with(start)) {
                command.env_remove(name);
            }
        }
        command
            .arg("serve")
            .env("KILN_DATA_DIR", dir.path().join("data"))
            .env("HOME", dir.path())
            .env("KILN_LOG", "warn")
            .env("KILN__SERVER__LISTEN", "127.0.0.1:0")
            .env("KILN__EMBEDDED_S3__LISTEN", "127.0.0.1:0")
            // Running jobs has separate tests; here they are only records.
            .env("KILN__JOBS__RUN", "false")
            // Tests send requests faster than any user.
            .env("KILN__LIMITS__REQUESTS_PER_SECOND", "0")
            .envs(settings.iter().copied())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::from(log.into_file()));
        let mut child = command.spawn().unwrap();

        let mut said = BTreeMap::new();
        let (said_line, lines) = mpsc::channel();
        let stdout = BufReader::new(child.stdout.take().unwrap());
        // Goes on when nothing listens any more: the server must not meet a closed pipe.
        std::thread::spawn(move || {
            for line in stdout.lines().map_while(Result::ok) {
                let _ = said_line.send(line);
            }
        });
        let until = Instant::now() + PATIENCE;
        let is_ready = loop {
            let Ok(line) = lines.recv_timeout(until.saturating_duration_since(Instant::now())) else {
                break false;
            };
            if line == "ready" {
                break true;
            }
            let (name, value) = line.split_at(line.len().min(11));
            said.entry(name.trim().to_owned()).or_insert_with(|| value.to_owned());
        };
        if !is_ready {
            let _ = child.kill();
            let _ = child.wait();
            let log = fs_err::read_to_string(dir.path().join("log")).unwrap();
            panic!("kiln serve did not start: {said:?}\n{log}");
        }
        let s3 = if let Some(file) = said.get("s3 keys") {
            let keys: Value = serde_json::from_slice(&fs_err::read(file).unwrap()).unwrap();
            let text = |name: &str| keys[name].as_str().unwrap().to_owned();
            S3Access {
                endpoint: said["s3"].clone(),
                access_key: text("access_key"),
                secret_key: text("secret_key"),
            }
        } else {
            // Another S3 service was configured.
            let told = |key: &str| settings.iter().find(|(name, _)| *name == key).map(|(_, value)| *value);
            S3Access {
                endpoint: said["s3"].clone(),
                access_key: told("KILN__S3__ACCESS_KEY").unwrap_or_default().to_owned(),
                secret_key: told("KILN__S3__SECRET_KEY").unwrap_or_default().to_owned(),
            }
        };
        Self {
            child: Mutex::new(child),
            base: said["server"].clone(),
            s3,
            dir: Some(dir),
        }
    }

    /// Stops the server, which must end cleanly.
    fn stop(&self) {
        let mut child = self.child.lock().unwrap();
        if child.try_wait().unwrap().is_none() {
            kill(pid(&child), Signal::SIGTERM).unwrap();
        }
        let status = try_within(PATIENCE, || child.try_wait().unwrap()).ok();
        if status.is_none() {
            let _ = child.kill();
            let _ = child.wait();
        }
        if std::thread::panicking() {
            return;
        }
        let log = self.log();
        assert_eq!(
            status.and_then(|status| status.code()),
            Some(0),
            "kiln serve ended badly:\n{log}"
        );
        assert!(!log.contains("panicked"), "a handler panicked:\n{log}");
    }

    fn log(&self) -> String {
        let dir = self.dir.as_ref().unwrap();
        fs_err::read_to_string(dir.path().join("log")).unwrap()
    }
}

fn pid(child: &Child) -> Pid {
    Pid::from_raw(i32::try_from(child.id()).unwrap())
}

impl Drop for Process {
    fn drop(&mut self) {
        if self.dir.is_some() {
            self.stop();
        }
    }
}

impl Server {
    /// A server that other tests use at the same time, so their records come and go. It ends with its last test.
    pub fn shared() -> Self {
        static SHARED: Mutex<Weak<Process>> = Mutex::new(Weak::new());
        let process = {
            let mut shared = SHARED.lock().unwrap();
            shared.upgrade().unwrap_or_else(|| {
                let process = Arc::new(Process::start(new_dir(), &[]));
                *shared = Arc::downgrade(&process);
                process
            })
        };
        Self::of(process)
    }

    /// A server for one test alone.
    pub fn own() -> Self {
        Self::with(&[])
    }

    /// A server for one test alone, with settings.
    pub fn with(settings: &[Setting<'_>]) -> Self {
        Self::of(Arc::new(Process::start(new_dir(), settings)))
    }

    fn of(process: Arc<Process>) -> Self {
        // Another test of this process may have installed it already.
        let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
        let http = Client::builder().no_proxy().timeout(PATIENCE).build().unwrap();
        let s3 = s3_client(&process.s3);
        Self { http, s3, process }
    }

    /// Stops it and starts another one on the same data.
    pub fn restarted(self) -> Self {
        self.again(false, &[], |_| ())
    }

    /// Kills it and starts another one on the same data.
    pub fn crashed(self) -> Self {
        self.again(true, &[], |_| ())
    }

    /// Kills it, changes its data directory, and starts another one there with these settings.
    pub fn crashed_after(self, settings: &[Setting<'_>], change: impl FnOnce(&Path)) -> Self {
        self.again(true, settings, change)
    }

    /// Stops or kills it, and starts another one on the same data once this has come back.
    pub fn away_while(self, crash: bool, settings: &[Setting<'_>], meanwhile: impl FnOnce()) -> Self {
        self.again(crash, settings, |_| meanwhile())
    }

    /// Stops it, changes its data directory, and starts another one there.
    pub fn restarted_after(self, change: impl FnOnce(&Path)) -> Self {
        self.again(false, &[], change)
    }

    fn again(self, crash: bool, settings: &[Setting<'_>], change: impl FnOnce(&Path)) -> Self {
        let Some(mut process) = Arc::into_inner(self.process) else {
            panic!("a server that others use stays");
        };
        if crash {
            let mut child = process.child.lock().unwrap();
            child.kill().unwrap();
            child.wait().unwrap();
        } else {
            process.stop();
        }
        let dir = process.dir.take().unwrap();
        change(&dir.path().join("data"));
        Self::of(Arc::new(Process::start(dir, settings)))
    }

    /// Its address.
    pub fn base(&self) -> &str {
        &self.process.base
    }

    /// The address of its S3.
    pub fn s3_endpoint(&self) -> &str {
        &self.process.s3.endpoint
    }

    /// How another client of its records reaches its S3.
    pub fn s3_settings(&self) -> S3Settings {
        S3Settings {
            endpoint: Some(self.process.s3.endpoint.clone()),
            access_key: Some(self.process.s3.access_key.clone()),
            secret_key: Some(self.process.s3.secret_key.clone().into()),
            ..S3Settings::default()
        }
    }

    /// Its data directory.
    pub fn data(&self) -> PathBuf {
        self.process.dir.as_ref().unwrap().path().join("data")
    }

    /// The number of its process.
    pub fn process(&self) -> u32 {
        self.process.child.lock().unwrap().id()
    }

    /// Its log so far.
    pub fn log(&self) -> String {
        self.process.log()
    }

    /// An S3 client with the server's own keys.
    pub fn s3(&self) -> &S3 {
        &self.s3
    }

    pub fn http(&self) -> &Client {
        &self.http
    }

    /// A request for a test to complete.
    pub fn request(&self, method: &str, path: &str) -> reqwest::RequestBuilder {
        let method = Method::from_bytes(method.as_bytes()).unwrap();
        self.http.request(method, format!("{}{path}", self.process.base))
    }

    pub async fn send(&self, method: &str, path: &str, body: Option<&Value>) -> Answer {
        let request = self.request(method, path);
        let request = match body {
            Some(body) => request.json(body),
            None => request,
        };
        Answer::of(request, format!("{method} {path}")).await
    }

    pub async fn get(&self, path: &str) -> Answer {
        self.send("GET", path, None).await
    }

    pub async fn post(&self, path: &str, body: Value) -> Answer {
        self.send("POST", path, Some(&body)).await
    }

    pub async fn patch(&self, path: &str, body: Value) -> Answer {
        self.send("PATCH", path, Some(&body)).await
    }

    pub async fn delete(&self, path: &str) -> Answer {
        self.send("DELETE", path, None).await
    }

    /// Sends a body unchanged.
    pub async fn raw(&self, method: &str, path: &str, content_type: Option<&str>, body: impl Into<Vec<u8>>) -> Answer {
        let mut request = self.request(method, path).body(body.into());
        if let Some(kind) = content_type {
            request = request.header("content-type", kind);
        }
        Answer::of(request, format!("{method} {path}")).await
    }
}

fn new_dir() -> TempDir {
    tempfile::Builder::new().prefix("kiln-test-").tempdir().unwrap()
}

fn s3_client(s3: &S3Access) -> S3 {
    let keys = Credentials::new(&s3.access_key, &s3.secret_key, None, None, "test");
    let config = aws_sdk_s3::Config::builder()
        .behavior_version(BehaviorVersion::latest())
        .region(Region::new("us-east-1"))
        .endpoint_url(&s3.endpoint)
        .credentials_provider(keys)
        .request_checksum_calculation(RequestChecksumCalculation::WhenRequired)
        .force_path_style(true);
    S3::from_conf(config.build())
}
