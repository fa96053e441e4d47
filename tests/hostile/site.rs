//! A server that carries out several hostile jobs at a time, and a port of the host that must stay unreachable.

use std::{
    net::TcpListener,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use nix::sys::signal::Signal;
use serde_json::{Value, json};

use crate::hostile::case::{Case, End, Upload};
use crate::support::{
    Kiln, Recipe, Started, eventually_async,
    ports::free_port,
    repository::Repository,
    serve::{Answer, client, send},
};

/// How long a job may be silent here.
const SILENCE: &str = "60s";

pub struct Site {
    // Dropped first, so that a test that fails ends it before its data directory goes.
    server: Started,
    pub kiln: Kiln,
    client: reqwest::Client,
    /// Where the server, its S3 service and a service that has nothing to do with Kiln listen.
    pub port: u16,
    pub s3_port: u16,
    pub other_port: u16,
    was_reached: Arc<AtomicBool>,
    repository: Repository,
    key: String,
}

impl Site {
    pub async fn start() -> Self {
        let kiln = Kiln::new();
        let repository = Repository::native();
        let (port, s3_port) = (free_port(), free_port());
        let (other_port, was_reached) = alarm();
        let doors = format!("[{}]", repository.url().rsplit(':').next().unwrap());
        let mut command = kiln.command(["serve"]);
        command.envs([
            ("KILN__SERVER__LISTEN", format!("127.0.0.1:{port}")),
            ("KILN__EMBEDDED_S3__LISTEN", format!("127.0.0.1:{s3_port}")),
            ("KILN__ISOLATION__LOOPBACK_PORTS", doors),
            ("KILN__LIMITS__REQUESTS_PER_SECOND", "0".to_owned()),
            ("KILN__CAPACITY__JOBS", "4".to_owned()),
            ("KILN__CAPACITY__FIRST_MEMORY", "64MiB".to_owned()),
            ("KILN__CAPACITY__FIRST_DISK", "64MiB".to_owned()),
            ("KILN__CAPACITY__PROCESSES_PER_JOB", "512".to_owned()),
            ("KILN__CAPACITY__FILES_PER_JOB", "20000".to_owned()),
            ("KILN__WATCH__SILENCE", SILENCE.to_owned()),
            // Half of it is an attempt's: a flood goes beyond it on slow hosts as on fast ones.
            ("KILN__WATCH__LOG_BYTES", "16MiB".to_owned()),
            // A job that kills its own agent would be tried again, and what failed jobs leave would be kept.
            ("KILN__WATCH__INTERRUPTIONS", "1".to_owned()),
            ("KILN__WATCH__KEEP_FAILED", "0s".to_owned()),
        ]);
        let mut server = Started::new(command);
        tokio::task::block_in_place(|| server.wait_until_ready());
        let mut site = Self {
            kiln,
            server,
            client: client(None),
            port,
            s3_port,
            other_port,
            was_reached,
            repository,
            key: String::new(),
        };
        let key = json!({ "name": "key", "public_key": "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAA me@here\n" });
        site.key = site.made("/v3/public-keys", &key).await;
        site
    }

    fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    async fn get(&self, path: &str, accept: &str) -> Answer {
        let request = self.client.get(self.url() + path).header("accept", accept);
        send(request).await
    }

    async fn made(&self, path: &str, body: &Value) -> String {
        let answer = send(self.client.post(self.url() + path).json(body)).await;
        assert_eq!(answer.status, 201, "{}", answer.text);
        answer.json()["id"].as_str().unwrap().to_owned()
    }

    /// A description that takes its packages from this site's repository and needs no template.
    pub fn config(&self) -> String {
        let recipe = Recipe::copy_of("rpm-minimal");
        let text = fs_err::read_to_string(format!("{}/config.xml", recipe.path())).unwrap();
        text.replace("{{ rpm_repo }}", &self.repository.url())
            .replace("{{ package_manager | default('zypper') }}", "zypper")
    }

    /// Stores an archive that the command line would refuse, as another client does. The recipe's id.
    async fn send_archive(&self, bytes: Vec<u8>) -> String {
        let record = json!({ "name": "hostile", "recipe_type": "kiwi-ng", "linux_distribution": "sles15", "require_dkms": false });
        let id = self.made("/v3/recipes", &record).await;
        let to = format!("{}/kiln/v1/recipes/{id}/archive", self.url());
        let stored = send(self.client.put(to).body(bytes)).await;
        assert!((200..300).contains(&stored.status), "{}", stored.text);
        id
    }

    /// Uploads a recipe's directory. The recipe's id.
    fn upload(&self, path: &str) -> String {
        let url = self.url();
        let args = [
            "recipes", "create", "--name", "hostile", "--from", path, "--server", &url,
        ];
        let more = ["--recipe-type", "kiwi-ng", "--linux-distribution", "sles15"];
        let last = ["--require-dkms", "false", "--format", "json"];
        let ran = tokio::task::block_in_place(|| self.kiln.run([&args[..], &more, &last].concat())).ok();
        let recipe: Value = serde_json::from_str(&ran.stdout).unwrap();
        recipe["id"].as_str().unwrap().to_owned()
    }

    /// Uploads a recipe, and asks for its job; the job's id.
    pub async fn submit(&self, case: &Case) -> String {
        let recipe = match &case.upload {
            Upload::Archive(made) => self.send_archive(fs_err::read(&made.path).unwrap()).await,
            Upload::Directory(recipe) => {
                recipe.fill_in("{{ rpm_repo }}", &self.repository.url());
                self.upload(recipe.path())
            }
        };
        let mut job = json!({ "job_type": "create", "artifact_id": recipe, "public_key_id": self.key,
            "image_root_archive_name": "hostile" });
        if let Some((field, gib)) = case.limit {
            job[field] = gib.into();
        }
        if case.is_whole {
            job["cache"] = "none".into();
        }
        self.made("/v3/jobs", &job).await
    }

    /// Waits until a job has ended and is cleared away.
    pub async fn end_of(&self, job: &str) -> End {
        let progress = eventually_async(async || {
            let progress = self
                .get(&format!("/kiln/v1/jobs/{job}"), "application/json")
                .await
                .json();
            if progress["log"].is_string() {
                Ok(progress)
            } else {
                Err(progress)
            }
        });
        let progress = progress.await;
        let log = self.get(&format!("/kiln/v1/jobs/{job}/log"), "text/plain").await.text;
        End { progress, log }
    }

    /// Whether a client connected to the other service.
    pub fn was_reached(&self) -> bool {
        self.was_reached.load(Ordering::Relaxed)
    }

    /// Stops the server, cleanly.
    pub fn stop(self) -> Kiln {
        self.server.signal(Signal::SIGTERM);
        let ran = tokio::task::block_in_place(|| self.server.end());
        assert_eq!(ran.code, Some(0), "{}", ran.last());
        self.kiln
    }
}

/// A service of the host, on all its addresses, that notices every connection.
fn alarm() -> (u16, Arc<AtomicBool>) {
    let listener = TcpListener::bind(("0.0.0.0", 0)).unwrap();
    let port = listener.local_addr().unwrap().port();
    let rang = Arc::new(AtomicBool::new(false));
    let rings = Arc::clone(&rang);
    std::thread::spawn(move || {
        for _ in listener.incoming() {
            rings.store(true, Ordering::Relaxed);
        }
    });
    (port, rang)
}
