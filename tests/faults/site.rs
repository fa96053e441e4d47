//! A site: a server whose addresses outlive it, a package repository, a key and recipes.

use std::{
    net::SocketAddr,
    path::{Path, PathBuf},
    process::Command,
    sync::{
        Mutex, MutexGuard,
        atomic::{AtomicBool, Ordering},
    },
};

use kiln::artifacts::{ArtifactStore, S3Settings};
use nix::{sys::signal::Signal, unistd::Pid};
use reqwest::Client;
use serde_json::{Value, json};

use crate::support::{
    Kiln, Ran, Recipe, Started, eventually_async, ports::free_port, repository::Repository, serve::client,
};

pub struct Site {
    pub kiln: Kiln,
    pub client: Client,
    pub url: String,
    s3_port: u16,
    /// The S3 service, if it is not the server's own.
    s3: Option<(PathBuf, S3Settings)>,
    variables: Vec<(String, String)>,
    /// The server's limit of open files.
    files: Option<usize>,
    process: Mutex<Option<Started>>,
    /// Locked while the server is started: several tasks may find it missing at once.
    starting: tokio::sync::Mutex<()>,
    killed: AtomicBool,
    repository: Repository,
    key: String,
}

/// Where it is in its life, for those that wait: the higher, the later.
pub fn rank(job: &Value) -> u32 {
    const STEPS: [&str; 7] = ["prepare", "fetch", "template", "repos", "build", "package", "upload"];
    match job["state"].as_str().unwrap() {
        "queued" => 0,
        "launching" => 1,
        "running" => {
            let at = |step: &str| STEPS.iter().position(|known| *known == step).unwrap();
            job["step"]
                .as_str()
                .map_or(2, |step| 3 + u32::try_from(at(step)).unwrap())
        }
        "committing" => 10,
        _ => 11,
    }
}

/// Whether the job has ended and its remains are cleared away.
pub fn is_settled(job: &Value) -> bool {
    rank(job) == 11 && job["log"].is_string()
}

impl Site {
    /// With these variables for its server.
    pub async fn start(variables: &[(&str, &str)]) -> Self {
        Self::start_in(Kiln::new(), variables).await
    }

    /// With so many files that its server may have open.
    pub async fn start_with_files(files: usize) -> Self {
        Self::start_as(Kiln::new(), &[], Some(files)).await
    }

    pub async fn start_in(kiln: Kiln, variables: &[(&str, &str)]) -> Self {
        Self::start_as(kiln, variables, None).await
    }

    async fn start_as(kiln: Kiln, variables: &[(&str, &str)], files: Option<usize>) -> Self {
        let repository = Repository::native();
        let (port, s3_port) = (free_port(), free_port());
        let own = [
            ("KILN__SERVER__LISTEN", format!("127.0.0.1:{port}")),
            ("KILN__EMBEDDED_S3__LISTEN", format!("127.0.0.1:{s3_port}")),
            ("KILN__ISOLATION__LOOPBACK_PORTS", format!("[{}]", repository.port())),
            ("KILN__LIMITS__REQUESTS_PER_SECOND", "0".to_owned()),
            // The remains of failed jobs must not be mistaken for leaks.
            ("KILN__WATCH__KEEP_FAILED", "0s".to_owned()),
            ("KILN__CAPACITY__FIRST_MEMORY", "64MiB".to_owned()),
            ("KILN__CAPACITY__FIRST_DISK", "64MiB".to_owned()),
        ];
        let given = variables.iter().map(|(name, value)| (*name, (*value).to_owned()));
        let variables = own.into_iter().chain(given);
        let mut site = Self {
            kiln,
            client: client(None),
            url: format!("http://127.0.0.1:{port}"),
            s3_port,
            s3: None,
            variables: variables.map(|(name, value)| (name.to_owned(), value)).collect(),
            files,
            process: Mutex::default(),
            starting: tokio::sync::Mutex::default(),
            killed: AtomicBool::new(false),
            repository,
            key: String::new(),
        };
        site.up().await;
        let key = json!({ "name": "key", "public_key": "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAA me@here\n" });
        site.key = site.made("/v3/public-keys", key).await;
        site
    }

    fn process(&self) -> MutexGuard<'_, Option<Started>> {
        self.process.lock().unwrap()
    }

    /// Starts the server, unless it runs, and waits until it answers.
    pub async fn up(&self) {
        let _one_at_a_time = self.starting.lock().await;
        if self.process().is_some() {
            return;
        }
        let mut command = self.kiln.command(["serve"]);
        if let Some(files) = self.files {
            command = with_files(&command, files);
        }
        command.envs(self.variables.iter().map(|(name, value)| (name, value)));
        let mut started = Started::new(command);
        tokio::task::block_in_place(|| started.wait_until_ready());
        *self.process() = Some(started);
    }

    /// Ends the server by a signal, and waits until it is gone. `None` when it does not run.
    pub fn down(&self, signal: Signal) -> Option<Ran> {
        let process = self.process().take()?;
        if signal == Signal::SIGKILL {
            self.killed.store(true, Ordering::Relaxed);
        }
        process.signal(signal);
        Some(tokio::task::block_in_place(|| process.end()))
    }

    /// Whether the server was ever killed.
    pub fn was_killed(&self) -> bool {
        self.killed.load(Ordering::Relaxed)
    }

    pub fn server_pid(&self) -> Option<Pid> {
        self.process().as_ref().map(Started::pid)
    }

    /// The answer, unless the server is not there to give one.
    pub async fn ask(&self, method: &str, path: &str, body: Option<&Value>) -> Option<(u16, Value)> {
        let method = method.parse().unwrap();
        let mut request = self.client.request(method, format!("{}{path}", self.url));
        if let Some(body) = body {
            request = request.json(body);
        }
        let response = request.send().await.ok()?;
        let status = response.status().as_u16();
        let text = response.text().await.ok()?;
        Some((status, serde_json::from_str(&text).unwrap_or(Value::String(text))))
    }

    /// The body of an answer of success, once there is one.
    pub async fn asked(&self, method: &str, path: &str, body: Option<Value>) -> Value {
        eventually_async(async || {
            let answer = self.ask(method, path, body.as_ref()).await;
            if let Some((200..300, value)) = answer {
                return Ok(value);
            }
            if let Some(server) = self.process().as_mut() {
                server.assert_runs();
            }
            Err(format!("{method} {path}: {answer:?}"))
        })
        .await
    }

    /// Creates a record; its id.
    pub async fn made(&self, path: &str, body: Value) -> String {
        self.asked("POST", path, Some(body)).await["id"]
            .as_str()
            .unwrap()
            .to_owned()
    }

    /// Uploads a recipe that takes its packages from this site's repository; its id.
    pub fn recipe(&self, name: &str, recipe: Recipe) -> String {
        let recipe = recipe.with_config("{{ rpm_repo }}", &self.repository.url());
        let args = [
            "recipes",
            "create",
            "--name",
            name,
            "--from",
            recipe.path(),
            "--server",
            &self.url,
        ];
        let more = [
            "--linux-distribution",
            "sles15",
            "--require-dkms",
            "false",
            "--format",
            "json",
        ];
        let ran = tokio::task::block_in_place(|| self.kiln.run([&args[..], &more[..]].concat())).ok();
        let record: Value = serde_json::from_str(&ran.stdout).unwrap();
        record["id"].as_str().unwrap().to_owned()
    }

    /// A recipe that is done in a few seconds.
    pub fn small_recipe(&self) -> String {
        self.recipe("small", Recipe::copy_of("rpm-minimal"))
    }

    /// Where the server listens.
    pub fn address(&self) -> SocketAddr {
        self.url.strip_prefix("http://").unwrap().parse().unwrap()
    }

    /// Where its embedded S3 service listens.
    pub fn s3_address(&self) -> SocketAddr {
        ([127, 0, 0, 1], self.s3_port).into()
    }

    pub fn repository_port(&self) -> u16 {
        self.repository.port()
    }

    /// The body of a request for a job.
    pub fn job(&self, recipe: &str) -> Value {
        json!({ "job_type": "create", "artifact_id": recipe, "public_key_id": self.key,
            "image_root_archive_name": "faulty" })
    }

    pub async fn submit(&self, recipe: &str) -> String {
        self.made("/v3/jobs", self.job(recipe)).await
    }

    /// How Kiln carries a job out.
    pub async fn progress(&self, job: &str) -> Value {
        self.asked("GET", &format!("/kiln/v1/jobs/{job}"), None).await
    }

    /// Waits until a job is so; how it is then.
    pub async fn wait_until(&self, job: &str, what: &str, is_so: impl Fn(&Value) -> bool) -> Value {
        eventually_async(async || {
            let progress = self.progress(job).await;
            let is_not = |progress| format!("the job is not {what}: {progress:#}");
            if is_so(&progress) {
                Ok(progress)
            } else {
                Err(is_not(progress))
            }
        })
        .await
    }

    /// Waits until a job has ended and is cleared away; how it ended.
    pub async fn end_of(&self, job: &str) -> Value {
        self.wait_until(job, "settled", is_settled).await
    }

    /// The same site; its server was told of another S3 service, which is in this directory.
    #[must_use]
    pub fn with_s3(mut self, dir: &Path, settings: S3Settings) -> Self {
        self.s3 = Some((dir.to_owned(), settings));
        self
    }

    /// The directory of the service where artifacts really are.
    pub fn s3_dir(&self) -> PathBuf {
        match &self.s3 {
            Some((dir, _)) => dir.clone(),
            None => self.kiln.data().join("s3"),
        }
    }

    /// The service where artifacts really are.
    pub async fn artifacts(&self) -> ArtifactStore {
        if let Some((_, settings)) = &self.s3 {
            return ArtifactStore::connect(settings).await.unwrap();
        }
        let keys = fs_err::read(self.s3_dir().join("credentials.json")).unwrap();
        let keys: Value = serde_json::from_slice(&keys).unwrap();
        let text = |name: &str| keys[name].as_str().unwrap().to_owned();
        let settings = S3Settings {
            endpoint: Some(format!("http://127.0.0.1:{}", self.s3_port)),
            access_key: Some(text("access_key")),
            secret_key: Some(text("secret_key").into()),
            ..S3Settings::default()
        };
        ArtifactStore::connect(&settings).await.unwrap()
    }
}

/// The same command with so many files that it may have open.
fn with_files(command: &Command, files: usize) -> Command {
    let mut limited = Command::new("prlimit");
    limited.arg(format!("--nofile={files}")).arg(command.get_program());
    limited.args(command.get_args());
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => limited.env(name, value),
            None => limited.env_remove(name),
        };
    }
    limited
}
