//! Tests image sets whose jobs a server carries out: their limits of time, two servers at once, and an S3 that is away.

use kiln_records::{
    RecipeId, RecipeType, SetId,
    set::state::{ArchState, SetState},
};

use super::{commit::finish, s3_proxy::proxy, *};
use crate::orchestrate::sets::{Change, Looked, NewSet, Sets, Source, Wanted};

/// A version of a set of this host's architecture.
pub(super) fn of_this_arch(recipe: RecipeId, version: &str, time_limit_s: Option<u32>) -> NewSet {
    NewSet {
        name: "compute".to_owned(),
        version: version.to_owned(),
        public_key_id: None,
        options: kiln_records::job::JobOptions::default(),
        members: vec![Wanted {
            arch: Arch::host(),
            required: true,
            from: Source::Recipe(recipe),
            time_limit_s,
        }],
        requires: Vec::new(),
    }
}

/// A set of this host's architecture, and the sets of its server.
async fn set(site: &Site, server: &Server, time_limit_s: Option<u32>) -> (Sets, Looked) {
    let sets = Sets::new(Arc::new(site.asker(Some(server))));
    let recipe = site.recipe(Arch::host(), RecipeType::KiwiNg).await;
    let new = of_this_arch(recipe, "1", time_limit_s);
    let made = sets.create(new, None, Moment::now()).await.unwrap();
    (sets, made)
}

/// What a look finds after that time.
async fn look(sets: &Sets, id: SetId, after: Duration) -> (ArchState, SetState, String) {
    let looked = sets.look.look(id, Moment::now().plus(after)).await.unwrap().unwrap();
    let judged = &looked.judged[0];
    (judged.state, looked.state(), judged.why.clone().unwrap_or_default())
}

fn job_of(looked: &Looked) -> JobId {
    looked.stored.record.job_of(Arch::host()).unwrap()
}

async fn launch(server: &Server, job: JobId) {
    server.orchestrator.launch.pass().await.unwrap();
    server.has_started(job).await;
}

pub(super) const NOW: Duration = Duration::ZERO;

#[tokio::test]
async fn a_job_that_takes_longer_than_its_set_allows_is_ended() {
    let site = Site::new().await;
    let server = site.server(WatchSettings::default());
    let (sets, made) = set(&site, &server, Some(60)).await;
    let (id, job) = (made.stored.record.id, job_of(&made));
    launch(&server, job).await;
    look(&sets, id, Duration::from_secs(50)).await;
    assert!(!site.state(job).await.is_final(), "it has ten seconds left");
    look(&sets, id, Duration::from_secs(70)).await;
    let State::Failed(failure) = site.state(job).await else {
        panic!("it goes on")
    };
    assert_eq!(failure.code, Code::SetTimeLimit);
    let (state, whole, why) = look(&sets, id, NOW).await;
    assert_eq!((state, whole), (ArchState::Failed, SetState::Incomplete));
    assert!(why.contains("60 s"), "{why}");
    let again = sets.change(id, Change::Rebuild, None, Moment::now()).await.unwrap();
    assert_ne!(job_of(&again), job);
    assert_eq!(again.state(), SetState::Building);
}

#[tokio::test]
async fn an_image_counts_once_it_was_read_whatever_its_job_says() {
    let mut site = Site::new().await;
    let (artifacts, fault) = proxy(&site.s3).await;
    site.artifacts = artifacts;
    let server = site.server(WatchSettings::default());
    let (sets, made) = set(&site, &server, None).await;
    let (id, job) = (made.stored.record.id, job_of(&made));
    launch(&server, job).await;
    finish(&site, &server, job).await;
    assert_eq!(look(&sets, id, NOW).await.1, SetState::Building);
    server.orchestrator.commit.pass().await.unwrap();
    assert_eq!(site.state(job).await, State::Success);

    *fault.lock().unwrap() = Some((403, "manifest.json"));
    let (state, whole, why) = look(&sets, id, NOW).await;
    assert_eq!((state, whole), (ArchState::Unverified, SetState::Unverified), "{why}");
    let unchanged = sets.change(id, Change::Rebuild, None, Moment::now()).await.unwrap();
    assert_eq!(
        job_of(&unchanged),
        job,
        "that S3 does not answer is no reason to build again"
    );
    *fault.lock().unwrap() = None;
    assert_eq!(
        look(&sets, id, NOW).await,
        (ArchState::Complete, SetState::Complete, String::new())
    );

    // The image remains when its job is deleted.
    assert!(site.store.delete_job(job).await.unwrap());
    assert_eq!(look(&sets, id, NOW).await.1, SetState::Complete);
    *fault.lock().unwrap() = Some((403, "manifest.json"));
    assert_eq!(
        look(&sets, id, NOW).await.1,
        SetState::Unverified,
        "it was complete before"
    );
}

/// A server has died after it stored the set and before it made the job; two others go on at the same time.
#[tokio::test]
async fn two_servers_make_one_job() {
    let site = Site::new().await;
    let server = site.server(WatchSettings::default());
    let (sets, made) = set(&site, &server, None).await;
    let mut other = made.stored.record.clone();
    other.id = SetId::new();
    other.version = "2".to_owned();
    other.members[0].ask(Moment::now());
    site.store.insert_set(&other).await.unwrap();
    let both = Sets::new(Arc::new(site.asker(Some(&site.server(WatchSettings::default())))));
    let now = Moment::now().plus(Duration::from_mins(1));
    let (one, two) = tokio::join!(sets.pass_once(now), both.pass_once(now));
    one.and(two).unwrap();
    let job = other.job_of(Arch::host()).unwrap();
    assert!(site.store.get_run(job).await.unwrap().is_some());
    let jobs = site.store.open_runs().await.unwrap();
    assert_eq!(jobs.len(), 2, "one of each set");
    assert_eq!(look(&sets, other.id, NOW).await.1, SetState::Building);
    // A job that is deleted before it made an image is a failure, not a reason to make it again.
    site.store.delete_job(job).await.unwrap();
    assert_eq!(look(&sets, other.id, NOW).await.0, ArchState::Failed);
    assert_eq!(look(&sets, other.id, NOW).await.0, ArchState::Failed);
    assert!(site.store.get_job(job).await.unwrap().is_none());
}
