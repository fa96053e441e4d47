//! Records of a bad night, written as another process of the same data directory would: jobs that wait, run and failed,
//! with the logs of them.

use std::time::Duration;

use jiff::Timestamp;
use kiln::{
    orchestrate::runner::{Runner, Runners, server_id},
    store::{SharedStore, open},
};
use kiln_records::{
    Image, ImageSet, Job, JobId, LogLine, LogStream, Moment, Recipe, Run, Schedule, ScheduleId, ServerId, SetId, Step,
    schedule::{ScheduledRecipe, ScheduledSet},
    set::promotion::Promotion,
};
use serde_json::{Value, json};
use uuid::Uuid;

use crate::support::serve::Server;

/// A name that would be dangerous if it were not escaped, and that hides what it is.
pub const HOSTILE: &str = "<img src=x onerror=\"document.title='broken'\">\u{202e}gnp.exe</script>";

/// A data directory that a server has open, too.
pub struct Night {
    pub store: SharedStore,
    /// Keeps the jobs of this process from being taken for abandoned ones.
    runner: Runner,
    owner: ServerId,
}

/// Members of a job or its run that differ from the usual ones.
pub struct Told {
    pub name: String,
    pub arch: &'static str,
    pub artifact: Uuid,
    pub status: &'static str,
    pub ago: Duration,
    pub run: Value,
}

impl Night {
    pub async fn at(server: &Server) -> Self {
        let data = server.kiln.data();
        Self {
            store: open(data.join("records.sqlite").to_str().unwrap()).await.unwrap(),
            runner: Runners::of(data).enter().unwrap(),
            owner: server_id(data).unwrap(),
        }
    }

    pub async fn recipe(&self, name: &str, arch: &str) -> Recipe {
        let recipe: Recipe = serde_json::from_value(json!({
            "id": Uuid::new_v4(), "created": Moment::now(), "name": name, "arch": arch, "recipe_type": "kiwi-ng",
            "linux_distribution": "debian", "require_dkms": false, "template_dictionary": [],
            "link": { "path": format!("s3://ims/recipes/{}/recipe.tar.gz", Uuid::new_v4()), "etag": "", "type": "s3" },
        }))
        .unwrap();
        self.store.insert(&recipe, &[]).await.unwrap();
        recipe
    }

    pub async fn image(&self, name: &str, arch: &str, complete: bool) -> Image {
        let id = Uuid::new_v4();
        let link = complete
            .then(|| json!({ "path": format!("s3://boot-images/{id}/manifest.json"), "etag": "", "type": "s3" }));
        let image: Image = serde_json::from_value(json!({
            "id": id, "created": Moment::now(), "name": name, "arch": arch, "link": link, "metadata": {},
        }))
        .unwrap();
        self.store.insert(&image, &[]).await.unwrap();
        image
    }

    pub async fn schedule(&self, name: &str, recipe: &Recipe) -> Schedule {
        let schedule: Schedule = serde_json::from_value(json!({
            "id": Uuid::new_v4(), "created": Moment::now(), "name": name, "recipe_id": recipe.id, "cron": "30 2 * * *",
            "timezone": "Europe/Berlin", "image_root_archive_name": "nightly-{date}", "public_key_id": null,
            "build_env_size": null, "job_mem_size": null, "kernel_file_name": null, "initrd_file_name": null,
            "kernel_parameters_file_name": null, "require_dkms": null, "twins": null,
            "missed_runs": "once", "missed_runs_limit": 10, "overlap": "forbid", "paused": false,
            "next_run": Moment::now().plus(Duration::from_hours(5)), "last_run": null, "runs": 0,
        }))
        .unwrap();
        self.store.insert_schedule(&schedule).await.unwrap();
        schedule
    }

    /// A schedule that makes image sets of these recipes.
    pub async fn schedule_of_sets(&self, name: &str, recipes: &[&Recipe]) -> Schedule {
        let mut schedule = self.schedule(name, recipes[0]).await;
        schedule.id = ScheduleId::new();
        (schedule.recipe_id, schedule.image_root_archive_name) = (None, None);
        let recipes = recipes.iter().map(|recipe| ScheduledRecipe {
            recipe_id: recipe.id,
            required: true,
            time_limit_s: None,
        });
        schedule.image_set = Some(ScheduledSet {
            name: "compute".to_owned(),
            version: "{date}".to_owned(),
            recipes: recipes.collect(),
            requires: Vec::new(),
        });
        self.store.insert_schedule(&schedule).await.unwrap();
        schedule
    }

    /// An image set whose image was not booted, to which a channel leads.
    pub async fn set(&self, image: &Image) -> SetId {
        let path = image.link.as_ref().unwrap().path.clone();
        let set: ImageSet = serde_json::from_value(json!({
            "id": Uuid::new_v4(), "created": Moment::now(), "name": "compute", "version": "24.11", "public_key_id": null,
            "options": {
                "build_env_size": null, "job_mem_size": null, "kernel_file_name": null, "initrd_file_name": null,
                "kernel_parameters_file_name": null, "require_dkms": null, "twins": null,
            },
            "by": HOSTILE, "requires": ["boot"], "was_complete": false, "complete_since": null,
            // The server, which has no such objects, leaves it alone meanwhile.
            "next_look": Moment::now().plus(Duration::from_hours(5)),
            "members": [
                { "arch": "x86_64", "required": true, "recipe_id": null, "time_limit_s": null, "attempts": [], "image": {
                    "id": image.id, "seen": { "is": "same" }, "looked": Moment::now(), "lacks": ["it was not booted yet"],
                    "proof": { "path": path, "sha256": "ab".repeat(32), "files": [] },
                } },
                { "arch": "riscv64", "required": false, "recipe_id": null, "time_limit_s": null, "image": null, "attempts": [
                    { "job_id": Uuid::new_v4(), "asked": Moment::now(), "state": { "is": "failed", "why": HOSTILE }, "seconds": 75 },
                ] },
            ],
        }))
        .unwrap();
        self.store.insert_set(&set).await.unwrap();
        let promotion: Promotion = serde_json::from_value(json!({
            "name": "compute", "channel": "stable", "number": 1, "kind": "promote", "set_id": set.id,
            "version": "24.11", "at": Moment::now(), "by": HOSTILE, "before": null,
        }))
        .unwrap();
        self.store.promote(&promotion).await.unwrap();
        set.id
    }

    /// A job that this process carries out.
    pub async fn job(&self, told: Told) -> (JobId, Uuid) {
        let Told {
            name,
            arch,
            artifact,
            status,
            ago,
            run,
        } = told;
        let id = JobId::new();
        let image = Uuid::new_v4();
        let done = (status == "success").then_some(image);
        let created = Moment::now().minus(ago);
        let job: Job = serde_json::from_value(json!({
            "id": id, "created": created, "job_type": "create", "artifact_id": artifact, "public_key_id": Uuid::nil(),
            "image_root_archive_name": name, "enable_debug": false, "build_env_size": 15, "job_mem_size": 8,
            "kernel_file_name": "vmlinuz", "initrd_file_name": "initrd", "kernel_parameters_file_name": "p",
            "ssh_containers": null, "require_dkms": false, "status": status, "arch": arch,
            "resultant_image_id": done, "kubernetes_job": "", "kubernetes_service": "", "kubernetes_configmap": "",
            "kubernetes_pvc": "", "kubernetes_secret": null, "kubernetes_namespace": "", "remote_build_node": "",
        }))
        .unwrap();
        let mut plan = json!({
            "place": "local", "host": null, "driver": "namespace", "how": "native", "passed_over": [],
            "why": "native on this host, in namespaces",
            "needs": { "memory": 2_u64 << 30, "memory_limit": 8_u64 << 30, "disk": 4_u64 << 30, "disk_limit": 15_u64 << 30 },
            "recipe": format!("s3://ims/recipes/{artifact}/recipe.tar.gz"), "recipe_type": "kiwi-ng", "values": [], "template_mode": "strict",
            "boot": { "kernel": "vmlinuz", "initrd": "initrd", "parameters": "p", "required": false },
        });
        let choices = json!({
            "twins": "full", "resume": null, "who": "ci", "runner": self.runner.id(), "own_kernel": false, "verify_twins": false,
            "squashfs": { "compressor": "zstd", "level": null }, "cache": "none", "cache_asked": false, "locked": false,
            "profiles": [], "additions": {}, "keep": false, "repos_timeout_s": 500,
        });
        merge(&mut plan, choices);
        let mut usual = json!({
            "state": "queued", "image": image, "attempt": 1, "owner": self.owner, "token": null, "step": null, "steps": [],
            "uploads": [], "used": null, "launched": null, "ended": null, "kept": false, "recipe_sha256": null,
            "log": null, "settled": false, "failed": { "place": 0, "storage": 0, "killed": 0 },
            "warnings": { "list": [], "more": 0, "next": 0 },
            "plan": plan,
        });
        merge(&mut usual, run);
        let run: Run = serde_json::from_value(usual).unwrap();
        self.store.insert_run(&job, &run).await.unwrap();
        (id, image)
    }

    /// Adds lines to a log, as an agent says them.
    pub async fn says(&self, job: JobId, first: u64, lines: impl IntoIterator<Item = String>) {
        let lines: Vec<_> = lines
            .into_iter()
            .map(|text| {
                Some(LogLine {
                    time: Timestamp::now(),
                    step: Some(Step::Build),
                    stream: LogStream::Stdout,
                    text,
                })
            })
            .collect();
        for (at, chunk) in lines.chunks(5000).enumerate() {
            let first = first + 5000 * at as u64;
            self.store
                .append((job, 1), first, chunk, true, u64::MAX, Moment::now())
                .await
                .unwrap();
        }
    }
}

fn merge(into: &mut Value, from: Value) {
    match (into, from) {
        (Value::Object(into), Value::Object(from)) => {
            for (key, value) in from {
                merge(into.entry(key).or_insert(Value::Null), value);
            }
        }
        (into, from) => *into = from,
    }
}
