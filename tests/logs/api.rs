//! `/kiln/v1/jobs/{id}/log`.

use std::time::{Duration, Instant};

use kiln_records::JobStatus;
use serde_json::{Value, json};

use crate::logs::{
    job::{Event, LoggedJob, next_event},
    server::{NOBODY, Server},
};
use crate::support::eventually_async;

#[test]
async fn a_log_is_read_page_by_page() {
    let api = Server::shared();
    let mut job = LoggedJob::new(&api).await;
    let empty = json!({"lines": [], "next": null, "more": false, "ended": false});
    assert_eq!(api.read(&job.path()).await, empty);
    job.says_up_to(25).await;
    let mut seen = Vec::new();
    let mut query = "?limit=10".to_owned();
    loop {
        let page = api.read(&format!("{}{query}", job.path())).await;
        let lines = page["lines"].as_array().unwrap();
        seen.extend(lines.iter().map(|line| line["seq"].as_u64().unwrap()));
        query = format!("?limit=10&after={}", page["next"]);
        if page["more"] == false {
            break;
        }
        assert_eq!(lines.len(), 10);
    }
    assert_eq!(seen, (0..25).collect::<Vec<_>>());
    let line = json!({
        "seq": 24, "time": "2023-11-14T22:13:20+00:00", "step": "build", "stream": "stdout", "text": "line 24",
    });
    let last = api.read(&format!("{}?after=23", job.path())).await;
    assert_eq!(
        last,
        json!({"lines": [line], "next": 24, "more": false, "ended": false})
    );
    job.becomes(JobStatus::Error).await;
    let nothing = json!({"lines": [], "next": 24, "more": false, "ended": true});
    assert_eq!(api.read(&format!("{}?after=24", job.path())).await, nothing);
}

#[test]
async fn a_log_is_read_as_text() {
    let api = Server::shared();
    let mut job = LoggedJob::new(&api).await;
    let whole = async |path: &str, accept: &str| {
        let answer = api.request("GET", path).header("accept", accept).send().await.unwrap();
        let kind = answer.headers()["content-type"].to_str().unwrap().to_owned();
        (kind, answer.text().await.unwrap())
    };
    let text = "text/plain; charset=utf-8".to_owned();
    assert_eq!(whole(&job.path(), "text/plain").await, (text.clone(), String::new()));
    job.says(&["näme", "\u{1b}[31mred\0", ""]).await;
    assert_eq!(
        whole(&job.path(), "text/plain").await,
        (text.clone(), "näme\n\u{1b}[31mred␀\n\n".to_owned())
    );
    // Several pages of one query's size, the last one full.
    job.says_up_to(3000).await;
    let numbered = |begin| {
        (begin..3000)
            .map(|n| format!("line {n}\n"))
            .collect::<Vec<_>>()
            .concat()
    };
    for accept in ["text/plain, */*", "text/plain;q=0.9, application/json;q=0.5"] {
        let (kind, log) = whole(&format!("{}?after=2&limit=5", job.path()), accept).await;
        assert_eq!((kind, log), (text.clone(), numbered(3)));
    }
    for accept in ["*/*", "application/json", "application/json, text/plain", "text/html"] {
        let (kind, _) = whole(&job.path(), accept).await;
        assert_eq!(kind, "application/json", "{accept}");
    }
}

#[test]
async fn what_cannot_be_is_refused() {
    let api = Server::shared();
    let job = LoggedJob::new(&api).await;
    for path in [job.path(), format!("{}/stream", job.path())] {
        for after in ["-1", "x", "", "1.5", "18446744073709551616"] {
            api.get(&format!("{path}?after={after}")).await.problem(400);
        }
    }
    for limit in ["0", "10001", "-1", "x"] {
        api.get(&format!("{}?limit={limit}", job.path())).await.problem(400);
    }
    for id in [NOBODY, "x", &job.id().to_uppercase()] {
        api.get(&format!("/kiln/v1/jobs/{id}/log")).await.problem(404);
        api.get(&format!("/kiln/v1/jobs/{id}/log/stream")).await.problem(404);
    }
    let path = job.path();
    job.goes().await;
    api.get(&path).await.problem(404);
}

/// Follows a job from a place on.
async fn follow(api: &Server, job: &LoggedJob, last: Option<u64>) -> reqwest::Response {
    let mut request = api.request("GET", &format!("{}/stream", job.path()));
    if let Some(last) = last {
        request = request.header("last-event-id", last);
    }
    let stream = request.send().await.unwrap();
    assert_eq!(stream.status(), 200);
    assert_eq!(stream.headers()["content-type"], "text/event-stream");
    stream
}

/// The numbers of lines in events, which say nothing else.
fn numbers(events: &[Event]) -> Vec<u64> {
    let lines = events.iter().filter(|event| event.name == "log");
    lines
        .map(|event| {
            assert_eq!(event.data["seq"].as_u64(), event.id);
            event.id.unwrap()
        })
        .collect()
}

/// Reads events up to such a one.
async fn until(
    stream: &mut reqwest::Response,
    rest: &mut String,
    events: &mut Vec<Event>,
    is_it: impl Fn(&Event) -> bool,
) {
    while !events.last().is_some_and(&is_it) {
        events.push(next_event(stream, rest).await.expect("an open stream"));
    }
}

async fn rest_of(mut stream: reqwest::Response) -> Vec<Event> {
    let (mut events, mut rest) = (Vec::new(), String::new());
    while let Some(event) = next_event(&mut stream, &mut rest).await {
        events.push(event);
    }
    events
}

#[test]
async fn a_log_is_followed_to_its_end() {
    let api = Server::shared();
    let mut job = LoggedJob::new(&api).await;
    job.says_up_to(2500).await;
    let (mut stream, mut rest) = (follow(&api, &job, None).await, String::new());
    let mut events = Vec::new();
    // Each part comes after the one before was seen.
    for end in [2501, 2502, 4000] {
        until(&mut stream, &mut rest, &mut events, |event| {
            event.id == Some(job.next() - 1)
        })
        .await;
        job.says_up_to(end).await;
    }
    job.becomes(JobStatus::BuildingImage).await;
    let is_building = |event: &Event| event.data["state"] == "building_image";
    until(&mut stream, &mut rest, &mut events, is_building).await;
    job.says(&["the last words"]).await;
    job.becomes(JobStatus::Success).await;
    while let Some(event) = next_event(&mut stream, &mut rest).await {
        events.push(event);
    }
    assert_eq!(numbers(&events), (0..4001).collect::<Vec<_>>());
    let states: Vec<_> = events.iter().filter(|event| event.name != "log").collect();
    let states: Vec<_> = states
        .iter()
        .map(|event| (event.name.as_str(), event.data["state"].as_str().unwrap()))
        .collect();
    // On a busy machine, the job has gone on before its first state is looked at.
    let states = states.strip_prefix(&[("progress", "creating")]).unwrap_or(&states);
    assert_eq!(
        states,
        [
            ("progress", "building_image"),
            ("progress", "success"),
            ("end", "success")
        ]
    );
    // A later follower gets the same events, and one that has seen a part gets the rest.
    assert_eq!(
        numbers(&rest_of(follow(&api, &job, None).await).await),
        (0..4001).collect::<Vec<_>>()
    );
    let last = rest_of(follow(&api, &job, Some(3999)).await).await;
    assert_eq!(numbers(&last), [4000]);
    assert_eq!(last[0].data["text"], "the last words");
    assert!(numbers(&rest_of(follow(&api, &job, Some(4000)).await).await).is_empty());
}

#[test]
async fn what_another_server_wrote_comes() {
    let api = Server::shared();
    let mut job = LoggedJob::new(&api).await;
    let (mut stream, mut rest) = (follow(&api, &job, None).await, String::new());
    let event = next_event(&mut stream, &mut rest).await.unwrap();
    assert_eq!(event.name, "progress");
    job.says(&["hello"]).await;
    let event = next_event(&mut stream, &mut rest).await.unwrap();
    assert_eq!(event.data["text"], "hello");
}

#[test]
async fn the_last_words_are_heard() {
    // The server listens that long once it knows the end.
    const LAST_WORDS: Duration = Duration::from_millis(200);
    let api = Server::shared();
    let heard = eventually_async(async || {
        let mut job = LoggedJob::new(&api).await;
        let (mut stream, mut rest) = (follow(&api, &job, None).await, String::new());
        next_event(&mut stream, &mut rest).await.unwrap();
        let begun = Instant::now();
        job.becomes(JobStatus::Error).await;
        // Said when the end is known already.
        job.says(&["error: why"]).await;
        let in_time = begun.elapsed() < LAST_WORDS;
        let mut names = Vec::new();
        while let Some(event) = next_event(&mut stream, &mut rest).await {
            names.push(event.name);
        }
        names.sort();
        // On a busy machine they may come later, which shows nothing.
        in_time.then_some(names)
    });
    assert_eq!(heard.await, ["end", "log", "progress"]);
}

#[test]
async fn a_job_that_goes_ends_its_stream() {
    let api = Server::shared();
    let job = LoggedJob::new(&api).await;
    let stream = follow(&api, &job, None).await;
    job.goes().await;
    let events = rest_of(stream).await;
    let last = events.last().unwrap();
    assert_eq!(
        (last.name.as_str(), &last.data["state"]),
        ("end", &Value::from("deleted"))
    );
}

#[test]
async fn followers_do_not_hold_up_a_server_that_stops() {
    let api = Server::own();
    let mut job = LoggedJob::new(&api).await;
    job.says_up_to(10).await;
    let mut followers = Vec::new();
    for _ in 0..2 {
        let (mut stream, mut rest, mut events) = (follow(&api, &job, None).await, String::new(), Vec::new());
        until(&mut stream, &mut rest, &mut events, |event| event.id == Some(9)).await;
        assert_eq!(numbers(&events), (0..10).collect::<Vec<_>>());
        followers.push(tokio::spawn(rest_of(stream)));
    }
    // Stops the server, and sees that it ended well.
    let api = tokio::task::spawn_blocking(move || api.restarted()).await.unwrap();
    assert!(!api.log().contains("broken off"), "{}", api.log());
    for follower in followers {
        let events = follower.await.unwrap();
        assert!(
            events.iter().all(|event| event.name == "progress"),
            "that would be a lie"
        );
    }
}
