//! The address at which agents call that cannot have the server's sockets, and what they must trust there. Reads
//! certificates, and tries the address out over HTTP.

use std::{path::PathBuf, time::Duration};

use kiln_records::{Code, Failure, JobId, protocol::PROTOCOL};
use reqwest::{Certificate, Client, ClientBuilder, Url};

use crate::{config::ServerSettings, host, tls};

/// The pause before an address that does not lead here is tried again.
const AGAIN: Duration = Duration::from_mins(1);

/// How long an answer may take.
const ANSWER: Duration = Duration::from_secs(10);

/// The address, and where its certificates are.
#[derive(Debug, Clone)]
pub struct AgentAddress {
    /// The URL.
    pub url: String,
    /// The server's own certificate, unless something before the server has another.
    certificate: Option<PathBuf>,
    /// The authorities that agents trust, if the site names them.
    ca_bundle: Option<PathBuf>,
}

impl AgentAddress {
    /// The configured address.
    pub fn of(settings: &ServerSettings) -> Option<Self> {
        Some(Self {
            url: settings.agent_url.clone()?,
            certificate: settings.tls_certificate.clone(),
            ca_bundle: settings.agent_ca_bundle.clone(),
        })
    }

    /// The address of a server on the same records, which trusts as agents do.
    pub(super) fn of_peer(settings: &ServerSettings, url: String) -> Self {
        Self {
            url,
            certificate: settings.tls_certificate.clone(),
            ca_bundle: settings.agent_ca_bundle.clone(),
        }
    }

    /// A client that trusts what agents trust there.
    pub(super) fn client(&self) -> Result<ClientBuilder, Failure> {
        let bundle = self.authorities()?.unwrap_or_default();
        let trusted = Certificate::from_pem_bundle(bundle.as_bytes())
            .map_err(|error| Failure::new(Code::AgentUnreachable, error))?;
        Ok(Client::builder().tls_certs_only(trusted).no_proxy())
    }

    /// The authorities that an agent needs, PEM; `None` where there is no TLS. Read anew for each agent, since
    /// certificates are replaced.
    ///
    /// # Errors
    ///
    /// A file cannot be read.
    pub(super) fn authorities(&self) -> Result<Option<String>, Failure> {
        let url = Url::parse(&self.url).ok();
        let Some(name) = url
            .as_ref()
            .filter(|url| url.scheme() == "https")
            .and_then(Url::host_str)
        else {
            return Ok(None);
        };
        let read = |path: &PathBuf| {
            let text = fs_err::read_to_string(path);
            text.map_err(|error| Failure::io("cannot read what agents trust", &error))
        };
        if let Some(bundle) = &self.ca_bundle {
            return Ok(Some(tls::certificates_in(&read(bundle)?).join("\n")));
        }
        let of_host = host::ca_bundle().unwrap_or_default();
        let Some(certificate) = &self.certificate else {
            return Ok(Some(of_host));
        };
        let certificate = read(certificate)?;
        let chain = tls::certificates_in(&certificate);
        let issuers = tls::issuers(&chain, name.trim_matches(['[', ']']), &tls::certificates_in(&of_host));
        let trusted = if issuers.is_empty() { chain } else { issuers };
        Ok(Some(trusted.join("\n")))
    }

    /// Calls this server at the address as an agent does. Returns once it has answered; until then, each news about it
    /// is logged.
    pub async fn try_out(&self) {
        let mut known = None;
        loop {
            let tried = self.call().await;
            let Err(failure) = tried else {
                tracing::info!(url = self.url, "agents find this server at its agent_url");
                return;
            };
            if known.as_ref() != Some(&failure) {
                tracing::warn!(
                    url = self.url,
                    code = failure.code.name(),
                    hint = failure.hint,
                    "agents do not find this server at its agent_url: {failure}"
                );
                known = Some(failure);
            }
            tokio::time::sleep(AGAIN).await;
        }
    }

    async fn call(&self) -> Result<(), Failure> {
        let failed = |why: String| {
            Failure::new(Code::AgentUnreachable, why).hint(
                "`agent_url` in [server] must lead to this server, and its certificate must name that host and be issued \
                 by an authority in `agent_ca_bundle`",
            )
        };
        let client = self.client().map_err(|failure| failed(failure.detail))?;
        let client = client.timeout(ANSWER).build();
        let client = client.map_err(|error| failed(error.to_string()))?;
        // No job has this id, and no server but Kiln's says so in these words.
        let (server, job) = (self.url.trim_end_matches('/'), JobId::new());
        let address = format!("{server}/agent/v1/jobs/{job}?protocol={PROTOCOL}");
        let answer = client.get(address).bearer_auth("none").send().await;
        let answer = answer.map_err(|error| failed(innermost(&error)))?;
        let status = answer.status();
        let said = answer.json::<Failure>().await.map(|failure| failure.code);
        match said {
            Ok(Code::AgentUnknown) => Ok(()),
            _ => Err(failed(format!("something else answers there, with status {status}"))),
        }
    }
}

/// The innermost cause of an error, which is the informative one.
fn innermost(error: &reqwest::Error) -> String {
    let mut cause: &dyn std::error::Error = error;
    while let Some(inner) = cause.source() {
        cause = inner;
    }
    cause.to_string()
}
