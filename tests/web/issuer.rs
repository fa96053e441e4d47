//! Signing in at an issuer as a person does: a provider of another maker, on another site, in a real browser.

use std::{
    io::{BufRead, BufReader},
    process::{Child, Command, Stdio},
};

use super::{
    browser::{Browser, no_browser},
    night::Night,
};
use crate::support::{Kiln, ports::free_port, python_tools, serve::Server};

/// A provider that asks nothing but a name.
struct Provider {
    child: Child,
    url: String,
}

impl Provider {
    fn start() -> Self {
        let port = free_port().to_string();
        let ada = r#"{"sub": "ada", "preferred_username": "ada", "realm_access": {"roles": ["kiln-write"]}}"#;
        let nobody = r#"{"sub": "nobody"}"#;
        let mut child = Command::new(python_tools("web").join("bin/oidc-provider-mock"))
            .args(["--port", &port, "--require-nonce", "true"])
            .args(["--user-claims", ada, "--user-claims", nobody])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let said = BufReader::new(child.stderr.take().unwrap()).lines();
        let mut said = said.map_while(Result::ok);
        let is_ready = |line: String| line.contains("Uvicorn running on");
        assert!(said.by_ref().any(is_ready), "the provider ended");
        std::thread::spawn(move || said.for_each(drop));
        Self {
            child,
            url: format!("http://localhost:{port}"),
        }
    }
}

impl Drop for Provider {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test(threads = 2)]
async fn a_person_signs_in_at_the_issuer() {
    needs!(no_browser());
    let provider = tokio::task::spawn_blocking(Provider::start).await.unwrap();
    let address = format!("127.0.0.1:{}", free_port());
    let public = format!("http://{address}");
    let kiln = Kiln::bare();
    let secret = kiln.data().join("client-secret");
    fs_err::write(&secret, "any secret will do").unwrap();
    let server = Server::start_in(
        kiln,
        &[
            ("KILN__SERVER__LISTEN", &address),
            ("KILN__SERVER__PUBLIC_URL", &public),
            ("KILN__OIDC__ISSUER", &provider.url),
            ("KILN__OIDC__AUDIENCE", "kiln-dashboard"),
            ("KILN__OIDC__CLIENT_ID", "kiln-dashboard"),
            ("KILN__OIDC__CLIENT_SECRET_FILE", secret.to_str().unwrap()),
        ],
    );
    let night = Night::at(&server).await;
    night.recipe("compute-node", "aarch64").await;
    let browser = Browser::open().await;
    let at_issuer = "location.hostname === 'localhost'";

    // Somebody whom the issuer knows, and Kiln does not.
    browser.goto(&format!("{public}/ui/schedules")).await;
    browser.until_text("Sign in at localhost").await;
    browser.is_accessible("login").await;
    browser.click("main a.button").await;
    browser.until(at_issuer).await;
    browser.keys("input[name=sub]", "nobody\u{e007}").await;
    browser.until_text("gives you no role that Kiln knows").await;
    // Somebody who changed their mind.
    browser.goto(&format!("{public}/ui/schedules")).await;
    browser.click("main a.button").await;
    browser.until(at_issuer).await;
    browser.click("button[value=deny]").await;
    browser.until_text("did not sign you in").await;
    // The page that was asked for is shown at once, from another site and without a script.
    browser.goto(&format!("{public}/ui/schedules")).await;
    browser.click("main a.button").await;
    browser.until(at_issuer).await;
    browser.keys("input[name=sub]", "ada\u{e007}").await;
    browser
        .until("location.pathname === '/ui/schedules' && document.querySelector('header .who').innerText === 'ada'")
        .await;

    // A form of a session that ended is kept while its person signs in at the issuer, in another window.
    browser.click("details summary").await;
    browser.fill("#schedule-name", "typed for long").await;
    browser.fill("#schedule-cron", "15 4 * * mon").await;
    browser.forget_cookies().await;
    browser.click("#new-schedule button").await;
    browser.until_text("what you typed is kept").await;
    browser.click("main a.button").await;
    browser.to_window(1).await;
    browser.until(at_issuer).await;
    browser.keys("input[name=sub]", "ada\u{e007}").await;
    browser.until("location.pathname === '/ui'").await;
    browser.to_window(0).await;
    browser.click("main form button").await;
    browser.until_text("You are signed in again").await;
    browser.click("form button").await;
    browser.until("location.pathname.startsWith('/ui/schedules/')").await;
    browser.until_text("typed for long").await;
    browser.close().await;
}
