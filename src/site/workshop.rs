//! The parts of `kiln build`, which needs no server.

use std::{path::PathBuf, sync::Arc};

use tokio::net::UnixListener;
use tokio_util::{sync::CancellationToken, task::AbortOnDropHandle};

use super::{
    objects::artifact_store,
    sandboxes::{agent, namespace_driver},
};
use crate::{
    api,
    artifacts::{ArtifactStore, embedded::EmbeddedS3},
    config::Config,
    orchestrate::{
        agents::AgentCalls,
        reap,
        run::{self, Failed, Image, Request, Site},
    },
    records::{Failure, protocol::Event},
    sandbox::{namespace::NamespaceDriver, toolbox::Toolbox},
};

/// The parts that the jobs of one command share.
#[derive(Debug)]
pub struct Workshop {
    /// Makes sandboxes.
    pub driver: NamespaceDriver,
    /// Where images go.
    pub store: ArtifactStore,
    agent: PathBuf,
    jobs: PathBuf,
    _embedded: Option<EmbeddedS3>,
}

impl Workshop {
    /// Makes the parts; nothing is built yet.
    ///
    /// # Errors
    ///
    /// When this host cannot make sandboxes, the agent is not there, or S3 does not answer.
    pub async fn open(config: &Config) -> Result<Self, Failure> {
        let driver = namespace_driver(config)?;
        let agent = agent()?;
        let (store, embedded) = artifact_store(config).await?;
        Ok(Self {
            driver,
            store,
            agent,
            jobs: config.jobs_dir(),
            _embedded: embedded,
        })
    }

    /// Clears away after builds that were killed. Returns how many there were.
    ///
    /// # Errors
    ///
    /// When something of them cannot be removed.
    pub async fn sweep(&self) -> Result<usize, Failure> {
        reap::sweep_once(&self.jobs, &self.driver, &self.store).await
    }

    /// Builds one image in a sandbox made from `toolbox`, as [`run::run`] does.
    ///
    /// # Errors
    ///
    /// What ended the job, with what it left for a look.
    pub async fn run(
        &self,
        toolbox: &Toolbox,
        request: Request,
        cancelled: &CancellationToken,
        watch: impl FnMut(&Event) + Send,
    ) -> Result<Image, Failed> {
        let site = Site {
            driver: &self.driver,
            toolbox,
            agent: &self.agent,
            store: &self.store,
            jobs: &self.jobs,
            answer,
        };
        run::run(&site, request, cancelled, watch).await
    }
}

/// Answers the agent that comes to a socket, as long as the handle lives.
fn answer(listener: UnixListener, calls: Arc<dyn AgentCalls>) -> AbortOnDropHandle<()> {
    AbortOnDropHandle::new(tokio::spawn(async move {
        // It ends by being aborted only.
        let _ = axum::serve(listener, api::agent::router(calls)).await;
    }))
}
