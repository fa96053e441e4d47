//! What is required of images: whether they have it, by the results of boot checks, signatures, and the site's rules for channels.
//! It reads S3, and writes nothing.
//!
//! Only what is shown counts: a result that is not there, cannot be read, or is one for another content is none.

use std::fmt;

use kiln_records::{
    ImageId,
    set::{
        Member, Proof, Requirement,
        check::{BOOT_CHECK, BootCheck, MAX_SIZE},
        state::ArchState,
    },
};

use super::Looked;
use crate::{
    artifacts::Unusable,
    orchestrate::ask::Asker,
    origin::{self, Envelope, Statement},
};

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

/// Looks whether images have what is required of them.
#[derive(Debug)]
pub(super) struct Requirements<'a>(pub(super) &'a Asker);

impl Requirements<'_> {
    /// The result of the last boot check of an image; none if there is none of its present content.
    ///
    /// # Errors
    ///
    /// When S3 gives no answer.
    pub(super) async fn boot_check(&self, id: ImageId, manifest_sha256: &str) -> Result<Option<BootCheck>, Unusable> {
        let artifacts = &self.0.artifacts;
        let text = artifacts.read_beside(id, BOOT_CHECK, MAX_SIZE).await?;
        let check = text.and_then(|text| serde_json::from_slice::<BootCheck>(&text).ok());
        Ok(check.filter(|check| check.manifest_sha256 == manifest_sha256))
    }

    /// What the images of a complete set lack of that which a channel requires, as far as they are `wanted`.
    pub(super) async fn of_channel(
        &self,
        channel: &str,
        looked: &Looked,
        wanted: impl Fn(&&Member) -> bool,
    ) -> Vec<String> {
        let set = &looked.stored.record;
        let Some(rule) = self.0.channels.iter().find(|rule| rule.is_for(&set.name, channel)) else {
            return Vec::new();
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
                if self.0.met.has(id, &proof.sha256, *requirement) {
                    continue;
                }
                match self.lack(*requirement, id, proof).await {
                    None => self.0.met.note(id, &proof.sha256, *requirement),
                    Some(lack) => lacks.push(format!("{}: {lack}", member.arch)),
                }
            }
        }
        lacks
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
        let signer = self.0.orchestrator.as_ref().and_then(|one| one.commit.signer.as_ref());
        let Some(signer) = signer else {
            return Some("this server has no key in [signing] to check its signature with".to_owned());
        };
        let envelope = self
            .0
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
