//! A job with a log, beside a server that does not carry it out.

use std::collections::HashMap;

use jiff::Timestamp;
use kiln::store::{SharedStore, open};
use kiln_records::{Job, JobId, JobStatus, LogLine, LogStream, Moment, Step};
use serde_json::json;

use crate::logs::server::{NOBODY, Server, unique};

/// A job in a server's database, and a way to write to it that is not the server's.
pub struct LoggedJob {
    store: SharedStore,
    job: Job,
    next: u64,
}

impl LoggedJob {
    /// A job that waits, without a log.
    pub async fn new(server: &Server) -> Self {
        Self::named(server, &unique("image")).await
    }

    pub async fn named(server: &Server, name: &str) -> Self {
        let id = JobId::new();
        let job = json!({
            "id": id, "created": Moment::now(), "job_type": "create", "artifact_id": NOBODY, "public_key_id": NOBODY,
            "image_root_archive_name": name, "enable_debug": false, "build_env_size": 1, "job_mem_size": 1,
            "kernel_file_name": "vmlinuz", "initrd_file_name": "initrd", "kernel_parameters_file_name": "p",
            "ssh_containers": null, "require_dkms": false, "status": "creating", "arch": "x86_64",
            "resultant_image_id": null, "kubernetes_job": "", "kubernetes_service": "", "kubernetes_configmap": "",
            "kubernetes_pvc": "", "kubernetes_secret": null, "kubernetes_namespace": "", "remote_build_node": "",
        });
        let job: Job = serde_json::from_value(job).unwrap();
        let store = open(server.data().join("records.sqlite").to_str().unwrap())
            .await
            .unwrap();
        store.insert_job(&job).await.unwrap();
        Self { store, job, next: 0 }
    }

    pub fn id(&self) -> String {
        self.job.id.to_string()
    }

    /// The number of its next line.
    pub const fn next(&self) -> u64 {
        self.next
    }

    /// Where its log is.
    pub fn path(&self) -> String {
        format!("/kiln/v1/jobs/{}/log", self.job.id)
    }

    /// Adds lines, as an agent says them.
    pub async fn says(&mut self, lines: &[&str]) {
        let said = lines.iter().map(|text| {
            Some(LogLine {
                time: Timestamp::from_second(1_700_000_000).unwrap(),
                step: Some(Step::Build),
                stream: LogStream::Stdout,
                text: (*text).to_owned(),
            })
        });
        let said: Vec<_> = said.collect();
        let now = Moment::now();
        self.store
            .append((self.job.id, 1), self.next, &said, true, u64::MAX, now)
            .await
            .unwrap();
        self.next += said.len() as u64;
    }

    /// Adds numbered lines up to this number.
    pub async fn says_up_to(&mut self, end: u64) {
        let lines: Vec<_> = (self.next..end).map(|n| format!("line {n}")).collect();
        let lines: Vec<_> = lines.iter().map(String::as_str).collect();
        self.says(&lines).await;
    }

    pub async fn becomes(&mut self, status: JobStatus) {
        let stored = self.store.get_job(self.job.id).await.unwrap().unwrap();
        self.job.status = status;
        self.store.replace_job(&self.job, stored.revision).await.unwrap();
    }

    pub async fn goes(self) {
        assert!(self.store.delete_job(self.job.id).await.unwrap());
    }
}

/// An event of a stream.
#[derive(Debug, Clone, PartialEq)]
pub struct Event {
    pub id: Option<u64>,
    pub name: String,
    pub data: serde_json::Value,
}

/// The next event of a stream; none at its end.
pub async fn next_event(stream: &mut reqwest::Response, rest: &mut String) -> Option<Event> {
    loop {
        if let Some((event, after)) = rest.split_once("\n\n") {
            let fields: HashMap<_, _> = event.lines().filter_map(|line| line.split_once(": ")).collect();
            let event = fields.get("event").map(|name| Event {
                id: fields.get("id").map(|id| id.parse().unwrap()),
                name: (*name).to_owned(),
                data: serde_json::from_str(fields["data"]).unwrap(),
            });
            let after = after.to_owned();
            *rest = after;
            if event.is_some() {
                return event;
            }
            continue;
        }
        let chunk = stream.chunk().await.unwrap()?;
        rest.push_str(std::str::from_utf8(&chunk).unwrap());
    }
}
