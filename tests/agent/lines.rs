//! Tests the lines that agents open for users of shells, on the way that agents in containers, pods and machines have: TLS.

use std::{net::SocketAddr, sync::Arc};

use async_trait::async_trait;
use axum_server::tls_rustls::RustlsConfig;
use kiln::{
    api,
    orchestrate::agents::{AgentCalls, Line, Refusal},
};
use kiln_agent::channel::Channel;
use kiln_records::{
    JobId,
    protocol::{AgentFacts, Answer, Call},
};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::server::TOKEN;
use crate::support::authority::Authority;

/// Says on every line what was said there.
#[derive(Debug)]
struct Echo;

#[async_trait]
impl AgentCalls for Echo {
    async fn admit(&self, _: JobId, _: &str) -> Result<(), Refusal> {
        Ok(())
    }

    async fn answer(&self, _: JobId, _: &str, _: Call) -> Result<Answer, Refusal> {
        Ok(Answer::Line)
    }

    async fn take_line(&self, _: JobId, _: &str, line: Line, _: bool) {
        let (mut from, mut to) = tokio::io::split(line);
        let _ = tokio::io::copy(&mut from, &mut to).await;
    }

    async fn take_registry(&self, _: JobId, _: &str, _: Line) {}

    async fn take_proxied(&self, job: JobId, line: Line) {
        self.take_line(job, TOKEN, line, false).await;
    }
}

#[test]
async fn lines_are_opened_at_a_server_with_tls() {
    let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
    let dir = tempfile::tempdir().unwrap();
    let (certificate, key) = (dir.path().join("tls.pem"), dir.path().join("tls.key"));
    let authority = Authority::new();
    authority.write_for(&["127.0.0.1"], &certificate, &key);
    // As `kiln serve` has it, which prefers HTTP/2.
    let config = RustlsConfig::from_config(kiln::tls::server_config(&certificate, &key).unwrap());
    let handle = axum_server::Handle::<SocketAddr>::new();
    let serving = axum_server::bind_rustls(SocketAddr::from(([127, 0, 0, 1], 0)), config).handle(handle.clone());
    let router = api::agent::router(Arc::new(Echo));
    let serving = tokio::spawn(async move { serving.serve(router.into_make_service()).await });
    let address = handle.listening().await.unwrap();
    let channel = Channel::new(&AgentFacts {
        gateway: None,
        ca_bundle: Some(authority.pem),
        server: format!("https://{address}"),
        job: JobId::new(),
        token: TOKEN.to_owned(),
        doors: Vec::new(),
        proxy: None,
    })
    .unwrap();
    for line in [channel.open_line().await, channel.open_proxy().await] {
        let mut line = line.unwrap();
        line.write_all(b"hello").await.unwrap();
        let mut said = [0; 5];
        line.read_exact(&mut said).await.unwrap();
        assert_eq!(&said, b"hello");
    }
    serving.abort();
}
