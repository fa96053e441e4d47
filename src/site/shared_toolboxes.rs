//! Makes toolboxes once for all servers of a site: the first one that needs a toolbox builds it and stores it in S3, and the others
//! take it from there. Reads and writes objects in S3, and changes the directory of toolboxes.

use std::time::Duration;

use kiln_records::{Failure, arch::Arch};

use crate::{
    artifacts::ArtifactStore,
    host,
    sandbox::{toolbox::Toolbox, toolboxes::Toolboxes},
    store::{PlaceLock, SharedStore},
};

/// How long another server may take to build the toolbox for which this one waits.
const LONGEST_BUILD: Duration = Duration::from_mins(90);

/// How often it is looked whether it is there.
const LOOK_EVERY: Duration = Duration::from_secs(5);

/// What a server needs to share its toolboxes.
#[derive(Debug, Clone)]
pub(super) struct Sharing {
    pub(super) store: SharedStore,
    pub(super) artifacts: ArtifactStore,
}

impl Sharing {
    /// The toolbox for hosts of this architecture: this server's own, another server's, or a new one, which is then stored
    /// for the others.
    ///
    /// # Errors
    ///
    /// Those of [`Toolboxes::ensure`]. S3 that fails is only reported: the toolbox is built here then.
    pub(super) async fn ensure(&self, toolboxes: &Toolboxes, arch: Arch) -> Result<Toolbox, Failure> {
        let say = |line: &str| tracing::debug!("{line}");
        if !self.store.is_shared() {
            return toolboxes.ensure(arch, host::apt_mirror(), say).await;
        }
        if let Some(toolbox) = toolboxes.find(arch) {
            return Ok(toolbox);
        }
        let name = Toolboxes::name_of(arch);
        let lock = match self.taken_or_locked(toolboxes, arch, &name).await {
            Ok(Taken::Toolbox(toolbox)) => return Ok(toolbox),
            Ok(Taken::Lock(lock)) => Some(lock),
            Err(failure) => {
                tracing::warn!(
                    code = failure.code.name(),
                    "the toolbox of the other servers cannot be had, so this one is built here: {failure}"
                );
                None
            }
        };
        let toolbox = toolboxes.ensure(arch, host::apt_mirror(), say).await?;
        let given = async {
            self.artifacts
                .put_toolbox(&name, toolboxes.pack(&toolbox).await?.path())
                .await
        };
        if let Err(failure) = given.await {
            tracing::warn!(
                code = failure.code.name(),
                "the toolbox is not stored for the other servers: {failure}"
            );
        }
        drop(lock);
        Ok(toolbox)
    }

    /// Takes the toolbox from S3; or the right to build it, if no other server does.
    async fn taken_or_locked(&self, toolboxes: &Toolboxes, arch: Arch, name: &str) -> Result<Taken, Failure> {
        let until = tokio::time::Instant::now() + LONGEST_BUILD;
        loop {
            let lock = self.store.lock_place(&format!("toolbox {name}"), LONGEST_BUILD).await?;
            let bring = async |file: &std::path::Path| {
                let Some(digests) = self.artifacts.toolbox(name).await? else {
                    return Ok(false);
                };
                self.artifacts.get_toolbox(name, &digests, file).await?;
                Ok(true)
            };
            if let Some(toolbox) = toolboxes.unpack(arch, bring).await? {
                tracing::info!(%arch, toolbox = toolbox.name, "the toolbox was taken from another server");
                return Ok(Taken::Toolbox(toolbox));
            }
            if let Some(lock) = lock {
                return Ok(Taken::Lock(lock));
            }
            if tokio::time::Instant::now() > until {
                return Err(Failure::new(
                    kiln_records::Code::ToolboxLock,
                    "another server builds it, and does not come to an end",
                ));
            }
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }
}

enum Taken {
    Toolbox(Toolbox),
    Lock(PlaceLock),
}
