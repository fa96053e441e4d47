//! Runs the loops: each makes a pass when it is woken, and at regular intervals. The passes do the I/O; this file only
//! schedules them, and reads the list of build nodes from the store.

use std::{sync::Arc, time::Duration};

use futures::StreamExt;
use kiln_records::Failure;
use tokio::{sync::Mutex, task::JoinSet};
use tokio_util::sync::CancellationToken;

use super::{life::SHOW_EVERY, orchestrator::Orchestrator, row::Jobs, settle::Tasks};
use crate::{metrics::Pass, sandbox::Driver, store::News};

/// How often each loop makes a pass when nothing wakes it.
const EVERY: Duration = Duration::from_secs(1);

/// How often the places are asked what they offer.
const LOOK_EVERY: Duration = Duration::from_mins(1);

/// The interval for clearing away, which asks S3 and all places.
const CLEAR_EVERY: Duration = Duration::from_secs(10);

/// The longest pause after a failed pass.
const LONGEST_PAUSE: Duration = Duration::from_secs(30);

/// Carries jobs out until `stop` fires. Sandboxes keep running without it: the next process finds them.
pub async fn run(orchestrator: Arc<Orchestrator>, stop: &CancellationToken) {
    let mut loops = JoinSet::new();
    let (this, bells) = (&orchestrator, &orchestrator.bells);
    macro_rules! spawn {
        ($room:ident, $every:expr) => {{
            let (room, bells) = (Arc::clone(&this.$room), Arc::clone(bells));
            loops.spawn(async move {
                let bell = || bells.$room.notified();
                repeat(stringify!($room), $every, bell, || room.pass()).await;
            });
        }};
    }
    loops.spawn({
        let (placing, bells) = (Arc::clone(&this.placing), Arc::clone(bells));
        async move {
            let mut under_way = JoinSet::new();
            loop {
                match placing.nodes().await {
                    Ok(nodes) => {
                        for look in placing.places.looks(&nodes) {
                            let bells = Arc::clone(&bells);
                            under_way.spawn(async move {
                                if look.await {
                                    bells.launch.notify_one();
                                }
                            });
                        }
                    }
                    Err(error) => tracing::warn!("the remote build nodes cannot be read: {error}"),
                }
                while under_way.try_join_next().is_some() {}
                // An error means that the bell did not ring in time.
                let _ = tokio::time::timeout(LOOK_EVERY, bells.places.notified()).await;
            }
        }
    });
    spawn!(life, SHOW_EVERY);
    spawn!(launch, EVERY);
    spawn!(watch, EVERY);
    spawn!(commit, EVERY);
    spawn!(shells, EVERY);
    loops.spawn({
        let (settle, bells) = (Arc::clone(&this.settle), Arc::clone(bells));
        async move {
            let tasks = Mutex::new(Tasks::new());
            let bell = || bells.settle.notified();
            repeat("settle", CLEAR_EVERY, bell, || async {
                settle.pass_soon(&mut *tasks.lock().await).await
            })
            .await;
        }
    });
    spawn!(sweep, CLEAR_EVERY);
    loops.spawn({
        let jobs = Arc::clone(&this.jobs);
        async move { follow_news(&jobs).await }
    });
    stop.cancelled().await;
    loops.shutdown().await;
    let close = async |(place, driver): (String, Arc<dyn Driver>)| {
        if let Err(failure) = driver.close().await {
            tracing::warn!(
                place,
                code = failure.code.name(),
                "not all is cleared away there: {failure}"
            );
        }
    };
    futures::future::join_all(this.places.drivers().into_iter().map(close)).await;
}

/// Wakes the readers that follow a job, and clears away, when another server has changed a job. Never ends.
async fn follow_news(jobs: &Jobs) {
    loop {
        match jobs.store.news().await {
            Ok(mut news) => loop {
                match news.next().await {
                    Some(Ok(News { job, is_over })) => {
                        jobs.feed.wake(job);
                        if is_over {
                            jobs.bells.settle.notify_one();
                        }
                    }
                    Some(Err(error)) => tracing::warn!("changes of other servers are seen late: {error}"),
                    None => break,
                }
            },
            Err(error) => tracing::warn!("changes of other servers are seen late: {error}"),
        }
        // The loops look by themselves meanwhile.
        tokio::time::sleep(LONGEST_PAUSE).await;
    }
}

/// Makes a pass, waits for the bell or for `every`, and makes another; after a failure, with growing pauses.
async fn repeat<Bell, Once>(name: &'static str, every: Duration, bell: impl Fn() -> Bell, pass: impl Fn() -> Once)
where
    Bell: Future<Output = ()>,
    Once: Future<Output = Result<(), Failure>>,
{
    let mut pause = every;
    loop {
        let measured = Pass::begin(name);
        let outcome = pass().await;
        measured.end(&outcome);
        match outcome {
            Ok(()) => {
                pause = every;
                // An error means that the bell did not ring in time.
                let _ = tokio::time::timeout(every, bell()).await;
            }
            Err(failure) => {
                tracing::warn!(
                    code = failure.code.name(),
                    hint = failure.hint,
                    "the {name} loop looks again in {} s: {failure}",
                    pause.as_secs()
                );
                tokio::time::sleep(pause).await;
                pause = (pause * 2).min(LONGEST_PAUSE);
            }
        }
    }
}
