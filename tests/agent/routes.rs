//! Tests how the agent reacts to refusals.

use std::{
    io::Write,
    process::{Command, Output, Stdio},
};

use kiln::orchestrate::agents::Refusal;
use kiln_agent::channel::Ending;
use kiln_records::{
    ArtifactKind, Code, Failure,
    protocol::{AgentFacts, Answer, Call, EventsKept, NewUpload, Outcome},
};

use tokio::io::AsyncWriteExt as _;

use crate::agent::server::{Server, TOKEN};
use crate::support;

/// Runs the agent itself, outside a sandbox: these servers tell it to go before it does anything.
async fn agent(input: String) -> Output {
    tokio::task::spawn_blocking(move || {
        let mut child = Command::new(support::kiln_program().with_file_name(support::KILN_AGENT))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
        child.wait_with_output().unwrap()
    })
    .await
    .unwrap()
}

fn line(facts: &AgentFacts) -> String {
    format!("{}\n", serde_json::to_string(facts).unwrap())
}

#[test]
async fn an_agent_without_business_exits_and_says_why() {
    let server = Server::scripted(|_| Err(Refusal::Over));
    let mut stranger = server.facts.clone();
    "a wrong one".clone_into(&mut stranger.token);
    for (input, code) in [
        (line(&server.facts), "job_over"),
        (line(&stranger), "agent_unknown"),
        ("nonsense\n".to_owned(), "protocol"),
        (String::new(), "protocol"),
    ] {
        let output = agent(input).await;
        let words = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1), "{words}");
        assert!(words.starts_with("kiln-agent: ") && words.contains(code), "{words}");
        assert!(!words.contains(TOKEN), "{words}");
    }
}

#[test]
async fn an_agent_that_is_told_to_end_has_its_server_know() {
    let (asked, mut is_there) = tokio::sync::mpsc::unbounded_channel();
    let server = Server::scripted(move |call| {
        let answer = match &call {
            // It has nothing to do yet.
            Call::GetJob(_) => Err(Refusal::Later(Failure::new(Code::StoreUnavailable, "away"))),
            Call::PostEvents(_) => Ok(Answer::Events(EventsKept {
                next: 0,
                stop: false,
                verdict: None,
            })),
            _ => Ok(Answer::Done),
        };
        asked.send(call).unwrap();
        answer
    });
    let program = support::kiln_program().with_file_name(support::KILN_AGENT);
    let mut child = tokio::process::Command::new(program)
        .stdin(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .unwrap();
    let input = line(&server.facts);
    child.stdin.take().unwrap().write_all(input.as_bytes()).await.unwrap();
    assert!(matches!(is_there.recv().await, Some(Call::GetJob(_))));
    let pid = nix::unistd::Pid::from_raw(child.id().unwrap().try_into().unwrap());
    nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGTERM).unwrap();
    // It ends in any case; what it has said by then is in the channel.
    let status = child.wait().await.unwrap();
    let said = loop {
        match is_there.try_recv().expect("a last word") {
            Call::Finish(outcome) => break outcome.failure.unwrap(),
            Call::GetJob(_) | Call::PostEvents(_) => {}
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(said.code.name(), "sandbox_lost", "{said}");
    assert!(status.success(), "{status}");
}

#[test]
async fn a_failure_that_the_server_finds_is_the_jobs() {
    let disk_full = Failure::disk_full("no room").hint("make some");
    let mut answers = vec![
        Err(Refusal::Failed(disk_full.clone())),
        Err(Refusal::Hole(7)),
        // A temporary failure does not reach the caller.
        Err(Refusal::Later(Failure::new(Code::StoreUnavailable, "away"))),
        Err(Refusal::Later(Failure::new(Code::StoreUnavailable, "away"))),
        Ok(Answer::Done),
        Err(Refusal::Over),
    ]
    .into_iter();
    let server = Server::scripted(move |_| answers.next().unwrap());
    let channel = server.channel();
    let object = NewUpload {
        kind: ArtifactKind::Kernel,
        size: 1,
    };
    assert_eq!(channel.create_upload(object).await.unwrap_err(), disk_full);
    assert_eq!(channel.create_upload(object).await.unwrap_err().code.name(), "protocol");
    let finished = Outcome { failure: None };
    channel.finish(&finished).await.unwrap();
    let over = channel.finish(&finished).await.unwrap_err();
    assert_eq!(over.code.name(), "job_over");
    assert_eq!(channel.ended().await, Ending::Dismissed(over));
}

#[test]
async fn nobody_learns_anything_without_the_token() {
    let server = Server::scripted(|_| panic!("it came through"));
    let socket = server.dir.path().join("agent.sock");
    let http = reqwest::Client::builder().unix_socket(socket).build().unwrap();
    let address = format!("http://kiln/agent/v1/jobs/{}", server.facts.job);
    let other = format!("http://kiln/agent/v1/jobs/{}", uuid::Uuid::nil());
    for (route, token) in [
        (&address, None),
        (&address, Some("Bearer ")),
        (&address, Some("Bearer wrong")),
        (&address, Some("Basic dGhlIHJpZ2h0IG9uZQ==")),
        (&other, Some("Bearer the right one")),
    ] {
        for body in ["{}", "nonsense"] {
            let mut request = http.post(format!("{route}/finish")).body(body);
            if let Some(token) = token {
                request = request.header("authorization", token);
            }
            let response = request.send().await.unwrap();
            // A body that makes no sense says no more than a token that makes none.
            let status = response.status().as_u16();
            let refused = if body == "{}" {
                status == 401
            } else {
                matches!(status, 400 | 401)
            };
            assert!(refused, "{route} {token:?}: {status}");
        }
    }
}

#[test]
async fn too_much_is_not_read() {
    let server = Server::scripted(|call| panic!("{call:?} came through"));
    let socket = server.dir.path().join("agent.sock");
    let http = reqwest::Client::builder().unix_socket(socket).build().unwrap();
    let address = format!("http://kiln/agent/v1/jobs/{}/events", server.facts.job);
    for (body, status) in [(vec![b' '; 9 << 20], 413), (b"{\"first\": -1}".to_vec(), 400)] {
        let request = http.post(&address).bearer_auth(TOKEN).body(body);
        let response = request.send().await.unwrap();
        assert_eq!(response.status().as_u16(), status);
        let failure: Failure = response.json().await.unwrap();
        assert_eq!(failure.code.name(), "protocol");
    }
}

#[test]
async fn a_server_that_stays_away_is_given_up() {
    let mut server = Server::scripted(|call| match call {
        Call::GetJob(_) => Ok(Answer::Job(Box::new(crate::agent::events::job_with_patience(1)))),
        _ => Ok(Answer::Done),
    });
    let channel = server.channel();
    channel.job().await.unwrap();
    server.kill().await;
    let lost = channel.finish(&Outcome { failure: None }).await.unwrap_err();
    assert_eq!(lost.code.name(), "server_lost");
    assert_eq!(channel.ended().await, Ending::Dismissed(lost));
}

/// What strangers send is not even read.
#[test]
async fn the_token_comes_before_the_body() {
    use tokio::io::AsyncReadExt as _;
    let server = Server::scripted(|_| Err(Refusal::Over));
    let path = server.facts.server.strip_prefix("unix:").unwrap();
    for (token, length, begins) in [
        ("a wrong one", 1000, "HTTP/1.1 401 "),
        ("a wrong one", 100_000_000, "HTTP/1.1 401 "),
        (TOKEN, 100_000_000, "HTTP/1.1 413 "),
        (TOKEN, 1000, "HTTP/1.1 100 "),
    ] {
        let mut stream = tokio::net::UnixStream::connect(path).await.unwrap();
        let request = format!(
            "POST /agent/v1/jobs/{}/events HTTP/1.1\r\nhost: kiln\r\nauthorization: Bearer {token}\r\n\
             content-length: {length}\r\nexpect: 100-continue\r\n\r\n",
            server.facts.job
        );
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut answer = vec![0; 4096];
        let read = stream.read(&mut answer).await.unwrap();
        let answer = String::from_utf8_lossy(&answer[..read]);
        assert!(answer.starts_with(begins), "{token}, {length} bytes: {answer}");
    }
}
