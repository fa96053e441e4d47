//! The parts of `kiln build`, which needs no server. Opens a socket for the agent of each sandbox.

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
    /// The maker of sandboxes.
    pub driver: NamespaceDriver,
    /// The target of images.
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
    /// When this host cannot make sandboxes, the agent is missing, or S3 does not answer.
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

    /// Removes the remains of killed builds. Returns their number.
    ///
    /// # Errors
    ///
    /// When a remainder cannot be removed.
    pub async fn sweep(&self) -> Result<usize, Failure> {
        reap::sweep_once(&self.jobs, &self.driver, &self.store).await
    }

    /// Builds one image in a sandbox made from `toolbox`, as [`run::run`] does.
    ///
    /// # Errors
    ///
    /// The failure of the job, with the remains for an inspection.
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

/// Answers the agent on a socket until the handle is dropped.
fn answer(listener: UnixListener, calls: Arc<dyn AgentCalls>) -> AbortOnDropHandle<()> {
    AbortOnDropHandle::new(tokio::spawn(async move {
        // The future only ends by being aborted.
        let _ = axum::serve(listener, api::agent::router(calls)).await;
    }))
}
