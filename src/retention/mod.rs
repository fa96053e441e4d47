//! Removes what the section `[retention]` gives up: images by rules, and by age whatever else piles up. Reads and writes
//! rows of the store, and removes objects in S3.
//!
//! A pass may be broken off anywhere, or run beside that of another server: each removal stands for itself, and an image is
//! deleted only if its record is still the one that was looked at. Whatever cannot be looked at stays. Objects of records
//! that are removed for good go with the store's list of doomed objects, which survives everything.

mod choose;
mod report;
mod used;

use std::{
    collections::{HashMap, HashSet},
    time::{Duration, Instant},
};

use jiff::Timestamp;
use kiln_records::{Clock, Failure, Image, ImageId, Job, JobId, JobStatus, Moment, PublicKey, Recipe, arch::Arch};

pub use self::{
    choose::Kept,
    report::{KeptImage, Pruned},
};
use self::{
    choose::{Fate, choose},
    report::{Kind, Removed, Why},
};
use crate::{
    artifacts::{ArtifactStore, ObjectInfo},
    config::RetentionSettings,
    sandbox::toolboxes::Toolboxes,
    store::{After, Collection, JobFilter, Query, Record, SharedStore, Side, StoreError, Stored},
};

/// Records read at a time.
const CHUNK: u32 = 500;

/// The statuses of jobs that have ended.
const ENDED: [JobStatus; 2] = [JobStatus::Error, JobStatus::Success];

/// Removes what the settings give up.
#[derive(Debug)]
pub struct Retention {
    /// The records.
    pub store: SharedStore,
    /// The objects.
    pub artifacts: ArtifactStore,
    /// What stays.
    pub settings: RetentionSettings,
    /// What the age of things is told by.
    pub clock: Clock,
}

/// One pass.
struct Pass<'a> {
    retention: &'a Retention,
    now: Moment,
    dry_run: bool,
    /// When it breaks off.
    until: Option<Instant>,
    pruned: Pruned,
}

impl Retention {
    /// Makes a pass, or with `dry_run` only says what it would do. After `longest` it breaks off, and the report is not
    /// complete; the next pass goes on.
    ///
    /// # Errors
    ///
    /// The database does not answer. What fails else is in the report, and the rest is done.
    pub async fn prune(&self, dry_run: bool, longest: Option<Duration>) -> Result<Pruned, Failure> {
        let mut pass = self.pass(dry_run, longest);
        pass.images().await?;
        pass.deleted().await?;
        pass.jobs().await?;
        pass.uploads().await?;
        pass.packages().await;
        pass.layers().await;
        pass.toolboxes().await;
        pass.audit().await?;
        Ok(pass.pruned)
    }

    /// Removes shared packages and layers only: for commands that build without a server.
    pub async fn prune_packages(&self) {
        let mut pass = self.pass(false, None);
        pass.packages().await;
        pass.layers().await;
    }

    fn pass(&self, dry_run: bool, longest: Option<Duration>) -> Pass<'_> {
        Pass {
            retention: self,
            now: self.clock.moment(),
            dry_run,
            until: longest.map(|longest| Instant::now() + longest),
            pruned: Pruned::new(dry_run),
        }
    }
}

impl Pass<'_> {
    /// The moment so long ago, by this host's clock: S3 has its own.
    fn before(&self, ago: Duration) -> Timestamp {
        let now = self.retention.clock.timestamp();
        now.saturating_sub(ago).unwrap_or(Timestamp::MIN)
    }

    /// Whether it is time to break off. The report then says so.
    fn is_over(&mut self) -> bool {
        let is_over = self.until.is_some_and(|until| Instant::now() > until);
        if is_over {
            self.pruned.break_off();
        }
        is_over
    }

    async fn images(&mut self) -> Result<(), Failure> {
        let settings = &self.retention.settings;
        if settings.images.is_empty() {
            return Ok(());
        }
        let Some(in_use) = self.in_use().await? else {
            self.pruned
                .fail("no image was deleted: a server of another version carries out jobs that this one cannot read");
            return Ok(());
        };
        let stored = all::<Image>(&self.retention.store, Side::Live).await?;
        let images: Vec<&Image> = stored.iter().map(|stored| &stored.record).collect();
        let fates = choose(&images, settings, &in_use, self.now);
        for (Stored { record, revision, .. }, fate) in stored.iter().zip(fates) {
            if self.is_over() {
                break;
            }
            match fate {
                Fate::NotNamed => {}
                Fate::Kept(why) => self.pruned.keep(KeptImage {
                    id: record.id.0,
                    name: record.name.clone(),
                    arch: record.arch,
                    why,
                }),
                Fate::GivenUp => {
                    let removed = Removed::new(Kind::Image, record.id.to_string(), Why::Rule)
                        .named(&record.name, Some(record.arch))
                        .since(record.created);
                    let store = &*self.retention.store;
                    // Whoever has changed it meanwhile may have wanted it to stay. The next pass looks again.
                    if self.dry_run
                        || Collection::<Image>::delete_unchanged(store, record.id, *revision, self.now).await?
                    {
                        self.pruned.remove(removed);
                    }
                }
            }
        }
        Ok(())
    }

    /// The images that jobs need which have not ended, and those of sets in use; `None` if some of these jobs cannot be read.
    async fn in_use(&self) -> Result<Option<HashMap<ImageId, Kept>>, StoreError> {
        let open = self.retention.store.open_runs().await?;
        if !open.unread.is_empty() {
            return Ok(None);
        }
        let mut in_use: HashMap<ImageId, Kept> = used::in_sets(&self.retention.store)
            .await?
            .into_iter()
            .map(|image| (image, Kept::InSet))
            .collect();
        let of_run = |stored: &crate::store::StoredRun| [stored.run.image, ImageId(stored.job.artifact_id)];
        in_use.extend(open.iter().flat_map(of_run).map(|image| (image, Kept::InUse)));
        // Jobs that another system carries out have no run.
        let statuses = JobStatus::ALL.into_iter().filter(|status| !ENDED.contains(status));
        let unfinished = JobFilter {
            statuses: statuses.collect(),
            ..JobFilter::default()
        };
        for stored in jobs(&self.retention.store, unfinished).await? {
            let job = stored.record;
            let images = [Some(ImageId(job.artifact_id)), job.resultant_image_id];
            in_use.extend(images.into_iter().flatten().map(|image| (image, Kept::InUse)));
        }
        Ok(Some(in_use))
    }

    async fn deleted(&mut self) -> Result<(), Failure> {
        let after = self.retention.settings.purge_after.duration();
        if after.is_zero() {
            return Ok(());
        }
        let before = self.now.minus(after);
        let Some(in_use) = self.in_use().await? else {
            self.pruned.fail(
                "nothing was removed for good: a server of another version carries out jobs that this one cannot read",
            );
            return Ok(());
        };
        let images = self.retention.artifacts.images_bucket().to_owned();
        let recipes = self.retention.artifacts.recipes_bucket().to_owned();
        self.purge::<Image>(Kind::DeletedImage, &images, before, |image| {
            let deleted = image.deleted.filter(|_| !in_use.contains_key(&image.id));
            (image.name.clone(), Some(image.arch), deleted)
        })
        .await?;
        self.purge::<Recipe>(Kind::DeletedRecipe, &recipes, before, |recipe| {
            let deleted = recipe.deleted.filter(|_| !in_use.contains_key(&ImageId(recipe.id.0)));
            (recipe.name.clone(), Some(recipe.arch), deleted)
        })
        .await?;
        self.purge::<PublicKey>(Kind::DeletedPublicKey, &recipes, before, |key| {
            (key.name.clone(), None, key.deleted)
        })
        .await
    }

    /// Removes records of a kind for good whose time of deletion, in what `about` says, is before a moment.
    async fn purge<R: Record>(
        &mut self,
        kind: Kind,
        bucket: &str,
        before: Moment,
        about: impl Fn(&R) -> (String, Option<Arch>, Option<Moment>),
    ) -> Result<(), Failure>
    where
        dyn crate::store::Store: Collection<R>,
    {
        for Stored { record, .. } in all::<R>(&self.retention.store, Side::Deleted).await? {
            let (name, arch, Some(deleted)) = about(&record) else {
                continue;
            };
            if deleted >= before {
                continue;
            }
            if self.is_over() {
                break;
            }
            let bytes = match R::own_keys(record.id()) {
                Some(prefix) => match self.retention.artifacts.list(bucket, &prefix).await {
                    Ok(objects) => objects.iter().map(|object| object.size).sum(),
                    Err(failure) => {
                        self.pruned.fail(format_args!("{name} stays: {failure}"));
                        continue;
                    }
                },
                None => 0,
            };
            // Only as long as it is deleted: a record that was restored meanwhile is on the other side.
            let store = &*self.retention.store;
            if self.dry_run || Collection::<R>::purge(store, Side::Deleted, Some(record.id()), false).await? > 0 {
                let removed = Removed::new(kind, record.id().to_string(), Why::Age).named(&name, arch);
                self.pruned.remove(removed.since(deleted).bytes(bytes));
            }
        }
        Ok(())
    }

    async fn jobs(&mut self) -> Result<(), Failure> {
        let settings = &self.retention.settings;
        let (after, budget) = (settings.jobs_after.duration(), settings.job_log_bytes.0);
        if after.is_zero() && budget == 0 {
            return Ok(());
        }
        let mut logs: HashMap<String, u64> = HashMap::new();
        match self.retention.artifacts.job_logs().await {
            Ok(objects) => {
                for object in objects {
                    let job = object.key.split('/').nth(1).unwrap_or_default().to_owned();
                    *logs.entry(job).or_default() += object.size;
                }
            }
            Err(failure) => {
                self.pruned.fail(format_args!("all jobs stay: {failure}"));
                return Ok(());
            }
        }
        let ended = JobFilter {
            statuses: ENDED.to_vec(),
            ..JobFilter::default()
        };
        let before = (!after.is_zero()).then(|| self.now.minus(after));
        let mut left = (budget > 0).then_some(budget);
        // The newest first: the oldest are beyond the budget.
        for Stored { record: job, .. } in jobs(&self.retention.store, ended).await?.into_iter().rev() {
            if self.is_over() {
                break;
            }
            let bytes = logs.get(&job.id.to_string()).copied().unwrap_or_default();
            let fits = left.is_none_or(|left| left >= bytes);
            left = left.map(|left| left.saturating_sub(bytes));
            let why = match before {
                Some(before) if job.created < before => Why::Age,
                _ if !fits => Why::Size,
                _ => continue,
            };
            if self.dry_run || self.retention.store.delete_job(job.id).await? {
                let removed = Removed::new(Kind::Job, job.id.to_string(), why)
                    .named(&job.image_root_archive_name, Some(job.arch))
                    .since(job.created);
                self.pruned.remove(removed.bytes(bytes));
            }
        }
        Ok(())
    }

    async fn uploads(&mut self) -> Result<(), Failure> {
        let after = self.retention.settings.uploads_after.duration();
        if after.is_zero() {
            return Ok(());
        }
        let uploads = match self.retention.artifacts.uploads_begun_before(self.before(after)).await {
            Ok(uploads) => uploads,
            Err(failure) => {
                self.pruned.fail(format_args!("unfinished uploads stay: {failure}"));
                return Ok(());
            }
        };
        let Some(in_use) = self.in_use().await? else {
            return Ok(());
        };
        for upload in uploads {
            if self.is_over() {
                break;
            }
            if upload.image().is_some_and(|image| in_use.contains_key(&image)) {
                continue;
            }
            if !self.dry_run
                && let Err(failure) = self.retention.artifacts.give_up(&upload).await
            {
                self.pruned.fail(format_args!("an upload stays: {failure}"));
                continue;
            }
            let id = format!("s3://{}/{}", upload.bucket, upload.key);
            let removed = Removed::new(Kind::Upload, id, Why::Age);
            self.pruned.remove(match upload.begun {
                Some(begun) => removed.since(begun.into()),
                None => removed,
            });
        }
        Ok(())
    }

    async fn packages(&mut self) {
        let settings = &self.retention.settings;
        let before = self.before(settings.packages_after.duration());
        let old = self.retention.artifacts.old_packages(before, settings.package_bytes.0);
        match old.await {
            Ok(objects) => self.objects(Kind::Package, before, objects).await,
            Err(failure) => self.pruned.fail(format_args!("shared packages stay: {failure}")),
        }
    }

    async fn layers(&mut self) {
        let settings = &self.retention.settings;
        let before = self.before(settings.layers_after.duration());
        let old = self.retention.artifacts.old_layers(before, settings.layer_bytes.0);
        match old.await {
            Ok(objects) => self.objects(Kind::Layer, before, objects).await,
            Err(failure) => self.pruned.fail(format_args!("layers stay: {failure}")),
        }
    }

    async fn audit(&mut self) -> Result<(), Failure> {
        let after = self.retention.settings.audit_after.duration();
        if after.is_zero() {
            return Ok(());
        }
        let (store, before) = (&self.retention.store, self.now.minus(after));
        let mut entries = 0;
        if self.dry_run {
            entries = store.count_audit_entries(before).await?;
        } else {
            while !self.is_over() {
                let removed = store.remove_audit_entries(before, CHUNK).await?;
                entries += removed;
                if removed < u64::from(CHUNK) {
                    break;
                }
            }
        }
        if entries > 0 {
            let removed = Removed::new(Kind::AuditEntries, format!("{entries} entries"), Why::Age);
            self.pruned.remove(removed.since(before));
        }
        Ok(())
    }

    async fn toolboxes(&mut self) {
        let after = self.retention.settings.toolboxes_after.duration();
        if after.is_zero() {
            return;
        }
        let names: HashSet<String> = Arch::ALL.into_iter().map(Toolboxes::name_of).collect();
        let before = self.before(after);
        match self.retention.artifacts.toolboxes_except(&names).await {
            Ok(mut objects) => {
                objects.retain(|object| object.modified < before);
                self.objects(Kind::Toolbox, before, objects).await;
            }
            Err(failure) => self.pruned.fail(format_args!("stored toolboxes stay: {failure}")),
        }
    }

    /// Removes objects of the bucket for recipes that no record names.
    async fn objects(&mut self, kind: Kind, before: Timestamp, objects: Vec<ObjectInfo>) {
        let artifacts = &self.retention.artifacts;
        for object in objects {
            if self.is_over() {
                break;
            }
            if !self.dry_run
                && let Err(failure) = artifacts.delete(artifacts.recipes_bucket(), &object.key).await
            {
                self.pruned.fail(format_args!("{} stays: {failure}", object.key));
                continue;
            }
            let why = if object.modified < before { Why::Age } else { Why::Size };
            let removed = Removed::new(kind, object.key, why).since(object.modified.into());
            self.pruned.remove(removed.bytes(object.size));
        }
    }
}

/// All records of one side.
async fn all<R: Record>(store: &SharedStore, side: Side) -> Result<Vec<Stored<R>>, StoreError>
where
    dyn crate::store::Store: Collection<R>,
{
    let mut found: Vec<Stored<R>> = Vec::new();
    let mut query = Query {
        limit: CHUNK,
        ..Query::default()
    };
    loop {
        let page = Collection::<R>::page(&**store, side, &query).await?;
        let Some(last) = page.last() else { return Ok(found) };
        query.after = Some(After {
            key: last.position.to_string(),
            id: last.record.id().to_string(),
        });
        found.extend(page);
    }
}

/// All jobs that match a filter, in the order in which they were made.
async fn jobs(store: &SharedStore, jobs: JobFilter) -> Result<Vec<Stored<Job>>, StoreError> {
    let mut found: Vec<Stored<Job>> = Vec::new();
    let mut query = Query {
        limit: CHUNK,
        jobs,
        ..Query::default()
    };
    loop {
        let page = store.page_jobs(&query).await?;
        let Some(last) = page.last() else { return Ok(found) };
        let id: JobId = last.record.id;
        query.after = Some(After {
            key: last.position.to_string(),
            id: id.to_string(),
        });
        found.extend(page);
    }
}
