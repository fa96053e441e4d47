//! Traces of jobs, as a collector gets them: what arrives is read with the messages of OpenTelemetry's own package.

use std::{
    process::{Command, Stdio},
    sync::{Arc, Mutex},
};

use axum::{Router, body::Bytes, extract::State, http::HeaderMap, routing::post};
use base64::{Engine, engine::general_purpose::STANDARD};
use serde_json::Value;
use tokio::net::TcpListener;

use crate::support::{Kiln, eventually_async, python_tools, serve::Server};

type Got = Arc<Mutex<Vec<Vec<u8>>>>;

async fn take(State(got): State<Got>, headers: HeaderMap, body: Bytes) {
    assert_eq!(headers["content-type"], "application/x-protobuf");
    got.lock().unwrap().push(body.to_vec());
}

/// A request, as JSON.
fn read(request: &[u8]) -> Value {
    let script = "import sys
from google.protobuf.json_format import MessageToJson
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
print(MessageToJson(ExportTraceServiceRequest.FromString(sys.stdin.buffer.read())))";
    let mut child = Command::new(python_tools("traces").join("bin/python3"))
        .args(["-c", script])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    std::io::Write::write_all(&mut child.stdin.take().unwrap(), request).unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success());
    serde_json::from_slice(&output.stdout).unwrap()
}

#[test(threads = 2)]
async fn a_job_is_a_trace() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let endpoint = format!("http://{}", listener.local_addr().unwrap());
    let got = Got::default();
    let app = Router::new()
        .route("/v1/traces", post(take))
        .with_state(Arc::clone(&got));
    tokio::spawn(async move { axum::serve(listener, app).await });
    let server = Server::start_in(Kiln::bare(), &[("KILN__TRACES__ENDPOINT", &endpoint)]);
    let job = crate::webhooks::cancelled_job(&server).await;
    let request = eventually_async(async || got.lock().unwrap().first().cloned()).await;
    let trace = tokio::task::spawn_blocking(move || read(&request)).await.unwrap();
    let resource = &trace["resourceSpans"][0];
    let attributes = resource["resource"]["attributes"].to_string();
    assert!(
        attributes.contains("service.name") && attributes.contains("kiln"),
        "{trace:#}"
    );
    let spans = resource["scopeSpans"][0]["spans"].as_array().unwrap();
    let named = |name: &str| {
        spans
            .iter()
            .find(|span| span["name"] == name)
            .unwrap_or_else(|| panic!("{trace:#}"))
    };
    let (whole, queue) = (named("job"), named("queue"));
    // The trace is found by the job's id.
    let id = STANDARD.decode(whole["traceId"].as_str().unwrap()).unwrap();
    assert_eq!(hex::encode(id), job["id"].as_str().unwrap().replace('-', ""));
    assert_eq!(queue["parentSpanId"], whole["spanId"]);
    assert_eq!(whole["status"]["code"], "STATUS_CODE_ERROR");
    assert!(whole["attributes"].to_string().contains("cancelled"), "{trace:#}");
    let time = |span: &Value, name: &str| span[name].as_str().unwrap().parse::<u64>().unwrap();
    assert!(time(whole, "startTimeUnixNano") <= time(queue, "startTimeUnixNano"));
    assert!(time(queue, "endTimeUnixNano") <= time(whole, "endTimeUnixNano"));
    server.stop();
}
