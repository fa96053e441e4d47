//! Layers: the root of a recipe after its packages, kept for the next job with the same packages, and reused. Talks to the
//! server, S3 and the recipe's repositories, and replaces the root while kiwi waits ([`crate::pauses`]).
//!
//! Whatever fails here, the packages are installed as without layers.

mod inputs;
mod own;
mod similar;
mod tree;

use std::{
    io,
    os::unix::ffi::OsStrExt,
    path::{Path, PathBuf},
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
};

use kiln_inside::room::remove_tree;
use kiln_records::{
    CacheDepth, Code, Failure, Installed, LayerOutcome, LayerUse, RepositoryState, Warning,
    protocol::{FoundLayer, LayerInputs, PackageUrl, Purpose, SettledLayer},
};
use tokio::process::Command;

pub(crate) use self::inputs::repositories;

use self::{inputs::Found, similar::Lack};
use crate::{
    building::Building,
    digest, fetch, inventory,
    kiwi_config::Choice,
    packages,
    process::{self, blocking},
    squashfs::Unpacked,
    twins::Twins,
    wanted::Wanted,
};

/// Why the root cannot be the layer's.
enum Trouble {
    /// The root is as it was.
    Before(String),
    /// The root is neither.
    Within(Failure),
}

/// What is done about kiwi's question before packages are installed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Before {
    /// All packages are installed.
    Install,
    /// They are in the root.
    Restored,
    /// The root is that of a similar recipe, and what it lacks is installed.
    Brought,
    /// The root is to be made anew.
    Broken,
}

/// The layer of a job.
pub(crate) struct Layers<'a> {
    building: Building<'a>,
    found: Found,
    layer: FoundLayer,
    /// Whether the layer has broken a root, and is not used again.
    given_up: AtomicBool,
    /// Whether the present root is broken.
    broken: AtomicBool,
    /// What a root that is being extended must have in the end.
    extends: Mutex<Option<(Wanted, Lack)>>,
    /// What the server knows was done about the layer. A root that is made once more does the same again.
    settled: Mutex<Option<LayerOutcome>>,
}

impl<'a> Layers<'a> {
    /// Looks for the layer of a job. `None` if it has none, which the server then knows.
    ///
    /// # Errors
    ///
    /// The server does not take what it is told.
    pub(crate) async fn of_job(building: Building<'a>) -> Result<Option<Self>, Failure> {
        let job = building.job;
        if job.cache == CacheDepth::None {
            return Ok(None);
        }
        let why = if job.epoch.is_some() {
            Err("reproducible images are made from the beginning".to_owned())
        } else if job.verify_twins || job.purpose == Purpose::Verification {
            Err("what is verified is made from the beginning".to_owned())
        } else {
            inputs::find(&building.outputs.facts.recipe, Choice::of(job), building.web).await
        };
        let found = match why {
            Ok(found) => found,
            Err(why) => return pass(building, &why).await,
        };
        let layer = building.channel.find_layer(&found.inputs).await?;
        if let Some(never) = &layer.never {
            return pass(building, never).await;
        }
        if job.cache == CacheDepth::Similar && found.inputs.similar.is_none() {
            let why = "that takes apt, and a description that is no template but for `{{ name }}`";
            let text = format!("no root of a similar recipe is used: {why}");
            building.events.say(text).await;
        }
        Ok(Some(Self {
            building,
            found,
            layer,
            given_up: AtomicBool::new(false),
            broken: AtomicBool::new(false),
            extends: Mutex::new(None),
            settled: Mutex::new(None),
        }))
    }

    /// Whether the present root must be made anew, without the layer.
    pub(crate) fn is_broken(&self) -> bool {
        self.broken.load(Ordering::Relaxed)
    }

    /// Tells that the broken root is gone.
    pub(crate) fn begin_again(&self) {
        self.broken.store(false, Ordering::Relaxed);
    }

    /// The repositories that the packages of the layer are from.
    fn of_layer(&self) -> &[RepositoryState] {
        match &self.layer.installed {
            Some(installed) if !installed.repositories.is_empty() => &installed.repositories,
            _ => &self.found.repositories,
        }
    }

    /// The repositories as they were found.
    pub(crate) fn repositories(&self) -> &[RepositoryState] {
        &self.found.repositories
    }

    /// The packages in the layer, as the job that kept it reported them.
    pub(crate) fn installed(&self) -> Option<&Installed> {
        self.layer.installed.as_ref()
    }

    /// Puts the layer in the place of the root, if there is one with its packages, and gives its `twins` what came with it.
    ///
    /// # Errors
    ///
    /// The server does not take what it is told.
    pub(crate) async fn before(&self, twins: Option<&Twins>) -> Result<Before, Failure> {
        if self.layer.is_similar || !self.may_be(LayerOutcome::Reused) {
            return Ok(Before::Install);
        }
        let before = self.bring(twins, Before::Restored).await?;
        if before == Before::Restored {
            if self.settled().is_none() {
                let used = self.used(LayerOutcome::Reused, None, self.of_layer());
                self.settle(used, Vec::new()).await?;
            }
            let text = "the packages are those of an earlier job: its root after them is reused";
            self.building.events.say(text).await;
        }
        Ok(before)
    }

    /// Puts the layer of a similar recipe in the place of the root, if there is one that lacks only some of the packages that are
    /// `wanted`. Once they are installed, [`Self::extended`] must look at them.
    ///
    /// # Errors
    ///
    /// The layer was used for an earlier root of this job, and cannot be for this one.
    pub(crate) async fn extend(&self, wanted: &Wanted, twins: Option<&Twins>) -> Result<Before, Failure> {
        if !self.layer.is_similar || !self.may_be(LayerOutcome::Extended) {
            return Ok(Before::Install);
        }
        let lack = self.installed().ok_or_else(|| "its packages are not known".to_owned());
        let lack = match lack.and_then(|installed| similar::lack(wanted, installed)) {
            Ok(lack) => lack,
            Err(why) => {
                return self
                    .install(format!("the root of a similar recipe is not used: {why}"))
                    .await;
            }
        };
        let before = self.bring(twins, Before::Brought).await?;
        if before == Before::Brought {
            let text = format!("the root of a similar recipe is used: {lack}");
            self.building.events.say(text).await;
            *locked(&self.extends) = Some((wanted.clone(), lack));
        }
        Ok(before)
    }

    /// Whether the root is that of a similar recipe, and is being extended.
    pub(crate) fn extends(&self) -> bool {
        locked(&self.extends).is_some()
    }

    /// Whether a root that was extended has the packages that were wanted. Otherwise it must be made anew.
    ///
    /// # Errors
    ///
    /// The server does not take what it is told.
    pub(crate) async fn extended(&self, installed: &Installed) -> Result<bool, Failure> {
        let extends = locked(&self.extends).take();
        let Some((wanted, lack)) = extends else { return Ok(true) };
        let root = self.building.outputs.root();
        let left = blocking(move || {
            inventory::obsolete(&root).map_err(|error| Failure::io("cannot list configuration files", &error))
        });
        let left = left.await.map_err(|failure| failure.to_string());
        if let Err(why) = similar::check(&wanted, installed).and_then(|()| similar::nothing_left(&left?)) {
            self.give_up(&why).await?;
            return Ok(false);
        }
        if self.settled().is_none() {
            let used = self.used(LayerOutcome::Extended, Some(lack.to_string()), &self.found.repositories);
            self.settle(used, Vec::new()).await?;
        }
        Ok(true)
    }

    /// Has the root be made anew, without the layer.
    ///
    /// # Errors
    ///
    /// The layer was used for an earlier root of this job.
    pub(crate) async fn give_up(&self, why: &str) -> Result<(), Failure> {
        self.check_unsettled(why)?;
        locked(&self.extends).take();
        self.given_up.store(true, Ordering::Relaxed);
        self.broken.store(true, Ordering::Relaxed);
        let text = format!("the root is made without a layer, for this one cannot be used: {why}");
        self.building.events.say(text).await;
        Ok(())
    }

    /// Fails for this reason if the record says already that the layer was used.
    fn check_unsettled(&self, why: &str) -> Result<(), Failure> {
        match self.settled() {
            Some(_) => Err(Failure::new(Code::ImageUnreachable, why)),
            None => Ok(()),
        }
    }

    /// Whether a layer may be used in this way: a root that is made once more has the same as the one before.
    fn may_be(&self, outcome: LayerOutcome) -> bool {
        !self.given_up.load(Ordering::Relaxed) && self.settled().is_none_or(|settled| settled == outcome)
    }

    /// Goes on without a layer, for this reason, if that is what the server knows.
    async fn install(&self, why: String) -> Result<Before, Failure> {
        self.check_unsettled(&why)?;
        self.building.events.say(why).await;
        let _ = fs_err::remove_file(self.building.outputs.base());
        Ok(Before::Install)
    }

    /// Puts the layer in the place of the root, which then is `brought`.
    async fn bring(&self, twins: Option<&Twins>, brought: Before) -> Result<Before, Failure> {
        match self.restore().await {
            Ok(()) => {}
            Err(Trouble::Before(why)) => return self.install(format!("packages are installed: {why}")).await,
            Err(Trouble::Within(failure)) if self.settled().is_some() => return Err(failure),
            Err(Trouble::Within(failure)) => {
                self.give_up(&failure.to_string()).await?;
                return Ok(Before::Broken);
            }
        }
        for said in &self.layer.failed_scripts {
            self.building.failed_scripts.add(said);
        }
        if let Some(twins) = twins {
            self.restore_twins(twins).await;
            twins.restored();
        }
        Ok(brought)
    }

    /// What is said of the layer's use.
    fn used(&self, outcome: LayerOutcome, why: Option<String>, repositories: &[RepositoryState]) -> LayerUse {
        let layer = self.layer.layer.as_ref();
        LayerUse {
            outcome,
            why,
            sha256: layer.and_then(|layer| layer.sha256.clone()),
            size: layer.map(|layer| layer.size),
            image: None,
            repositories: repositories.to_vec(),
        }
    }

    async fn restore(&self) -> Result<(), Trouble> {
        let Building {
            outputs, http, events, ..
        } = self.building;
        let layer = self.layer.layer.as_ref();
        let layer = layer.ok_or_else(|| Trouble::Before("there is no layer with them yet".to_owned()))?;
        let base = outputs.base();
        let digests = fetch::object(http, layer, &base, Code::ImageUnreachable, &|_, _| {}).await;
        let digests = digests.map_err(|failure| Trouble::Before(failure.to_string()))?;
        if Some(&digests.sha256) != layer.sha256.as_ref() {
            let why = format!("the layer in S3 is damaged: its SHA-256 is {}", digests.sha256);
            return Err(Trouble::Before(why));
        }
        let root = outputs.root();
        let others = tree::others(&root).map_err(|error| Trouble::Before(error.to_string()))?;
        let failed = |error: io::Error| Trouble::Within(Failure::io("cannot replace the root", &error));
        tree::clear(&root, &others).map_err(failed)?;
        tree::unpack(&base, 0, &root, events).await.map_err(Trouble::Within)?;
        let note = outputs.unpacked();
        let (of_base, of_root) = (base, root.clone());
        let recorded = blocking(move || Unpacked::record(&of_base, &of_root)?.save(&note)).await;
        recorded.map_err(Trouble::Within)?;
        own::rename(&root).map_err(failed)?;
        for key in &self.layer.anew {
            self.make_key(&root, key).await.map_err(Trouble::Within)?;
        }
        Ok(())
    }

    /// Unpacks what `twins` can begin with, if the layer has it. Without it, they are made as for any other root.
    async fn restore_twins(&self, twins: &Twins) {
        let Building { outputs, events, .. } = self.building;
        let (base, to) = (outputs.base(), twins.host_packages());
        let Ok(Some(offset)) = tree::second(&base) else { return };
        if let Err(failure) = tree::unpack(&base, offset, &to, events).await {
            let _ = remove_tree(&to);
            events.say(format!("native twins are made anew: {failure}")).await;
        }
    }

    /// Makes an SSH host key of the root's own.
    async fn make_key(&self, root: &Path, path: &str) -> Result<(), Failure> {
        let unknown = || Failure::new(Code::BuildFailed, format!("{path} cannot be made anew"));
        let kind = own::kind_of_key(path).ok_or_else(unknown)?;
        let mut command = Command::new("chroot");
        command.arg(root).args(["ssh-keygen", "-q", "-N", "", "-t", kind, "-f"]);
        command.arg(format!("/{path}"));
        let emulator = self.building.emulator;
        if let Some(emulator) = emulator {
            command.env("QEMU_CPU", &emulator.cpu);
        }
        let finished = process::run(command, emulator, self.building.events, |_| false).await?;
        finished.check(|_| unknown())
    }

    /// Keeps the root as a layer, if it may be one, with what `twins` of another such root can begin with.
    ///
    /// # Errors
    ///
    /// The server does not take what it is told.
    pub(crate) async fn after(&self, twins: Option<&Twins>) -> Result<(), Failure> {
        let Building {
            outputs, http, events, ..
        } = self.building;
        if self.settled().is_some() {
            return Ok(());
        }
        let kept = match self.pack(twins).await {
            Ok(kept) => kept,
            Err(why) => {
                let _ = fs_err::remove_file(outputs.base());
                events.say(format!("no layer is kept: {why}")).await;
                let used = LayerUse {
                    repositories: self.found.repositories.clone(),
                    ..LayerUse::passed(why)
                };
                return self.settle(used, Vec::new()).await.map(drop);
            }
        };
        let (used, anew) = kept;
        let size = used.size.unwrap_or_default();
        let url = match self.settle(used, anew).await {
            Ok(url) => url,
            // The server's budget, for one. The job goes on without.
            Err(failure) => {
                events.say(format!("no layer is kept: {failure}")).await;
                self.settle(LayerUse::passed(failure), Vec::new()).await?
            }
        };
        if let Some(PackageUrl::Put { url, headers }) = url {
            let sent = match fs_err::File::open(outputs.base()) {
                Ok(file) => packages::send(http, &url, headers, file.into_parts().0, size)
                    .await
                    .map_err(|error| error.without_url().to_string()),
                Err(error) => Err(error.to_string()),
            };
            if let Err(why) = sent {
                let warning = Warning::new(Code::LayerNotKept, format_args!("the layer is not kept: {why}"));
                events.warn(warning).await;
            }
        }
        Ok(())
    }

    /// Packs the root as a layer, unless it must not or cannot be one.
    async fn pack(&self, twins: Option<&Twins>) -> Result<(LayerUse, Vec<String>), String> {
        let Building {
            job,
            outputs,
            events,
            web,
            ..
        } = self.building;
        if !self.found.is_unchanged(web).await {
            return Err("a repository has changed meanwhile".to_owned());
        }
        let (root, begun) = (outputs.root(), outputs.facts.begun);
        let disk = nix::sys::statvfs::statvfs(&root).map_err(|error| error.to_string())?;
        if disk.blocks_available() < disk.blocks().saturating_sub(disk.blocks_free()) {
            return Err("the disk has too little room for it".to_owned());
        }
        let changed = tree::changed_copy(&root, Path::new("/")).map_err(|error| error.to_string())?;
        if let Some(file) = changed {
            return Err(format!("/{file} is the sandbox's, and a package has changed it"));
        }
        let mut left_out = tree::others(&root).map_err(|error| error.to_string())?;
        let look = (root.clone(), left_out.clone());
        let own = blocking(move || {
            own::find(&look.0, begun, &look.1).map_err(|error| Failure::io("cannot look at the root", &error))
        });
        let own = own.await.map_err(|failure| failure.to_string())?;
        if !own.secrets.is_empty() {
            let first: Vec<_> = own.secrets.iter().take(5).map(String::as_str).collect();
            return Err(format!("each root may need its own {}", first.join(", ")));
        }
        for key in &own.anew {
            left_out.extend([key.into(), PathBuf::from(format!("{key}.pub"))]);
        }
        if left_out
            .iter()
            .any(|path| path.as_os_str().as_bytes().first() == Some(&b'-'))
        {
            return Err("a mount has an odd name".to_owned());
        }
        let base = outputs.base();
        tree::pack(job, &root, &left_out, &base, events)
            .await
            .map_err(|failure| failure.to_string())?;
        if let Some(twins) = twins {
            self.pack_twins(twins, &base).await;
        }
        let note = outputs.unpacked();
        let packed = blocking(move || {
            Unpacked::record(&base, &root)?.save(&note)?;
            digest::sha256_of(&base).map_err(|error| Failure::io("cannot read the layer", &error))
        });
        let (size, sha256) = packed.await.map_err(|failure| failure.to_string())?;
        let used = LayerUse {
            outcome: LayerOutcome::Kept,
            why: None,
            sha256: Some(sha256),
            size: Some(size),
            image: None,
            repositories: self.found.repositories.clone(),
        };
        Ok((used, own.anew))
    }

    /// Puts behind the packed root what native twins of another root with these packages can begin with. The layer is one
    /// without that, too.
    async fn pack_twins(&self, twins: &Twins, base: &Path) {
        let second = self.building.outputs.twins().join("kept.squashfs");
        if let Err(failure) = self.try_pack_twins(twins, base, &second).await {
            let _ = fs_err::remove_file(&second);
            let text = format!("the layer is kept without native twins: {failure}");
            self.building.events.say(text).await;
        }
    }

    async fn try_pack_twins(&self, twins: &Twins, base: &Path, second: &Path) -> Result<(), Failure> {
        let Some(kept) = twins.keep().await? else {
            return Ok(());
        };
        tree::pack(self.building.job, &kept, &[], second, self.building.events).await?;
        let (second, base) = (second.to_owned(), base.to_owned());
        blocking(move || tree::append(&second, &base).map_err(|error| Failure::io("it cannot be written", &error)))
            .await
    }

    /// Settles the layer of a root that is not made, if it is not settled: a user who looks for the cause in a shell must not
    /// settle it.
    pub(crate) async fn close(&self) -> Result<(), Failure> {
        if self.settled().is_some() {
            return Ok(());
        }
        let used = LayerUse::passed("the packages were not installed from beginning to end");
        self.settle(used, Vec::new()).await.map(drop)
    }

    fn settled(&self) -> Option<LayerOutcome> {
        *locked(&self.settled)
    }

    async fn settle(&self, used: LayerUse, anew: Vec<String>) -> Result<Option<PackageUrl>, Failure> {
        let outcome = used.outcome;
        let settled = SettledLayer {
            inputs: self.found.inputs.clone(),
            used,
            anew,
            failed_scripts: self.building.failed_scripts.all(),
        };
        let answer = self.building.channel.settle_layer(&settled).await?;
        *locked(&self.settled) = Some(outcome);
        Ok(answer.url)
    }
}

/// Why the packages of a recipe cannot be kept as a layer, if so.
pub(crate) async fn impossible(recipe: &Path, choice: Choice<'_>, web: &reqwest::Client) -> Option<String> {
    inputs::find(recipe, choice, web).await.err()
}

fn locked<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Goes on without a layer, and says so: a layer that is not settled could still be settled by the recipe.
async fn pass<'a>(building: Building<'a>, why: &str) -> Result<Option<Layers<'a>>, Failure> {
    building.events.say(format!("no layer: {why}")).await;
    let settled = SettledLayer {
        inputs: LayerInputs::default(),
        used: LayerUse::passed(why),
        anew: Vec::new(),
        failed_scripts: Vec::new(),
    };
    building.channel.settle_layer(&settled).await?;
    Ok(None)
}
