//! The catalogue: finds complete sets by name and version or channel, and changes the channels. It reads and writes rows of
//! the store; a set that is promoted is looked at in S3 first.

use std::sync::Arc;

use kiln_records::{
    ImageId, ImageSet, Moment,
    arch::Arch,
    set::{
        Member, Proof, SetImage,
        name::{LATEST, Which},
        promotion::{Promotion, PromotionKind},
        state::{self, ArchState, SetState},
    },
};

use super::{Looked, look::Look, requirements::Requirements};
use crate::{
    orchestrate::ask::Asker,
    store::{StoreError, Stored},
};

/// The number of sets read at once in search of one that is still complete.
const PAGE: u32 = 8;

/// The most sets that were complete and are looked through for one that still is.
const MOST_LOOKED_THROUGH: usize = 128;

/// The most changes of a channel that a rollback goes through.
const MOST_CHANGES: usize = 1000;

/// Why the catalogue does not answer, or does not change.
#[derive(Debug, thiserror::Error)]
pub enum CatalogueRefusal {
    /// No set of that name was complete.
    #[error("There is no complete set of the name {0}.")]
    NoneComplete(String),
    /// There is no such version.
    #[error("There is no set {0}@{1}.")]
    NoVersion(String, String),
    /// The channel leads nowhere.
    #[error("The channel {1} of {0} leads to no set.")]
    NoChannel(String, String),
    /// The set is not complete.
    #[error("The set {name}@{version} is {}: {}.", .state.name(), .remarks.join("; "))]
    Incomplete {
        /// Its name.
        name: String,
        /// Its version.
        version: String,
        /// Its state.
        state: SetState,
        /// What it lacks.
        remarks: Vec<String>,
    },
    /// The set has no image of the architecture.
    #[error("The set {name}@{version} has no image for {asked}; there are {}.", list(.there))]
    NoArch {
        /// Its name.
        name: String,
        /// Its version.
        version: String,
        /// The architecture.
        asked: Arch,
        /// The architectures of its images.
        there: Vec<Arch>,
    },
    /// The image has no such file.
    #[error("The image has no file {asked}; there are {}.", .there.join(", "))]
    NoFile {
        /// The file.
        asked: String,
        /// Its files.
        there: Vec<String>,
    },
    /// The channel requires more of the set's images than they have.
    #[error("The channel {channel} may not lead to images of {name}@{version}: {}.", .lacks.join("; "))]
    Lacking {
        /// The set's name.
        name: String,
        /// Its version.
        version: String,
        /// The channel.
        channel: String,
        /// What is lacking, a sentence for each image and requirement.
        lacks: Vec<String>,
    },
    /// Nobody has read the manifest of the image.
    #[error("The manifest of the image {0} was not read yet.")]
    Unread(ImageId),
    /// Another change of the channel came first.
    #[error("The channel {channel} was changed at the same time: change {number} leads to {}.", .version.as_deref().unwrap_or("no set"))]
    Raced {
        /// The channel.
        channel: String,
        /// The number of the change.
        number: u32,
        /// The version that it leads to.
        version: Option<String>,
    },
    /// The channel has no earlier set.
    #[error("The channel {1} of {0} led to no other set before.")]
    NothingBefore(String, String),
    /// The channel follows the newest complete set by itself.
    #[error("The channel `latest` leads to the newest complete set by itself.")]
    Automatic,
    /// The database did not answer.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// A change of a channel that a user asks for.
#[derive(Debug, Clone)]
pub struct ChannelChange {
    /// The name of the sets.
    pub name: String,
    /// The channel.
    pub channel: String,
    /// The number of the channel's latest change that the user knows of: the change is refused if there is a later one.
    pub after: Option<u32>,
    /// The user, if known.
    pub by: Option<String>,
}

/// The image of an architecture, if it is complete.
///
/// # Errors
///
/// Which architectures there are.
pub fn image_of(looked: &Looked, arch: Arch) -> Result<&SetImage, CatalogueRefusal> {
    let complete = || {
        let pairs = looked.stored.record.members.iter().zip(&looked.judged);
        pairs.filter(|(_, judged)| judged.state == ArchState::Complete)
    };
    let mut found = complete().filter(|(member, _)| member.arch == arch);
    let image = found.next().and_then(|(member, _)| member.image.as_ref());
    image.ok_or_else(|| CatalogueRefusal::NoArch {
        name: looked.stored.record.name.clone(),
        version: looked.stored.record.version.clone(),
        asked: arch,
        there: complete().map(|(member, _)| member.arch).collect(),
    })
}

/// The set, if it is complete.
fn complete(looked: Looked) -> Result<Looked, CatalogueRefusal> {
    let state = looked.state();
    if state == SetState::Complete {
        return Ok(looked);
    }
    let remarks = state::remarks(&looked.stored.record, &looked.judged);
    let ImageSet { name, version, .. } = looked.stored.record;
    Err(CatalogueRefusal::Incomplete {
        name,
        version,
        state,
        remarks,
    })
}

/// The sets as their users ask for them, and the channels that lead to some.
#[derive(Debug, Clone)]
pub struct Catalogue {
    pub(super) asker: Arc<Asker>,
    pub(super) look: Look,
}

impl Catalogue {
    /// The image of an architecture in the complete set of a name and version, or in the one that a channel leads to, by the last
    /// look and the records now. Whatever has become of the set since its promotion: the image has what the channel requires.
    ///
    /// # Errors
    ///
    /// Why there is none.
    pub async fn given_out(
        &self,
        name: &str,
        which: &Which,
        arch: Arch,
    ) -> Result<(ImageSet, SetImage, Proof), CatalogueRefusal> {
        let looked = self.resolve(name, which).await?;
        let image = image_of(&looked, arch)?.clone();
        if let Which::Channel(channel) = which {
            let given = |image: &&Member| image.arch == arch;
            self.must_meet(channel, &looked, given).await?;
        }
        let proof = image.proof.clone().ok_or(CatalogueRefusal::Unread(image.id))?;
        Ok((looked.stored.record, image, proof))
    }

    async fn resolve(&self, name: &str, which: &Which) -> Result<Looked, CatalogueRefusal> {
        let stored = match which {
            Which::Channel(channel) if channel == LATEST => return self.newest(name).await,
            Which::Version(version) => {
                let found = self.asker.store.set_of_version(name, version).await?;
                found.ok_or_else(|| CatalogueRefusal::NoVersion(name.to_owned(), version.clone()))?
            }
            Which::Channel(channel) => {
                let empty = || CatalogueRefusal::NoChannel(name.to_owned(), channel.clone());
                let now = self.asker.store.channel(name, channel).await?;
                let id = now.and_then(|now| now.set_id).ok_or_else(empty)?;
                self.asker.store.get_set(id).await?.ok_or_else(empty)?
            }
        };
        complete(self.as_known(stored).await?)
    }

    /// The newest complete set.
    async fn newest(&self, name: &str) -> Result<Looked, CatalogueRefusal> {
        let (mut before, mut seen) = (None, 0);
        while seen < MOST_LOOKED_THROUGH {
            let limit = if seen == 0 { 1 } else { PAGE };
            let page = self.asker.store.complete_sets(name, before, limit).await?;
            seen += page.len();
            before = page.last().map(|last| last.position);
            if page.is_empty() {
                break;
            }
            for stored in page {
                // An image may have been deleted since.
                if let Ok(looked) = complete(self.as_known(stored).await?) {
                    return Ok(looked);
                }
            }
        }
        Err(CatalogueRefusal::NoneComplete(name.to_owned()))
    }

    /// Checks that the images of a complete set have what a channel requires, as far as they are `wanted`.
    async fn must_meet(
        &self,
        channel: &str,
        looked: &Looked,
        wanted: impl Fn(&&Member) -> bool,
    ) -> Result<(), CatalogueRefusal> {
        let lacks = Requirements(&self.asker).of_channel(channel, looked, wanted).await;
        if lacks.is_empty() {
            return Ok(());
        }
        let ImageSet { name, version, .. } = &looked.stored.record;
        Err(CatalogueRefusal::Lacking {
            name: name.clone(),
            version: version.clone(),
            channel: channel.to_owned(),
            lacks,
        })
    }

    async fn as_known(&self, stored: Stored<ImageSet>) -> Result<Looked, StoreError> {
        let judged = self.look.judge(&stored.record).await?;
        Ok(Looked { stored, judged })
    }

    /// Lets a channel lead to a version, which is looked at first. A channel that leads there already stays unchanged.
    ///
    /// # Errors
    ///
    /// Why the channel was not changed.
    pub async fn promote(
        &self,
        change: ChannelChange,
        version: &str,
        now: Moment,
    ) -> Result<Promotion, CatalogueRefusal> {
        // Read before the look, so that a change during it is noticed.
        let current = self.current(&change).await?;
        let unknown = || CatalogueRefusal::NoVersion(change.name.clone(), version.to_owned());
        let stored = self.asker.store.set_of_version(&change.name, version).await?;
        let id = stored.ok_or_else(unknown)?.record.id;
        if let Some(current) = current.as_ref().filter(|current| current.set_id == Some(id)) {
            return Ok(current.clone());
        }
        let looked = complete(self.look.look(id, now).await?.ok_or_else(unknown)?)?;
        self.must_meet(&change.channel, &looked, |_| true).await?;
        let before = current.as_ref().map(|current| current.number);
        let set = &looked.stored.record;
        let next = next(change, current.as_ref(), PromotionKind::Promote, Some(set), before, now);
        self.put_promotion(next).await
    }

    /// Lets a channel lead to the set that it led to before, which is looked at first. Once more goes back further.
    ///
    /// # Errors
    ///
    /// Why the channel was not changed.
    pub async fn roll_back(&self, change: ChannelChange, now: Moment) -> Result<Promotion, CatalogueRefusal> {
        let nothing = CatalogueRefusal::NothingBefore(change.name.clone(), change.channel.clone());
        let Some(current) = self.current(&change).await? else {
            return Err(nothing);
        };
        let mut before = current.before;
        for _ in 0..MOST_CHANGES {
            let Some(number) = before else { break };
            let earlier = self
                .asker
                .store
                .promotion(&change.name, &change.channel, number)
                .await?;
            let Some(earlier) = earlier else { break };
            before = earlier.before;
            let Some(id) = earlier.set_id.filter(|id| Some(*id) != current.set_id) else {
                continue;
            };
            let gone = || {
                let version = earlier.version.clone().unwrap_or_default();
                CatalogueRefusal::NoVersion(change.name.clone(), version)
            };
            let looked = complete(self.look.look(id, now).await?.ok_or_else(gone)?)?;
            self.must_meet(&change.channel, &looked, |_| true).await?;
            let set = &looked.stored.record;
            let next = next(change, Some(&current), PromotionKind::Rollback, Some(set), before, now);
            return self.put_promotion(next).await;
        }
        Err(nothing)
    }

    /// Empties a channel.
    ///
    /// # Errors
    ///
    /// Why the channel was not changed.
    pub async fn withdraw(&self, change: ChannelChange, now: Moment) -> Result<Promotion, CatalogueRefusal> {
        let current = self.current(&change).await?.filter(|current| current.set_id.is_some());
        let Some(current) = current else {
            return Err(CatalogueRefusal::NoChannel(change.name, change.channel));
        };
        let before = Some(current.number);
        let next = next(change, Some(&current), PromotionKind::Withdraw, None, before, now);
        self.put_promotion(next).await
    }

    /// The latest change of a channel that may be changed.
    async fn current(&self, change: &ChannelChange) -> Result<Option<Promotion>, CatalogueRefusal> {
        if change.channel == LATEST {
            return Err(CatalogueRefusal::Automatic);
        }
        let current = self.asker.store.channel(&change.name, &change.channel).await?;
        let number = current.as_ref().map_or(0, |current| current.number);
        match &current {
            Some(current) if change.after.is_some_and(|after| after != number) => Err(raced(current)),
            _ => Ok(current),
        }
    }

    async fn put_promotion(&self, promotion: Promotion) -> Result<Promotion, CatalogueRefusal> {
        let stored = self.asker.store.promote(&promotion).await;
        let Err(StoreError::Stale) = stored else {
            return Ok(stored.map(|()| promotion)?);
        };
        let latest = self.asker.store.channel(&promotion.name, &promotion.channel).await?;
        match latest.filter(|latest| latest.number >= promotion.number) {
            Some(latest) => Err(raced(&latest)),
            // No other change: the set was deleted meanwhile.
            None => Err(CatalogueRefusal::NoVersion(
                promotion.name,
                promotion.version.unwrap_or_default(),
            )),
        }
    }
}

fn next(
    change: ChannelChange,
    current: Option<&Promotion>,
    kind: PromotionKind,
    set: Option<&ImageSet>,
    before: Option<u32>,
    at: Moment,
) -> Promotion {
    Promotion {
        name: change.name,
        channel: change.channel,
        number: current.map_or(1, |current| current.number + 1),
        kind,
        set_id: set.map(|set| set.id),
        version: set.map(|set| set.version.clone()),
        at,
        by: change.by,
        before,
        images: None,
    }
}

fn raced(current: &Promotion) -> CatalogueRefusal {
    CatalogueRefusal::Raced {
        channel: current.channel.clone(),
        number: current.number,
        version: current.version.clone(),
    }
}

fn list(archs: &[Arch]) -> String {
    let names: Vec<&str> = archs.iter().map(|arch| arch.name()).collect();
    if names.is_empty() {
        "none".to_owned()
    } else {
        names.join(", ")
    }
}
