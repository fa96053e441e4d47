//! A chromium without a window, driven through chromedriver by the standard WebDriver's commands. It reaches this host
//! only.

use std::{
    io::{BufRead, BufReader},
    panic::Location,
    process::{Child, Command, Stdio},
    sync::Arc,
};

use base64::{Engine, engine::general_purpose::STANDARD};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use reqwest::{Client, Method};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::support::{eventually_async, python_tools, serve::client};

/// Why there is no browser here, if so.
pub fn no_browser() -> Option<String> {
    let is_there = |program: &str| Command::new(program).arg("--version").output().is_ok();
    (!is_there("chromedriver") || !is_there("chromium")).then(|| "there is no chromium with chromium-driver".to_owned())
}

/// A browser with one window.
pub struct Browser {
    client: Client,
    /// The address of the session.
    session: String,
    driver: Child,
    _dir: TempDir,
}

impl Browser {
    pub async fn open() -> Self {
        let dir = tempfile::Builder::new().prefix("kiln-browser-").tempdir().unwrap();
        let mut driver = Command::new("chromedriver")
            .arg("--port=0")
            .env("TMPDIR", dir.path())
            .env("HOME", dir.path())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut said = BufReader::new(driver.stdout.take().unwrap()).lines();
        let port = said.by_ref().map_while(Result::ok).find_map(|line| {
            let (_, port) = line.rsplit_once("on port ")?;
            // It announces the port that it was given before the one that it got.
            port.trim_end_matches('.').parse::<u16>().ok().filter(|port| *port != 0)
        });
        let port = port.expect("chromedriver says its port");
        std::thread::spawn(move || said.map_while(Result::ok).for_each(drop));
        let options = json!({
            "binary": "/usr/bin/chromium",
            "args": [
                "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--window-size=1280,900",
                "--force-prefers-reduced-motion", "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1, EXCLUDE localhost",
                format!("--user-data-dir={}", dir.path().join("profile").display()),
            ],
        });
        let mut browser = Self {
            client: client(None),
            session: format!("http://127.0.0.1:{port}/session"),
            driver,
            _dir: dir,
        };
        let wanted = json!({ "browserName": "chrome", "goog:chromeOptions": options });
        let wanted = json!({ "capabilities": { "alwaysMatch": wanted } });
        let session = browser.command(Method::POST, "", Some(wanted)).await;
        browser.session = format!("{}/{}", browser.session, session["sessionId"].as_str().unwrap());
        browser
    }

    async fn command(&self, method: Method, path: &str, body: Option<Value>) -> Value {
        self.try_command(method, path, body).await.unwrap()
    }

    async fn try_command(&self, method: Method, path: &str, body: Option<Value>) -> Result<Value, String> {
        let mut request = self.client.request(method, format!("{}{path}", self.session));
        if let Some(body) = body {
            request = request.json(&body);
        }
        let mut answer: Value = request.send().await.unwrap().json().await.unwrap();
        let value = answer["value"].take();
        if value.get("error").is_some() {
            return Err(format!("{path}: {value}"));
        }
        Ok(value)
    }

    pub async fn goto(&self, url: &str) {
        self.command(Method::POST, "/url", Some(json!({ "url": url }))).await;
    }

    pub async fn refresh(&self) {
        self.command(Method::POST, "/refresh", Some(json!({}))).await;
    }

    pub async fn forget_cookies(&self) {
        self.command(Method::DELETE, "/cookie", None).await;
    }

    /// Goes on in another of its windows, in the order in which they were opened.
    pub async fn to_window(&self, number: usize) {
        let handle = eventually_async(async || {
            let handles = self.command(Method::GET, "/window/handles", None).await;
            let handle = handles.get(number).cloned();
            handle.ok_or_else(|| format!("there is no window {number}: {handles}"))
        })
        .await;
        self.command(Method::POST, "/window", Some(json!({ "handle": handle })))
            .await;
    }

    /// A picture of the window, as PNG.
    pub async fn picture(&self) -> Vec<u8> {
        let picture = self.command(Method::GET, "/screenshot", None).await;
        STANDARD.decode(picture.as_str().unwrap()).unwrap()
    }

    /// Clicks where a person would.
    pub async fn click(&self, selector: &str) {
        // A page that is still being drawn may have moved the element, or replaced it.
        eventually_async(async || {
            let element = self.element(selector).await;
            let path = format!("/element/{element}/click");
            self.try_command(Method::POST, &path, Some(json!({}))).await
        })
        .await;
    }

    /// Types into an element. `\u{e007}` is the key Enter.
    pub async fn keys(&self, selector: &str, text: &str) {
        let element = self.element(selector).await;
        let path = format!("/element/{element}/value");
        self.command(Method::POST, &path, Some(json!({ "text": text }))).await;
    }

    /// Empties a field, and types into it.
    pub async fn fill(&self, selector: &str, text: &str) {
        let element = self.element(selector).await;
        let path = format!("/element/{element}/clear");
        self.command(Method::POST, &path, Some(json!({}))).await;
        self.keys(selector, text).await;
    }

    /// An element of the page, which may still be loading.
    async fn element(&self, selector: &str) -> String {
        self.until(&format!("document.querySelector({})", json!(selector)))
            .await;
        let query = json!({ "using": "css selector", "value": selector });
        let found = self.command(Method::POST, "/element", Some(query)).await;
        let id = found.as_object().unwrap().values().next().unwrap();
        id.as_str().unwrap().to_owned()
    }

    async fn execute(&self, how: &str, script: &str) -> Value {
        let script = json!({ "script": script, "args": [] });
        self.command(Method::POST, &format!("/execute/{how}"), Some(script))
            .await
    }

    /// The value of an expression on the page.
    pub async fn value(&self, expression: &str) -> Value {
        self.execute("sync", &format!("return {expression};")).await
    }

    /// Waits until an expression is true.
    #[track_caller]
    pub fn until(&self, expression: &str) -> impl Future<Output = ()> {
        self.until_true(expression.to_owned())
    }

    /// Waits until a text is on the page, as far as a person sees.
    #[track_caller]
    pub fn until_text(&self, text: &str) -> impl Future<Output = ()> {
        self.until_true(format!("document.body.innerText.includes({})", json!(text)))
    }

    #[track_caller]
    fn until_true(&self, expression: String) -> impl Future<Output = ()> {
        // What is looked for, or the whole page, may not have been loaded yet.
        let is_so = format!("(() => {{ try {{ return Boolean({expression}) }} catch {{ return false }} }})()");
        let look = Arc::new((is_so, expression));
        eventually_async(move || {
            let look = Arc::clone(&look);
            async move {
                if self.value(&look.0).await == true {
                    return Ok(());
                }
                let text = self.value("document.body.innerText").await;
                Err(format!("never so: {}\n{text}", look.1))
            }
        })
    }

    /// The text that a person sees.
    pub async fn text(&self) -> String {
        let text = self.value("document.body.innerText").await;
        text.as_str().unwrap().to_owned()
    }

    /// Makes the window as wide as this, in CSS pixels: windows themselves cannot be as narrow as a phone.
    pub async fn resize(&self, width: u32, height: u32) {
        let metrics = json!({ "width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 500 });
        self.devtools("Emulation.setDeviceMetricsOverride", metrics).await;
    }

    /// Shows pages dark, or light.
    pub async fn darken(&self, dark: bool) {
        let value = if dark { "dark" } else { "light" };
        let features = json!({ "features": [{ "name": "prefers-color-scheme", "value": value }] });
        self.devtools("Emulation.setEmulatedMedia", features).await;
    }

    /// A command of Chrome's own protocol.
    async fn devtools(&self, command: &str, parameters: Value) {
        let command = json!({ "cmd": command, "params": parameters });
        self.command(Method::POST, "/goog/cdp/execute", Some(command)).await;
    }

    /// Checks a page with axe-core: there is nothing serious that people with other eyes and hands would stumble over.
    #[track_caller]
    pub fn is_accessible(&self, page: &str) -> impl Future<Output = ()> {
        let caller = Location::caller();
        async move {
            let axe = tokio::task::spawn_blocking(axe).await.unwrap();
            self.execute("sync", &axe).await;
            let run = "const done = arguments[0]; axe.run(document, { resultTypes: ['violations'] }).then(
                (found) => done(found.violations.filter((one) => ['serious', 'critical'].includes(one.impact)).map(
                    (one) => one.id + ': ' + one.help + ': ' + one.nodes.slice(0, 3).map(
                        (node) => node.html.slice(0, 200) + ' ' + (node.any[0]?.message ?? '')).join(' | '))),
                (error) => done(['axe failed: ' + error]));";
            let found = self.execute("async", run).await;
            assert_eq!(found, json!([]), "{caller}: {page}");
        }
    }

    /// Ends the session. A driver that breaks off as it ends says nothing about Kiln's pages.
    pub async fn close(self) {
        let ended = self.client.request(Method::DELETE, &self.session).send().await;
        if let Err(error) = ended {
            println!("the browser did not end well: {error}");
        }
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        // The driver ends a chromium that is still there.
        let _ = kill(Pid::from_raw(self.driver.id().cast_signed()), Signal::SIGTERM);
        let _ = self.driver.wait();
    }
}

/// The script of axe-core, which its Python package holds.
fn axe() -> String {
    let packages = python_tools("web").join("lib");
    let mut versions = fs_err::read_dir(&packages).unwrap();
    let version = versions.next().unwrap().unwrap().path();
    fs_err::read_to_string(version.join("site-packages/axe_playwright_python/axe.min.js")).unwrap()
}
