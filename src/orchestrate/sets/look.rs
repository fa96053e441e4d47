//! Looks at a set: makes the jobs that do not exist, notes how jobs ended, and reads the manifests of images. It reads and
//! writes rows of the store, makes and ends jobs, and reads S3.

use std::{sync::Arc, time::Duration};

use futures::future::try_join_all;
use jiff::SignedDuration;
use kiln_records::{
    Code, Failure, Image, ImageId, ImageSet, JobId, JobStatus, Moment, Run, ServerId, SetId,
    arch::Arch,
    run::State,
    set::{
        Attempt, AttemptState, BootTurn, Member, Requirement, Seen, SetImage,
        promotion::SetChange,
        state::{self, ArchState, Facts, ImageFact, JobFact, Judged, SetState},
    },
};

use super::{
    Looked,
    members::new_job,
    requirements::{Lack, Requirements},
};
use crate::{
    artifacts::Unusable,
    orchestrate::{
        ask::{Ask, Asker},
        job_span,
    },
    store::{Collection, Maker, Side, StoreError, Stored},
};

/// How often to try a change again when another writer was faster.
pub(super) const TRIES: u32 = 10;

/// How long a turn to boot an image lasts before the boot begins.
const TO_BEGIN: Duration = Duration::from_mins(1);

/// How long to keep trying to make a job while the database or S3 does not answer.
const TRIED_FOR: SignedDuration = SignedDuration::from_hours(1);

/// How long the process that makes a job of its own archive may take to do so.
const OWN_ARCHIVE: SignedDuration = SignedDuration::from_mins(10);

/// How long S3 may take for one image.
const PATIENCE: Duration = Duration::from_secs(20);

/// The time between two looks at a set with something under way.
const UNDER_WAY: Duration = Duration::from_secs(3);

/// The time between two looks at a set that only waits for an image to boot. The result of a boot leads to a look at once.
pub(super) const BOOTING: Duration = Duration::from_secs(15);

/// The time between two looks at a set of which S3 did not say enough.
const UNVERIFIED: Duration = Duration::from_secs(30);

/// The shortest and the longest time between two looks at any other set.
const AT_REST: (Duration, Duration) = (Duration::from_mins(1), Duration::from_hours(6));

/// Looks at sets.
#[derive(Debug, Clone)]
pub struct Look {
    pub(super) asker: Arc<Asker>,
}

impl Look {
    /// Looks at a set, and stores what it found. `None` if there is no such set.
    ///
    /// # Errors
    ///
    /// When the store does not answer. That S3 does not is a finding.
    pub async fn look(&self, id: SetId, now: Moment) -> Result<Option<Looked>, StoreError> {
        for _ in 0..TRIES {
            let Some(stored) = self.asker.store.get_set(id).await? else {
                return Ok(None);
            };
            let mut set = stored.record.clone();
            for at in 0..set.members.len() {
                self.carry_on(&mut set, at, now).await?;
            }
            let images: Vec<_> = set
                .members
                .iter()
                .filter_map(|member| Some((member.arch, member.image.clone()?)))
                .collect();
            let requires = &set.requires;
            let reading = images.into_iter().map(|(arch, image)| async move {
                Ok::<_, StoreError>((arch, self.read(image, arch, requires, now).await?))
            });
            for (arch, image) in try_join_all(reading).await? {
                let member = set.members.iter_mut().find(|member| member.arch == arch);
                if let Some(member) = member {
                    member.image = Some(image);
                }
            }
            let judged = self.judge(&set).await?;
            let state = note_state(&mut set, &judged, now);
            let was_complete = stored.record.was_complete;
            self.asker.webhooks.set_is(&mut set, state, was_complete).await?;
            match self.replace(&stored, &set, None, now).await {
                Ok(()) => {
                    let stored = Stored {
                        record: set,
                        revision: stored.revision + 1,
                        position: stored.position,
                    };
                    return Ok(Some(Looked { stored, judged }));
                }
                Err(StoreError::Stale) => {}
                Err(error) => return Err(error),
            }
        }
        Err(StoreError::Stale)
    }

    /// Replaces a set; channels that lead to it have its new images in their history.
    pub(super) async fn replace(
        &self,
        before: &Stored<ImageSet>,
        set: &ImageSet,
        by: Option<String>,
        at: Moment,
    ) -> Result<(), StoreError> {
        let images = set.other_images(&before.record);
        let change = (!images.is_empty()).then_some(SetChange { images, at, by });
        self.asker.store.replace_set(set, before.revision, change).await
    }

    /// What the records say of a set, without a look into S3.
    ///
    /// # Errors
    ///
    /// When the store does not answer.
    pub async fn judge(&self, set: &ImageSet) -> Result<Vec<Judged>, StoreError> {
        let mut judged = Vec::with_capacity(set.members.len());
        for member in &set.members {
            judged.push(state::of_member(member, &self.facts(member).await?));
        }
        Ok(judged)
    }

    async fn facts(&self, member: &Member) -> Result<Facts, StoreError> {
        if let Some(image) = &member.image {
            return Ok(Facts {
                image: Some(self.image_fact(image.id).await?),
                job: None,
            });
        }
        let job = match member.last() {
            Some(attempt) if attempt.state == AttemptState::Made => {
                let job = self.asker.store.get_job(attempt.job_id).await?;
                Some(job.map_or(JobFact::Gone, |job| match job.record.status {
                    JobStatus::Creating => JobFact::Waiting,
                    status if status.is_final() => JobFact::Over,
                    _ => JobFact::Running,
                }))
            }
            _ => None,
        };
        Ok(Facts { job, image: None })
    }

    async fn image_fact(&self, id: ImageId) -> Result<ImageFact, StoreError> {
        if let Some(live) = Collection::<Image>::get(&*self.asker.store, Side::Live, id).await? {
            return Ok(ImageFact::Live {
                path: live.record.link.map(|link| link.path),
                arch: live.record.arch,
            });
        }
        let deleted = Collection::<Image>::get(&*self.asker.store, Side::Deleted, id).await?;
        Ok(deleted.map_or(ImageFact::Gone, |_| ImageFact::Deleted))
    }

    /// Takes the latest attempt of an architecture as far as it can get.
    async fn carry_on(&self, set: &mut ImageSet, at: usize, now: Moment) -> Result<(), StoreError> {
        let Some(member) = set.members.get(at).filter(|member| member.image.is_none()) else {
            return Ok(());
        };
        let Some(mut attempt) = member.last().cloned() else {
            return Ok(());
        };
        if matches!(attempt.state, AttemptState::Making { .. }) {
            attempt.state = self.make(set, member, &attempt, now).await?;
        }
        let mut image = None;
        if attempt.state == AttemptState::Made {
            image = self.follow(&mut attempt, member.time_limit_s, now).await?;
        }
        let Some(member) = set.members.get_mut(at) else {
            return Ok(());
        };
        member.image = image.map(SetImage::new);
        if let Some(last) = member.attempts.last_mut() {
            *last = attempt;
        }
        Ok(())
    }

    /// Makes the job of an attempt, unless it exists already.
    async fn make(
        &self,
        set: &ImageSet,
        member: &Member,
        attempt: &Attempt,
        now: Moment,
    ) -> Result<AttemptState, StoreError> {
        let id = attempt.job_id;
        if self.asker.store.get_job(id).await?.is_some() {
            return Ok(AttemptState::Made);
        }
        let tried = i128::from(now.micros().saturating_sub(attempt.asked.micros()));
        let Some(recipe) = member.recipe_id else {
            return Ok(if tried < OWN_ARCHIVE.as_micros() {
                attempt.state.clone()
            } else {
                AttemptState::Refused {
                    why: "the command that was to make its job has ended".to_owned(),
                }
            });
        };
        let new = new_job(set, member.arch, recipe);
        let asked = Box::pin(self.asker.ask(id, Ask::New(Box::new(new)), set.by.clone()));
        let failure = match self.asker.on_behalf_of(Maker::Set(set.id), asked).await? {
            Ok(job) if job.arch == member.arch => return Ok(AttemptState::Made),
            // The recipe was changed after it was checked. The job goes on; its image is not this set's.
            Ok(job) => Failure::new(
                Code::JobRefused,
                format!("the recipe is one for {} now, not for {}", job.arch, member.arch),
            ),
            // Another server was faster.
            Err(_) if self.asker.store.get_job(id).await?.is_some() => return Ok(AttemptState::Made),
            Err(refusal) => Failure::from(refusal),
        };
        job_span(id).in_scope(|| {
            tracing::warn!(
                set.id = %set.id, code = failure.code.name(), hint = failure.hint,
                "the job of a set was not made: {failure}"
            );
        });
        let why = failure.detail;
        Ok(if failure.code.is_of_the_place() && tried < TRIED_FOR.as_micros() {
            AttemptState::Making { why: Some(why) }
        } else {
            AttemptState::Refused { why }
        })
    }

    /// Notes how the job of an attempt ended, if it has. Returns its image.
    async fn follow(
        &self,
        attempt: &mut Attempt,
        limit_s: Option<u32>,
        now: Moment,
    ) -> Result<Option<ImageId>, StoreError> {
        let id = attempt.job_id;
        if let Some(stored) = self.asker.store.get_run(id).await? {
            let run = &stored.run;
            attempt.image_id = Some(run.image);
            attempt.how = run.plan.place.as_ref().map(|_| run.plan.how);
            attempt.seconds = seconds(run, now);
            return Ok(match &run.state {
                State::Success => {
                    attempt.state = AttemptState::Succeeded;
                    Some(run.image)
                }
                State::Failed(failure) => {
                    attempt.state = failed(&failure.detail);
                    None
                }
                _ => {
                    self.end_if_too_long(id, run, limit_s, now).await;
                    None
                }
            });
        }
        // Another program carries the job out, or it was deleted.
        let Some(job) = self.asker.store.get_job(id).await?.map(|stored| stored.record) else {
            let made = match attempt.image_id {
                Some(image) if self.image_fact(image).await? != ImageFact::Gone => Some(image),
                _ => None,
            };
            attempt.state = match made {
                Some(_) => AttemptState::Succeeded,
                None => failed("its job was deleted"),
            };
            return Ok(made);
        };
        match (job.status, job.resultant_image_id) {
            (JobStatus::Success, Some(image)) => {
                attempt.state = AttemptState::Succeeded;
                return Ok(Some(image));
            }
            (JobStatus::Success, None) => attempt.state = failed("its job has ended and names no image"),
            (JobStatus::Error, _) => attempt.state = failed("its job has failed"),
            _ => {}
        }
        Ok(None)
    }

    /// Ends a job that takes longer than the set allows.
    async fn end_if_too_long(&self, id: JobId, run: &Run, limit_s: Option<u32>, now: Moment) {
        let (Some(limit), Some(launched), Some(orchestrator)) = (limit_s, run.launched, &self.asker.orchestrator)
        else {
            return;
        };
        if launched.plus(Duration::from_secs(limit.into())) >= now {
            return;
        }
        let failure = Failure::new(
            Code::SetTimeLimit,
            format!("the job has taken longer than the {limit} s that its set allows"),
        );
        // A job that has ended meanwhile need not be ended.
        let _ = orchestrator.jobs.cancel(id, failure).await;
    }

    /// Reads the manifest of an image, and finds what it lacks.
    async fn read(
        &self,
        mut image: SetImage,
        arch: Arch,
        requires: &[Requirement],
        now: Moment,
    ) -> Result<SetImage, StoreError> {
        let live = Collection::<Image>::get(&*self.asker.store, Side::Live, image.id).await?;
        // What its record says is enough to know that it is not complete.
        let Some(link) = live.and_then(|live| live.record.link) else {
            image.boot = None;
            return Ok(image);
        };
        let proved = tokio::time::timeout(PATIENCE, self.asker.artifacts.prove(&link, arch)).await;
        image.looked = Some(now);
        image.seen = match proved {
            Err(_) => Seen::Unknown {
                why: format!("S3 did not answer within {} s", PATIENCE.as_secs()),
            },
            Ok(Err(Unusable::S3(failure))) => Seen::Unknown { why: failure.detail },
            Ok(Err(unusable)) => Seen::Unusable {
                why: unusable.to_string(),
            },
            Ok(Ok(found)) => match &image.proof {
                Some(proof) if proof.sha256 != found.sha256 => Seen::Changed { sha256: found.sha256 },
                Some(_) => Seen::Same,
                None => {
                    image.proof = Some(found);
                    Seen::Same
                }
            },
        };
        let lacks = match &image.proof {
            Some(proof) => Requirements(&self.asker).lacks(requires, image.id, proof).await,
            None => Vec::new(),
        };
        let is_to_boot = image.seen == Seen::Same && lacks.iter().any(|lack| matches!(lack, Lack::NotBooted(_)));
        image.boot = is_to_boot
            .then(|| boot_turn(self.asker.boots, image.boot, now))
            .flatten();
        image.lacks = lacks.iter().map(ToString::to_string).collect();
        Ok(image)
    }
}

/// Whose turn it is to boot an image: the server's that had it and still has time, or that of `boots`, this one if it boots images.
fn boot_turn(boots: Option<ServerId>, turn: Option<BootTurn>, now: Moment) -> Option<BootTurn> {
    turn.filter(|turn| turn.until > now).or_else(|| {
        let server = boots?;
        Some(BootTurn {
            server,
            until: now.plus(TO_BEGIN),
            why_not: None,
        })
    })
}

/// Notes in a set what state it is in, and when it is to be looked at again.
pub(super) fn note_state(set: &mut ImageSet, judged: &[Judged], now: Moment) -> SetState {
    let members = set.members.iter().zip(judged);
    let state = state::of_set(members.map(|(member, judged)| (member.required, judged.state)));
    set.was_complete = state == SetState::Complete;
    set.complete_since = match set.complete_since {
        _ if !set.was_complete => None,
        None => Some(now),
        since => since,
    };
    let under_way = || {
        judged
            .iter()
            .map(|judged| judged.state)
            .filter(|state| state.is_under_way())
    };
    let pause = if under_way().any(|state| state != ArchState::Booting) {
        UNDER_WAY
    } else if under_way().next().is_some() {
        BOOTING
    } else if state == SetState::Unverified {
        UNVERIFIED
    } else {
        // What has stayed as it is for long will do so for a while.
        let age = u64::try_from(now.micros().saturating_sub(set.created.micros())).unwrap_or(0);
        Duration::from_micros(age / 20).clamp(AT_REST.0, AT_REST.1)
    };
    set.next_look = now.plus(pause);
    state
}

fn failed(why: &str) -> AttemptState {
    AttemptState::Failed { why: why.to_owned() }
}

/// How long a run has taken from its launch, in seconds.
fn seconds(run: &Run, now: Moment) -> Option<u64> {
    let micros = run.ended.unwrap_or(now).micros().checked_sub(run.launched?.micros())?;
    u64::try_from(micros / 1_000_000).ok()
}
