//! Takes the image of an earlier job as a whole: a job for which everything is as it was gets a copy, without a sandbox. Reads
//! recipes and entries in S3, asks repositories for their metadata, copies objects in S3, and writes the job's row.
//!
//! Only jobs that ask for it do so ([`CacheDepth::Image`]): what the recipe's scripts took from the network or the clock is as old
//! as the earlier image. What cannot be looked at counts as changed, and then the image is made.

use std::{io, sync::Arc, time::Duration};

use futures::{StreamExt, future::try_join_all};
use kiln_records::{
    CacheDepth, Code, Failure, Image, LayerOutcome, LayerUse, RepositoryState, Run, UploadedArtifact, Warnings,
    link::bucket_and_key, run::Refused,
};
use reqwest::{
    Client, Url,
    dns::{Addrs, Name, Resolve, Resolving},
    redirect::Policy,
};
use sha2::{Digest, Sha256};
use tokio::net::lookup_host;

use super::{claim::Claim, equipment::Equipment, layers::Fields, network::JobNetwork, row::Jobs, sandboxes::Sandboxes};
use crate::{
    artifacts::{ArtifactStore, ImageEntry, KeptInstalled, ReadError},
    proxy::Rules,
    sandbox::Driver,
    store::{Collection, SharedStore, Side, StoredRun},
};

/// The largest archive of a recipe that is looked into, in bytes.
const LARGEST_RECIPE: usize = 64 << 20;

/// The largest metadata of a repository, in bytes: that file only lists others.
const LARGEST_METADATA: usize = 64 << 20;

/// The longest time for the repositories. Making the image takes longer than that, but not much.
const PATIENCE: Duration = Duration::from_secs(20);

/// Why no earlier image is taken.
#[derive(Debug, thiserror::Error)]
enum NotTaken {
    #[error("there is none with this recipe, these values and these tools")]
    NoneYet,
    #[error("the recipe's archive is too large to be looked into")]
    RecipeTooLarge,
    #[error("the earlier image was deleted, or is not what it was")]
    Gone,
    #[error("the repository at {0} has changed")]
    Changed(String),
    #[error("the repository at {0} could not be looked at: {1}")]
    Unseen(String, String),
    #[error("the repositories did not answer in {} s", PATIENCE.as_secs())]
    Slow,
    #[error("the site's proxy is in the way of a look at the repositories")]
    Proxy,
    #[error(transparent)]
    Failed(#[from] Failure),
}

/// What a job takes.
struct Taken {
    recipe_sha256: String,
    used: LayerUse,
    artifacts: Vec<UploadedArtifact>,
    warnings: Warnings,
}

/// Reuses whole images.
#[derive(Debug)]
pub struct EarlierImages {
    pub(super) store: SharedStore,
    pub(super) jobs: Arc<Jobs>,
    pub(super) claim: Arc<Claim>,
    pub(super) artifacts: ArtifactStore,
    pub(super) equipment: Arc<Equipment>,
    pub(super) sandboxes: Arc<Sandboxes>,
    pub(super) network: Arc<JobNetwork>,
}

impl EarlierImages {
    /// Gives a job that is being launched a copy of an earlier image, if it wants one and everything is as it was. Whether it did.
    pub(super) async fn take(&self, stored: &StoredRun, driver: &dyn Driver) -> Result<bool, Failure> {
        let run = &stored.run;
        // With a token, a sandbox may be on its way.
        if run.plan.cache != CacheDepth::Image || !could_be_whole(run) || run.token.is_some() {
            return Ok(false);
        }
        let taken = match self.find(stored, driver).await {
            Ok(taken) => taken,
            Err(not_taken) => {
                self.artifacts.discard_image(run.image).await?;
                let text = format!("no earlier image is taken: {not_taken}");
                self.jobs.say(stored.job.id, text).await;
                return Ok(false);
            }
        };
        let image = taken.used.image;
        let attempt = run.attempt;
        let changed = self
            .jobs
            .change(stored.job.id, |run, _| {
                if run.attempt != attempt || !self.claim.carries_out(run) {
                    return Err(Refused {
                        from: "in another try",
                        arrow: "take an earlier image",
                    });
                }
                run.reuse(taken.recipe_sha256.clone(), taken.used.clone(), taken.artifacts.clone())?;
                run.warnings = taken.warnings.clone();
                Ok(())
            })
            .await?;
        if let (Some(Ok(_)), Some(image)) = (changed, image) {
            let text =
                format!("recipe, values, repositories and tools are those of image {image}: it is taken as a whole");
            self.jobs.say(stored.job.id, text).await;
        }
        // Otherwise the job was ended meanwhile.
        Ok(true)
    }

    async fn find(&self, stored: &StoredRun, driver: &dyn Driver) -> Result<Taken, NotTaken> {
        let (bucket, path) = bucket_and_key(&stored.run.plan.recipe).ok_or(NotTaken::NoneYet)?;
        let recipe = match self.artifacts.read_small(bucket, path, LARGEST_RECIPE).await {
            Ok(recipe) => recipe.ok_or(NotTaken::NoneYet)?,
            Err(ReadError::TooLarge(_)) => return Err(NotTaken::RecipeTooLarge),
            Err(ReadError::S3(failure)) => return Err(failure.into()),
        };
        let recipe_sha256 = hex::encode(Sha256::digest(&recipe));
        let key = self.image_key(stored, driver, &recipe_sha256).await?;
        let (entry, installed) = self.artifacts.find_image(&key).await?.ok_or(NotTaken::NoneYet)?;
        let live = Collection::<Image>::get(&*self.store, Side::Live, entry.image).await;
        let image = live.map_err(Failure::from)?.map(|stored| stored.record);
        let link = image.filter(|image| image.arch == stored.job.arch);
        let link = link.and_then(|image| image.link).ok_or(NotTaken::Gone)?;
        self.look_at(&entry.repositories, &stored.run).await?;
        let artifacts = self.artifacts.copy_image(&link, stored.run.image).await?;
        if let Some(installed) = installed {
            let attempt = stored.run.attempt;
            let kept = KeptInstalled { attempt, installed };
            self.artifacts.put_installed(stored.job.id, &kept).await?;
        }
        Ok(Taken {
            recipe_sha256,
            used: LayerUse {
                outcome: LayerOutcome::Image,
                why: None,
                sha256: None,
                size: None,
                image: Some(entry.image),
                repositories: entry.repositories,
            },
            artifacts: artifacts.ok_or(NotTaken::Gone)?,
            warnings: entry.warnings,
        })
    }

    /// Leads later jobs with the same inputs to the image of this one.
    pub(super) async fn note(&self, stored: &StoredRun) -> Result<(), Failure> {
        let run = &stored.run;
        let (Some(recipe), Some(layer)) = (&run.recipe_sha256, &run.layer) else {
            return Ok(());
        };
        // Of a job without a layer it is not certain what decides what is installed.
        let is_decided = match layer.outcome {
            LayerOutcome::Reused | LayerOutcome::Kept | LayerOutcome::Image => !layer.repositories.is_empty(),
            LayerOutcome::Passed | LayerOutcome::Extended => false,
        };
        let was_opened = run.shell.as_ref().is_some_and(|shell| shell.opened.is_some());
        if !is_decided || was_opened || !could_be_whole(run) {
            return Ok(());
        }
        let key = self.image_key(stored, &*self.sandboxes.driver_of(run), recipe).await?;
        let installed = self.artifacts.installed(stored.job.id, run.attempt).await?;
        let entry = ImageEntry {
            image: run.image,
            repositories: layer.repositories.clone(),
            has_installed: installed.is_some(),
            warnings: run.warnings.clone(),
        };
        self.artifacts.keep_image(&key, &entry, installed.as_ref()).await
    }

    /// The key of a job's image but for its repositories, 64 hexadecimal digits.
    async fn image_key(&self, stored: &StoredRun, driver: &dyn Driver, recipe: &str) -> Result<String, Failure> {
        let (_, toolbox) = self.equipment.of(driver.arch().await?)?;
        let boot = &stored.run.plan.boot;
        let mut hash = Fields::of_run("image 1", stored, stored.run.twins_in_force());
        hash.add(recipe);
        hash.add(toolbox.facts.sha256);
        for name in [&boot.kernel, &boot.initrd, &boot.parameters] {
            hash.add(name);
        }
        hash.add(boot.required.to_string());
        hash.add(stored.run.plan.locked.to_string());
        Ok(hash.hex())
    }

    /// Whether all repositories are as they were, as far as the job could reach them.
    async fn look_at(&self, repositories: &[RepositoryState], run: &Run) -> Result<(), NotTaken> {
        if self.network.gate.is_some() {
            return Err(NotTaken::Proxy);
        }
        let rules = Arc::new(self.network.rules_of(&run.plan).await?);
        let client = client(&rules).map_err(|error| Failure::new(Code::NoNetwork, error))?;
        let looks = repositories.iter().map(|known| look(known, &client, &rules));
        match tokio::time::timeout(PATIENCE, try_join_all(looks)).await {
            Ok(looked) => looked.map(drop),
            Err(_) => Err(NotTaken::Slow),
        }
    }
}

/// Whether a job makes an image of its recipe and of nothing else.
fn could_be_whole(run: &Run) -> bool {
    let plan = &run.plan;
    plan.image.is_none()
        && plan.verifies.is_none()
        && plan.resume.is_none()
        && plan.epoch.is_none()
        && !plan.verify_twins
}

async fn look(known: &RepositoryState, client: &Client, rules: &Rules) -> Result<(), NotTaken> {
    let unseen = |why: String| NotTaken::Unseen(known.metadata.clone(), why);
    let url: Url = known
        .metadata
        .parse()
        .map_err(|_| unseen("it is no address".to_owned()))?;
    rules.check(url.host_str().unwrap_or_default()).await.map_err(unseen)?;
    let failed = |error: reqwest::Error| unseen(error.without_url().to_string());
    let answer = client.get(url).send().await.map_err(failed)?;
    if !answer.status().is_success() {
        return Err(unseen(format!("it answered {}", answer.status())));
    }
    let (mut hash, mut size, mut body) = (Sha256::new(), 0, answer.bytes_stream());
    while let Some(bytes) = body.next().await {
        let bytes = bytes.map_err(failed)?;
        size += bytes.len();
        if size > LARGEST_METADATA {
            return Err(unseen(format!("it has more than {LARGEST_METADATA} bytes")));
        }
        hash.update(bytes);
    }
    if hex::encode(hash.finalize()) == known.sha256 {
        Ok(())
    } else {
        Err(NotTaken::Changed(known.metadata.clone()))
    }
}

/// A client that reaches what the rules admit and nothing else: where to look is a recipe's word.
fn client(rules: &Arc<Rules>) -> reqwest::Result<Client> {
    let admitted = Arc::clone(rules);
    let policy = Policy::custom(move |attempt| {
        let written = attempt
            .url()
            .host_str()
            .and_then(|host| host.trim_matches(['[', ']']).parse().ok());
        if attempt.previous().len() > 5 || written.is_some_and(|address| !admitted.admits(address)) {
            attempt.stop()
        } else {
            attempt.follow()
        }
    });
    Client::builder()
        .user_agent(concat!("kiln/", env!("CARGO_PKG_VERSION")))
        .no_proxy()
        .redirect(policy)
        .dns_resolver(Arc::new(Admitted(Arc::clone(rules))))
        .build()
}

/// Looks names up, and keeps to the rules: what was checked is what is connected to.
struct Admitted(Arc<Rules>);

impl Resolve for Admitted {
    fn resolve(&self, name: Name) -> Resolving {
        let rules = Arc::clone(&self.0);
        Box::pin(async move {
            let found: Vec<_> = lookup_host((name.as_str(), 0)).await?.collect();
            if found.iter().any(|address| !rules.admits(address.ip())) {
                return Err(io::Error::other("[network] does not let jobs reach it").into());
            }
            let addresses: Addrs = Box::new(found.into_iter());
            Ok(addresses)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Looks at a repository on this host under these rules. What the log would say.
    async fn looked(rules: Rules, change: impl Fn(&mut RepositoryState)) -> Result<(), String> {
        let app = axum::Router::new()
            .route("/InRelease", axum::routing::get(async || "packages"))
            .route(
                "/moved",
                axum::routing::get(async || axum::response::Redirect::to("/InRelease")),
            );
        let listener = tokio::net::TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let port = listener.local_addr().unwrap().port();
        tokio::spawn(async { axum::serve(listener, app).await });
        let mut known = RepositoryState {
            metadata: format!("http://127.0.0.1:{port}/InRelease"),
            sha256: hex::encode(Sha256::digest("packages")),
        };
        change(&mut known);
        let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
        let rules = Arc::new(rules);
        let looked = look(&known, &client(&rules).unwrap(), &rules).await;
        looked.map_err(|not_taken| not_taken.to_string().replace(&port.to_string(), "PORT"))
    }

    #[tokio::test]
    async fn only_what_is_as_it_was_counts() {
        let is_same = looked(Rules::none(), |_| {}).await;
        assert_eq!(is_same, Ok(()));
        let moved = |known: &mut RepositoryState| known.metadata = known.metadata.replace("InRelease", "moved");
        assert_eq!(looked(Rules::none(), moved).await, Ok(()));
        let other = looked(Rules::none(), |known| known.sha256 = "00".repeat(32)).await;
        assert_eq!(
            other.unwrap_err(),
            "the repository at http://127.0.0.1:PORT/InRelease has changed"
        );
        let gone = looked(Rules::none(), |known| known.metadata.push('x')).await;
        assert_eq!(
            gone.unwrap_err(),
            "the repository at http://127.0.0.1:PORT/InReleasex could not be looked at: it answered 404 Not Found"
        );
    }

    #[tokio::test]
    async fn the_server_reaches_no_more_than_its_jobs() {
        let jobs = || Rules {
            apply: true,
            ..Rules::none()
        };
        let written = looked(jobs(), |_| {}).await.unwrap_err();
        assert!(
            written.ends_with("[network] does not let jobs reach 127.0.0.1"),
            "{written}"
        );
        let named = |known: &mut RepositoryState| known.metadata = known.metadata.replace("127.0.0.1", "localhost");
        let named = looked(jobs(), named).await.unwrap_err();
        assert!(
            named.ends_with("[network] does not let jobs reach localhost"),
            "{named}"
        );
        // A name is looked up once more for the connection.
        let resolved = Admitted(Arc::new(jobs())).resolve("localhost".parse().unwrap()).await;
        assert!(resolved.is_err());
    }
}
