//! Tests the metrics as operators use them: who may read them, and what Prometheus and its tools make of them.

use std::{
    collections::BTreeSet,
    net::TcpListener,
    path::Path,
    process::{Child, Command, Stdio},
};

use serde_json::Value;

use crate::support::{
    self, Kiln, Ran, eventually_async,
    serve::{Answer, MODEST, Server, client, send},
};

const TOKEN: &str = "a-token-of-the-site-that-is-long";

/// A server with an own address for metrics, and that address.
fn server(variables: &[(&str, &str)]) -> (Server, String) {
    let listen = [("KILN__METRICS__LISTEN", "127.0.0.1:0")];
    let mut server = Server::start(&[&listen, variables].concat());
    let line = server.started.wait_for("metrics ");
    let url = line.split_whitespace().nth(1).unwrap().to_owned();
    (server, url)
}

/// The value of a series, if it is there.
fn value(text: &str, series: &str) -> Option<f64> {
    let found = text
        .lines()
        .find_map(|line| line.strip_prefix(series)?.strip_prefix(' '));
    found.map(|value| value.parse().unwrap())
}

/// The metrics, once this holds of them.
async fn once(url: &str, holds: impl Fn(&str) -> bool) -> String {
    eventually_async(async || {
        let text = send(client(None).get(url)).await.text;
        if holds(&text) { Ok(text) } else { Err(text) }
    })
    .await
}

fn promtool(args: &[&str], dir: &Path, input: &str) -> Ran {
    let file = dir.join("promtool-input");
    fs_err::write(&file, input).unwrap();
    let mut command = Command::new("promtool");
    command.args(args).current_dir(dir);
    command.stdin(Stdio::from(fs_err::File::open(&file).unwrap().into_file()));
    support::run(command)
}

#[test]
async fn promtool_finds_nothing_to_say() {
    let (server, url) = server(&[]);
    server.ask("", "GET", "/v3/images", None).await;
    let text = once(&url, |text| {
        text.contains("kiln_jobs{") && text.contains("kiln_place_sandboxes{")
    })
    .await;
    let checked = promtool(&["check", "metrics"], server.kiln.data().parent().unwrap(), &text).ok();
    assert_eq!((checked.stdout.as_str(), checked.stderr.as_str()), ("", ""));
    assert_eq!(value(&text, "kiln_database_up"), Some(1.0));
    assert_eq!(value(&text, "kiln_queue_oldest_seconds"), Some(0.0));
    assert!(value(&text, "kiln_data_directory_free_bytes") > Some(0.0));
    assert!(value(&text, "kiln_api_request_duration_seconds_count{status=\"2xx\"}") >= Some(1.0));
    assert!(
        value(
            &text,
            "kiln_database_operation_duration_seconds_count{operation=\"read\"}"
        ) > Some(0.0)
    );
    assert!(
        value(
            &text,
            "kiln_s3_request_duration_seconds_count{operation=\"HeadBucket\"}"
        ) >= Some(2.0)
    );
    assert_eq!(
        value(&text, "kiln_s3_request_errors_total{operation=\"GetObject\"}"),
        Some(0.0)
    );
    server.stop();
}

#[test]
async fn a_job_is_counted_and_its_name_is_nowhere() {
    let (server, url) = server(&[("KILN__CAPACITY__JOBS", "1")]);
    // Nothing has this recipe, so the request is refused and no job is counted.
    let wrong = serde_json::json!({ "artifact_id": uuid::Uuid::new_v4(), "name": "SECRET" });
    assert!(server.ask("", "POST", "/v3/jobs", Some(wrong)).await.status >= 400);
    let text = once(&url, |text| text.contains("kiln_jobs{")).await;
    assert_eq!(
        value(&text, "kiln_jobs_asked_total{arch=\"x86_64\",type=\"create\"}"),
        Some(0.0)
    );
    assert!(!text.contains("SECRET"));
    server.stop();
}

#[test]
async fn only_this_host_reads_without_a_token() {
    let (server, url) = server(&[]);
    let ask = |host: &'static str| send(client(None).get(&url).header("host", host));
    assert_eq!(ask("localhost").await.status, 200);
    // A web page whose name leads here.
    ask("evil.example").await.problem(403);
    let root = url.trim_end_matches("/metrics");
    for path in ["/", "/v3/images", "/metrics/x"] {
        send(client(None).get(format!("{root}{path}"))).await.problem(404);
    }
    assert_eq!(send(client(None).delete(&url)).await.status, 405);
    server.stop();
}

#[test]
async fn a_token_opens_the_metrics_and_nothing_else() {
    let kiln = Kiln::bare();
    let file = kiln.data().parent().unwrap().join("token");
    fs_err::write(&file, format!("{TOKEN}\n")).unwrap();
    let path = file.to_str().unwrap().to_owned();
    let variables = [
        ("KILN__METRICS__TOKEN_FILE", path.as_str()),
        ("KILN__METRICS__LISTEN", "127.0.0.1:0"),
        ("KILN__AUTH__MODE", "required"),
    ];
    let mut server = Server::start_in(kiln, &variables);
    let line = server.started.wait_for("metrics ");
    let url = line.split_whitespace().nth(1).unwrap().to_owned();
    let get = async |token: &str| -> Answer { send(client(None).get(&url).bearer_auth(token)).await };
    assert_eq!(get(TOKEN).await.status, 200);
    send(client(None).get(&url)).await.problem(401);
    get("another").await.problem(401);
    get("").await.problem(401);
    server.ask(TOKEN, "GET", "/metrics", None).await.problem(401);
    server.ask(TOKEN, "GET", "/v3/images", None).await.problem(401);

    // The other way round: a token of Kiln's own reads them on the addresses of the API only.
    let reader = server.token("read");
    get(&reader).await.problem(401);
    assert_eq!(server.ask(&reader, "GET", "/metrics", None).await.status, 200);
    server.ask("", "GET", "/metrics", None).await.problem(401);

    // Another token holds at once, and without one nobody is let in.
    fs_err::write(&file, "another-token-that-is-long-enough").unwrap();
    get(TOKEN).await.problem(401);
    assert_eq!(get("another-token-that-is-long-enough").await.status, 200);
    for empty in ["", "\n", "short"] {
        fs_err::write(&file, empty).unwrap();
        get(empty.trim())
            .await
            .problem(if empty == "short" { 503 } else { 401 });
        get(TOKEN).await.problem(503);
    }
    fs_err::remove_file(&file).unwrap();
    get(TOKEN).await.problem(503);
    server.stop();
}

#[test]
fn a_configuration_that_leaves_them_open_is_refused() {
    let kiln = Kiln::bare();
    fs_err::create_dir_all(kiln.data()).unwrap();
    let token = kiln.data().join("token");
    fs_err::write(&token, "short").unwrap();
    let token = token.to_str().unwrap();
    let listen = ("KILN__METRICS__LISTEN", "0.0.0.0:0");
    let file = ("KILN__METRICS__TOKEN_FILE", token);
    let refused = |variables: &[(&str, &str)]| {
        let mut command = kiln.command(["serve"]);
        command.envs(MODEST).envs(variables.iter().copied());
        support::run(command).failed()
    };
    let insecure = ("KILN__SERVER__INSECURE_HTTP", "true");
    assert!(refused(&[listen, insecure]).contains("no token is required"));
    assert!(refused(&[listen, insecure, file]).contains("has no token of at least 16"));
    assert!(refused(&[file]).contains("`listen` is not set"));
    fs_err::write(token, TOKEN).unwrap();
    assert!(refused(&[listen, file]).contains("without encryption"));
    let missing = ("KILN__METRICS__TOKEN_FILE", "/nonexistent/token");
    assert!(refused(&[listen, insecure, missing]).contains("/nonexistent/token"));
    let twice = ("KILN__METRICS__LISTEN", "[\"127.0.0.1:9977\", \"127.0.0.1:9977\"]");
    assert!(refused(&[twice]).contains("listed twice"));
}

#[test]
async fn a_database_that_is_away_is_told_and_its_figures_are_missing() {
    let mut postgres = support::postgres::Server::start();
    let url = postgres.new_database();
    let (server, metrics) = server(&[("KILN__STORE__URL", &url), ("KILN__JOBS__RUN", "false")]);
    let text = once(&metrics, |text| value(text, "kiln_database_up") == Some(1.0)).await;
    // This server carries out no jobs, so it says nothing of them.
    assert!(!text.contains("kiln_jobs{"), "{text}");
    postgres.stop();
    // The answer comes all the same, and the rest of it is there.
    let text = once(&metrics, |text| value(text, "kiln_database_up") == Some(0.0)).await;
    assert!(value(&text, "kiln_data_directory_size_bytes") > Some(0.0));
    drop(server);
}

/// A program that ends with the test.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The names of metrics in an expression.
fn names(expression: &str) -> impl Iterator<Item = &str> {
    let words = expression.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_'));
    words.filter(|word| word.starts_with("kiln_"))
}

#[test]
async fn prometheus_reads_them_with_the_rules_and_the_dashboard() {
    let (server, url) = server(&[]);
    let text = once(&url, |text| text.contains("kiln_jobs{")).await;
    let dir = server.kiln.data().parent().unwrap();
    let target = url.trim_start_matches("http://").trim_end_matches("/metrics");
    let rules = support::source_dir().join("examples/prometheus/alerts.yml");
    let config = format!(
        "global: {{ scrape_interval: 1s, evaluation_interval: 1s }}\nrule_files: [{}]\n\
         scrape_configs: [{{ job_name: kiln, static_configs: [{{ targets: [\"{target}\"] }}] }}]\n",
        rules.display()
    );
    fs_err::write(dir.join("prometheus.yml"), config).unwrap();
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let mut command = Command::new("prometheus");
    command
        .arg(format!("--web.listen-address=127.0.0.1:{port}"))
        .args([
            "--config.file=prometheus.yml",
            "--storage.tsdb.path=tsdb",
            "--log.level=warn",
        ])
        .current_dir(dir)
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    let prometheus = Running(command.spawn().unwrap());
    let api = format!("http://127.0.0.1:{port}/api/v1");
    let query = async |expression: &str| -> Value {
        let url = reqwest::Url::parse_with_params(&format!("{api}/query"), [("query", expression)]).unwrap();
        let answer = send(client(None).get(url)).await;
        assert_eq!(answer.status, 200, "{expression}: {}", answer.text);
        answer.json()["data"]["result"].clone()
    };
    let is_up = async || {
        let answer = client(None).get(format!("{api}/query?query=up")).send().await;
        match answer {
            Ok(answer) => answer.text().await.unwrap().contains(",\"1\"]"),
            Err(_) => false,
        }
    };
    eventually_async(is_up).await;
    assert_eq!(query("kiln_build_info").await[0]["value"][1], "1");
    assert_eq!(query("max(kiln_database_up)").await[0]["value"][1], "1");

    // Each expression of the dashboard is understood, and names what there is.
    let described: BTreeSet<&str> = text
        .lines()
        .filter_map(|line| line.strip_prefix("# TYPE ")?.split(' ').next())
        .collect();
    let table = fs_err::read_to_string(support::source_dir().join("docs/metrics.md")).unwrap();
    let exists = |name: &str| {
        let parts = ["_bucket", "_sum", "_count"];
        let whole = parts.iter().find_map(|part| name.strip_suffix(part)).unwrap_or(name);
        described.contains(name)
            || table.contains(&format!("| `{name}` |"))
            || table.contains(&format!("| `{whole}` | histogram"))
    };
    let dashboard = fs_err::read_to_string(support::source_dir().join("examples/grafana/kiln.json")).unwrap();
    let dashboard: Value = serde_json::from_str(&dashboard).unwrap();
    let mut count = 0;
    for panel in dashboard["panels"].as_array().unwrap() {
        for target in panel["targets"].as_array().unwrap() {
            let expression = target["expr"].as_str().unwrap();
            let expression = expression.replace("$__rate_interval", "1m").replace("$job", "kiln");
            query(&expression).await;
            assert!(
                names(&expression).count() > 0 && names(&expression).all(exists),
                "{expression}"
            );
            count += 1;
        }
    }
    assert!(count > 20);
    let rules = fs_err::read_to_string(&rules).unwrap();
    let of_rules = rules
        .lines()
        .filter(|line| !line.trim_start().starts_with("description"));
    for line in of_rules {
        assert!(names(line).all(exists), "{line}");
    }
    let loaded = send(client(None).get(format!("{api}/rules"))).await.json();
    let rules = loaded["data"]["groups"][0]["rules"].as_array().unwrap();
    assert!(
        rules.len() > 10 && rules.iter().all(|rule| rule["health"] != "err"),
        "{loaded}"
    );
    drop(prometheus);
    server.stop();
}

#[test]
fn the_rules_do_what_their_tests_say() {
    let dir = support::source_dir().join("examples/prometheus");
    let mut command = Command::new("promtool");
    command.args(["test", "rules", "alerts.test.yml"]).current_dir(dir);
    let ran = support::run(command).ok();
    assert!(ran.stdout.contains("SUCCESS"), "{}", ran.stdout);
}
