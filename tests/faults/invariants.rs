//! Checks the conditions that hold after every fault.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::Path,
    process::Command,
    sync::{Arc, Mutex},
    time::Duration,
};

use nix::sys::signal::Signal;
use serde_json::Value;
use sha2::{Digest, Sha256};
use tokio::task::JoinHandle;

use crate::faults::site::Site;
use crate::support::{cgroups_of, eventually, eventually_async};

/// IMS's statuses in their order; the last two are ends.
const STATUSES: [&str; 9] = [
    "creating",
    "fetching_image",
    "fetching_recipe",
    "waiting_for_repos",
    "building_image",
    "waiting_on_user",
    "packaging_artifacts",
    "error",
    "success",
];

/// How often it is looked.
const EVERY: Duration = Duration::from_millis(50);

/// Watches all jobs of a site as a client of IMS does.
pub struct Observer {
    seen: Arc<Mutex<BTreeMap<String, Vec<String>>>>,
    looking: JoinHandle<()>,
}

impl Observer {
    pub fn of(site: &Arc<Site>) -> Self {
        let seen: Arc<Mutex<BTreeMap<String, Vec<String>>>> = Arc::default();
        let looking = tokio::spawn({
            let (site, seen) = (Arc::clone(site), Arc::clone(&seen));
            async move {
                loop {
                    let answer = site.ask("GET", "/v3/jobs", None).await;
                    if let Some((200, Value::Array(jobs))) = answer {
                        let mut seen = seen.lock().unwrap();
                        for job in &jobs {
                            let status = job["status"].as_str().unwrap().to_owned();
                            let known = seen.entry(text(job, "id")).or_default();
                            if known.last() != Some(&status) {
                                known.push(status);
                            }
                        }
                    }
                    tokio::time::sleep(EVERY).await;
                }
            }
        });
        Self { seen, looking }
    }

    /// Checks that every job went forwards only, and stayed at its end.
    fn assert_forwards(&self) {
        let order = |status: &String| STATUSES.iter().position(|known| known == status).unwrap();
        for (job, statuses) in &*self.seen.lock().unwrap() {
            let ends = statuses.iter().filter(|status| order(status) >= 7).count();
            assert!(
                statuses.is_sorted_by_key(order) && ends <= 1,
                "job {job} was {statuses:?}"
            );
        }
    }
}

impl Drop for Observer {
    fn drop(&mut self) {
        self.looking.abort();
    }
}

/// How all jobs of a site ended.
#[derive(Debug, Default)]
pub struct Ends {
    pub success: usize,
    /// Failures by their code.
    pub errors: BTreeMap<String, usize>,
}

/// Waits until every job has ended, stops the server, and checks everything that must be so.
pub async fn check(site: &Site, observer: &Observer) -> Ends {
    site.up().await;
    let mut ends = Ends::default();
    let (mut objects, mut logs) = (BTreeSet::new(), BTreeSet::new());
    let jobs = site.asked("GET", "/v3/jobs", None).await;
    let artifacts = site.artifacts().await;
    for job in jobs.as_array().unwrap() {
        site.end_of(&text(job, "id")).await;
    }
    // One of a deleted job, too: it stays, as in IMS.
    let images = site.asked("GET", "/v3/images", None).await;
    let images = images.as_array().unwrap();
    for image in images {
        objects.extend(image_objects(&artifacts, image).await);
    }
    for job in jobs.as_array().unwrap() {
        let id = text(job, "id");
        let progress = site.progress(&id).await;
        let job = site.asked("GET", &format!("/v3/jobs/{id}"), None).await;
        assert_eq!(job["status"], progress["state"], "{progress:#}");
        let made: Vec<_> = images
            .iter()
            .filter(|image| image["metadata"]["kiln.job"] == *id)
            .collect();
        if progress["state"] == "success" {
            let [image] = made[..] else {
                panic!("job {id} has made {made:#?}");
            };
            assert_eq!(image["id"], progress["image"]);
            assert_eq!(image["id"], job["resultant_image_id"]);
            ends.success += 1;
        } else {
            assert!(made.is_empty(), "job {id} has failed and made {made:#?}");
            assert!(job["resultant_image_id"].is_null(), "{job:#}");
            let error = &progress["error"];
            assert!(!text(error, "detail").is_empty(), "{progress:#}");
            println!("job {id} failed: {}: {}", text(error, "code"), text(error, "detail"));
            *ends.errors.entry(text(error, "code")).or_default() += 1;
        }
        let log = text(&progress, "log");
        logs.insert(log.strip_prefix("s3://ims/").unwrap().to_owned());
        let groups = cgroups_of(&id);
        assert!(groups.is_empty(), "job {id} has left {groups:?}");
    }
    observer.assert_forwards();
    let stored = async |bucket: &str, prefix: &str| {
        let listed = artifacts.list(bucket, prefix).await.unwrap();
        listed
            .into_iter()
            .map(|object| object.key)
            .collect::<BTreeSet<String>>()
    };
    // The remains of deleted jobs soon disappear.
    // A list of packages may lie beside a log, and nothing without one.
    let dir = |key: &str| key.rsplit_once('/').unwrap().0.to_owned();
    let dirs: BTreeSet<String> = logs.iter().map(|log| dir(log)).collect();
    let is_cleared = async || {
        let there = stored("ims", "logs/").await;
        let is_cleared = there.is_superset(&logs) && there.iter().all(|key| dirs.contains(&dir(key)));
        if is_cleared {
            Ok(())
        } else {
            Err(format!("{there:#?} are not {logs:#?}"))
        }
    };
    eventually_async(is_cleared).await;
    assert_eq!(
        stored("boot-images", "").await,
        objects,
        "no image has these, or they are missing"
    );

    let sandboxes = site.kiln.data().join("sandboxes");
    eventually(|| {
        let left: Vec<_> = fs_err::read_dir(&sandboxes).unwrap().collect();
        if left.is_empty() {
            Ok(())
        } else {
            Err(format!("left: {left:?}"))
        }
    });
    let ran = site.down(Signal::SIGTERM).unwrap();
    assert_eq!(ran.code, Some(0), "{}", ran.last());
    let mut left = site.kiln.leftovers();
    if site.was_killed() {
        // Interrupted uploads are removed only when they are old enough; tests/s3 waits for that.
        left.retain(|what| !what.contains("/s3/incoming/"));
    }
    assert!(left.is_empty(), "left behind: {left:#?}");
    assert_eq!(open_uploads(&site.s3_dir()), 0, "uploads are left open");
    if let Some(tokens) = tokens(site.kiln.data()) {
        assert_eq!(tokens, 0, "jobs have tokens left");
    }
    ends
}

/// Checks that everything an image names is in S3 as it says. The keys of all its objects.
async fn image_objects(artifacts: &kiln::artifacts::ArtifactStore, image: &Value) -> BTreeSet<String> {
    let id = text(image, "id");
    let stored = artifacts
        .read_small("boot-images", &format!("{id}/manifest.json"), 1 << 20)
        .await;
    let manifest = stored.unwrap().unwrap_or_else(|| panic!("image {id} has no manifest"));
    let provenance = format!("{id}/provenance.json");
    let statement = artifacts.read_small("boot-images", &provenance, 1 << 20).await;
    let statement = statement
        .unwrap()
        .unwrap_or_else(|| panic!("image {id} has no provenance"));
    let statement: Value = serde_json::from_slice(&statement).unwrap();
    let digest = hex::encode(Sha256::digest(&manifest));
    assert_eq!(
        statement["subject"][0]["digest"]["sha256"], digest,
        "the provenance is of another manifest"
    );
    let manifest: Value = serde_json::from_slice(&manifest).unwrap();
    let names = ["manifest.json", "build.log.zst", "provenance.json"];
    let mut keys = BTreeSet::from(names.map(|name| format!("{id}/{name}")));
    for artifact in manifest["artifacts"].as_array().unwrap() {
        let path = text(&artifact["link"], "path");
        let key = path.strip_prefix("s3://boot-images/").unwrap();
        let found = artifacts.digests("boot-images", key).await.unwrap();
        assert_eq!(artifact["sha256"], found.sha256, "{path}");
        assert_eq!(artifact["md5"], found.md5, "{path}");
        assert_eq!(artifact["size"], found.size, "{path}");
        keys.insert(key.to_owned());
    }
    keys
}

/// How many uploads the embedded S3 service in this directory waits for.
pub fn open_uploads(s3: &Path) -> i64 {
    let query = "select (select count(*) from upload where completed_us is null) + \
        (select count(*) from part where upload not in (select id from upload))";
    number(&s3.join("names.sqlite"), query)
}

/// How many jobs have a token, unless the records are elsewhere.
fn tokens(data: &Path) -> Option<i64> {
    let records = data.join("records.sqlite");
    let query = "select count(*) from jobs where json_extract(run, '$.token') is not null";
    records.exists().then(|| number(&records, query))
}

fn number(database: &Path, query: &str) -> i64 {
    let script = "import sqlite3, sys; print(sqlite3.connect(sys.argv[1]).execute(sys.argv[2]).fetchone()[0])";
    let asked = Command::new("python3")
        .args(["-c", script])
        .arg(database)
        .arg(query)
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&asked.stdout);
    let number = said.trim().parse();
    number.unwrap_or_else(|_| panic!("{query}: {}", String::from_utf8_lossy(&asked.stderr)))
}

fn text(value: &Value, name: &str) -> String {
    value[name]
        .as_str()
        .unwrap_or_else(|| panic!("no {name} in {value:#}"))
        .to_owned()
}
