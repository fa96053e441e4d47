//! A server for agents that gives the test's answers, on a socket as sandboxes see it.

use std::{
    fmt,
    path::Path,
    sync::{Arc, Mutex},
};

use async_trait::async_trait;
use kiln::{
    api,
    orchestrate::agents::{AgentCalls, Line, Refusal},
    sandbox::doors,
};
use kiln_agent::channel::Channel;
use kiln_records::{
    JobId,
    protocol::{AgentFacts, Answer, Call},
};
use tempfile::TempDir;
use tokio::{net::UnixListener, task::JoinHandle};

pub const TOKEN: &str = "the right one";

/// The test's answers. The script sees every call.
pub type Script = dyn FnMut(Call) -> Result<Answer, Refusal> + Send;

pub struct Scripted {
    job: JobId,
    script: Mutex<Box<Script>>,
}

impl fmt::Debug for Scripted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Scripted")
    }
}

#[async_trait]
impl AgentCalls for Scripted {
    async fn admit(&self, job: JobId, token: &str) -> Result<(), Refusal> {
        if job == self.job && token == TOKEN {
            Ok(())
        } else {
            Err(Refusal::Unknown)
        }
    }

    async fn answer(&self, job: JobId, token: &str, call: Call) -> Result<Answer, Refusal> {
        self.admit(job, token).await?;
        (self.script.lock().unwrap())(call)
    }

    async fn take_line(&self, _: JobId, _: &str, _: Line, _: bool) {
        unreachable!("no script asks for a shell")
    }

    async fn take_registry(&self, _: JobId, _: &str, _: Line) {}

    async fn take_proxied(&self, _: JobId, _: Line) {
        unreachable!("no script asks for a shell")
    }
}

pub struct Server {
    pub dir: TempDir,
    calls: Arc<dyn AgentCalls>,
    serving: Option<JoinHandle<()>>,
    pub facts: AgentFacts,
}

impl Server {
    pub fn scripted(script: impl FnMut(Call) -> Result<Answer, Refusal> + Send + 'static) -> Self {
        let job = JobId::new();
        let script: Box<Script> = Box::new(script);
        let script = Mutex::new(script);
        Self::of(job, Arc::new(Scripted { job, script }))
    }

    pub fn of(job: JobId, calls: Arc<dyn AgentCalls>) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let facts = AgentFacts {
            gateway: None,
            ca_bundle: None,
            server: format!("unix:{}/agent.sock", dir.path().display()),
            job,
            token: TOKEN.to_owned(),
            doors: Vec::new(),
            proxy: None,
        };
        let mut server = Self {
            dir,
            calls,
            serving: None,
            facts,
        };
        server.start();
        server
    }

    pub fn start(&mut self) {
        let listener = listen(self.dir.path());
        let router = api::agent::router(Arc::clone(&self.calls));
        self.serving = Some(tokio::spawn(
            async move { axum::serve(listener, router).await.unwrap() },
        ));
    }

    /// As if killed: connections break, the socket's file stays.
    pub async fn kill(&mut self) {
        let serving = self.serving.take().unwrap();
        serving.abort();
        assert!(serving.await.unwrap_err().is_cancelled());
    }

    pub fn channel(&self) -> Channel {
        Channel::new(&self.facts).unwrap()
    }
}

fn listen(dir: &Path) -> UnixListener {
    UnixListener::from_std(doors::listen(dir, "agent.sock").unwrap()).unwrap()
}
