//! Builds that are verified afterwards.

use kiln_records::{
    Code, Failure, JobStatus, Step,
    run::{How, State},
};

use super::{Server, Site, WatchSettings, job};
use crate::{orchestrate::intake::NewRun, store::StoredRun};

/// Lets a server build an image with twins, and clear up. Returns the verification, if there is one.
async fn verification_of_a_build(site: &Site, server: &Server) -> Option<StoredRun> {
    let built = site.launched(server).await;
    site.builds_with_twins(server, built).await;
    let ended = server.orchestrator.jobs.change(built, |run, now| {
        run.plan.how = How::Emulated;
        run.finish()?;
        run.commit(now)
    });
    ended.await.unwrap().unwrap().unwrap();
    server.orchestrator.settle.pass().await.unwrap();
    // To settle something twice makes nothing twice.
    let again = site.store.get_run(built).await.unwrap().unwrap();
    server
        .orchestrator
        .settle
        .sampling
        .verify(&server.orchestrator.jobs, &again)
        .await
        .unwrap();
    let open = site.store.open_runs().await.unwrap();
    assert!(open.len() < 2);
    let mut open = open.into_iter();
    let found = open.next();
    assert!(found.iter().all(|stored| stored.run.plan.verifies == Some(built)));
    found
}

#[tokio::test]
async fn a_sampled_build_is_verified_when_no_job_waits_and_makes_no_second_image() {
    let mut site = Site::new().await;
    site.emulation.verify_percent = 100;
    let server = site.server(WatchSettings::default());
    let orchestrator = &server.orchestrator;
    let StoredRun { job: record, run, .. } = verification_of_a_build(&site, &server).await.unwrap();
    let id = record.id;
    assert_eq!(record.image_root_archive_name, "image-verification");
    assert_eq!(run.plan.steps(), Step::VERIFICATION);

    let other = orchestrator.intake.accept(job(), NewRun::default()).await.unwrap().id;
    orchestrator.launch.pass().await.unwrap();
    assert_eq!(
        (site.state(other).await, site.state(id).await),
        (State::Launching, State::Queued)
    );
    let (_, reason) = orchestrator.glance.waiting(id).unwrap();
    assert!(reason.contains("when no other job waits"), "{reason}");
    server.has_started(other).await;
    orchestrator.launch.pass().await.unwrap();
    assert_eq!(site.state(id).await, State::Launching);
    server.has_started(id).await;

    let finished = orchestrator.jobs.change(id, |run, _| {
        run.start()?;
        run.finish()
    });
    finished.await.unwrap().unwrap().unwrap();
    orchestrator.commit.pass().await.unwrap();
    orchestrator.settle.pass().await.unwrap();
    let StoredRun { job: record, run, .. } = site.store.get_run(id).await.unwrap().unwrap();
    assert_eq!((run.state.clone(), record.status), (State::Success, JobStatus::Success));
    assert_eq!(record.resultant_image_id, None);
    assert!(run.settled && !orchestrator.jobs.has_record(&run).await.unwrap());
}

#[tokio::test]
async fn a_verification_that_finds_a_difference_fails_at_once() {
    let mut site = Site::new().await;
    site.emulation.verify_percent = 100;
    let server = site.server(WatchSettings::default());
    let id = verification_of_a_build(&site, &server).await.unwrap().job.id;
    server.orchestrator.launch.pass().await.unwrap();
    server.has_started(id).await;
    site.builds_with_twins(&server, id).await;
    let failure = Failure::new(Code::TwinsDiffer, "/etc/x is missing").at(Step::Build);
    server.orchestrator.jobs.fail(id, 1, failure.clone()).await.unwrap();
    assert_eq!(site.state(id).await, State::Failed(failure));
}

#[tokio::test]
async fn nothing_is_verified_unasked() {
    let site = Site::new().await;
    let server = site.server(WatchSettings::default());
    assert!(verification_of_a_build(&site, &server).await.is_none());
}
