//! Boots images whose sets require that: one at a time, on this host, in the room that its jobs leave. It reads and writes rows
//! of the store, reads S3, writes to the data directory, and starts sandboxes.
//!
//! A look at a set gives a server its turn at an image that was not booted yet. A turn ends by the clock, so that another
//! server has the next one if the first is gone. An image that was booted twice has one result all the same.

use std::{path::PathBuf, sync::Arc, time::Duration};

use kiln_records::{
    Code, Failure, ImageSet, Moment, SetId,
    arch::Arch,
    run::Needs,
    set::{BootTurn, Proof, Requirement, Seen, SetImage, check::BootCheck},
};

use super::{NotKept, Sets, TRIES, look::BOOTING};
use crate::{
    artifacts::{BootSource, NoBootSource, Unusable},
    boot::{self, parameters, verdict::Until},
    config::BootCheckSettings,
    host::OwnDir,
    orchestrate::{orchestrator::Orchestrator, rooms::RoomForBoot},
    sandbox::namespace::{Bootable, NamespaceDriver, ROOT_DEVICE, memory_of_host},
    store::StoreError,
};

/// The pause between two searches for images to boot.
const EVERY: Duration = Duration::from_secs(3);

/// The pause after a search that failed.
const AFTER_FAILURE: Duration = Duration::from_secs(30);

/// How long a turn lasts beyond the longest boot: for the download, and for keeping the result.
const BESIDE_BOOT: Duration = Duration::from_mins(15);

/// How long a server that cannot boot an image leaves it alone.
const REST: Duration = Duration::from_mins(10);

/// The most sets that are searched at once.
const SEARCHED: u32 = 200;

/// Boots the images at which this server has its turn.
#[derive(Debug)]
pub struct Booter {
    sets: Sets,
    orchestrator: Arc<Orchestrator>,
    driver: NamespaceDriver,
    data_dir: PathBuf,
    settings: BootCheckSettings,
}

/// An image to boot.
#[derive(Debug)]
struct Candidate {
    set: SetId,
    arch: Arch,
    image: SetImage,
}

/// What became of a boot.
enum Outcome {
    /// There is a result.
    Checked(BootCheck, String),
    /// There is no room for it now.
    Later,
    /// This server cannot boot the image.
    Cannot(Failure),
}

impl Booter {
    /// A booter of the images of these sets.
    pub fn new(
        sets: Sets,
        orchestrator: Arc<Orchestrator>,
        driver: NamespaceDriver,
        data_dir: PathBuf,
        settings: BootCheckSettings,
    ) -> Self {
        Self {
            sets,
            orchestrator,
            driver,
            data_dir,
            settings,
        }
    }

    /// Boots images, for ever.
    pub async fn run(&self) {
        loop {
            let pause = match Box::pin(self.pass_once()).await {
                Ok(()) => EVERY,
                Err(failure) => {
                    tracing::warn!(
                        code = failure.code.name(),
                        hint = failure.hint,
                        "images of sets were not booted: {failure}"
                    );
                    AFTER_FAILURE
                }
            };
            tokio::time::sleep(pause).await;
        }
    }

    /// Boots one image, if there is one at which this server has its turn.
    ///
    /// # Errors
    ///
    /// When the store or S3 does not answer. The turn then ends by itself.
    pub async fn pass_once(&self) -> Result<(), Failure> {
        let Some(candidate) = self.find().await? else {
            return Ok(());
        };
        let id = candidate.image.id;
        let Some(proof) = &candidate.image.proof else {
            return Ok(());
        };
        let outcome = match Box::pin(self.check(&candidate, proof)).await {
            Ok(outcome) => outcome,
            Err(NoBootSource::Never(why)) => Outcome::Checked(cannot_boot(proof, why), String::new()),
            Err(NoBootSource::Failed(failure)) => return Err(failure),
        };
        match outcome {
            Outcome::Checked(check, console) => {
                let console = Some(console).filter(|console| !console.is_empty());
                let (up, detail) = (check.up, check.detail.clone());
                match self.sets.checks.keep_check(id, &check, console).await {
                    Ok(()) => tracing::info!(image.id = %id, up, detail, "an image was booted"),
                    Err(NotKept::Unusable(Unusable::S3(failure))) => return Err(failure),
                    Err(NotKept::Store(error)) => return Err(error.into()),
                    // It was changed or deleted meanwhile.
                    Err(why) => tracing::debug!(image.id = %id, "a boot is of no use: {why}"),
                }
                // Whatever became of the image, this ends the turn: otherwise it would be booted again and again.
                self.sets.look.look(candidate.set, Moment::now()).await?;
            }
            Outcome::Later => {}
            Outcome::Cannot(failure) => {
                tracing::warn!(
                    image.id = %id, code = failure.code.name(), hint = failure.hint,
                    "this server cannot boot an image: {failure}"
                );
                let why = Some(failure.detail);
                self.take_turn(&candidate, REST, why).await?;
            }
        }
        Ok(())
    }

    /// An image that this server is to boot: in a set that is looked at soon, as every set is that waits for a boot.
    async fn find(&self) -> Result<Option<Candidate>, StoreError> {
        let soon = Moment::now().plus(BOOTING);
        let sets = self.sets.look.asker.store.sets_to_look_at(soon, SEARCHED).await?;
        let mut waiting = sets.into_iter().flat_map(|stored| self.candidates(stored.record));
        Ok(waiting.next())
    }

    fn candidates(&self, set: ImageSet) -> Vec<Candidate> {
        if !set.requires.contains(&Requirement::Boot) {
            return Vec::new();
        }
        let members = set.members.into_iter();
        let images = members.filter_map(|member| Some((member.arch, member.image?)));
        let mine = images
            .filter(|(_, image)| image.seen == Seen::Same && image.boot.as_ref().is_some_and(|turn| self.has(turn)));
        mine.map(|(arch, image)| Candidate {
            set: set.id,
            arch,
            image,
        })
        .collect()
    }

    fn has(&self, turn: &BootTurn) -> bool {
        turn.server == self.orchestrator.claim.id() && turn.why_not.is_none()
    }

    /// Boots an image, if there is room for that and this server still has its turn.
    async fn check(&self, candidate: &Candidate, proof: &Proof) -> Result<Outcome, NoBootSource> {
        let artifacts = &self.sets.asker.artifacts;
        let source = BootSource::of(proof)?;
        let sizes = artifacts.sizes_of_boot(&source).await?;
        let _room = match self.room(sizes.iter().sum()).await? {
            RoomForBoot::Here(room) => room,
            RoomForBoot::Later => return Ok(Outcome::Later),
            RoomForBoot::Never(why) => return Ok(Outcome::Cannot(Failure::new(Code::NoCapacity, why))),
        };
        let longest = self.settings.timeout.duration();
        let turn = self.take_turn(candidate, longest + BESIDE_BOOT, None).await;
        if !turn.map_err(Failure::from)? {
            return Ok(Outcome::Later);
        }
        let text = artifacts.boot_parameters(&source).await?;
        let parameters = parameters::for_check(&text, ROOT_DEVICE, "")
            .ok_or_else(|| NoBootSource::Never("its kernel parameters are longer than 2048 bytes".to_owned()))?;
        let dir = OwnDir::for_downloads(&self.data_dir)?;
        let [root, kernel, initrd] = artifacts.download_boot(&source, sizes, dir.path()).await?;
        let machine = Bootable {
            arch: candidate.arch,
            kernel,
            initrd,
            root,
            parameters,
            memory: self.settings.memory.0,
            longest,
        };
        let ready = match self.driver.ready_to_boot(machine).await {
            Ok(ready) => ready,
            Err(failure) => return Ok(Outcome::Cannot(failure)),
        };
        let (how, console) = (ready.how.clone(), dir.path().join("console.log"));
        Ok(match Box::pin(boot::check(ready, Until::MultiUser, &console)).await {
            Ok(checked) => Outcome::Checked(checked.result(&proof.sha256, &how), boot::end_of_console(&console)),
            Err(failure) => Outcome::Cannot(failure),
        })
    }

    /// Room for a machine, and for this many bytes of files and another copy of what is read of them.
    async fn room(&self, disk: u64) -> Result<RoomForBoot, Failure> {
        let memory = memory_of_host(self.settings.memory.0);
        let disk = disk.saturating_mul(2);
        let needs = Needs {
            memory,
            memory_limit: memory,
            disk,
            disk_limit: disk,
        };
        self.orchestrator.rooms.room_for_boot(needs).await
    }

    /// Makes this server's turn last so long from now, or says why the server does not use it. Returns whether the server still has
    /// the turn.
    async fn take_turn(
        &self,
        candidate: &Candidate,
        lasts: Duration,
        why_not: Option<String>,
    ) -> Result<bool, StoreError> {
        let store = &self.sets.look.asker.store;
        for _ in 0..TRIES {
            let Some(stored) = store.get_set(candidate.set).await? else {
                return Ok(false);
            };
            let mut set = stored.record;
            let member = set.members.iter_mut().find(|member| member.arch == candidate.arch);
            let image = member.and_then(|member| member.image.as_mut());
            let turn = image.filter(|image| image.id == candidate.image.id && image.proof == candidate.image.proof);
            let Some(turn) = turn.and_then(|image| image.boot.as_mut()).filter(|turn| self.has(turn)) else {
                return Ok(false);
            };
            (turn.until, turn.why_not) = (Moment::now().plus(lasts), why_not.clone());
            match store.replace_set(&set, stored.revision, None).await {
                Ok(()) => return Ok(true),
                Err(StoreError::Stale) => {}
                Err(error) => return Err(error),
            }
        }
        Err(StoreError::Stale)
    }
}

/// The result for an image that cannot boot, whatever is tried.
fn cannot_boot(proof: &Proof, why: String) -> BootCheck {
    BootCheck {
        manifest_sha256: proof.sha256.clone(),
        up: false,
        detail: why,
        seconds: 0,
        machine: "-".to_owned(),
        checked: Moment::now(),
        by: None,
    }
}
