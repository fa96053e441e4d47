//! Tries out the remote build nodes of the records, each by a container. Reads the store of records, if there is one, and talks to
//! the nodes' engines.

use futures::{StreamExt, stream};
use kiln_records::{Failure, RemoteBuildNode};

use crate::{
    config::Config,
    doctor::{Finding, broken},
    sandbox::Driver,
    site,
};

const AREA: &str = "engines";
const WHAT: &str = "build node";

/// What to look at where a failure has no hint.
const CONFIGURED: &str = "see [remote_build_nodes] in `kiln config show`";

/// How many nodes are tried at once.
const AT_ONCE: usize = 16;

pub(super) async fn examine(config: &Config) -> Vec<Finding> {
    if config.store.url.is_none() && !config.records_file().exists() {
        return Vec::new();
    }
    match try_out(config).await {
        Ok(findings) => findings,
        Err(failure) => vec![broken(AREA, WHAT, &failure, CONFIGURED)],
    }
}

async fn try_out(config: &Config) -> Result<Vec<Finding>, Failure> {
    let store = site::open_store(config).await?;
    let nodes = store.nodes().await;
    store.close().await;
    let driver_of = site::node_driver(config, "doctor".to_owned(), site::namespace_driver(config)?)?;
    let tries = nodes?.into_iter().map(|RemoteBuildNode { xname }| {
        let driver = driver_of(&xname);
        async move {
            let tried = match driver.arch().await {
                Ok(arch) => driver.shared_kernel().await.map(|()| arch),
                Err(failure) => Err(failure),
            };
            match tried {
                Ok(arch) => Finding::ok(AREA, WHAT, format!("{xname}, {arch}: a container ran")),
                Err(failure) => {
                    let failure = Failure {
                        detail: format!("{xname}: {}", failure.detail),
                        ..failure
                    };
                    broken(AREA, WHAT, &failure, CONFIGURED)
                }
            }
        }
    });
    // In the order of the records.
    Ok(stream::iter(tries).buffered(AT_ONCE).collect().await)
}
