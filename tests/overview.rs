//! Tests the overview of a server's jobs and places: over the API, as `kiln top` shows it, and as it is counted.

use nix::sys::statvfs::statvfs;
use serde_json::{Value, json};

use crate::support::{Kiln, eventually, serve::Server};

#[test]
async fn an_idle_server_says_so() {
    let server = Server::start(&[]);
    let overview = server.ask("", "GET", "/kiln/v1/overview", None).await.json();
    assert_eq!((&overview["queued"], &overview["running"]), (&json!(0), &json!(0)));
    assert_eq!((&overview["queue"], &overview["jobs"]), (&json!([]), &json!([])));
    assert_eq!(overview["places"][0]["name"], "local");
    let ran = server.kiln.run(["top", "--once", "--server", &server.url]).ok();
    assert!(ran.stdout.starts_with("0 running, 0 waiting\n"), "{}", ran.stdout);
    server.stop();
}

#[test]
fn a_server_that_only_keeps_records_has_nothing_to_show() {
    let server = Server::start(&[("KILN__JOBS__RUN", "false")]);
    // Without a terminal it is shown once.
    let ran = server.kiln.run(["top", "--server", &server.url]).ok();
    assert_eq!(ran.stdout, "0 running, 0 waiting\n");
    let url = server.url.clone();
    let kiln = Kiln::bare();
    server.stop();
    assert!(
        kiln.run(["top", "--once", "--server", &url])
            .failed()
            .contains("connect")
    );
}

#[test]
async fn what_a_job_waits_for_is_shown_and_counted() {
    let kiln = Kiln::new();
    // As much is to stay free as is free and half of the rest: so no job fits, and one could later.
    let space = statvfs(kiln.data()).unwrap();
    let bytes = |blocks: u64| blocks * space.fragment_size();
    let (free, all) = (bytes(space.blocks_available()), bytes(space.blocks()));
    let floor = format!("{}B", free + (all - free) / 2);
    let server = Server::start_in(kiln, &[("KILN__CAPACITY__DISK_FLOOR", &floor)]);
    let run = |args: &[&str]| {
        let options = ["--server", &server.url, "--format", "json"];
        let ran = server.kiln.run([args, &options].concat()).ok();
        serde_json::from_str::<Value>(&ran.stdout).unwrap()
    };
    let dir = server.kiln.data().parent().unwrap().join("recipe");
    fs_err::create_dir(&dir).unwrap();
    fs_err::write(dir.join("config.xml"), "<image schemaversion=\"8.0\" name=\"x\"/>").unwrap();
    let from = dir.to_str().unwrap();
    let create = ["recipes", "create", "--name", "x", "--linux-distribution", "debian"];
    let recipe = run(&[&create[..], &["--require-dkms", "false", "--from", from]].concat());
    let key = json!({ "name": "k", "public_key": "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIBh9 k" });
    let key = server.ask("", "POST", "/v3/public-keys", Some(key)).await.json();
    let job = json!({
        "job_type": "create",
        "artifact_id": recipe["id"],
        "public_key_id": key["id"],
        "image_root_archive_name": "SECRET",
    });
    let job = server.ask("", "POST", "/v3/jobs", Some(job)).await;
    assert_eq!(job.status, 201, "{}", job.text);
    let id = job.json()["id"].as_str().unwrap().to_owned();

    let overview = eventually(|| {
        let overview = run(&["top"]);
        if overview["queue"][0]["waits_for"] == "disk" {
            Ok(overview)
        } else {
            Err(overview)
        }
    });
    let waiting = &overview["queue"][0];
    assert_eq!(
        (&waiting["waits_for"], &waiting["id"]),
        (&json!("disk"), &json!(id)),
        "{overview}"
    );
    assert!(waiting["reason"].as_str().unwrap().contains("of disk"), "{overview}");
    assert_eq!(
        (&overview["queued"], &overview["places"][0]["jobs"]),
        (&json!(1), &json!(0))
    );

    let shown = server.kiln.run(["top", "--once", "--server", &server.url]).ok().stdout;
    assert!(
        shown.starts_with("0 running, 1 waiting\n") && shown.contains(&id),
        "{shown}"
    );
    assert!(shown.contains("of disk; ") && shown.contains("SECRET"), "{shown}");

    let metrics = server.ask("", "GET", "/metrics", None).await.text;
    assert!(metrics.contains("kiln_queue_jobs{reason=\"disk\"} 1\n"), "{metrics}");
    assert!(
        metrics.contains("kiln_jobs_asked_total{arch=\"x86_64\",type=\"create\"} 1\n"),
        "{metrics}"
    );
    assert!(!metrics.contains("SECRET") && !metrics.contains(&id));
    server
        .ask("", "POST", &format!("/kiln/v1/jobs/{id}/cancel"), None)
        .await;
    let metrics = server.ask("", "GET", "/metrics", None).await.text;
    assert!(
        metrics.contains("kiln_job_failures_total{code=\"cancelled\"} 1\n"),
        "{metrics}"
    );
    assert!(
        metrics.contains("outcome=\"cancelled\",type=\"create\"} 1\n"),
        "{metrics}"
    );
}
