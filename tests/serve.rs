//! Tests `kiln serve` as a process: its start, its refusals, its stop, and the protection of callers from each other.

use crate::support::postgres;
mod tls;

use std::{
    io::{Read, Write},
    net::TcpListener,
    path::Path,
    time::Duration,
};

use crate::support::{
    self, Kiln, eventually,
    serve::{MODEST, Server, client, send},
};
use nix::sys::signal::Signal;
use serde_json::{Value, json};

/// Starts a server that must fail. Returns its message.
#[track_caller]
fn refused(kiln: &Kiln, variables: &[(&str, &str)]) -> String {
    let mut command = kiln.command(["serve"]);
    command.envs(MODEST).envs(variables.iter().copied());
    let ran = support::run(command);
    assert!(!ran.stdout.contains("ready"), "{}", ran.stdout);
    ran.failed()
}

#[test]
async fn nothing_has_to_be_configured() {
    let kiln = Kiln::bare();
    let mut started = kiln.start(["serve"]);
    // The test does not disturb another program on these ports.
    eventually(|| started.has_said("ready") || started.has_ended());
    if started.has_ended() {
        let error = started.end().failed();
        assert!(error.contains("127.0.0.1:900"), "{error}");
        kiln_harness::skip(error);
    }
    let said = started.wait_for("server  ");
    assert_eq!(said, "server     http://127.0.0.1:9000");
    assert_eq!(started.wait_for("s3 "), "s3         http://127.0.0.1:9001");
    assert_eq!(started.wait_for("dashboard "), "dashboard  http://127.0.0.1:9000/ui");
    started.wait_for("auth       off");
    started.wait_for("next       kiln public-keys create --name me");
    started.wait_for("           kiln recipes create --from DIRECTORY");
    started.wait_for("           kiln jobs create --job-type create --artifact-id compute");
    let keys = started.wait_for("s3 keys");
    assert!(Path::new(keys.split_whitespace().last().unwrap()).exists());

    let answer = send(client(None).get("http://127.0.0.1:9000/v3/images")).await;
    assert_eq!((answer.status, answer.text.as_str()), (200, "[]"));
    started.signal(Signal::SIGINT);
    assert_eq!(started.end().code, Some(0));
    assert!(kiln.data().join("records.sqlite").exists());
    // Without a server there, its records can be used all the same.
    let listed = kiln.run(["recipes", "list"]).ok();
    assert!(listed.stderr.contains("using the records in"), "{}", listed.stderr);
    kiln.assert_clean();
}

#[test]
async fn records_outlive_the_server() {
    let server = Server::start(&[]);
    let image = json!({ "name": "kept", "arch": "aarch64" });
    let made = server.ask("", "POST", "/v3/images", Some(image)).await;
    assert_eq!(made.status, 201, "{}", made.text);
    let Server { kiln, started, .. } = server;
    started.signal(Signal::SIGKILL);
    started.end();
    let server = Server::start_in(kiln, &[]);
    let images = server.ask("", "GET", "/apis/ims/v3/images", None).await.json();
    assert_eq!(images[0]["name"], "kept");
    server.stop();
}

#[test]
async fn records_can_be_in_postgresql() {
    let postgres = postgres::Server::shared();
    let whole = postgres.new_database();
    let password = format!(":{}@", postgres::PASSWORD);
    assert!(whole.contains(&password), "{whole}");
    let url = whole.replace(&password, "@");
    let kiln = Kiln::bare();
    let file = kiln.data().join("password");
    fs_err::write(&file, format!("{}\n", postgres::PASSWORD)).unwrap();
    let variables = [
        ("KILN__STORE__URL", url.as_str()),
        ("KILN__STORE__PASSWORD_FILE", file.to_str().unwrap()),
    ];
    let server = Server::start_in(kiln, &variables);
    let made = server
        .ask("", "POST", "/v3/images", Some(json!({ "name": "there" })))
        .await;
    assert_eq!(made.status, 201, "{}", made.text);
    assert!(!server.kiln.data().join("records.sqlite").exists());
    let ran = server.stop();
    assert!(!format!("{}{}", ran.stdout, ran.stderr).contains(postgres::PASSWORD));

    // Another server, another directory, the same records.
    let server = Server::start(&[
        ("KILN__STORE__URL", &url),
        ("KILN__STORE__PASSWORD", postgres::PASSWORD),
    ]);
    assert_eq!(
        server.ask("", "GET", "/v3/images", None).await.json()[0]["name"],
        "there"
    );
    let ran = server.stop();
    assert!(!format!("{}{}", ran.stdout, ran.stderr).contains(postgres::PASSWORD));
    let error = refused(
        &Kiln::bare(),
        &[("KILN__STORE__URL", &url), ("KILN__STORE__PASSWORD", "wrong-one")],
    );
    assert!(error.contains("the database does not answer"), "{error}");
    assert!(!error.contains("wrong-one"), "{error}");
}

#[test]
async fn stopping_finishes_what_is_under_way() {
    for signal in [Signal::SIGTERM, Signal::SIGINT] {
        let server = Server::start(&[]);
        // One connection that is idle, one that has said nothing, one in the middle of a request.
        server.ask("", "GET", "/version", None).await;
        let silent = server.connect();
        let mut busy = server.connect();
        let body = r#"{"name":"late"}"#;
        write!(
            busy,
            "POST /v3/images HTTP/1.1\r\nhost: {}\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\
             expect: 100-continue\r\n\r\n",
            server.address(),
            body.len(),
        )
        .unwrap();
        is_under_way(&mut busy);
        busy.write_all(&body.as_bytes()[..5]).unwrap();
        server.started.signal(signal);
        // New connections are refused from some time on.
        eventually(|| std::net::TcpStream::connect(server.address()).is_err());
        busy.write_all(&body.as_bytes()[5..]).unwrap();
        let mut answer = String::new();
        busy.read_to_string(&mut answer).unwrap();
        assert!(answer.starts_with("HTTP/1.1 201 "), "{answer}");
        let Server { kiln, started, .. } = server;
        let ran = started.end();
        assert_eq!(ran.code, Some(0), "{}", ran.stderr);
        // Those that are idle are not waited for.
        assert!(!ran.stderr.contains("broken off"), "{}", ran.stderr);
        drop(silent);
        kiln.assert_clean();
    }
}

/// Waits until the server wants the body of a request that asks it whether it does.
fn is_under_way(request: &mut std::net::TcpStream) {
    let mut answer = [0; 25];
    request.read_exact(&mut answer).unwrap();
    assert_eq!(String::from_utf8_lossy(&answer), "HTTP/1.1 100 Continue\r\n\r\n");
}

#[test]
fn a_request_that_never_ends_does_not_keep_the_server() {
    let server = Server::start(&[]);
    let mut busy = server.connect();
    write!(
        busy,
        "POST /v3/images HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: 10\r\n\
         expect: 100-continue\r\n\r\n"
    )
    .unwrap();
    is_under_way(&mut busy);
    busy.write_all(b"1").unwrap();
    let ran = server.stop();
    assert!(ran.stderr.contains("broken off"), "{}", ran.stderr);
}

#[test]
fn one_data_directory_has_one_server() {
    let server = Server::start(&[]);
    let error = refused(&server.kiln, &[]);
    assert!(error.starts_with("another `kiln serve` uses "), "{error}");
    // The commands that need the database work meanwhile.
    server.token("read");
    assert_eq!(server.kiln.run(["tokens", "list"]).ok().stdout.lines().count(), 1);
    let Server { kiln, started, .. } = server;
    started.signal(Signal::SIGKILL);
    started.end();
    Server::start_in(kiln, &[]).stop();
}

#[test]
fn addresses_that_are_taken() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let kiln = Kiln::bare();
    for variable in ["KILN__SERVER__LISTEN", "KILN__EMBEDDED_S3__LISTEN"] {
        let mut command = kiln.command(["serve"]);
        command.envs(MODEST).env(variable, &address);
        let ran = support::run(command);
        let error = ran.failed();
        assert!(error.contains(&format!("cannot listen on {address}")), "{error}");
        assert!(ran.stderr.contains(variable), "{}", ran.stderr);
    }
}

#[test]
fn what_others_could_reach_is_not_served_to_everybody() {
    let kiln = Kiln::bare();
    let refused = |variables: &[(&str, &str)]| refused(&kiln, variables);
    for listen in [
        "0.0.0.0:0",
        "[::]:0",
        "10.11.12.13:9000",
        r#"["127.0.0.1:0", "0.0.0.0:0"]"#,
    ] {
        let error = refused(&[("KILN__SERVER__LISTEN", listen)]);
        assert!(error.contains("no authentication is required"), "{error}");
        let error = refused(&[("KILN__SERVER__LISTEN", listen), ("KILN__AUTH__MODE", "required")]);
        assert!(error.contains("without encryption"), "{error}");
        let error = refused(&[
            ("KILN__SERVER__LISTEN", listen),
            ("KILN__SERVER__INSECURE_HTTP", "true"),
        ]);
        assert!(error.contains("no authentication is required"), "{error}");
    }
    let error = refused(&[("KILN__SERVER__PUBLIC_URL", "https://kiln.example.org")]);
    assert!(error.contains("no authentication is required"), "{error}");
}

/// Nothing that is nearly right switches authentication off.
#[test]
fn mistakes_do_not_open_the_door() {
    let kiln = Kiln::bare();
    for (name, value) in [
        ("KILN__AUTH__MODE", "off"),
        ("KILN__AUTH__MODE", "none"),
        ("KILN__AUTH__MODE", "Required"),
        ("KILN__AUTH__MODE", "false"),
        ("KILN__AUTH__MOD", "required"),
        ("KILN__AUHT__MODE", "required"),
        ("KILN_AUTH__MODE", "required"),
        ("KILN__OIDC__ISUER", "https://issuer.example.org"),
        ("KILN__OIDC__AUDIENCE", "kiln"),
        ("KILN__OIDC__ISSUER", "http://issuer.example.org"),
        ("KILN__OIDC__ISSUER", "https://issuer.example.org"),
    ] {
        refused(&kiln, &[(name, value)]);
    }
    for text in [
        "[auth]\nmod = 'required'\n",
        "[atuh]\nmode = 'required'\n",
        "[auth]\nmode = ''\n",
        "[auth]\nmode = false\n",
        "auth = 'required'\n",
        "mode = 'required'\n",
        "[oidc]\n",
        "[oidc]\nissuer = ''\n",
    ] {
        let file = kiln.data().join("kiln.toml");
        fs_err::write(&file, text).unwrap();
        refused(&kiln, &[("KILN_CONFIG", file.to_str().unwrap())]);
    }
    refused(&kiln, &[("KILN_CONFIG", "/nowhere/kiln.toml")]);
}

/// A web page that was given our address under its own name must not get in through its reader's browser.
#[test]
async fn without_authentication_only_this_host_is_answered() {
    let server = Server::start(&[]);
    let host = |host: &'static str| send(server.request("GET", "/v3/images").header("host", host));
    for here in [
        "localhost",
        "localhost:9000",
        "127.0.0.1",
        "127.0.0.1:80",
        "[::1]:9000",
        "LOCALHOST",
    ] {
        assert_eq!(host(here).await.status, 200, "{here}");
    }
    for there in [
        "evil.example",
        "127.0.0.1.evil.example",
        "localhost.evil.example:9000",
        "10.0.0.1",
        "kiln",
    ] {
        host(there).await.problem(403);
    }
    server.stop();
}

#[test]
async fn bodies_have_a_limit() {
    let server = Server::start(&[("KILN__LIMITS__BODY_BYTES", "1KiB")]);
    let name = "x".repeat(2000);
    let large = json!({ "name": name }).to_string();
    let post = || {
        let request = server.request("POST", "/v3/images");
        request.header("content-type", "application/json")
    };
    let told = send(post().body(large.clone())).await.problem(413);
    assert_eq!(
        told,
        "The body may have 1024 bytes (1KiB) at most; 2011 bytes were sent."
    );
    // Without a length, too.
    let pieces: Vec<Result<Vec<u8>, std::io::Error>> =
        large.as_bytes().chunks(100).map(|part| Ok(part.to_vec())).collect();
    let told = send(post().body(reqwest::Body::wrap_stream(futures::stream::iter(pieces))))
        .await
        .problem(413);
    assert!(told.contains("2011 bytes were sent"), "{told}");
    // Far too large: refused before all of it came.
    send(post().body(vec![b' '; 3 << 20])).await.problem(413);
    let fits = json!({ "name": "fits" });
    assert_eq!(server.ask("", "POST", "/v3/images", Some(fits)).await.status, 201);
    server.stop();
}

/// The caller has not sent a byte of the body yet, and need not.
#[test]
fn leave_to_send_a_body_that_is_too_large_is_not_given() {
    let server = Server::start(&[]);
    let id = uuid::Uuid::nil();
    for (address, status) in [
        ("POST /v3/images".to_owned(), "413"),
        ("POST /kiln/v1/jobs/x/retry".to_owned(), "413"),
        (format!("PUT /kiln/v1/recipes/{id}/archive"), "404"),
    ] {
        let mut stream = server.connect();
        write!(
            stream,
            "{address} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n\
             content-length: 100000000\r\nexpect: 100-continue\r\n\r\n"
        )
        .unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        assert!(
            answer.starts_with(&format!("HTTP/1.1 {status} ")),
            "{address}: {answer}"
        );
    }
    server.stop();
}

/// The memory of a server, in MiB.
fn resident(server: &Server) -> u64 {
    let status = fs_err::read_to_string(format!("/proc/{}/status", server.started.pid())).unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() / 1024
}

/// Nothing that they send is kept.
#[test]
async fn strangers_at_the_agents_routes_are_counted_and_logged() {
    const CALLS: usize = 40;
    let server = Server::start(&[("KILN__SERVER__AGENT_URL", "http://127.0.0.1:9")]);
    let route = format!("/agent/v1/jobs/{}/events", uuid::Uuid::now_v7());
    let before = resident(&server);
    let call = || {
        send(
            server
                .request("POST", &route)
                .bearer_auth("wrong")
                .body(vec![b' '; 8 << 20]),
        )
    };
    let answers = futures::future::join_all((0..CALLS).map(|_| call())).await;
    let grown = resident(&server).saturating_sub(before);
    println!("{grown} MiB more for {} MiB of strangers", CALLS * 8);
    assert!(grown < 100, "{grown} MiB");
    let of = |status: u16| answers.iter().filter(|answer| answer.status == status).count();
    assert_eq!((of(401), of(429)), (20, CALLS - 20));
    assert!(answers.iter().all(|answer| !answer.header("x-request-id").is_empty()));
    server.stop();
}

/// Those beyond the budget are refused, and what is refused is not kept.
#[test]
async fn unfinished_bodies_take_memory_within_a_budget() {
    let server = Server::start(&[]);
    server.ask("", "GET", "/v3/images", None).await;
    let before = resident(&server);
    let part = vec![b' '; 600 << 10];
    let mut held = Vec::new();
    for _ in 0..400 {
        let mut stream = server.connect();
        let request = "PUT /kiln/v1/images/i/manifest HTTP/1.1\r\nhost: localhost\r\ncontent-length: 1048576\r\n\r\n";
        // Beyond the budget the server listens no more.
        let _ = stream
            .write_all(request.as_bytes())
            .and_then(|()| stream.write_all(&part));
        held.push(stream);
    }
    let grown = resident(&server).saturating_sub(before);
    println!("{grown} MiB more for 240 MiB of unfinished bodies");
    assert!(grown < 150, "{grown} MiB");
    let refused = held.iter_mut().rev().find_map(|stream| {
        stream.set_read_timeout(Some(Duration::from_millis(200))).unwrap();
        let mut answer = [0; 4096];
        let read = stream.read(&mut answer).ok()?;
        let answer = String::from_utf8_lossy(&answer[..read]).into_owned();
        answer.starts_with("HTTP/1.1 503 ").then_some(answer)
    });
    let refused = refused.expect("nobody was refused").to_lowercase();
    assert!(refused.contains("retry-after: 5"), "{refused}");
    // Whoever gives up leaves room for others.
    drop(held);
    let body = json!({ "name": "fits" });
    let fits = async || server.ask("", "POST", "/v3/images", Some(body.clone())).await.status == 201;
    support::eventually_async(fits).await;
    server.stop();
}

/// A web page needs no leave for such a request, and the reader's browser makes it.
#[test]
async fn pages_of_other_sites_change_nothing() {
    let server = Server::start(&[]);
    let id = uuid::Uuid::nil();
    let post = |path: &str| server.request("POST", path);
    for path in [
        format!("/kiln/v1/jobs/{id}/cancel"),
        format!("/kiln/v1/jobs/{id}/retry"),
        format!("/apis/ims//kiln/v1/jobs/{id}/retry"),
        "/v3/images".to_owned(),
        "/nowhere".to_owned(),
    ] {
        for (name, value) in [("origin", "http://evil.example"), ("sec-fetch-site", "cross-site")] {
            let told = send(post(&path).header(name, value)).await.problem(403);
            assert!(told.contains("only pages of this server"), "{told}");
        }
    }
    let cancel = format!("/kiln/v1/jobs/{id}/cancel");
    let own = post(&cancel)
        .header("origin", server.url.as_str())
        .header("sec-fetch-site", "same-origin");
    send(own).await.problem(404);
    send(post(&cancel)).await.problem(404);
    let read = server
        .request("GET", "/v3/images")
        .header("sec-fetch-site", "cross-site");
    assert_eq!(send(read).await.status, 200);
    server.stop();
}

#[test]
fn slow_callers_are_not_waited_for() {
    let server = Server::start(&[("KILN__LIMITS__REQUEST_TIMEOUT", "1s")]);
    let mut slow = server.connect();
    write!(
        slow,
        "POST /v3/images HTTP/1.1\r\nhost: localhost\r\ncontent-length: 10\r\nconnection: close\r\n\r\n1"
    )
    .unwrap();
    let mut answer = String::new();
    slow.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 408 "), "{answer}");
    assert!(answer.contains("The request was not received within 1s."), "{answer}");
    server.stop();
}

#[test]
fn headers_have_a_limit() {
    let server = Server::start(&[]);
    for headers in ["x: y\r\n".repeat(200), format!("x: {}\r\n", "y".repeat(100_000))] {
        let mut stream = server.connect();
        // It need not listen to the end.
        let _ = write!(stream, "GET /version HTTP/1.1\r\nhost: localhost\r\n{headers}\r\n");
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer);
        let answer = String::from_utf8_lossy(&answer);
        assert!(answer.is_empty() || answer.starts_with("HTTP/1.1 431 "), "{answer}");
    }
    server.stop();
}

#[test]
async fn callers_who_ask_too_often_are_told_to_wait() {
    let server = Server::start(&[
        ("KILN__LIMITS__REQUESTS_PER_SECOND", "1"),
        ("KILN__LIMITS__BURST", "5"),
        ("KILN__AUTH__MODE", "required"),
    ]);
    let (one, other) = (server.token("read"), server.token("write"));
    let mut refused = 0;
    for _ in 0..20 {
        let answer = server.ask(&one, "GET", "/v3/images", None).await;
        if answer.status != 200 {
            answer.problem(429);
            assert_eq!(answer.header("retry-after"), "1");
            refused += 1;
        }
    }
    assert!((10..=15).contains(&refused), "{refused}");
    // Other callers are not affected.
    assert_eq!(server.ask(&other, "GET", "/v3/images", None).await.status, 200);
    server.stop();
}

#[test]
async fn requests_are_logged_and_secrets_are_not() {
    let server = Server::start(&[("KILN__AUTH__MODE", "required"), ("KILN__LOG__FORMAT", "json")]);
    let token = server.token("write");
    let request = server.request("GET", "/apis/ims/v3/images?token=secret-in-query");
    let answer = send(request.bearer_auth(&token).header("x-request-id", "mine-1")).await;
    assert_eq!((answer.status, answer.header("x-request-id")), (200, "mine-1"));
    let forged = send(server.request("GET", "/v3/jobs").header("x-request-id", "a b\"c")).await;
    assert_eq!(forged.header("x-request-id").len(), 36);
    server.ask("kiln_wrong", "GET", "/v3/jobs", None).await;
    server.ask("", "GET", "/healthz/live", None).await;
    let ran = server.stop();
    let lines: Vec<Value> = ran
        .stderr
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    let line = lines.iter().find(|line| line["request.id"] == "mine-1").unwrap();
    assert_eq!(line["message"], "answered");
    assert_eq!(line["method"], "GET");
    assert_eq!(line["path"], "/v3/images");
    assert_eq!(line["status"], 200);
    assert_eq!(line["principal"], "write-er");
    assert!(line["duration_ms"].is_number());
    let answered: Vec<_> = lines.iter().filter(|line| line["message"] == "answered").collect();
    // Probes are not worth a line.
    assert_eq!(answered.len(), 3, "{answered:#?}");
    assert!(
        answered[1..]
            .iter()
            .all(|line| line["status"] == 401 && line["principal"] == "-")
    );
    for secret in [&token[5..], "secret-in-query", "kiln_wrong"] {
        assert!(!ran.stderr.contains(secret) && !ran.stdout.contains(secret), "{secret}");
    }
}

#[test]
fn without_configuration_there_is_little_to_say() {
    let mut server = Server::start(&[("KILN_LOG", "error")]);
    server.started.wait_until_ready();
    let ran = server.stop();
    assert_eq!(ran.stderr, "");
    assert_eq!(ran.stdout.lines().count(), 10, "{}", ran.stdout);
}
