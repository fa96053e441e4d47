//! Tests commands that carry out jobs of their own beside a server, or without one.

use super::*;
use kiln_records::{
    job::JobOptions,
    protocol::{SquashfsOptions, TemplateMode},
};

use crate::{
    orchestrate::ask::{ArchiveJob, Ask, Asker},
    sandbox::Network,
};

fn archive() -> ArchiveJob {
    ArchiveJob {
        image_name: "image".to_owned(),
        recipe_name: "recipe".to_owned(),
        archive: bytes::Bytes::from_static(b"archive"),
        recipe_type: kiln_records::protocol::RecipeType::KiwiNg,
        arch: Arch::host(),
        own_kernel: false,
        values: Vec::new(),
        template_mode: TemplateMode::Strict,
        squashfs: SquashfsOptions::default(),
        repos_timeout_s: 9,
        memory: Some((3 << 30) + 1),
        disk: None,
        keep: false,
        options: JobOptions::default(),
    }
}

impl Site {
    async fn ask(&self, command: &Server, ask: Ask) -> Job {
        let asker = Asker {
            store: Arc::clone(&self.store),
            artifacts: self.artifacts.clone(),
            webhooks: Arc::new(Webhooks::new(
                &WebhookSettings::default(),
                None,
                Arc::clone(&self.store),
            )),
            met: crate::orchestrate::Met::default(),
            channels: Vec::new(),
            boots: None,
            jobs: crate::config::JobSettings::default(),
            most_records: crate::store::Most::default(),
            orchestrator: Some(Arc::clone(&command.orchestrator)),
        };
        asker.ask(JobId::new(), ask, None).await.unwrap()
    }

    async fn built(&self, command: &Server) -> JobId {
        self.ask(command, Ask::Archive(Box::new(archive()))).await.id
    }

    async fn recipes(&self) -> usize {
        let objects = self.artifacts.list(self.artifacts.recipes_bucket(), "recipes/").await;
        objects.unwrap().len()
    }
}

#[tokio::test]
async fn a_command_carries_out_its_own_jobs_and_no_others() {
    let site = Site::new().await;
    let server = site.server(WatchSettings::default());
    let runner = site.runners().enter().unwrap();
    let command = site.command(server.orchestrator.claim.id(), &runner);
    let build = site.built(&command).await;
    let other_job = server
        .orchestrator
        .intake
        .accept(job(), NewRun::default())
        .await
        .unwrap()
        .id;
    for (process, own, other) in [(&server, other_job, build), (&command, build, other_job)] {
        process.orchestrator.launch.pass().await.unwrap();
        while !process.place.sandboxes.lock().unwrap().contains_key(&own) {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        process.orchestrator.watch.pass().await.unwrap();
        process.orchestrator.commit.pass().await.unwrap();
        process.orchestrator.settle.pass().await.unwrap();
        let sandboxes = process.place.sandboxes.lock().unwrap();
        assert!(sandboxes.contains_key(&own) && !sandboxes.contains_key(&other));
        assert_eq!(sandboxes[&own].0.network == Network::Host, own == build);
    }
    assert_eq!(
        (site.state(build).await, site.state(other_job).await),
        (State::Launching, State::Launching)
    );

    let stored = site.store.get_run(build).await.unwrap().unwrap();
    assert_eq!(stored.run.plan.needs.memory_limit, (3 << 30) + 1);
    assert_eq!((stored.job.job_mem_size, stored.run.plan.repos_timeout_s), (4, 9));
    assert_eq!(site.recipes().await, 1);
}

#[tokio::test]
async fn the_jobs_of_a_killed_command_are_ended_by_the_next_process() {
    let site = Site::new().await;
    let server = site.server(WatchSettings::default());
    let elsewhere = site.server(WatchSettings::default());
    let runner = site.runners().enter().unwrap();
    let command = site.command(server.orchestrator.claim.id(), &runner);
    let (build, next) = (site.built(&command).await, site.built(&command).await);
    command.orchestrator.settle.pass().await.unwrap();
    command.orchestrator.launch.pass().await.unwrap();

    let another = site.runners().enter().unwrap();
    let another = site.command(server.orchestrator.claim.id(), &another);
    for process in [&server, &elsewhere, &another] {
        process.orchestrator.settle.pass().await.unwrap();
        assert!(!process.orchestrator.settle.has_remains().await.unwrap());
        assert_eq!(site.state(next).await, State::Launching);
    }
    // The kernel releases the lock of a killed process.
    drop(runner);
    // No other host can tell.
    elsewhere.orchestrator.settle.pass().await.unwrap();
    assert_eq!(site.state(build).await, State::Launching);
    assert!(another.orchestrator.settle.has_remains().await.unwrap());
    for _ in 0..2 {
        another.orchestrator.settle.pass().await.unwrap();
    }
    assert!(!another.orchestrator.settle.has_remains().await.unwrap());
    for job in [build, next] {
        let run = site.store.get_run(job).await.unwrap().unwrap().run;
        assert_eq!(run.failure().map(|failure| failure.code), Some(Code::Interrupted));
        assert!(run.settled && !run.kept);
    }
    assert_eq!(
        site.recipes().await,
        2,
        "a job can be repeated as long as it has a record"
    );
}

#[tokio::test]
async fn another_process_may_repeat_the_job_of_a_command() {
    let site = Site::new().await;
    let server = site.server(WatchSettings::default());
    let runner = site.runners().enter().unwrap();
    let command = site.command(server.orchestrator.claim.id(), &runner);
    let build = site.built(&command).await;
    let failure = Failure::new(Code::Interrupted, "no more");
    let old = command.orchestrator.jobs.cancel(build, failure).await.unwrap().unwrap();
    command.orchestrator.settle.pass().await.unwrap();
    drop(runner);
    let again = Ask::Again {
        old: Box::new(old),
        from: None,
    };
    let again = site.ask(&server, again).await.id;
    let run = site.store.get_run(again).await.unwrap().unwrap().run;
    assert_eq!((run.owner, run.plan.runner), (None, None));
    assert_eq!(run.plan.recipe, site.artifacts.recipe_path(again));
    assert_eq!(site.recipes().await, 2);

    // A recipe goes with the last record that needs it.
    for job in [build, again] {
        site.store.delete_job(job).await.unwrap();
        server.orchestrator.settle.pass().await.unwrap();
    }
    assert_eq!(site.recipes().await, 0);
}
