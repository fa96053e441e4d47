//! Makes image sets, and looks at them until they are complete. It reads and writes rows of the store, makes jobs through the
//! [`Asker`], and reads manifests in S3.
//!
//! A request stores what is wanted first, with the ids of the jobs. [`Look::look`] does the rest, as far as it gets: it
//! makes the jobs that do not exist, notes how jobs ended, and reads the manifests of images. It acts on rows, so it is
//! right when run twice, by two servers at the same time, and after a crash at any line.
//!
//! What is complete is decided in [`kiln_records::set::state`].

mod boots;
mod catalogue;
mod checks;
mod look;
mod members;
mod refusal;
mod requirements;

use std::{sync::Arc, time::Duration};

use kiln_records::{
    Failure, ImageId, ImageSet, Moment, PublicKeyId, RecipeId, SetId,
    arch::Arch,
    job::JobOptions,
    set::{
        Requirement,
        state::{self, Judged, SetState},
    },
};

use self::look::TRIES;
pub use self::{
    boots::Booter,
    catalogue::{Catalogue, CatalogueRefusal, ChannelChange, image_of},
    checks::{Checks, NotKept},
    look::Look,
    refusal::SetRefusal,
};
use super::ask::Asker;
use crate::store::{StoreError, Stored};

/// The pause between two passes over the sets that are to be looked at.
const EVERY: Duration = Duration::from_secs(2);

/// The pause after a pass that failed.
const AFTER_FAILURE: Duration = Duration::from_secs(30);

/// The most sets of one pass.
const PAGE: u32 = 50;

/// A new set as its user describes it.
#[derive(Debug, Clone)]
pub struct NewSet {
    /// Its name.
    pub name: String,
    /// Its version.
    pub version: String,
    /// The key that may log in to the shells of its jobs.
    pub public_key_id: Option<PublicKeyId>,
    /// The options of its jobs.
    pub options: JobOptions,
    /// Its architectures.
    pub members: Vec<Wanted>,
    /// What each image needs before it counts as complete.
    pub requires: Vec<Requirement>,
}

/// An architecture of a set as its user describes it.
#[derive(Debug, Clone)]
pub struct Wanted {
    /// The architecture.
    pub arch: Arch,
    /// Whether the set is incomplete without it.
    pub required: bool,
    /// Where its image comes from.
    pub from: Source,
    /// How long an attempt of its job may take, in seconds.
    pub time_limit_s: Option<u32>,
}

/// Where the image of an architecture comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Source {
    /// A job that builds this recipe.
    Recipe(RecipeId),
    /// There is one already.
    Image(ImageId),
    /// A job that the asking process makes itself, of an archive that has no record.
    Archive,
}

/// A change of a set.
#[derive(Debug, Clone)]
pub enum Change {
    /// Adds architectures, or asks again for those that are there and need a job. What is complete or under way stays as
    /// it is.
    Add(Vec<Wanted>),
    /// Asks for another job for each architecture that needs one. Refused if one of them has no recipe.
    Rebuild,
}

/// A set, and what is to be said of each of its architectures.
#[derive(Debug, Clone)]
pub struct Looked {
    /// The set.
    pub stored: Stored<ImageSet>,
    /// Of each architecture.
    pub judged: Vec<Judged>,
}

impl Looked {
    /// The state of the set.
    pub fn state(&self) -> SetState {
        let members = self.stored.record.members.iter();
        state::of_set(
            members
                .zip(&self.judged)
                .map(|(member, judged)| (member.required, judged.state)),
        )
    }
}

/// Makes sets and looks at them.
#[derive(Debug, Clone)]
pub struct Sets {
    asker: Arc<Asker>,
    /// Looks at them.
    pub look: Look,
    /// What users ask for of them.
    pub catalogue: Catalogue,
    /// What is known of their images.
    pub checks: Checks,
}

impl Sets {
    /// Sets whose jobs are made by this asker; they are in the asker's store.
    pub fn new(asker: Arc<Asker>) -> Self {
        let look = Look { asker: asker.clone() };
        let catalogue = Catalogue {
            asker: asker.clone(),
            look: look.clone(),
        };
        let checks = Checks {
            asker: asker.clone(),
            catalogue: catalogue.clone(),
        };
        Self {
            asker,
            look,
            catalogue,
            checks,
        }
    }

    /// Makes a set, and its jobs. Everything is checked first, and the set is stored with the ids of its jobs before any of
    /// them exists: if this process dies then, another one makes them.
    ///
    /// # Errors
    ///
    /// Why there is no set. A job that could not be made although all was well before is named by the set itself.
    pub async fn create(&self, new: NewSet, who: Option<String>, now: Moment) -> Result<Looked, SetRefusal> {
        self.create_as(SetId::new(), new, who, now).await
    }

    /// As [`Self::create`], with an id that was chosen before.
    ///
    /// # Errors
    ///
    /// Why there is no new set.
    pub async fn create_as(
        &self,
        id: SetId,
        new: NewSet,
        who: Option<String>,
        now: Moment,
    ) -> Result<Looked, SetRefusal> {
        if new.members.is_empty() {
            return Err(SetRefusal::NoArch);
        }
        let mut set = ImageSet {
            id,
            created: now,
            name: new.name,
            version: new.version,
            public_key_id: new.public_key_id,
            options: new.options,
            by: who,
            members: Vec::new(),
            requires: new.requires,
            was_complete: false,
            complete_since: None,
            told: None,
            next_look: now,
        };
        if self
            .asker
            .store
            .set_of_version(&set.name, &set.version)
            .await?
            .is_some()
        {
            return Err(SetRefusal::exists(&set));
        }
        members::put(&self.asker, &mut set, &new.members, now).await?;
        if !set.members.iter().any(|member| member.required) {
            return Err(SetRefusal::NoneRequired);
        }
        match self.asker.store.insert_set(&set).await {
            Err(StoreError::Exists) => return Err(SetRefusal::exists(&set)),
            done => done?,
        }
        self.look.look(set.id, now).await?.ok_or(SetRefusal::Unknown)
    }

    /// Changes a set as it is after a fresh look, and looks again. After a concurrent change it starts anew.
    ///
    /// # Errors
    ///
    /// Why nothing was changed.
    pub async fn change(
        &self,
        id: SetId,
        change: Change,
        who: Option<String>,
        now: Moment,
    ) -> Result<Looked, SetRefusal> {
        for _ in 0..TRIES {
            let looked = self.look.look(id, now).await?.ok_or(SetRefusal::Unknown)?;
            let mut set = match &change {
                Change::Add(wanted) => self.grown(&looked, wanted, now).await?,
                Change::Rebuild => self.rebuilt(&looked, now).await?,
            };
            if set == looked.stored.record {
                return Ok(looked);
            }
            // From this moment on it is not complete, whatever a later look finds.
            let judged = self.look.judge(&set).await?;
            look::note_state(&mut set, &judged, now);
            match self.look.replace(&looked.stored, &set, who.clone(), now).await {
                Ok(()) => return self.look.look(id, now).await?.ok_or(SetRefusal::Unknown),
                Err(StoreError::Stale) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Err(StoreError::Stale.into())
    }

    async fn grown(&self, looked: &Looked, wanted: &[Wanted], now: Moment) -> Result<ImageSet, SetRefusal> {
        if wanted.is_empty() {
            return Err(SetRefusal::NoArch);
        }
        let mut set = looked.stored.record.clone();
        let mut missing = Vec::new();
        for one in wanted {
            let at = set.members.iter().position(|member| member.arch == one.arch);
            let judged = at.and_then(|at| looked.judged.get(at));
            if judged.is_none_or(|judged| judged.state.needs_a_job()) {
                missing.push(one.clone());
            }
        }
        members::put(&self.asker, &mut set, &missing, now).await?;
        for one in wanted {
            let known = set.members.iter_mut().find(|member| member.arch == one.arch);
            if let Some(member) = known {
                member.required = one.required;
            }
        }
        if set.members.iter().any(|member| member.required) {
            Ok(set)
        } else {
            Err(SetRefusal::NoneRequired)
        }
    }

    async fn rebuilt(&self, looked: &Looked, now: Moment) -> Result<ImageSet, SetRefusal> {
        let mut set = looked.stored.record.clone();
        let (mut wanted, mut without_recipe) = (Vec::new(), Vec::new());
        for (member, judged) in looked.stored.record.members.iter().zip(&looked.judged) {
            match member.recipe_id {
                _ if !judged.state.needs_a_job() => {}
                None => without_recipe.push(member.arch),
                Some(recipe) => wanted.push(Wanted {
                    arch: member.arch,
                    required: member.required,
                    from: Source::Recipe(recipe),
                    time_limit_s: member.time_limit_s,
                }),
            }
        }
        if !without_recipe.is_empty() {
            return Err(SetRefusal::NoRecipe(without_recipe));
        }
        members::put(&self.asker, &mut set, &wanted, now).await?;
        Ok(set)
    }

    /// Looks at every set whose time has come, for ever.
    pub async fn run(&self) {
        loop {
            let pause = match self.pass_once(Moment::now()).await {
                Ok(()) => EVERY,
                Err(failure) => {
                    tracing::warn!(
                        code = failure.code.name(),
                        hint = failure.hint,
                        "image sets were not looked at: {failure}"
                    );
                    AFTER_FAILURE
                }
            };
            tokio::time::sleep(pause).await;
        }
    }

    /// Looks at the sets whose time has come.
    ///
    /// # Errors
    ///
    /// When the store does not answer. The work done so far stays done.
    pub async fn pass_once(&self, now: Moment) -> Result<(), Failure> {
        for stored in self.asker.store.sets_to_look_at(now, PAGE).await? {
            if let Some(looked) = self.look.look(stored.record.id, now).await? {
                self.checks.move_channels(&looked.stored.record, now).await?;
            }
        }
        Ok(())
    }
}
