//! Results of boot checks, and the channels that move on by themselves when a set has all that they require. It reads and writes
//! rows of the store, and objects in S3.

use std::sync::Arc;

use kiln_records::{
    Image, ImageId, ImageSet, Moment,
    set::{
        Requirement,
        check::{BOOT_CHECK, BootCheck, CONSOLE},
    },
};
use sha2::{Digest, Sha256};

use super::{
    catalogue::{Catalogue, CatalogueRefusal, ChannelChange},
    look::TRIES,
    requirements::Requirements,
};
use crate::{
    artifacts::Unusable,
    orchestrate::ask::Asker,
    store::{After, Collection, Query, Side, Sort, StoreError},
};

/// The newest sets that are searched for those with an image that was checked.
const MOST_SEARCHED: usize = 2000;

/// Sets read at a time.
const CHUNK: u32 = 200;

/// Why a result of a boot check is not kept.
#[derive(Debug, thiserror::Error)]
pub enum NotKept {
    /// There is no such image.
    #[error("There is no such image.")]
    Unknown,
    /// The image has no manifest, or not the one that was booted.
    #[error("The image's manifest is not the one that was booted: its SHA-256 is {0}.")]
    OtherContent(String),
    /// The image's objects cannot be read or written.
    #[error(transparent)]
    Unusable(#[from] Unusable),
    /// The database did not answer.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// Keeps results of boot checks, and moves channels on.
#[derive(Debug, Clone)]
pub struct Checks {
    pub(super) asker: Arc<Asker>,
    pub(super) catalogue: Catalogue,
}

impl Checks {
    /// Keeps the result of a boot check beside its image, with the end of its console. Channels that waited for it move on.
    ///
    /// # Errors
    ///
    /// Why it is not kept.
    pub async fn keep_check(&self, id: ImageId, check: &BootCheck, console: Option<String>) -> Result<(), NotKept> {
        let artifacts = &self.asker.artifacts;
        let stored = Collection::<Image>::get(&*self.asker.store, Side::Live, id).await?;
        let stored = stored.ok_or(NotKept::Unknown)?;
        let link = stored.record.link.as_ref();
        let link = link.ok_or_else(|| NotKept::OtherContent("none".to_owned()))?;
        let digest = hex::encode(Sha256::digest(artifacts.manifest_text(link).await?));
        if digest != check.manifest_sha256 {
            return Err(NotKept::OtherContent(digest));
        }
        let text = serde_json::to_vec(check).map_err(|error| StoreError::Damaged(error.to_string()))?;
        let mut places = Vec::new();
        if let Some(console) = console {
            let put = artifacts.put_beside(id, CONSOLE, "text/plain; charset=utf-8", console.into_bytes());
            places.push(put.await.map_err(Unusable::from)?);
        }
        let put = artifacts.put_beside(id, BOOT_CHECK, "application/json", text);
        places.push(put.await.map_err(Unusable::from)?);
        self.asker.met.forget(id, &check.manifest_sha256, Requirement::Boot);
        self.note_objects(id, &places).await?;
        for set in self.sets_with(id).await? {
            let now = Moment::now();
            if let Some(looked) = self.catalogue.look.look(set.id, now).await? {
                self.move_channels(&looked.stored.record, now).await?;
            }
        }
        Ok(())
    }

    /// Notes that these objects are an image's, so that they go when the image goes for good.
    async fn note_objects(&self, id: ImageId, objects: &[String]) -> Result<(), NotKept> {
        for _ in 0..TRIES {
            let stored = Collection::<Image>::get(&*self.asker.store, Side::Live, id).await?;
            let stored = stored.ok_or(NotKept::Unknown)?;
            match self.asker.store.replace(&stored.record, stored.revision, objects).await {
                Ok(()) => return Ok(()),
                // The record was changed meanwhile.
                Err(StoreError::Stale) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Err(StoreError::Stale.into())
    }

    /// The result of the last boot check of an image; none if there is none of its present content.
    ///
    /// # Errors
    ///
    /// When S3 gives no answer.
    pub async fn boot_check(&self, id: ImageId, manifest_sha256: &str) -> Result<Option<BootCheck>, Unusable> {
        Requirements(&self.asker).boot_check(id, manifest_sha256).await
    }

    /// The sets among the newest that have this image.
    async fn sets_with(&self, id: ImageId) -> Result<Vec<ImageSet>, StoreError> {
        let mut query = Query {
            limit: CHUNK,
            sort: Sort::Position,
            descending: true,
            ..Query::default()
        };
        let (mut found, mut seen) = (Vec::new(), 0);
        while seen < MOST_SEARCHED {
            let page = self.asker.store.page_sets(&query).await?;
            let Some(last) = page.last() else { break };
            query.after = Some(After {
                key: last.position.to_string(),
                id: last.record.id.to_string(),
            });
            seen += page.len();
            let has_it = |set: &ImageSet| {
                let mut images = set.members.iter().filter_map(|member| member.image.as_ref());
                images.any(|image| image.id == id)
            };
            found.extend(page.into_iter().map(|stored| stored.record).filter(has_it));
        }
        Ok(found)
    }

    /// Moves the channels on that follow the sets of this name, if this set is complete, has what they require, and is newer
    /// than the one that they lead to.
    pub(super) async fn move_channels(&self, set: &ImageSet, now: Moment) -> Result<(), StoreError> {
        if !set.was_complete {
            return Ok(());
        }
        let rules = self.asker.channels.iter();
        for rule in rules.filter(|rule| rule.follows && rule.is_for(&set.name, &rule.channel)) {
            let current = self.asker.store.channel(&set.name, &rule.channel).await?;
            let number = current.as_ref().map_or(0, |current| current.number);
            if let Some(id) = current.and_then(|current| current.set_id) {
                let there = self.asker.store.get_set(id).await?;
                if there.is_some_and(|there| there.record.created >= set.created) {
                    continue;
                }
            }
            let change = ChannelChange {
                name: set.name.clone(),
                channel: rule.channel.clone(),
                after: Some(number),
                by: Some("rule".to_owned()),
            };
            match self.catalogue.promote(change, &set.version, now).await {
                Ok(_) => tracing::info!(set.name, set.version, rule.channel, "a channel has moved on"),
                Err(CatalogueRefusal::Store(error)) => return Err(error),
                // It is not ready, or somebody was faster.
                Err(refusal) => tracing::debug!(set.name, set.version, rule.channel, "a channel stays: {refusal}"),
            }
        }
        Ok(())
    }
}
