//! `kiln jobs logs`, `status`, `cancel`, `retry` and `create --follow`.

use std::{
    process::{Command, Stdio},
    sync::{
        Mutex,
        atomic::{AtomicUsize, Ordering},
        mpsc,
    },
};

use kiln_records::JobStatus;
use serde_json::{Value, json};

use crate::logs::{
    fake_server::{Answer, Asked, FakeServer},
    job::LoggedJob,
    server::Server,
};
use crate::support::{self, Kiln, Ran, Started, eventually};

const ID: &str = "6f3c0f5e-9a43-4f0e-8f2b-0c5c0e2f0a11";
const KEY: &str = "a1b2c3d4-0000-4000-8000-000000000001";
const IMAGE: &str = "0a0a0a0a-0000-4000-8000-000000000002";

fn command(kiln: &Kiln, url: &str, line: &str) -> Command {
    let mut command = kiln.command(line.split_whitespace());
    command.env("KILN_SERVER", url);
    command
}

fn run(kiln: &Kiln, url: &str, line: &str) -> Ran {
    support::run(command(kiln, url, line))
}

/// The same, from among asynchronous things.
async fn run_beside(url: &str, line: &str) -> Ran {
    let (url, line) = (url.to_owned(), line.to_owned());
    let ran = tokio::task::spawn_blocking(move || run(&Kiln::bare(), &url, &line));
    ran.await.unwrap()
}

fn numbered(lines: std::ops::Range<u64>) -> String {
    lines.map(|n| format!("line {n}\n")).collect::<Vec<_>>().concat()
}

#[test(threads = 2)]
async fn a_log_is_shown() {
    let server = Server::shared();
    let mut job = LoggedJob::new(&server).await;
    // More than a page.
    job.says_up_to(2345).await;
    let id = job.id();
    assert_eq!(
        run_beside(server.base(), &format!("jobs logs {id}")).await.ok().stdout,
        numbered(0..2345)
    );
    let beginning = &id[..13];
    let rest = run_beside(server.base(), &format!("ims jobs logs {beginning} --after 2342")).await;
    assert_eq!(rest.ok().stdout, numbered(2343..2345));
    let dated = run_beside(server.base(), &format!("jobs logs {id} --after 2343 --timestamps")).await;
    assert_eq!(dated.ok().stdout, "2023-11-14T22:13:20+00:00 line 2344\n");
    // Output that does not go to a terminal is left unchanged.
    job.says(&["\u{1b}[31mred\u{1b}[0m"]).await;
    let raw = run_beside(server.base(), &format!("jobs logs {id} --after 2344")).await;
    assert_eq!(raw.ok().stdout, "\u{1b}[31mred\u{1b}[0m\n");
    let unknown = run_beside(server.base(), &format!("jobs logs {KEY}")).await;
    assert_eq!(unknown.code, Some(2), "{}", unknown.stderr);
    assert!(unknown.stderr.contains("kiln jobs list"), "{}", unknown.stderr);
}

#[test(threads = 2)]
async fn a_terminal_is_spared() {
    let server = Server::shared();
    let mut job = LoggedJob::new(&server).await;
    job.says(&["\u{1b}[31mred\u{1b}[0m \u{1b}]0;title\u{7}end\u{8}"]).await;
    let line = format!("{} jobs logs {}", support::kiln_program().display(), job.id());
    // `script` gives it a terminal.
    let mut script = Command::new("script");
    script.args(["--quiet", "--return", "--command", &line, "/dev/null"]);
    script.env("KILN_SERVER", server.base()).stdin(Stdio::null());
    let ran = tokio::task::spawn_blocking(move || support::run(script)).await.unwrap();
    assert_eq!(ran.ok().stdout, "red end\r\n");
}

#[test(threads = 2)]
async fn following_goes_on_when_the_server_was_away() {
    // A port that stays, so that the same address answers again.
    let port = std::net::TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap()
        .port();
    let listen = format!("127.0.0.1:{port}");
    let settings = [("KILN__SERVER__LISTEN", listen.as_str())];
    for crash in [false, true] {
        let server = Server::with(&settings);
        let mut job = LoggedJob::new(&server).await;
        job.says_up_to(1500).await;
        let kiln = Kiln::bare();
        let following = Started::new(command(&kiln, server.base(), &format!("jobs logs -f {}", job.id())));
        let wait_for = |mut started: Started, text: &'static str| {
            tokio::task::spawn_blocking(move || {
                started.wait_for(text);
                started
            })
        };
        let following = wait_for(following, "line 1499").await.unwrap();
        let again = listen.clone();
        let back = tokio::task::spawn_blocking(move || {
            let mut following = following;
            let meanwhile = || drop(following.wait_for("trying to connect again"));
            let server = server.away_while(crash, &[("KILN__SERVER__LISTEN", &again)], meanwhile);
            (server, following)
        });
        let (server, following) = back.await.unwrap();
        job.says_up_to(3000).await;
        let following = wait_for(following, "line 2999").await.unwrap();
        job.says_up_to(3001).await;
        job.becomes(JobStatus::Success).await;
        let ran = tokio::task::spawn_blocking(move || following.end()).await.unwrap().ok();
        assert_eq!(ran.stdout, numbered(0..3001));
        let said = &ran.stderr;
        assert!(
            said.contains("trying to connect again") && said.contains("connected again"),
            "{said}"
        );
        drop(server);
    }
}

#[test(threads = 2)]
async fn following_ends_with_its_reader() {
    let server = Server::shared();
    let job = LoggedJob::new(&server).await;
    let kiln = Kiln::bare();
    let mut child = command(&kiln, server.base(), &format!("jobs logs -f {}", job.id()))
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    // Another thread that starts a program at this moment may hold the pipe until after the lines were written. The job
    // then says nothing more, and the command still has to end.
    drop(child.stdout.take());
    let status = tokio::task::spawn_blocking(move || child.wait())
        .await
        .unwrap()
        .unwrap();
    assert_eq!(status.code(), Some(0));
}

/// A server that knows one job, whose stream says this.
fn with_stream(status: Value, streams: &'static [&'static str]) -> FakeServer {
    let asked_for = AtomicUsize::new(0);
    FakeServer::start(move |asked: &Asked| {
        let job = json!({"id": ID, "arch": "aarch64", "status": "success", "resultant_image_id": IMAGE});
        let path = asked.target.split('?').next().unwrap();
        match (asked.method.as_str(), path) {
            ("POST", "/v3/jobs") => Answer::json(201, &job),
            ("GET", path) if path == format!("/v3/jobs/{ID}") => Answer::json(200, &job),
            ("GET", path) if path.ends_with("/log/stream") => {
                let text = streams[asked_for.fetch_add(1, Ordering::Relaxed)];
                let mut answer = Answer::empty().header("content-type", "text/event-stream");
                (answer.status, answer.body) = (200, text.as_bytes().to_vec());
                answer
            }
            ("GET" | "POST", path) if path.starts_with(&format!("/kiln/v1/jobs/{ID}")) => Answer::json(200, &status),
            _ => Answer::problem(404, "Not Found", "nothing"),
        }
    })
}

const CREATE: &str = "jobs create --follow --job-type create --image-root-archive-name n --artifact-id \
                      6f3c0f5e-9a43-4f0e-8f2b-0c5c0e2f0a11 --public-key-id a1b2c3d4-0000-4000-8000-000000000001";

const BEGINNING: &str = r#"event: progress
data: {"state":"queued","attempt":1,"step":null,"steps":[],"reason":"2 of 2 CPUs are in use","position":1}

id: 0
event: log
data: {"seq":0,"time":"2026-11-21T10:00:00","step":null,"stream":"server","text":"has a place"}

event: progress
data: {"state":"running","attempt":1,"step":"fetch","steps":[{"step":"prepare","wall_ms":1200,"cpu_ms":300}]}

"#;

const ENDING: &str = r#"event: something new
data: {"of": "a newer server"}

id: 1
event: log
data: {"seq":1,"time":"2026-11-21T10:00:01","step":"fetch","stream":"stdout","text":"fetched"}

event: progress
data: {"state":"committing","attempt":1,"step":"upload","steps":[{"step":"prepare","wall_ms":1200,"cpu_ms":300},{"step":"fetch","wall_ms":100,"cpu_ms":10}],"progress":{"done":5,"total":10}}

event: progress
data: {"state":"success","attempt":1,"step":"upload","steps":[]}

event: end
data: {"state":"success"}

"#;

/// Replaces everything that depends on the clock.
fn settled(text: &str) -> String {
    let lines = text.lines().map(|line| match line.split_once(" after ") {
        Some((before, _)) => format!("{before} after TIME\n"),
        None => format!("{line}\n"),
    });
    lines.collect()
}

#[test]
fn a_new_job_is_followed_to_its_image() {
    let server = with_stream(
        json!({"id": ID, "state": "success", "image": IMAGE, "error": null}),
        &[BEGINNING, ENDING],
    );
    let ran = run(&Kiln::bare(), &server.url(), CREATE).ok();
    assert_eq!(
        settled(&ran.stderr).replace(&server.url(), "SERVER"),
        format!(
            "job        {ID}\n2 of 2 CPUs are in use\nprepare  done in 1.2 s (CPU 0.3 s)\n\
             SERVER closed the connection; trying to connect again\nconnected again\n\
             fetch    done in 0.1 s (CPU 0.0 s)\nsuccess after TIME\nimage      {IMAGE}\n"
        )
    );
    assert!(
        ran.stdout.contains(&format!("resultant_image_id = \"{IMAGE}\"")),
        "{}",
        ran.stdout
    );
    let again = server.take();
    let streams: Vec<_> = again.iter().filter(|asked| asked.target.ends_with("stream")).collect();
    assert_eq!(streams[0].header("last-event-id"), None);
    assert_eq!(streams[1].header("last-event-id"), Some("0"));
}

#[test]
fn a_job_that_fails_says_why() {
    let error =
        json!({"code": "package_not_found", "detail": "no package `vmm`", "hint": "check its name", "step": "build"});
    let server = with_stream(
        json!({"id": ID, "state": "error", "image": null, "error": error}),
        &[ENDING],
    );
    let ran = run(&Kiln::bare(), &server.url(), &format!("--quiet {CREATE}"));
    assert_eq!(ran.code, Some(1));
    assert_eq!(ran.stderr, "error: no package `vmm`\n\nhint: check its name\n");
    assert_eq!(ran.stdout, "");
}

#[test]
fn who_stops_following_leaves_the_job() {
    // Nothing is ever said.
    let (ended, has_ended) = mpsc::channel::<()>();
    let has_ended = Mutex::new(has_ended);
    let server = FakeServer::start(move |asked: &Asked| {
        if asked.target.ends_with("stream") {
            let _ = has_ended.lock().unwrap().recv();
        }
        Answer::json(200, &json!({"id": ID, "arch": "aarch64"}))
    });
    // Before the server, which waits for its answers, also when this test fails.
    let ended = ended;
    let kiln = Kiln::bare();
    let mut following = Started::new(command(&kiln, &server.url(), CREATE));
    following.wait_for("job  ");
    eventually(|| server.take().iter().any(|asked| asked.target.ends_with("stream")));
    following.signal(nix::sys::signal::Signal::SIGINT);
    let ran = following.end();
    drop(ended);
    assert_eq!(ran.code, Some(130));
    assert!(ran.stderr.contains(&format!("kiln jobs cancel {ID}")), "{}", ran.stderr);
}

#[test]
fn status_cancel_and_retry_ask_for_what_they_say() {
    let view = json!({"id": ID, "state": "queued", "reason": "2 of 2 CPUs are in use", "position": 1, "image": null});
    let server = with_stream(view, &[]);
    let kiln = Kiln::bare();
    for (line, asked) in [
        ("status", format!("GET /kiln/v1/jobs/{ID}")),
        ("cancel", format!("POST /kiln/v1/jobs/{ID}/cancel")),
        ("retry", format!("POST /kiln/v1/jobs/{ID}/retry")),
    ] {
        let ran = run(&kiln, &server.url(), &format!("jobs {line} {ID}")).ok();
        assert_eq!(server.lines(), [asked]);
        assert_eq!(
            ran.stdout,
            format!("id = \"{ID}\"\nposition = 1\nreason = \"2 of 2 CPUs are in use\"\nstate = \"queued\"\n")
        );
    }
    run(&kiln, &server.url(), &format!("jobs retry {ID} --from package")).ok();
    assert_eq!(
        server.lines(),
        [format!("POST /kiln/v1/jobs/{ID}/retry {{\"from\":\"package\"}}")]
    );
    let slip = run(&kiln, &server.url(), &format!("jobs retry {ID} --from packing"));
    assert_eq!(slip.code, Some(2));
    assert!(slip.stderr.contains("prepare, fetch"), "{}", slip.stderr);
    let table = run(&kiln, &server.url(), &format!("jobs status {ID} --format table")).ok();
    assert!(
        table.stdout.contains("reason    2 of 2 CPUs are in use"),
        "{}",
        table.stdout
    );
}
