//! The part of a cluster's API that Kiln calls, with objects in memory, and with faults that a real API server only has on bad
//! days. Pods run from the moment that their Job is created. Counts every request.

#![allow(dead_code, reason = "every test program uses another part")]

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    sync::{Arc, Mutex},
    time::Duration,
};

use axum::{
    Router,
    body::{Body, Bytes, to_bytes},
    extract::{Query, Request},
    response::Response,
};
use futures::StreamExt;
use serde_json::{Value, json};
use tokio::{sync::watch, task::JoinHandle};

/// What is kept.
const RESOURCES: [&str; 9] = [
    "jobs",
    "pods",
    "secrets",
    "networkpolicies",
    "services",
    "endpoints",
    "events",
    "nodes",
    "runtimeclasses",
];

/// How requests fail.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// An error of this status, which asks to come back after so many seconds.
    Status(u16, Option<u64>),
    /// Something else than JSON.
    Garbage,
    /// An answer without an end.
    Huge,
    /// No answer.
    Silence,
    /// A watch ends as soon as it has begun.
    Ends,
    /// A watch says that what it would start from is not known any more.
    Gone,
    /// What is asked is done, and a gateway answers that it took too long.
    Late,
}

/// Some of the requests.
#[derive(Debug, Clone)]
pub struct Rule {
    pub fault: Fault,
    /// The beginning of what is asked, such as `watch jobs`; empty for all.
    pub asked: &'static str,
    /// How many of them.
    pub times: usize,
}

#[derive(Debug, Default)]
struct State {
    objects: Mutex<Objects>,
    /// The number of changes.
    version: watch::Sender<usize>,
    rule: Mutex<Option<Rule>>,
    asked: Mutex<BTreeMap<String, usize>>,
    /// What every pod wrote, after its first line.
    said: Mutex<String>,
}

#[derive(Debug, Default)]
struct Objects {
    /// By resource and name.
    there: BTreeMap<(String, String), Value>,
    /// Every change, with the resource and what happened.
    changes: Vec<(String, &'static str, Value)>,
}

/// A running server, which ends when dropped.
pub struct FakeCluster {
    url: String,
    state: Arc<State>,
    serving: JoinHandle<()>,
}

impl FakeCluster {
    pub async fn start() -> Self {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let state: Arc<State> = Arc::default();
        state.put("nodes", "one", node());
        state.put(
            "runtimeclasses",
            "kata",
            json!({"metadata": {"name": "kata"}, "handler": "kata"}),
        );
        let shared = Arc::clone(&state);
        let router = Router::new().fallback(move |request: Request| answer(Arc::clone(&shared), request));
        let serving = tokio::spawn(async move { axum::serve(listener, router).await.unwrap() });
        Self { url, state, serving }
    }

    /// A kubeconfig for it, in this directory.
    pub fn kubeconfig(&self, dir: &Path) -> PathBuf {
        let kubeconfig = json!({
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "fake", "cluster": {"server": self.url}}],
            "users": [{"name": "kiln", "user": {"token": "of-kiln"}}],
            "contexts": [{"name": "fake", "context": {"cluster": "fake", "user": "kiln", "namespace": "jobs"}}],
            "current-context": "fake",
        });
        let file = dir.join("kubeconfig");
        fs_err::write(&file, kubeconfig.to_string()).unwrap();
        file
    }

    /// Sets the requests that fail from now on, or none.
    pub fn set(&self, fault: Fault, asked: &'static str, times: usize) {
        *self.state.rule.lock().unwrap() = Some(Rule { fault, asked, times });
    }

    /// Lets every request succeed again.
    pub fn heal(&self) {
        *self.state.rule.lock().unwrap() = None;
    }

    /// How often each thing was asked since the last call, such as `create jobs`.
    pub fn take(&self) -> BTreeMap<String, usize> {
        std::mem::take(&mut self.state.asked.lock().unwrap())
    }

    /// The names of all objects of a resource.
    pub fn names(&self, resource: &str) -> Vec<String> {
        let objects = self.state.objects.lock().unwrap();
        let of = |(kind, name): &(String, String)| (kind == resource).then(|| name.clone());
        objects.there.keys().filter_map(of).collect()
    }

    /// An object.
    pub fn object(&self, resource: &str, name: &str) -> Value {
        self.state.objects.lock().unwrap().there[&(resource.to_owned(), name.to_owned())].clone()
    }

    /// Adds a line to what every pod wrote.
    pub fn pods_say(&self, line: &str) {
        let mut said = self.state.said.lock().unwrap();
        said.push_str(line);
        said.push('\n');
    }

    /// Changes the status of the pod of a Job, as its node would.
    pub fn pod_is(&self, job: &str, status: &Value) {
        let name = format!("{job}-pod");
        let mut pod = self.state.objects.lock().unwrap().there[&("pods".to_owned(), name.clone())].clone();
        pod["status"] = status.clone();
        self.state.put("pods", &name, pod);
    }
}

impl Drop for FakeCluster {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

impl State {
    /// Creates or replaces an object. Returns it as the server keeps it.
    fn put(&self, resource: &str, name: &str, mut object: Value) -> Value {
        let mut objects = self.objects.lock().unwrap();
        let key = (resource.to_owned(), name.to_owned());
        let what = if objects.there.contains_key(&key) {
            "MODIFIED"
        } else {
            "ADDED"
        };
        let version = objects.changes.len() + 1;
        let metadata = &mut object["metadata"];
        metadata["name"] = name.into();
        metadata["resourceVersion"] = version.to_string().into();
        if metadata["uid"].is_null() {
            metadata["uid"] = uuid::Uuid::new_v4().to_string().into();
            metadata["creationTimestamp"] = "2026-11-01T10:00:00Z".into();
        }
        objects.there.insert(key, object.clone());
        objects.changes.push((resource.to_owned(), what, object.clone()));
        drop(objects);
        self.version.send_replace(version);
        object
    }

    fn remove(&self, resource: &str, name: &str) -> bool {
        let mut objects = self.objects.lock().unwrap();
        let Some(mut object) = objects.there.remove(&(resource.to_owned(), name.to_owned())) else {
            return false;
        };
        let version = objects.changes.len() + 1;
        object["metadata"]["resourceVersion"] = version.to_string().into();
        objects.changes.push((resource.to_owned(), "DELETED", object));
        drop(objects);
        self.version.send_replace(version);
        true
    }

    fn list(&self, resource: &str, selector: &str) -> (usize, Vec<Value>) {
        let objects = self.objects.lock().unwrap();
        let of = |((kind, _), object): (&(String, String), &Value)| {
            (kind == resource && selects(selector, object)).then(|| object.clone())
        };
        (objects.changes.len(), objects.there.iter().filter_map(of).collect())
    }

    /// The fault of a request, if it has one.
    fn fault(&self, asked: &str) -> Option<Fault> {
        let mut rule = self.rule.lock().unwrap();
        let rule = rule
            .as_mut()
            .filter(|rule| rule.times > 0 && asked.starts_with(rule.asked))?;
        rule.times -= 1;
        Some(rule.fault)
    }

    /// The changes after this one, of the objects of a resource, as lines of a watch.
    fn news(&self, resource: &str, selector: &str, after: usize) -> (usize, String) {
        let objects = self.objects.lock().unwrap();
        let line = |(kind, what, object): &(String, &str, Value)| {
            let is_one = kind == resource && selects(selector, object);
            is_one.then(|| format!("{}\n", json!({"type": what, "object": object})))
        };
        let lines = objects.changes.iter().skip(after).filter_map(line).collect();
        (objects.changes.len(), lines)
    }
}

fn selects(selector: &str, object: &Value) -> bool {
    let mut pairs = selector.split(',').filter_map(|pair| pair.split_once('='));
    pairs.all(|(name, value)| object["metadata"]["labels"][name] == value)
}

fn node() -> Value {
    let room = json!({"cpu": "4000", "memory": "16Ti", "ephemeral-storage": "500Ti"});
    let arch = match std::env::consts::ARCH {
        "x86_64" => "amd64",
        _ => "arm64",
    };
    json!({
        "metadata": {"labels": {
            "kubernetes.io/arch": arch, "kubernetes.io/os": "linux", "kubernetes.io/hostname": "one"
        }},
        "status": {
            "allocatable": room,
            "conditions": [{"type": "Ready", "status": "True"}],
            "nodeInfo": {
                "architecture": arch, "bootID": "0b8e6c4a-0000-4000-8000-000000000000", "containerRuntimeVersion": "",
                "kernelVersion": "", "kubeProxyVersion": "", "kubeletVersion": "", "machineID": "",
                "operatingSystem": "linux", "osImage": "", "systemUUID": ""
            }
        }
    })
}

/// The pod of a Job, which runs.
fn pod_of(job: &Value) -> Value {
    json!({
        "metadata": {
            "labels": job["spec"]["template"]["metadata"]["labels"],
            "ownerReferences": [{"apiVersion": "batch/v1", "kind": "Job", "name": job["metadata"]["name"], "uid": job["metadata"]["uid"]}]
        },
        "spec": job["spec"]["template"]["spec"],
        "status": {"phase": "Running", "containerStatuses": [{
            "name": "sandbox", "image": "", "imageID": "", "ready": true, "restartCount": 0,
            "state": {"running": {"startedAt": "2026-11-01T10:00:00Z"}}
        }]}
    })
}

fn json_of(status: u16, body: &Value) -> Response {
    let answer = Response::builder()
        .status(status)
        .header("content-type", "application/json");
    answer.body(Body::from(body.to_string())).unwrap()
}

fn refusal(status: u16, reason: &str) -> Value {
    json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": status, "reason": reason, "message": reason})
}

async fn answer(state: Arc<State>, request: Request) -> Response {
    let (parts, body) = request.into_parts();
    let query = Query::<BTreeMap<String, String>>::try_from_uri(&parts.uri).unwrap().0;
    let selector = query.get("labelSelector").cloned().unwrap_or_default();
    let words: Vec<_> = parts.uri.path().split('/').collect();
    // The namespace is called `jobs`, too: the resource comes later.
    let Some(at) = words.iter().rposition(|word| RESOURCES.contains(word)) else {
        return json_of(404, &refusal(404, "NotFound"));
    };
    let (resource, name, sub) = (words[at], words.get(at + 1).copied(), words.get(at + 2).copied());
    let is_watch = query.get("watch").is_some_and(|watch| watch == "true");
    let verb = match (parts.method.as_str(), name) {
        ("GET", None) if is_watch => "watch",
        ("GET", None) => "list",
        ("GET", Some(_)) => "get",
        ("POST", _) => "create",
        ("PATCH", Some(_)) => "apply",
        ("DELETE", _) => "delete",
        _ => "other",
    };
    let asked = format!(
        "{verb} {resource}{}",
        sub.map(|sub| format!("/{sub}")).unwrap_or_default()
    );
    *state.asked.lock().unwrap().entry(asked.clone()).or_default() += 1;
    let fault = state.fault(&asked);
    match fault {
        None | Some(Fault::Late) => {}
        Some(Fault::Status(status, after)) => {
            let mut answer = json_of(status, &refusal(status, "AsToldByTheTest"));
            if let Some(after) = after {
                answer.headers_mut().insert("retry-after", after.into());
            }
            return answer;
        }
        Some(Fault::Garbage) => return Response::new(Body::from("<html>not an API</html>\n")),
        Some(Fault::Huge) => {
            let part = Bytes::from(vec![b' '; 1 << 20]);
            let parts = futures::stream::repeat_with(move || Ok::<_, std::io::Error>(part.clone()));
            return Response::new(Body::from_stream(parts));
        }
        Some(Fault::Silence) => std::future::pending().await,
        Some(Fault::Ends) => return Response::new(Body::empty()),
        Some(Fault::Gone) => {
            let gone = json!({"type": "ERROR", "object": refusal(410, "Expired")});
            return Response::new(Body::from(format!("{gone}\n")));
        }
    }
    let done = match (verb, name) {
        ("watch", _) => {
            let from = query
                .get("resourceVersion")
                .and_then(|version| version.parse().ok())
                .unwrap_or(0);
            watching(state, resource.to_owned(), selector, from)
        }
        ("list", _) => {
            let (version, items) = state.list(resource, &selector);
            json_of(
                200,
                &json!({"metadata": {"resourceVersion": version.to_string()}, "items": items}),
            )
        }
        ("get", Some(_)) if sub == Some("log") => {
            Response::new(Body::from(format!("a line\n{}", state.said.lock().unwrap())))
        }
        ("get", Some(name)) => {
            let found = state
                .objects
                .lock()
                .unwrap()
                .there
                .get(&(resource.to_owned(), name.to_owned()))
                .cloned();
            found.map_or_else(|| json_of(404, &refusal(404, "NotFound")), |found| json_of(200, &found))
        }
        ("create", _) => {
            let object: Value = serde_json::from_slice(&to_bytes(body, usize::MAX).await.unwrap()).unwrap();
            let name = object["metadata"]["name"].as_str().unwrap().to_owned();
            if state
                .objects
                .lock()
                .unwrap()
                .there
                .contains_key(&(resource.to_owned(), name.clone()))
            {
                return json_of(409, &refusal(409, "AlreadyExists"));
            }
            let made = state.put(resource, &name, object);
            if resource == "jobs" {
                state.put("pods", &format!("{name}-pod"), pod_of(&made));
            }
            json_of(201, &made)
        }
        ("apply", Some(name)) => {
            let mut object: Value = serde_json::from_slice(&to_bytes(body, usize::MAX).await.unwrap()).unwrap();
            object["metadata"]["namespace"] = "jobs".into();
            if resource == "services" {
                // The network plugin's part.
                object["status"] = json!({"loadBalancer": {"ingress": [{"ip": "198.51.100.4"}]}});
            }
            json_of(200, &state.put(resource, name, object))
        }
        ("delete", Some(name)) => {
            if !state.remove(resource, name) {
                return json_of(404, &refusal(404, "NotFound"));
            }
            if resource == "jobs" {
                state.remove("pods", &format!("{name}-pod"));
                state.remove("secrets", name);
                for resource in ["networkpolicies", "services", "endpoints"] {
                    state.remove(resource, name);
                }
            }
            json_of(200, &json!({"kind": "Status", "apiVersion": "v1", "status": "Success"}))
        }
        _ => json_of(405, &refusal(405, "MethodNotAllowed")),
    };
    if fault == Some(Fault::Late) {
        return json_of(504, &refusal(504, "Timeout"));
    }
    done
}

/// An answer that goes on with every change.
fn watching(state: Arc<State>, resource: String, selector: String, from: usize) -> Response {
    let changes = state.version.subscribe();
    let lines = futures::stream::unfold((state, changes, from), move |(state, mut changes, at)| {
        let (resource, selector) = (resource.clone(), selector.clone());
        async move {
            loop {
                let (now, lines) = state.news(&resource, &selector, at);
                if !lines.is_empty() {
                    return Some((Ok::<_, std::io::Error>(lines), (state, changes, now)));
                }
                // An error means that the server ends.
                if tokio::time::timeout(Duration::from_hours(1), changes.changed())
                    .await
                    .is_err()
                {
                    return None;
                }
            }
        }
    });
    Response::new(Body::from_stream(lines.boxed()))
}
