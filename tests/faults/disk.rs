//! Disks and file systems that are full.

use std::{
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use nix::sys::signal::Signal;
use serde_json::{Value, json};

use crate::faults::{
    invariants::{Observer, check},
    site::{Site, rank},
};
use crate::support::{self, Kiln, Recipe, kiln_program};

#[test(threads = 4)]
async fn a_build_that_fills_its_disk_says_so_and_harms_no_other() {
    needs!(support::no_namespaces());
    let files = ("KILN__CAPACITY__FILES_PER_JOB", "20000");
    let site = Arc::new(Site::start(&[("KILN__CAPACITY__JOBS", "2"), files]).await);
    let observer = Observer::of(&site);
    let scripts = [
        ("bytes", "head -c 3000000000 /dev/zero > /var/fill"),
        (
            "inodes",
            "i=0; while [ $i -lt 40000 ]; do : > /var/$i || exit 1; i=$((i+1)); done",
        ),
        // A script that hides its own failure.
        ("hidden", "head -c 3000000000 /dev/zero > /var/fill; true"),
    ];
    for (what, script) in scripts {
        let recipe = site.recipe(what, Recipe::with_script(script));
        let mut body = site.job(&recipe);
        body["build_env_size"] = json!(1);
        let job = site.made("/v3/jobs", body).await;
        let ended = site.end_of(&job).await;
        println!("{what}: {}", ended["error"]);
        assert_eq!(ended["error"]["code"], "disk_full", "{what}: {ended:#}");
        assert_eq!(ended["error"]["step"], "build", "{what}: {ended:#}");
        let detail = ended["error"]["detail"].as_str().unwrap();
        assert!(
            detail.contains(|letter: char| letter.is_ascii_digit()),
            "{what}: {detail}"
        );
    }
    let next = site.submit(&site.small_recipe()).await;
    let ended = site.end_of(&next).await;
    assert_eq!(ended["state"], "success", "{ended:#}");
    check(&site, &observer).await;
}

/// Removes a job and its image for good, and returns the job's id. Their objects lie in `bodies`.
async fn remove_an_image(site: &Site, bodies: &Path) -> Value {
    let images = site.asked("GET", "/v3/images", None).await;
    let image = images[0]["id"].as_str().expect("an image of an earlier job");
    let jobs = site.asked("GET", "/v3/jobs", None).await;
    let made = |job: &&Value| job["resultant_image_id"] == image;
    let job = jobs.as_array().unwrap().iter().find(made).unwrap()["id"].clone();
    let files = || fs_err::read_dir(bodies).unwrap().count();
    let before = files();
    for path in [
        format!("/v3/jobs/{}", job.as_str().unwrap()),
        format!("/v3/images/{image}"),
        format!("/v3/deleted/images/{image}"),
    ] {
        let (status, answer) = site.ask("DELETE", &path, None).await.unwrap();
        assert_eq!(status, 204, "DELETE {path}: {answer}");
    }
    assert!(files() < before, "nothing was freed");
    job
}

/// How long the disk stays full: longer than the running job still takes to need it.
const A_WHILE: Duration = Duration::from_secs(12);

/// Runs kiln with its data directory on a small file system, which is seen in its own mount namespace only.
const ON_SMALL_DISK: &str = r#"#!/bin/sh
if [ "$1" != serve ]; then exec "@KILN" "$@"; fi
exec unshare --mount sh -c '
    toolboxes=$(readlink "$KILN_DATA_DIR/toolboxes")
    mount -t tmpfs -o size=200m,nr_inodes=5000 tmpfs "$KILN_DATA_DIR" &&
    ln -s "$toolboxes" "$KILN_DATA_DIR/toolboxes" &&
    exec "@KILN" "$@"' sh "$@"
"#;

#[test(threads = 4)]
async fn a_full_data_directory_loses_no_record() {
    needs!(support::no_namespaces(), support::not_root());
    let dir = tempfile::tempdir().unwrap();
    let program = dir.path().join("kiln");
    let script = ON_SMALL_DISK.replace("@KILN", kiln_program().to_str().unwrap());
    fs_err::write(&program, script).unwrap();
    fs_err::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).unwrap();
    let kiln = Kiln::new().with_program(&program);
    let floors = [
        ("KILN__CAPACITY__DISK_FLOOR", "8MiB"),
        ("KILN__CAPACITY__INODE_FLOOR", "100"),
    ];
    let more = [
        ("KILN__JOBS__DEFAULT_IMAGE_SIZE_GIB", "1"),
        ("KILN__CAPACITY__JOBS", "1"),
    ];
    let site = Site::start_in(kiln, &[floors, more].concat()).await;
    let seen = |path: &str| {
        let pid = site.server_pid().unwrap();
        PathBuf::from(format!("/proc/{pid}/root{}/{path}", site.kiln.data().display()))
    };
    let slow = site.recipe("slow", Recipe::with_script("sleep 5"));
    let before = site.end_of(&site.submit(&slow).await).await;
    assert_eq!(before["state"], "success", "{before:#}");

    let fill_bytes = || {
        let mut file = fs_err::File::create(seen("fill")).unwrap();
        let error = std::io::copy(&mut std::io::repeat(0), &mut file).unwrap_err();
        assert_eq!(error.kind(), std::io::ErrorKind::StorageFull, "{error}");
    };
    let fill_inodes = || {
        fs_err::create_dir(seen("fill")).unwrap();
        let error = (0..).find_map(|number| fs_err::File::create(seen(&format!("fill/{number}"))).err());
        assert_eq!(error.unwrap().kind(), std::io::ErrorKind::StorageFull);
    };
    let fills: [(&str, &dyn Fn()); 2] = [("bytes", &fill_bytes), ("inodes", &fill_inodes)];
    for (what, fill) in fills {
        let running = site.submit(&slow).await;
        site.wait_until(&running, "building", |job| rank(job) >= 7).await;
        let records = async || {
            let jobs = site.asked("GET", "/v3/jobs", None).await;
            let ids = jobs.as_array().unwrap().iter().map(|job| job["id"].clone());
            ids.collect::<Vec<Value>>()
        };
        let known = records().await;
        tokio::task::block_in_place(fill);
        let answer = site.ask("POST", "/v3/jobs", Some(&site.job(&slow))).await;
        // The database's files are there already: without inodes it can go on, but no job can begin.
        let waiting = match (what, answer) {
            ("bytes", Some((503 | 507, problem))) => {
                println!("{what}: {problem}");
                None
            }
            ("inodes", Some((201, job))) => Some(job["id"].as_str().unwrap().to_owned()),
            (_, answer) => panic!("{what}: {answer:?}"),
        };
        let removed = remove_an_image(&site, &seen("s3/bodies")).await;
        let mut ended = None;
        if let Some(job) = &waiting {
            ended = Some(site.end_of(&running).await);
            let waits = |job: &Value| job["reason"].as_str().is_some_and(|why| why.contains("inodes"));
            site.wait_until(job, "waiting for inodes", waits).await;
        } else {
            tokio::time::sleep(A_WHILE).await;
        }
        let full = records().await;
        assert!(
            known.iter().all(|id| full.contains(id) || *id == removed),
            "{what}: records are lost"
        );
        match what {
            "bytes" => fs_err::remove_file(seen("fill")).unwrap(),
            _ => fs_err::remove_dir_all(seen("fill")).unwrap(),
        }
        let ended = match ended {
            Some(ended) => ended,
            None => site.end_of(&running).await,
        };
        println!("{what}: {}", ended["error"]);
        let code = ended["error"]["code"].as_str();
        // If nothing could be recorded, the final cause is the tool that failed first.
        let causes = if what == "bytes" {
            &["disk_full", "build_failed"][..]
        } else {
            &["disk_full"]
        };
        assert!(code.is_some_and(|code| causes.contains(&code)), "{what}: {ended:#}");
        if let Some(job) = waiting {
            let ended = site.end_of(&job).await;
            assert_eq!(ended["state"], "success", "{what}: {ended:#}");
        }
        let next = site.end_of(&site.submit(&slow).await).await;
        assert_eq!(next["state"], "success", "{what}: {next:#}");
    }
    let ran = site.down(Signal::SIGTERM).unwrap();
    assert_eq!(ran.code, Some(0), "{}", ran.last());
    site.kiln.assert_clean();
}
