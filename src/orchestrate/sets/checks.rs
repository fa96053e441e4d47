//! What images need before a channel leads to their set, by the site's rules; and the channels that follow by themselves. It
//! reads and writes rows of the store, and reads S3.
//!
//! Only what is shown counts: a result that is not there, cannot be read, or is one for another content is none.

use std::fmt;

use kiln_records::{
    Image, ImageId, ImageSet, Moment,
    set::{
        Member, Proof, Requirement,
        check::{BOOT_CHECK, BootCheck, CONSOLE, MAX_SIZE},
        state::ArchState,
    },
};
use sha2::{Digest, Sha256};

use super::{
    Looked, Sets, TRIES,
    catalogue::{CatalogueRefusal, ChannelChange},
};
use crate::{
    artifacts::Unusable,
    origin::{self, Envelope, Statement},
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

/// What an image lacks of that which is required of it.
#[derive(Debug)]
pub(super) enum Lack {
    /// Nobody has booted its present content.
    NotBooted(ImageId),
    /// Anything else, in words.
    Other(String),
}

impl fmt::Display for Lack {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotBooted(id) => write!(f, "it was not booted yet (`kiln check boot {id}`)"),
            Self::Other(words) => f.write_str(words),
        }
    }
}

impl Sets {
    /// Keeps the result of a boot check beside its image, with the end of its console. Channels that waited for it move on.
    ///
    /// # Errors
    ///
    /// Why it is not kept.
    pub async fn keep_check(&self, id: ImageId, check: &BootCheck, console: Option<String>) -> Result<(), NotKept> {
        let artifacts = &self.asker.artifacts;
        let stored = Collection::<Image>::get(&**self.store(), Side::Live, id).await?;
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
            if let Some(looked) = self.look(set.id, now).await? {
                self.move_channels(&looked.stored.record, now).await?;
            }
        }
        Ok(())
    }

    /// Notes that these objects are an image's, so that they go when the image goes for good.
    async fn note_objects(&self, id: ImageId, objects: &[String]) -> Result<(), NotKept> {
        for _ in 0..TRIES {
            let stored = Collection::<Image>::get(&**self.store(), Side::Live, id).await?;
            let stored = stored.ok_or(NotKept::Unknown)?;
            match self.store().replace(&stored.record, stored.revision, objects).await {
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
        let artifacts = &self.asker.artifacts;
        let text = artifacts.read_beside(id, BOOT_CHECK, MAX_SIZE).await?;
        let check = text.and_then(|text| serde_json::from_slice::<BootCheck>(&text).ok());
        Ok(check.filter(|check| check.manifest_sha256 == manifest_sha256))
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
            let page = self.store().page_sets(&query).await?;
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
            let current = self.store().channel(&set.name, &rule.channel).await?;
            let number = current.as_ref().map_or(0, |current| current.number);
            if let Some(id) = current.and_then(|current| current.set_id) {
                let there = self.store().get_set(id).await?;
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
            match self.promote(change, &set.version, now).await {
                Ok(_) => tracing::info!(set.name, set.version, rule.channel, "a channel has moved on"),
                Err(CatalogueRefusal::Store(error)) => return Err(error),
                // It is not ready, or somebody was faster.
                Err(refusal) => tracing::debug!(set.name, set.version, rule.channel, "a channel stays: {refusal}"),
            }
        }
        Ok(())
    }

    /// Checks that the images of a complete set have what a channel requires, as far as they are `wanted`.
    pub(super) async fn must_meet(
        &self,
        channel: &str,
        looked: &Looked,
        wanted: impl Fn(&&Member) -> bool,
    ) -> Result<(), CatalogueRefusal> {
        let set = &looked.stored.record;
        let Some(rule) = self.asker.channels.iter().find(|rule| rule.is_for(&set.name, channel)) else {
            return Ok(());
        };
        let mut lacks = Vec::new();
        for (member, judged) in set.members.iter().zip(&looked.judged) {
            // Architectures that the set is complete without are not led to.
            if judged.state != ArchState::Complete || !wanted(&member) {
                continue;
            }
            let proof = member
                .image
                .as_ref()
                .and_then(|image| Some((image.id, image.proof.as_ref()?)));
            let Some((id, proof)) = proof else {
                lacks.push(format!("{}: its manifest was not read", member.arch));
                continue;
            };
            for requirement in &rule.requires {
                if self.asker.met.has(id, &proof.sha256, *requirement) {
                    continue;
                }
                match self.lack(*requirement, id, proof).await {
                    None => self.asker.met.note(id, &proof.sha256, *requirement),
                    Some(lack) => lacks.push(format!("{}: {lack}", member.arch)),
                }
            }
        }
        if lacks.is_empty() {
            return Ok(());
        }
        Err(CatalogueRefusal::Lacking {
            name: set.name.clone(),
            version: set.version.clone(),
            channel: channel.to_owned(),
            lacks,
        })
    }

    /// What an image lacks of that which is required.
    pub(super) async fn lacks(&self, requires: &[Requirement], id: ImageId, proof: &Proof) -> Vec<Lack> {
        let mut lacks = Vec::new();
        for requirement in requires {
            lacks.extend(self.lack(*requirement, id, proof).await);
        }
        lacks
    }

    /// What an image lacks of one requirement.
    async fn lack(&self, requirement: Requirement, id: ImageId, proof: &Proof) -> Option<Lack> {
        match requirement {
            Requirement::Boot => match self.boot_check(id, &proof.sha256).await {
                Ok(Some(check)) if check.up => None,
                Ok(Some(check)) => Some(Lack::Other(format!("it did not boot: {}", check.detail))),
                Ok(None) => Some(Lack::NotBooted(id)),
                Err(error) => Some(Lack::Other(format!("its boot check cannot be read: {error}"))),
            },
            Requirement::Signature => self.unsigned(id, &proof.sha256).await.map(Lack::Other),
        }
    }

    /// Why an image does not count as signed by this site; none if it does.
    async fn unsigned(&self, id: ImageId, manifest_sha256: &str) -> Option<String> {
        let signer = self.asker.orchestrator.as_ref().and_then(|one| one.signer.as_ref());
        let Some(signer) = signer else {
            return Some("this server has no key in [signing] to check its signature with".to_owned());
        };
        let envelope = self
            .asker
            .artifacts
            .read_beside(id, origin::ENVELOPE, origin::MAX_SIZE)
            .await;
        let envelope = match envelope {
            Ok(Some(envelope)) => envelope,
            Ok(None) => return Some("it is not signed".to_owned()),
            Err(error) => return Some(format!("its signature cannot be read: {error}")),
        };
        let payload = Envelope::read(&envelope).and_then(|one| one.open(origin::STATEMENT_TYPE, signer.public()));
        let statement = match payload {
            Ok(payload) => Statement::read(&payload),
            Err(error) => return Some(format!("its signature does not count: {error}")),
        };
        let names_it = statement.is_some_and(|statement| {
            let mut subjects = statement.subject.iter();
            subjects.any(|subject| subject.name == origin::MANIFEST && subject.sha256() == Some(manifest_sha256))
        });
        (!names_it).then(|| "what is signed is another manifest".to_owned())
    }
}
