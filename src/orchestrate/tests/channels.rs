//! Tests what channels require of images, and channels that follow by themselves.

use kiln_records::{
    RecipeType, ServerId,
    set::{
        Requirement,
        check::{BootCheck, MAX_SIZE},
        state::{ArchState, SetState},
    },
};

use super::{
    commit::finish,
    sets::{NOW, of_this_arch},
    *,
};
use crate::{
    config::ChannelRule,
    orchestrate::sets::{CatalogueRefusal, Change, ChannelChange, NotKept, Sets},
    store::Side,
};

/// Sets of a site with these rules.
fn sets(site: &Site, server: &Server, rules: Vec<ChannelRule>) -> Sets {
    let mut asker = site.asker(Some(server));
    asker.channels = rules;
    Sets::new(Arc::new(asker))
}

fn rule(requires: Vec<Requirement>, follows: bool) -> ChannelRule {
    ChannelRule {
        channel: "stable".to_owned(),
        name: "comp*".to_owned(),
        requires,
        follows,
    }
}

/// A version of a set whose image is there. Returns the image, and the SHA-256 of its manifest.
async fn version(site: &Site, server: &Server, sets: &Sets, version: &str) -> (kiln_records::ImageId, String) {
    version_that(site, server, sets, version, Vec::new()).await
}

/// As [`version`], of a set that requires something.
async fn version_that(
    site: &Site,
    server: &Server,
    sets: &Sets,
    version: &str,
    requires: Vec<Requirement>,
) -> (kiln_records::ImageId, String) {
    let recipe = site.recipe(Arch::host(), RecipeType::KiwiNg).await;
    let mut new = of_this_arch(recipe, version, None);
    new.requires = requires;
    let made = sets.create(new, None, Moment::now()).await.unwrap();
    let job = made.stored.record.job_of(Arch::host()).unwrap();
    server.orchestrator.launch.pass().await.unwrap();
    server.has_started(job).await;
    finish(site, server, job).await;
    server.orchestrator.commit.pass().await.unwrap();
    let looked = sets
        .look
        .look(made.stored.record.id, Moment::now())
        .await
        .unwrap()
        .unwrap();
    let image = looked.stored.record.members[0].image.clone().unwrap();
    (image.id, image.proof.unwrap().sha256)
}

fn checked(manifest: &str, up: bool) -> BootCheck {
    BootCheck {
        manifest_sha256: manifest.to_owned(),
        up,
        detail: "as the console said".to_owned(),
        seconds: 3,
        machine: "QEMU".to_owned(),
        checked: Moment::now(),
        by: None,
    }
}

async fn promote(sets: &Sets, version: &str) -> Result<u32, CatalogueRefusal> {
    let change = ChannelChange {
        name: "compute".to_owned(),
        channel: "stable".to_owned(),
        after: None,
        by: None,
    };
    Ok(sets.catalogue.promote(change, version, Moment::now()).await?.number)
}

async fn leads_to(site: &Site) -> Option<String> {
    let now = site.store.channel("compute", "stable").await.unwrap();
    now.and_then(|now| now.version)
}

#[track_caller]
fn lacks(promoted: Result<u32, CatalogueRefusal>, words: &str) {
    match promoted {
        Err(CatalogueRefusal::Lacking { lacks, .. }) => {
            assert!(lacks.len() == 1 && lacks[0].contains(words), "{lacks:?}");
        }
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn a_channel_wants_a_boot_check_of_this_very_content() {
    let site = Site::new().await;
    let server = site.server(WatchSettings::default());
    let sets = sets(&site, &server, vec![rule(vec![Requirement::Boot], false)]);
    let (image, manifest) = version(&site, &server, &sets, "1").await;
    lacks(promote(&sets, "1").await, "not booted yet");
    // What is not a result, or is one for another content, is none.
    let other = "0".repeat(64);
    let kept = sets.checks.keep_check(image, &checked(&other, true), None).await;
    assert!(matches!(kept, Err(NotKept::OtherContent(digest)) if digest == manifest));
    for content in [
        serde_json::to_vec(&checked(&other, true)).unwrap(),
        b"{}".to_vec(),
        vec![b' '; MAX_SIZE + 1],
    ] {
        let put = site
            .artifacts
            .put_beside(image, "boot-check.json", "application/json", content);
        put.await.unwrap();
        assert!(matches!(
            promote(&sets, "1").await,
            Err(CatalogueRefusal::Lacking { .. })
        ));
    }
    sets.checks
        .keep_check(image, &checked(&manifest, false), Some("panic".to_owned()))
        .await
        .unwrap();
    lacks(promote(&sets, "1").await, "did not boot: as the console said");
    sets.checks
        .keep_check(image, &checked(&manifest, true), None)
        .await
        .unwrap();
    assert_eq!(promote(&sets, "1").await.unwrap(), 1);
    // The objects of the check are the image's, and go with it.
    let store: &dyn crate::store::Collection<kiln_records::Image> = &*site.store;
    store.delete(Some(image), Moment::now()).await.unwrap();
    store.purge(Side::Deleted, Some(image), false).await.unwrap();
    let doomed = site.store.doomed(100).await.unwrap();
    for name in ["boot-check.json", "console.log", "provenance.json"] {
        assert!(
            doomed.iter().any(|doomed| doomed.path.ends_with(name)),
            "{name}: {doomed:?}"
        );
    }
}

#[tokio::test]
async fn a_set_that_requires_a_boot_check_is_complete_with_one_of_its_content() {
    let site = Site::new().await;
    let server = site.server(WatchSettings::default());
    let sets = sets(&site, &server, vec![rule(Vec::new(), true)]);
    let (image, manifest) = version_that(&site, &server, &sets, "1", vec![Requirement::Boot]).await;
    let set = site.store.set_of_version("compute", "1").await.unwrap().unwrap();
    let look = async || sets.look.look(set.record.id, Moment::now()).await.unwrap().unwrap();
    let looked = look().await;
    assert_eq!(
        (looked.judged[0].state, looked.state()),
        (ArchState::Lacking, SetState::Incomplete)
    );
    let why = looked.judged[0].why.clone().unwrap();
    assert!(why.contains("not booted yet (`kiln check boot"), "{why}");
    assert!(matches!(
        promote(&sets, "1").await,
        Err(CatalogueRefusal::Incomplete { .. })
    ));
    // Another job would not change that.
    let changed = sets
        .change(set.record.id, Change::Rebuild, None, Moment::now())
        .await
        .unwrap();
    assert_eq!(changed.stored.record.members[0].attempts.len(), 1);

    sets.checks
        .keep_check(image, &checked(&manifest, false), None)
        .await
        .unwrap();
    assert!(look().await.judged[0].why.clone().unwrap().contains("did not boot"));
    assert_eq!(leads_to(&site).await, None);
    // With the result the set is complete at once, and the channel that follows moves on.
    sets.checks
        .keep_check(image, &checked(&manifest, true), None)
        .await
        .unwrap();
    let stored = site.store.set_of_version("compute", "1").await.unwrap().unwrap();
    assert!(stored.record.was_complete);
    assert_eq!(leads_to(&site).await.as_deref(), Some("1"));
    assert_eq!(look().await.state(), SetState::Complete);
}

#[tokio::test]
async fn one_server_at_a_time_has_its_turn_to_boot_an_image() {
    let site = Site::new().await;
    let server = site.server(WatchSettings::default());
    let sets_of = |boots: Option<ServerId>| {
        let mut asker = site.asker(Some(&server));
        asker.boots = boots;
        Sets::new(Arc::new(asker))
    };
    let (first, second) = (ServerId::new(), ServerId::new());
    let (image, manifest) = version_that(&site, &server, &sets_of(None), "1", vec![Requirement::Boot]).await;
    let set = site.store.set_of_version("compute", "1").await.unwrap().unwrap().record;
    let look = async |boots: Option<ServerId>, after: Duration| {
        let now = Moment::now().plus(after);
        let looked = sets_of(boots).look.look(set.id, now).await.unwrap().unwrap();
        let turn = looked.stored.record.members[0].image.clone().unwrap().boot;
        (looked.judged[0].state, turn.map(|turn| turn.server))
    };
    assert_eq!(look(None, NOW).await, (ArchState::Lacking, None));
    assert_eq!(look(Some(first), NOW).await, (ArchState::Booting, Some(first)));
    assert_eq!(look(Some(second), NOW).await, (ArchState::Booting, Some(first)));
    assert_eq!(look(None, NOW).await, (ArchState::Booting, Some(first)));
    // The turn of a server that is gone ends by the clock.
    let later = Duration::from_mins(2);
    assert_eq!(look(Some(second), later).await, (ArchState::Booting, Some(second)));
    assert_eq!(look(None, 2 * later).await, (ArchState::Lacking, None));
    // A result ends every turn.
    look(Some(first), NOW).await;
    let kept = sets_of(Some(second))
        .checks
        .keep_check(image, &checked(&manifest, false), None)
        .await;
    kept.unwrap();
    assert_eq!(look(Some(second), later).await, (ArchState::Lacking, None));
    // Nobody boots an image that is gone.
    let (image, _) = version_that(&site, &server, &sets_of(Some(first)), "2", vec![Requirement::Boot]).await;
    let set = site.store.set_of_version("compute", "2").await.unwrap().unwrap().record;
    assert!(set.members[0].image.as_ref().unwrap().boot.is_some());
    let store: &dyn crate::store::Collection<kiln_records::Image> = &*site.store;
    store.delete(Some(image), Moment::now()).await.unwrap();
    let looked = sets_of(Some(first))
        .look
        .look(set.id, Moment::now())
        .await
        .unwrap()
        .unwrap();
    assert_eq!(looked.judged[0].state, ArchState::Deleted);
    assert_eq!(looked.stored.record.members[0].image.as_ref().unwrap().boot, None);
}

#[tokio::test]
async fn a_channel_that_follows_moves_on_when_a_set_has_what_it_wants() {
    let site = Site::new().await;
    let server = site.server(WatchSettings::default());
    let sets = sets(&site, &server, vec![rule(vec![Requirement::Boot], true)]);
    let (first, of_first) = version(&site, &server, &sets, "1").await;
    let (second, of_second) = version(&site, &server, &sets, "2").await;
    let later = Moment::now().plus(Duration::from_hours(10));
    sets.pass_once(later).await.unwrap();
    assert_eq!(leads_to(&site).await, None, "neither was booted");
    sets.checks
        .keep_check(second, &checked(&of_second, true), None)
        .await
        .unwrap();
    assert_eq!(leads_to(&site).await.as_deref(), Some("2"));
    // An older one that passes later changes nothing, and neither does another look.
    sets.checks
        .keep_check(first, &checked(&of_first, true), None)
        .await
        .unwrap();
    sets.pass_once(later).await.unwrap();
    assert_eq!(leads_to(&site).await.as_deref(), Some("2"));
    let history = site.store.promotions("compute", "stable", 10).await.unwrap();
    assert_eq!((history.len(), history[0].by.as_deref()), (1, Some("rule")));
}

#[tokio::test]
async fn a_channel_that_wants_signatures_takes_nothing_unsigned() {
    let site = Site::new().await;
    let server = site.server(WatchSettings::default());
    let sets = sets(&site, &server, vec![rule(vec![Requirement::Signature], false)]);
    version(&site, &server, &sets, "1").await;
    lacks(promote(&sets, "1").await, "no key in [signing]");
    assert_eq!(leads_to(&site).await, None);
}
