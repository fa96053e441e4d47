//! Builds at a site whose repositories are reached through an HTTP proxy with a login: Debian's tinyproxy, which alone
//! knows the repository's name.

use std::{
    io::{Read, Write},
    net::{TcpListener, TcpStream},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::Arc,
};

use crate::support::{self, Kiln, Recipe, commands::build, repository::Repository, serve::Server, tool};
use kiln::proxy::{Address, Gate, Rules, Site};
use tempfile::TempDir;

/// The name of the repository's host, where the proxy is.
const NAME: &str = "repository.invalid";

/// The password for the proxy.
const PASSWORD: &str = "hunter2-of-the-proxy";

/// A running proxy.
struct Proxy {
    child: Child,
    port: u16,
    dir: TempDir,
}

impl Proxy {
    fn start() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let at = |name: &str| dir.path().join(name);
        let config = format!(
            "Port {port}\nListen 127.0.0.1\nTimeout 60\nMaxClients 50\nLogFile \"{}\"\nLogLevel Info\n\
             BasicAuth kiln {PASSWORD}\n",
            at("log").display()
        );
        fs_err::write(at("conf"), config).unwrap();
        fs_err::write(at("hosts"), format!("127.0.0.1 localhost {NAME}\n")).unwrap();
        fs_err::write(at("login"), format!("kiln:{PASSWORD}\n")).unwrap();
        tool("chmod", &["600", at("login").to_str().unwrap()]);
        // With a file of hosts of its own, which nothing else on this host sees.
        let child = Command::new("unshare")
            .args(["--user", "--map-root-user", "--mount", "--kill-child", "sh", "-ec"])
            .arg("mount --bind \"$0/hosts\" /etc/hosts; exec tinyproxy -d -c \"$0/conf\"")
            .arg(dir.path())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let proxy = Self { child, port, dir };
        support::eventually(|| TcpStream::connect(("127.0.0.1", port)));
        proxy
    }

    fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    fn credentials(&self) -> PathBuf {
        self.dir.path().join("login")
    }

    /// How often the proxy was asked for an address that contains this.
    fn asked(&self, part: &str) -> usize {
        let log = fs_err::read_to_string(self.dir.path().join("log")).unwrap();
        log.lines()
            .filter(|line| line.contains("Request") && line.contains(part))
            .count()
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Checks that no file below a directory has the password, in any form in which it could be sent.
#[track_caller]
fn assert_no_password(dir: &Path) {
    for text in [PASSWORD, &encoded()] {
        let found = Command::new("grep")
            .args(["--recursive", "--fixed-strings", "--files-with-matches", text])
            .arg(dir)
            .output()
            .unwrap();
        assert_eq!(String::from_utf8_lossy(&found.stdout), "");
    }
}

fn encoded() -> String {
    use base64::Engine as _;
    base64::engine::general_purpose::STANDARD.encode(format!("kiln:{PASSWORD}"))
}

/// What a recipe tries: it looks for the login, and asks the proxy for what jobs may not reach.
const SCRIPT: &str = r#"#!/bin/sh
set -eu
echo "variable: $http_proxy"
for address in http://169.254.169.254/latest http://127.0.0.1.invalid/ http://0x7f000001:1/; do
    if /usr/lib/apt/apt-helper download-file "$address" /tmp/got; then echo "reached: $address"; fi
done
"#;

#[test]
fn a_server_s_jobs_reach_their_repository_through_the_proxy_and_never_see_its_login() {
    let proxy = Proxy::start();
    let repository = Repository::debian();
    let by_name = repository.url().replace("127.0.0.1", NAME);
    let server = Server::start_in(
        Kiln::new(),
        &[
            ("KILN__NETWORK__HTTP_PROXY", &proxy.url()),
            (
                "KILN__NETWORK__PROXY_CREDENTIALS",
                proxy.credentials().to_str().unwrap(),
            ),
        ],
    );
    server.make_key();
    let recipe = Recipe::copy_of("deb-tiny").with("config.sh", SCRIPT);
    recipe.fill_in("{{ deb_repo }}", &by_name);
    let recipe = server.recipe(&recipe, &repository, &["--require-dkms", "false"]);
    let ran = server.run(&build(&recipe, &["--follow"]));
    let ran = ran.ok();
    let job = ran
        .stderr
        .lines()
        .find_map(|line| line.strip_prefix("job "))
        .unwrap()
        .trim()
        .to_owned();
    let said = server.run(&["jobs", "logs", &job]).ok().stdout;
    assert!(said.contains("variable: http://127.0.0.1:3128"), "{said}");
    assert!(!said.contains("reached: "), "{said}");
    assert!(said.contains("403  Forbidden"), "{said}");
    assert!(!said.contains(PASSWORD) && !said.contains(&encoded()), "{said}");
    assert!(proxy.asked(NAME) > 3);
    assert_eq!(proxy.asked("169.254."), 0);
    assert_no_password(server.kiln.data());
    server.stop();
}

#[test]
fn a_build_without_a_server_asks_the_proxy_too() {
    let proxy = Proxy::start();
    let repository = Repository::native();
    let kiln = Kiln::new();
    let recipe = Recipe::copy_of("rpm-minimal");
    let mut command = kiln.command(["build", "--isolation", "namespace"]);
    command
        .arg(recipe.path())
        .arg(format!(
            "--set=rpm_repo={}",
            repository.url().replace("127.0.0.1", NAME)
        ))
        .env("KILN__NETWORK__HTTP_PROXY", proxy.url())
        .env("KILN__NETWORK__PROXY_CREDENTIALS", proxy.credentials());
    let ran = support::run(command).ok();
    assert!(proxy.asked("repomd.xml") > 0);
    assert!(!ran.stderr.contains(PASSWORD), "{}", ran.stderr);
    assert_no_password(kiln.data());
}

#[test]
fn a_toolbox_is_made_of_packages_that_come_through_the_proxy() {
    let proxy = Proxy::start();
    let kiln = Kiln::bare();
    let mut command = kiln.command([
        "toolbox",
        "build",
        "--verbose",
        "--mirror",
        "http://mirror.invalid/debian",
    ]);
    command
        .env("KILN__NETWORK__HTTP_PROXY", proxy.url())
        .env("KILN__NETWORK__PROXY_CREDENTIALS", proxy.credentials());
    let ran = support::run(command);
    // There is no such mirror, and the proxy says so.
    assert_eq!(ran.code, Some(1), "{}", ran.stderr);
    assert!(proxy.asked("http://mirror.invalid/debian/dists/") > 0, "{}", ran.stderr);
    assert!(!ran.stderr.contains(PASSWORD), "{}", ran.stderr);
    assert_no_password(kiln.data());
}

/// What a proxy answers to a request, up to the end.
fn ask(port: u16, request: &str) -> String {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
    stream.set_read_timeout(Some(support::PATIENCE)).unwrap();
    stream.write_all(request.as_bytes()).unwrap();
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer);
    String::from_utf8_lossy(&answer).into_owned()
}

/// Serves a gate that lets only the repository be asked for. Returns its port.
async fn serve(gate: Arc<Gate>) -> u16 {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let rules = Rules {
                apply: true,
                only_allowed: true,
                allow_names: vec![NAME.to_owned()],
                ..Rules::default()
            };
            tokio::spawn(gate.clone().serve(stream, rules, None));
        }
    });
    port
}

#[test(threads = 2)]
async fn the_gate_speaks_as_a_proxy_and_refuses_what_only_looks_like_a_request() {
    let proxy = Proxy::start();
    let repository = Repository::debian();
    let address = Address {
        host: "127.0.0.1".to_owned(),
        port: proxy.port,
    };
    let site = Site {
        http: Some(address.clone()),
        https: Some(address),
        credentials: Some(proxy.credentials()),
        ..Site::default()
    };
    let without = Site {
        credentials: None,
        ..site.clone()
    };
    let port = serve(Gate::to(site).unwrap()).await;
    let at = format!("{NAME}:{}", repository.port());
    let path = repository
        .url()
        .split_once(&repository.port().to_string())
        .unwrap()
        .1
        .to_owned();
    let asked = |request: String| tokio::task::spawn_blocking(move || ask(port, &request));

    let got = asked(format!(
        "GET http://{at}{path}/dists/tiny/Release HTTP/1.1\r\nHost: elsewhere\r\nConnection: close\r\n\r\n"
    ));
    let got = got.await.unwrap();
    assert!(got.starts_with("HTTP/1.1 200") && got.contains("Suite"), "{got}");

    // Two requests at once, the second for another host.
    let both = asked(format!(
        "GET http://{at}/ HTTP/1.1\r\nHost: {at}\r\n\r\nGET http://other.invalid/ HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"
    ));
    let both = both.await.unwrap();
    assert!(
        both.contains("403 Forbidden") && both.contains("`allow` has other hosts only"),
        "{both}"
    );
    assert_eq!(proxy.asked("other.invalid"), 0);

    // A tunnel, with a request in it.
    let tunnel = asked(format!(
        "CONNECT {at} HTTP/1.1\r\nHost: {at}\r\n\r\nGET {path}/dists/tiny/Release HTTP/1.0\r\n\r\n"
    ));
    let tunnel = tunnel.await.unwrap();
    assert!(
        tunnel.starts_with("HTTP/1.1 200") && tunnel.contains("Suite"),
        "{tunnel}"
    );

    for (request, status) in [
        ("CONNECT 127.0.0.1:22 HTTP/1.1\r\nHost: a\r\n\r\n".to_owned(), "403"),
        (
            "CONNECT [::ffff:127.0.0.1]:22 HTTP/1.1\r\nHost: a\r\n\r\n".to_owned(),
            "403",
        ),
        (
            format!(
                "GET http://127.0.0.1:{}/ HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n",
                proxy.port
            ),
            "403",
        ),
        (
            format!("GET http://me@{at}/ HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"),
            "400",
        ),
        (
            format!("GET https://{at}/ HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"),
            "400",
        ),
        (
            "GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n".to_owned(),
            "400",
        ),
        ("nonsense\r\n\r\n".to_owned(), "400"),
    ] {
        let answer = asked(request.clone()).await.unwrap();
        assert!(answer.starts_with(&format!("HTTP/1.1 {status}")), "{request}: {answer}");
    }

    let plain = format!("GET http://{at}/ HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
    fs_err::remove_file(proxy.credentials()).unwrap();
    let lost = asked(plain.clone()).await.unwrap();
    assert!(
        lost.starts_with("HTTP/1.1 502") && lost.contains("the server's log says why"),
        "{lost}"
    );
    let port = serve(Gate::to(without).unwrap()).await;
    let refused = tokio::task::spawn_blocking(move || ask(port, &plain)).await.unwrap();
    assert!(
        refused.starts_with("HTTP/1.1 502") && refused.contains("proxy_credentials"),
        "{refused}"
    );
}
