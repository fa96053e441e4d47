//! Webhooks, from the end of a job to a receiver that checks the signature with the library of the standard.

use std::{
    collections::VecDeque,
    process::{Command, Stdio},
    sync::{Arc, Mutex},
};

use axum::{
    Router,
    body::Bytes,
    extract::State,
    http::{HeaderMap, StatusCode},
    routing::post,
};
use kiln::orchestrate::recipe::pack;
use serde_json::{Value, json};
use tokio::net::TcpListener;

use crate::support::{
    Kiln, eventually_async, python_tools,
    serve::{Server, client, send},
    source_dir,
};

const SECRET: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";

/// A request that a receiver got.
#[derive(Clone)]
struct Got {
    headers: HeaderMap,
    body: String,
}

impl Got {
    fn header(&self, name: &str) -> &str {
        self.headers[name].to_str().unwrap()
    }

    fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap()
    }
}

#[derive(Default)]
struct Inbox {
    got: Vec<Got>,
    /// What it answers next; 204 when nothing is left. With 0, it does not answer.
    answers: VecDeque<u16>,
}

/// A receiver on a loopback port.
#[derive(Clone)]
struct Receiver {
    port: u16,
    inbox: Arc<Mutex<Inbox>>,
}

impl Receiver {
    async fn start(answers: &[u16]) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let inbox = Arc::new(Mutex::new(Inbox {
            got: Vec::new(),
            answers: answers.iter().copied().collect(),
        }));
        let port = listener.local_addr().unwrap().port();
        let app = Router::new().route("/hook", post(take)).with_state(Arc::clone(&inbox));
        tokio::spawn(async move { axum::serve(listener, app).await });
        Self { port, inbox }
    }

    /// Its entry in the configuration.
    fn entry(&self, name: &str, kiln: &Kiln, more: &str) -> String {
        let secret = kiln.data().join("secret");
        fs_err::write(&secret, format!("{SECRET}\n")).unwrap();
        format!(
            "{{ name = \"{name}\", url = \"http://127.0.0.1:{}/hook\", secret_file = {:?}{more} }}",
            self.port,
            secret.to_str().unwrap()
        )
    }

    /// Waits until it has so many requests.
    async fn has(&self, count: usize) -> Vec<Got> {
        eventually_async(async || {
            let got = self.inbox.lock().unwrap().got.clone();
            if got.len() >= count {
                Ok(got)
            } else {
                Err(format!("{} of {count} came", got.len()))
            }
        })
        .await
    }
}

async fn take(State(inbox): State<Arc<Mutex<Inbox>>>, headers: HeaderMap, body: Bytes) -> StatusCode {
    let answer = {
        let mut inbox = inbox.lock().unwrap();
        inbox.got.push(Got {
            headers,
            body: String::from_utf8(body.to_vec()).unwrap(),
        });
        inbox.answers.pop_front().unwrap_or(204)
    };
    if answer == 0 {
        std::future::pending::<()>().await;
    }
    StatusCode::from_u16(answer).unwrap_or(StatusCode::NO_CONTENT)
}

/// Checks a request with the standard's own library.
fn verify(got: &Got, secret: &str) -> bool {
    let script = "import json, sys, standardwebhooks
given = json.load(sys.stdin)
standardwebhooks.Webhook(given['secret']).verify(given['body'], given['headers'])";
    let headers = ["webhook-id", "webhook-timestamp", "webhook-signature"].map(|name| (name, got.header(name)));
    let given = json!({
        "secret": secret, "body": got.body, "headers": headers.into_iter().collect::<std::collections::BTreeMap<_, _>>(),
    });
    let mut child = Command::new(python_tools("webhooks").join("bin/python3"))
        .args(["-c", script])
        .stdin(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    serde_json::to_writer(child.stdin.take().unwrap(), &given).unwrap();
    child.wait().unwrap().success()
}

fn start(kiln: Kiln, entries: &[String]) -> Server {
    let receivers = format!("[{}]", entries.join(", "));
    Server::start_in(
        kiln,
        &[
            ("KILN__WEBHOOKS__RECEIVERS", &receivers),
            ("KILN__SERVER__PUBLIC_URL", "http://127.0.0.1:9000/"),
        ],
    )
}

/// Asks for a job, and cancels it.
pub async fn cancelled_job(server: &Server) -> Value {
    let job = new_job(server).await;
    let path = format!("/kiln/v1/jobs/{}/cancel", job["id"].as_str().unwrap());
    assert_eq!(server.ask("", "POST", &path, None).await.status, 200);
    job
}

async fn new_job(server: &Server) -> Value {
    let key = json!({ "name": "k", "public_key": "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIGtpbG4ta2lsbi1raWxuLWtpbG4ta2lsbi1raWxuLWtp k" });
    let key = server.ask("", "POST", "/v3/public-keys", Some(key)).await.json();
    let recipe = json!({
        "name": "r", "recipe_type": "kiwi-ng", "linux_distribution": "debian", "arch": "x86_64", "require_dkms": false,
    });
    let recipe = server.ask("", "POST", "/v3/recipes", Some(recipe)).await.json();
    let path = format!("/kiln/v1/recipes/{}/archive", recipe["id"].as_str().unwrap());
    let archive = pack(&source_dir().join("recipes/debian-minimal")).unwrap().bytes;
    assert_eq!(send(server.request("PUT", &path).body(archive)).await.status, 200);
    let job = json!({
        "job_type": "create", "artifact_id": recipe["id"], "public_key_id": key["id"], "image_root_archive_name": "night",
    });
    let job = server.ask("", "POST", "/v3/jobs", Some(job)).await;
    assert_eq!(job.status, 201, "{}", job.text);
    job.json()
}

#[test(threads = 2)]
async fn the_end_of_a_job_reaches_its_receivers_signed() {
    let kiln = Kiln::bare();
    let (all, few) = (Receiver::start(&[503]).await, Receiver::start(&[]).await);
    let entries = [
        all.entry("all", &kiln, ", allow_local = true"),
        few.entry("sets", &kiln, ", allow_local = true, events = [\"set.complete\"]"),
    ];
    let server = start(kiln, &entries);
    let job = cancelled_job(&server).await;
    // The first try is refused; the second one is the same delivery.
    let got = all.has(2).await;
    let (first, second) = (&got[0], &got[1]);
    assert_eq!(first.body, second.body);
    assert_eq!(first.header("webhook-id"), second.header("webhook-id"));
    assert_eq!(first.header("content-type"), "application/json");
    for one in &got {
        let one = one.clone();
        tokio::task::spawn_blocking(move || {
            assert!(verify(&one, SECRET));
            assert!(!verify(&one, "whsec_b3RoZXJvdGhlcm90aGVyb3RoZXI="));
            let changed = Got {
                body: one.body.replace("night", "light"),
                ..one
            };
            assert!(!verify(&changed, SECRET));
        })
        .await
        .unwrap();
    }
    let told = second.json();
    assert_eq!(told["type"], "job.cancelled");
    let ended = told["data"]["job"]["ended"].as_str().unwrap();
    for time in [told["timestamp"].as_str().unwrap(), ended] {
        assert!(time.ends_with("+00:00"), "{time}");
    }
    let about = &told["data"]["job"];
    assert_eq!((&about["id"], &about["status"]), (&job["id"], &json!("error")));
    assert_eq!(about["image_root_archive_name"], "night");
    assert_eq!(about["cause"]["code"], "cancelled");
    let url = format!("http://127.0.0.1:9000/ui/jobs/{}", job["id"].as_str().unwrap());
    assert_eq!(told["data"]["url"], url);

    let listed = eventually_async(async || {
        let listed = server.ask("", "GET", "/kiln/v1/webhooks", None).await.json();
        if listed[0]["delivered"] == 1 {
            Ok(listed)
        } else {
            Err(listed)
        }
    })
    .await;
    assert_eq!(listed[0]["host"], "127.0.0.1");
    assert!(!listed.to_string().contains("/hook"), "{listed}");
    assert_eq!((&listed[0]["waiting"], &listed[1]["delivered"]), (&json!(0), &json!(0)));
    let shown = server.run(&["webhooks", "deliveries", "--receiver", "all"]).ok().stdout;
    assert!(
        shown.contains("job.cancelled") && shown.contains("delivered"),
        "{shown}"
    );
    let metrics = server.ask("", "GET", "/metrics", None).await.text;
    assert!(
        metrics.contains("kiln_webhook_tries_total{result=\"delivered\"} 1"),
        "{metrics}"
    );
    // A server that starts again tells nobody twice: the next event is the next that comes.
    server.started.signal(nix::sys::signal::Signal::SIGTERM);
    let Server { kiln, started, .. } = server;
    started.end();
    let server = start(kiln, &entries);
    let next = cancelled_job(&server).await;
    let got = all.has(3).await;
    assert_eq!(got[2].json()["data"]["job"]["id"], next["id"]);
    server.stop();
    assert_eq!((all.has(3).await.len(), few.has(0).await.len()), (3, 0));
}

#[test(threads = 2)]
async fn a_receiver_that_hangs_or_is_not_allowed_holds_up_no_other_one() {
    let kiln = Kiln::bare();
    let (hangs, works) = (Receiver::start(&[0, 0, 0]).await, Receiver::start(&[410]).await);
    let elsewhere = Receiver::start(&[]).await;
    let entries = [
        hangs.entry("hangs", &kiln, ", allow_local = true"),
        works.entry("works", &kiln, ", allow_local = true"),
        elsewhere.entry("inside", &kiln, ""),
        elsewhere.entry("named", &kiln, "").replace("127.0.0.1", "localhost"),
    ];
    let server = start(kiln, &entries);
    cancelled_job(&server).await;
    hangs.has(1).await;
    works.has(1).await;
    // The try that hangs has not been given up meanwhile.
    let held = server
        .ask("", "GET", "/kiln/v1/webhooks/deliveries?receiver=hangs", None)
        .await
        .json();
    assert_eq!(
        (&held[0]["attempts"], &held[0]["error"]),
        (&json!(1), &Value::Null),
        "{held}"
    );
    // It wants no more of it: a dead letter at once, which is shown, and sent when somebody says so.
    let dead = async || {
        let dead = server
            .ask("", "GET", "/kiln/v1/webhooks/deliveries?state=dead", None)
            .await;
        dead.json().as_array().unwrap().first().cloned()
    };
    let letter = eventually_async(dead).await;
    assert_eq!((&letter["receiver"], &letter["status"]), (&json!("works"), &json!(410)));
    let number = letter["number"].to_string();
    server.run(&["webhooks", "retry", &number]).ok();
    works.has(2).await;
    assert_eq!(server.run(&["webhooks", "retry", "12345"]).code, Some(2));
    // Loopback is reached neither by its address nor by a name for it.
    for name in ["inside", "named"] {
        let told = server.run(&["webhooks", "test", name]).failed();
        assert!(told.contains("allow_local = true"), "{told}");
    }
    assert_eq!(elsewhere.has(0).await.len(), 0);
    let ran = server.run(&["webhooks", "test", "works"]).ok();
    assert!(ran.stdout.contains("works took it, and answered 204"), "{}", ran.stdout);
    assert_eq!(server.run(&["webhooks", "test", "nobody"]).code, Some(2));
    for wrong in ["state=lost", "limit=0", "limit=1001", "whom=x"] {
        let path = format!("/kiln/v1/webhooks/deliveries?{wrong}");
        server.ask("", "GET", &path, None).await.problem(400);
    }
    server.stop();
}

#[test(threads = 2)]
async fn a_server_that_is_killed_loses_no_event() {
    client(None);
    let kiln = Kiln::bare();
    let receiver = Receiver::start(&[]).await;
    let secret = kiln.data().join("secret");
    let entry = receiver.entry("all", &kiln, ", allow_local = true");
    // Nothing can be signed, so nothing is sent.
    fs_err::write(&secret, "short").unwrap();
    let mut server = start(kiln, std::slice::from_ref(&entry));
    // A job that is deleted has ended, too.
    let job = new_job(&server).await;
    let path = format!("/v3/jobs/{}", job["id"].as_str().unwrap());
    assert_eq!(server.ask("", "DELETE", &path, None).await.status, 204);
    server.started.wait_for("shorter than 16 bytes");
    eventually_async(async || {
        let waiting = server
            .ask("", "GET", "/kiln/v1/webhooks/deliveries?state=waiting", None)
            .await;
        waiting.json().as_array().unwrap().len() == 1
    })
    .await;
    server.started.signal(nix::sys::signal::Signal::SIGKILL);
    let Server { kiln, started, .. } = server;
    started.end();
    fs_err::write(&secret, SECRET).unwrap();
    let server = start(kiln, &[entry]);
    let got = receiver.has(1).await;
    assert_eq!(got[0].json()["type"], "job.cancelled");
    server.stop();
    assert_eq!(receiver.has(1).await.len(), 1);
}
