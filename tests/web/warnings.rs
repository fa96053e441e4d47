//! What a job has warned of, where the dashboard, the API and the command line show it.

use std::time::Duration;

use serde_json::{Value, json};
use uuid::Uuid;

use super::night::{HOSTILE, Night, Told};
use crate::support::serve::{Server, send};

fn told(name: &str, run: Value) -> Told {
    Told {
        name: name.to_owned(),
        arch: "x86_64",
        artifact: Uuid::new_v4(),
        status: "success",
        ago: Duration::from_mins(1),
        run,
    }
}

#[test]
async fn warnings_of_a_job_are_shown_wherever_the_job_is() {
    let server = Server::start(&[]);
    let night = Night::at(&server).await;
    let list = json!([
        { "code": "root_modes", "message": HOSTILE, "hint": "chmod it", "step": "package" },
        { "code": "from_a_later_version", "message": "second" },
    ]);
    let run = json!({ "state": "success", "settled": true, "warnings": { "list": list, "more": 5 } });
    let (job, _) = night.job(told("noisy", run)).await;
    let quiet = json!({ "state": "success", "settled": true });
    let (silent, _) = night.job(told("quiet", quiet)).await;

    let page = async |path: &str| {
        let request = server.request("GET", path).header("accept", "text/html");
        send(request).await.text
    };
    let shown = page(&format!("/ui/jobs/{job}")).await;
    for part in [
        "7 warnings",
        "<code>root_modes</code>",
        "in step package",
        "Hint: <bdi>chmod it</bdi>",
        "5 more warnings are in the log",
    ] {
        assert!(shown.contains(part), "{part}: {shown}");
    }
    assert!(!shown.contains("<img src=x"), "{shown}");
    assert!(!page(&format!("/ui/jobs/{silent}")).await.contains("warning"));
    let jobs = page("/ui/jobs").await;
    assert_eq!(jobs.matches("7 warnings").count(), 1, "{jobs}");
    assert_eq!(jobs.matches("warning").count(), 1, "{jobs}");

    let of = async |job| {
        let answer = send(server.request("GET", &format!("/kiln/v1/jobs/{job}"))).await;
        serde_json::from_str::<Value>(&answer.text).unwrap()
    };
    let answer = of(job).await;
    assert_eq!(answer["more_warnings"], 5);
    assert_eq!(answer["warnings"][0]["step"], "package");
    assert_eq!(answer["warnings"][1]["code"], "unknown");
    assert_eq!(of(silent).await["warnings"], json!([]));
    // IMS's own answers have no such member.
    let ims = send(server.request("GET", &format!("/v3/jobs/{job}"))).await;
    assert!(!ims.text.contains("warning"), "{}", ims.text);

    let status = server
        .kiln
        .run(["jobs", "status", &job.to_string(), "--server", &server.url])
        .ok()
        .stdout;
    assert!(status.contains("more_warnings = 5"), "{status}");
    assert!(status.contains("code = \"root_modes\""), "{status}");
}
