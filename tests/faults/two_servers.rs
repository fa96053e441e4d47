//! Servers that share their records and their S3.

use std::{
    fmt::Write as _,
    path::Path,
    sync::Arc,
    time::{Duration, Instant},
};

use kiln::{
    artifacts::{ArtifactStore, S3Settings},
    sandbox::{namespace::NamespaceDriver, toolboxes::Toolboxes},
};
use kiln_records::{Moment, arch::Arch};
use kiln_s3::EmbeddedS3;
use nix::sys::signal::{Signal, kill};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    sync::watch,
};

use crate::faults::{
    invariants::{Observer, check},
    postgres,
    site::{Site, rank},
};
use crate::support::{self, Kiln, Recipe, cgroups_of, eventually, eventually_async, wait::try_within};

const JOBS: usize = 10;

/// The server's log message after making an image.
const MADE: &str = "the job has made its image";

/// How long the scripts of jobs take.
const SCRIPT: Duration = Duration::from_secs(20);

/// A database and an S3 service that several servers use.
struct Shared {
    dir: TempDir,
    embedded: EmbeddedS3,
    settings: S3Settings,
    database: String,
}

impl Shared {
    async fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let embedded = EmbeddedS3::start(dir.path(), "127.0.0.1:0".parse().unwrap())
            .await
            .unwrap();
        Self {
            settings: S3Settings::from(&embedded),
            embedded,
            dir,
            database: tokio::task::block_in_place(|| postgres::Server::shared().new_database()),
        }
    }

    /// A server for so many jobs. Its recipes take their packages from a repository at `port`, or from its own.
    async fn server(&self, jobs: usize, port: Option<u16>, more: &[(&str, &str)]) -> Site {
        self.server_in(Kiln::new(), jobs, port, more).await
    }

    async fn server_in(&self, kiln: Kiln, jobs: usize, port: Option<u16>, more: &[(&str, &str)]) -> Site {
        let jobs = jobs.to_string();
        let mut variables = vec![
            ("KILN__STORE__URL", self.database.as_str()),
            ("KILN__S3__ENDPOINT", self.settings.endpoint.as_deref().unwrap()),
            ("KILN__S3__ACCESS_KEY", self.settings.access_key.as_deref().unwrap()),
            (
                "KILN__S3__SECRET_KEY",
                self.settings.secret_key.as_ref().unwrap().expose(),
            ),
            ("KILN__CAPACITY__JOBS", &jobs),
            ("KILN__WATCH__RETRY_PAUSE", "0s"),
        ];
        let ports = port.map(|port| format!("[{port}]"));
        variables.extend(
            ports
                .iter()
                .map(|ports| ("KILN__ISOLATION__LOOPBACK_PORTS", ports.as_str())),
        );
        variables.extend(more);
        let site = Site::start_in(kiln, &variables).await;
        site.with_s3(self.dir.path(), self.settings.clone())
    }
}

/// A way to a database that can be closed: then nothing gets through, and no connection breaks.
struct Way {
    url: String,
    is_open: watch::Sender<bool>,
}

impl Way {
    async fn to(database: &str) -> Self {
        let (user, place) = database.strip_prefix("postgres://").unwrap().split_once('@').unwrap();
        let (address, name) = place.split_once('/').unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("postgres://{user}@{}/{name}", listener.local_addr().unwrap());
        let (is_open, open) = watch::channel(true);
        let address = address.to_owned();
        tokio::spawn(async move {
            loop {
                let (near, _) = listener.accept().await.unwrap();
                let far = TcpStream::connect(&address).await.unwrap();
                let ((near_in, near_out), (far_in, far_out)) = (near.into_split(), far.into_split());
                tokio::spawn(pass_on(near_in, far_out, open.clone()));
                tokio::spawn(pass_on(far_in, near_out, open.clone()));
            }
        });
        Self { url, is_open }
    }
}

async fn pass_on(
    mut from: impl AsyncReadExt + Unpin,
    mut to: impl AsyncWriteExt + Unpin,
    mut open: watch::Receiver<bool>,
) {
    let mut buffer = vec![0; 1 << 16];
    while let Ok(count @ 1..) = from.read(&mut buffer).await {
        if open.wait_for(|is_open| *is_open).await.is_err() || to.write_all(&buffer[..count]).await.is_err() {
            return;
        }
    }
    let _ = to.shutdown().await;
}

/// What a server is started with whose clock is ten minutes late. S3 would refuse the requests of one that is an hour late.
fn late() -> [(&'static str, String); 4] {
    let library = format!("/usr/lib/{}/faketime/libfaketimeMT.so.1", Arch::host().multiarch());
    [
        ("LD_PRELOAD", library),
        ("FAKETIME", "-10m".to_owned()),
        ("FAKETIME_DONT_FAKE_MONOTONIC", "1".to_owned()),
        ("NO_FAKE_STAT", "1".to_owned()),
    ]
}

fn no_faketime() -> Option<String> {
    let [(_, library), ..] = late();
    (!Path::new(&library).exists()).then(|| format!("{library} is missing; install faketime"))
}

#[test(threads = 4)]
async fn a_server_whose_clock_is_late_notes_the_time_of_the_database() {
    needs!(no_faketime());
    let shared = Shared::new().await;
    let late = late();
    let mut variables: Vec<(&str, &str)> = late.iter().map(|(name, value)| (*name, value.as_str())).collect();
    variables.push(("KILN__JOBS__RUN", "false"));
    let server = shared.server(1, None, &variables).await;
    let recipe = server
        .asked(
            "POST",
            "/v3/recipes",
            Some(json!({"name": "when", "recipe_type": "kiwi-ng", "linux_distribution": "debian"})),
        )
        .await;
    let created: Moment = recipe["created"].as_str().unwrap().parse().unwrap();
    let off = Moment::now().micros().abs_diff(created.micros());
    assert!(off < 60_000_000, "{created}");
    let said = server.down(Signal::SIGTERM).unwrap().stderr;
    assert!(said.contains("the database's clock counts"), "{said}");
    shared.embedded.shutdown().await;
}

/// Fails if two of a job's sandboxes run. One that is being ended may take a moment.
fn assert_runs_once(job: &str) {
    let is_once = || running(job) <= 1;
    // Two that run at all times do so for as long as their scripts take.
    let is_once = tokio::task::block_in_place(|| try_within(SCRIPT / 2, is_once));
    assert!(is_once.is_ok(), "job {job} runs {} times", running(job));
}

/// The number of a job's sandboxes in which something runs now.
fn running(job: &str) -> usize {
    let groups = cgroups_of(job).into_iter().filter(|group| {
        let read = |file: &str| fs_err::read_to_string(group.join(file)).unwrap_or_default();
        let is_one = group.join("freezer.state").exists() || group.join("cgroup.freeze").exists();
        let is_still = read("freezer.state").trim() == "FROZEN" || read("cgroup.freeze").trim() == "1";
        is_one && !is_still && read("cgroup.procs").lines().any(is_alive)
    });
    groups.count()
}

/// Whether a process may run a program again. One that was killed may not, and is on its way out for as long as the host is
/// busy with its file systems (`PF_EXITING` in Linux's `sched.h`; proc_pid_stat(5), proc_pid_status(5)).
fn is_alive(process: &str) -> bool {
    const EXITING: u64 = 4;
    const KILLED: u64 = 1 << (Signal::SIGKILL as u32 - 1);
    let read = |file: &str| fs_err::read_to_string(Path::new("/proc").join(process).join(file)).unwrap_or_default();
    let (stat, status) = (read("stat"), read("status"));
    let flags = stat
        .rsplit_once(") ")
        .and_then(|(_, fields)| fields.split(' ').nth(6)?.parse::<u64>().ok());
    let mut pending = status
        .lines()
        .filter(|line| line.starts_with("SigPnd:") || line.starts_with("ShdPnd:"))
        .filter_map(|line| u64::from_str_radix(line.split_whitespace().last()?, 16).ok());
    flags.is_some_and(|flags| flags & EXITING == 0) && !pending.any(|signals| signals & KILLED != 0)
}

/// Why it cannot be seen here whether a sandbox stands still.
fn no_freezer() -> Option<String> {
    let is_there = ["freezer", "cgroup.controllers"].map(|name| Path::new("/sys/fs/cgroup").join(name).exists());
    let lack = (!is_there.contains(&true)).then(|| "no control groups make processes stand still here".to_owned());
    support::not_root().or(lack)
}

#[test(threads = 4)]
async fn whatever_becomes_of_servers_their_jobs_run_once_at_a_time_and_end_once() {
    needs!(support::no_namespaces(), no_freezer(), no_faketime());
    let shared = Shared::new().await;
    let way = Way::to(&shared.database).await;
    let killed = shared.server(1, None, &[]).await;
    let port = Some(killed.repository_port());
    let late = late();
    let late: Vec<(&str, &str)> = late.iter().map(|(name, value)| (*name, value.as_str())).collect();
    let stopped = shared.server(1, port, &late).await;
    let cut_off = shared.server(1, port, &[("KILN__STORE__URL", &way.url)]).await;
    let recipe = killed.recipe("slow", Recipe::with_script(&format!("sleep {}", SCRIPT.as_secs())));
    let mut jobs = Vec::new();
    for _ in 0..3 {
        jobs.push(killed.submit(&recipe).await);
    }
    for job in &jobs {
        killed.wait_until(job, "building", |job| rank(job) >= 7).await;
    }
    let survivor = Arc::new(shared.server(3, port, &[]).await);
    let observer = Observer::of(&survivor);
    // What runs can be seen.
    assert_eq!(jobs.iter().map(|job| running(job)).collect::<Vec<_>>(), [1, 1, 1]);

    killed.down(Signal::SIGKILL);
    kill(stopped.server_pid().unwrap(), Signal::SIGSTOP).unwrap();
    way.is_open.send_replace(false);
    let begun = Instant::now();
    eventually_async(async || {
        let mut said = String::new();
        let mut again = 0;
        for job in &jobs {
            assert_runs_once(job);
            let progress = survivor.progress(job).await;
            write!(said, "{} {} ", progress["attempt"], progress["state"]).unwrap();
            again += usize::from(progress["attempt"] == 2 && rank(&progress) >= 2);
        }
        if again == jobs.len() { Ok(()) } else { Err(said) }
    })
    .await;
    println!("all jobs run again after {:?}", begun.elapsed());
    // Nor does anything that stood still go on a moment later.
    let later = Instant::now() + Duration::from_secs(3);
    while Instant::now() < later {
        for job in &jobs {
            assert_runs_once(job);
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }

    // All are back while the jobs run elsewhere.
    kill(stopped.server_pid().unwrap(), Signal::SIGCONT).unwrap();
    way.is_open.send_replace(true);
    killed.up().await;
    let ended = eventually_async(async || {
        let mut all = Vec::new();
        for job in &jobs {
            assert_runs_once(job);
            all.push(survivor.progress(job).await);
        }
        let have_ended = all.iter().all(|progress| rank(progress) == 11);
        if have_ended { Ok(all) } else { Err(format!("{all:?}")) }
    });
    let ended = ended.await;
    let attempts: Vec<(&Value, &Value)> = ended.iter().map(|job| (&job["state"], &job["attempt"])).collect();
    assert!(
        attempts
            .iter()
            .all(|(state, attempt)| *state == "success" && *attempt == 2),
        "{attempts:?}"
    );
    // What was left on the hosts of the other servers is cleared away.
    tokio::task::block_in_place(|| {
        eventually(|| {
            let left: Vec<_> = jobs.iter().flat_map(|job| cgroups_of(job)).collect();
            if left.is_empty() {
                Ok(())
            } else {
                Err(format!("{left:?}"))
            }
        });
    });
    for site in [&killed, &stopped, &cut_off] {
        site.down(Signal::SIGTERM).unwrap();
        site.kiln.assert_clean();
    }
    let ends = check(&survivor, &observer).await;
    assert_eq!(ends.success, jobs.len(), "{ends:?}");
    shared.embedded.shutdown().await;
}

#[test(threads = 4)]
async fn a_job_is_cancelled_through_another_server() {
    needs!(support::no_namespaces());
    let shared = Shared::new().await;
    let owner = shared.server(1, None, &[]).await;
    let recipe = owner.recipe("slow", Recipe::with_script("sleep 3600"));
    let job = owner.submit(&recipe).await;
    owner.wait_until(&job, "building", |job| rank(job) >= 7).await;
    // It cannot run a job itself.
    let other = shared.server(1, None, &[("KILN__JOBS__RUN", "false")]).await;
    let asked = Instant::now();
    other.asked("DELETE", &format!("/v3/jobs/{job}"), None).await;
    eventually_async(async || cgroups_of(&job).is_empty()).await;
    println!("the sandbox was gone after {:?}", asked.elapsed());
    let sandboxes = owner.kiln.data().join("sandboxes");
    let is_clear = || fs_err::read_dir(&sandboxes).unwrap().next().is_none();
    tokio::task::block_in_place(|| eventually(is_clear));
    owner.down(Signal::SIGTERM).unwrap();
    owner.kiln.assert_clean();
    shared.embedded.shutdown().await;
}

#[test(threads = 4)]
async fn two_servers_share_the_jobs() {
    needs!(support::no_namespaces());
    let shared = Shared::new().await;
    let first = Arc::new(shared.server(1, None, &[]).await);
    let second = shared.server(1, Some(first.repository_port()), &[]).await;
    let observer = Observer::of(&first);
    let recipe = first.small_recipe();
    let mut jobs = Vec::new();
    for _ in 0..JOBS {
        jobs.push(first.submit(&recipe).await);
    }
    for job in &jobs {
        let ended = first.end_of(job).await;
        assert_eq!(ended["state"], "success", "{ended:#}");
        assert_eq!(ended["attempt"], 1, "{ended:#}");
    }
    let other = second.down(Signal::SIGTERM).unwrap();
    second.kiln.assert_clean();
    let by_second = other.stderr.matches(MADE).count();
    let ends = check(&first, &observer).await;
    assert_eq!(ends.success, JOBS, "{ends:?}");
    println!("the second server has made {by_second} of {JOBS} images");
    assert!((1..JOBS).contains(&by_second), "one server did everything: {by_second}");
    shared.embedded.shutdown().await;
}

#[test(threads = 4)]
async fn a_server_without_a_toolbox_takes_that_of_another_one() {
    // What a toolbox consists of belongs to ids that only root removes.
    needs!(support::no_namespaces(), support::not_root());
    let shared = Shared::new().await;
    let artifacts = ArtifactStore::connect(&shared.settings).await.unwrap();
    // As a server does that has built it.
    let builder = Kiln::new();
    let driver = NamespaceDriver::new(&builder.data().join("sandboxes"), &support::kiln_program()).unwrap();
    let toolboxes = Toolboxes::new(&builder.data().join("toolboxes"), driver).unwrap();
    let toolbox = toolboxes.find(Arch::host()).unwrap();
    let archive = toolboxes.pack(&toolbox).await.unwrap();
    artifacts.put_toolbox(&toolbox.name, archive.path()).await.unwrap();
    drop(archive);

    let server = shared.server_in(Kiln::bare(), 1, None, &[]).await;
    let ended = server.end_of(&server.submit(&server.small_recipe()).await).await;
    assert_eq!(ended["state"], "success", "{ended:#}");
    let own = server.kiln.data().join("toolboxes").join(&toolbox.name);
    let facts = |dir: &Path| fs_err::read_to_string(dir.join("facts.json")).unwrap();
    assert_eq!(facts(&own), facts(toolbox.squashfs.parent().unwrap()));
    let said = server.down(Signal::SIGTERM).unwrap().stderr;
    assert!(said.contains("the toolbox was taken from another server"), "{said}");

    // An archive that is not what it claims to be is not used.
    let forged = builder.data().join("forged.tar");
    fs_err::write(&forged, "no archive").unwrap();
    artifacts.put_toolbox(&toolbox.name, &forged).await.unwrap();
    let other = Kiln::bare();
    let driver = NamespaceDriver::new(&other.data().join("sandboxes"), &support::kiln_program()).unwrap();
    let toolboxes = Toolboxes::new(&other.data().join("toolboxes"), driver).unwrap();
    let digests = artifacts.toolbox(&toolbox.name).await.unwrap().unwrap();
    let bring = async |file: &Path| {
        artifacts.get_toolbox(&toolbox.name, &digests, file).await?;
        Ok(true)
    };
    let failure = toolboxes.unpack(Arch::host(), bring).await.unwrap_err();
    assert_eq!(failure.code.name(), "toolbox_build", "{failure}");
    assert!(toolboxes.find(Arch::host()).is_none());
    shared.embedded.shutdown().await;
}
