//! Passes lines into shells on to the server that carries their job out, when an agent has called another one. Opens
//! connections to other servers.

use std::time::Duration;

use super::{
    agent_address::AgentAddress,
    agents::{Line, PASSED_ON},
};
use crate::config::ServerSettings;
use kiln_records::{Code, Failure, JobId, protocol::shell};
use reqwest::{
    StatusCode,
    header::{CONNECTION, UPGRADE},
};

/// How long another server may take to accept a connection.
const PATIENCE: Duration = Duration::from_secs(10);

/// How servers on the same records reach each other.
#[derive(Debug)]
pub struct Peers {
    own_url: String,
    settings: ServerSettings,
}

impl Peers {
    /// The configured way; `None` if other hosts do not reach this server.
    pub fn of(settings: &ServerSettings) -> Option<Self> {
        let own_url = settings.peer_url.clone().or_else(|| settings.agent_url.clone())?;
        let settings = settings.clone();
        Some(Self { own_url, settings })
    }

    /// The URL of this server alone.
    pub(super) fn own_url(&self) -> &str {
        &self.own_url
    }

    /// Connects a line with the server at `url`, as the agent that opened it would.
    pub(super) async fn pass_on(&self, url: String, job: JobId, token: &str, mut line: Line) -> Result<(), Failure> {
        let failed = |error: reqwest::Error| Failure::new(Code::ServerLost, error);
        let address = AgentAddress::of_peer(&self.settings, url);
        let client = address.client()?.connect_timeout(PATIENCE).http1_only().build();
        let call = client
            .map_err(failed)?
            .get(format!(
                "{}/agent/v1/jobs/{job}/shell",
                address.url.trim_end_matches('/')
            ))
            .bearer_auth(token)
            .header(CONNECTION, "upgrade")
            .header(UPGRADE, shell::UPGRADE)
            .header(PASSED_ON, "1");
        let answer = call.send().await.map_err(failed)?;
        if answer.status() != StatusCode::SWITCHING_PROTOCOLS {
            let detail = format!("{} answers a line with status {}", address.url, answer.status());
            return Err(Failure::new(Code::ServerLost, detail));
        }
        let mut far = answer.upgrade().await.map_err(failed)?;
        // Either side may end it.
        let _ = tokio::io::copy_bidirectional(&mut line, &mut far).await;
        Ok(())
    }
}
