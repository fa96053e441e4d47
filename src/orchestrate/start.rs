//! Starts the sandboxes of jobs that are being launched. It reads and writes rows of the store, makes the doors of sandboxes,
//! and runs sandboxes through their drivers.

use std::{path::PathBuf, sync::Arc, time::Duration};

use kiln_records::{
    Blame, Code, Failure, JobId,
    protocol::AgentFacts,
    run::{Refused, State},
};
use tracing::Instrument;

use super::{
    agent_address::AgentAddress,
    bells::Bells,
    claim::Claim,
    earlier_image::EarlierImages,
    equipment::Equipment,
    job_doors::JobDoors,
    job_span,
    network::{JobNetwork, Reached},
    places::place_name,
    row::Jobs,
    sandboxes::Sandboxes,
    token,
};
use crate::{
    config::CapacitySettings,
    sandbox::{
        DiskLimit, Driver, Limits, SandboxSpec, SandboxState, Scratch, doors::AGENT_SOCKET, lease::Lease,
        toolbox::Toolbox,
    },
    store::{SharedStore, StoredRun},
};

/// How long a sandbox may take to appear after a process that is now gone asked for its start.
const ORPHANED_START: Duration = Duration::from_secs(2);

/// Starts sandboxes.
#[derive(Debug)]
pub struct Start {
    pub(super) store: SharedStore,
    pub(super) jobs: Arc<Jobs>,
    pub(super) claim: Arc<Claim>,
    pub(super) bells: Arc<Bells>,
    pub(super) sandboxes: Arc<Sandboxes>,
    pub(super) earlier_images: Arc<EarlierImages>,
    /// The agents and toolboxes that sandboxes are made from.
    pub(super) equipment: Arc<Equipment>,
    pub(super) network: Arc<JobNetwork>,
    pub(super) doors: Arc<JobDoors>,
    pub(super) capacity: CapacitySettings,
    /// The file by which sandboxes on this host know that their server holds its lease; `None` if no other server can take
    /// their jobs.
    pub(super) lease_file: Option<PathBuf>,
}

/// What one try is started with.
struct Equipped {
    agent: PathBuf,
    toolbox: Toolbox,
    /// The token of its agent.
    secret: String,
    reached: Reached,
    server_ca_bundle: Option<String>,
    doors_dir: PathBuf,
    cpus: u32,
}

impl Start {
    /// Starts a job's sandbox in the background, unless this process is already doing so.
    pub(super) fn begin(self: &Arc<Self>, stored: &StoredRun) {
        let (job, attempt) = (stored.job.id, stored.run.attempt);
        let Some(in_hand) = self.sandboxes.take_in_hand(job) else {
            return;
        };
        let this = Arc::clone(self);
        let (place, kernel) = (place_name(&stored.run).to_owned(), stored.run.plan.driver.kernel());
        let start = async move {
            let done = match this.start(job, attempt).await {
                Ok(()) => Ok(()),
                Err(failure) => {
                    if failure.code.blame() == Some(Blame::Place) {
                        // Before the next job goes there, it is tried again.
                        this.sandboxes.places.doubt(&place, kernel);
                        this.bells.places.notify_one();
                    }
                    this.jobs.fail_own(job, attempt, failure).await
                }
            };
            if let Err(error) = done {
                tracing::warn!(%error, "a sandbox's start is not recorded");
            }
            drop(in_hand);
        };
        tokio::spawn(start.instrument(job_span(job)));
    }

    /// Starts the sandbox of a try that is being launched. Does nothing when the sandbox already exists.
    async fn start(&self, job: JobId, attempt: u32) -> Result<(), Failure> {
        // Read the row now that no other task here starts this job: the loop's copy may be older than the last start.
        let stored = match self.store.get_run(job).await? {
            Some(stored)
                if stored.run.state == State::Launching
                    && stored.run.attempt == attempt
                    && self.claim.carries_out(&stored.run) =>
            {
                stored
            }
            _ => return Ok(()),
        };
        let driver = self.sandboxes.driver_of(&stored.run);
        if Box::pin(self.earlier_images.take(&stored, &*driver)).await? || is_there(&stored, &*driver).await? {
            return Ok(());
        }
        let (agent, toolbox) = self.equipment.of(driver.arch().await?)?;
        let (secret, digest) = token::fresh();
        let noted = self
            .jobs
            .change(job, |run, _| {
                if run.state != State::Launching || run.attempt != attempt || !self.claim.carries_out(run) {
                    return Err(Refused {
                        from: run.state.name(),
                        arrow: "get a token",
                    });
                }
                run.token = Some(digest.clone());
                run.toolbox_sha256 = Some(toolbox.facts.sha256.clone());
                Ok(())
            })
            .await?;
        let Some(Ok(stored)) = noted else { return Ok(()) };
        let address = self.network.agent_address.as_ref();
        let equipped = Equipped {
            agent,
            toolbox,
            secret,
            reached: self.network.of(&stored.run.plan).await?,
            server_ca_bundle: address.map(AgentAddress::authorities).transpose()?.flatten(),
            doors_dir: self.doors.open(job)?,
            cpus: self.sandboxes.cpus_of(&stored.run).await?,
        };
        let spec = self.spec(&stored, equipped);
        match driver.start(&spec).await {
            // A process that was killed meanwhile had begun it, or an earlier sandbox is not entirely gone. Only the
            // agent of this start knows the job's token, so the other sandbox is of no use.
            Err(failure) if failure.code == Code::SandboxExists => {
                // Unless another server has taken the job: then that one's agent knows the token.
                let now = self.store.get_run(job).await?;
                if now.is_none_or(|now| now.run.token.as_ref() != Some(&digest)) {
                    return Ok(());
                }
                tracing::info!("replacing a sandbox that another process began");
                driver.destroy(job, Scratch::Remove).await?;
                driver.start(&spec).await?;
            }
            started => started?,
        }
        self.jobs
            .say(job, format!("try {}: {}", stored.run.attempt, stored.run.plan.why))
            .await;
        for passed in &stored.run.plan.passed_over {
            let driver = passed.driver.name();
            let text = format!("warning: passed over {driver} at {}: {}", passed.place, passed.why);
            self.jobs.say(job, text).await;
        }
        self.bells.watch.notify_one();
        Ok(())
    }

    /// The sandbox of a try.
    fn spec(&self, stored: &StoredRun, equipped: Equipped) -> SandboxSpec {
        let (job, plan) = (stored.job.id, &stored.run.plan);
        let Reached { network, doors, proxy } = equipped.reached;
        SandboxSpec {
            job,
            toolbox: equipped.toolbox,
            agent: equipped.agent,
            limits: Limits {
                memory: Some(plan.needs.memory_limit),
                cpus: Some(equipped.cpus),
                pids: self.capacity.processes_per_job,
                disk: Some(DiskLimit {
                    bytes: plan.needs.disk_limit,
                    inodes: u64::from(self.capacity.files_per_job),
                }),
            },
            kernel: plan.driver.kernel(),
            network,
            doors_dir: equipped.doors_dir,
            facts: AgentFacts {
                gateway: None,
                ca_bundle: None,
                server: format!("unix:/run/kiln/{AGENT_SOCKET}"),
                job,
                token: equipped.secret,
                doors,
                proxy: proxy.map(Box::new),
            },
            server_url: self.network.agent_address.as_ref().map(|address| address.url.clone()),
            server_ca_bundle: equipped.server_ca_bundle,
            in_directory: plan.keep,
            lease: self.lease_file.clone().map(Lease),
            scratch_from: stored.run.resumes().map(|resume| resume.job),
        }
    }
}

/// Whether this try has its sandbox already, or had it. What an earlier try left is removed.
async fn is_there(stored: &StoredRun, driver: &dyn Driver) -> Result<bool, Failure> {
    let (job, has_token) = (stored.job.id, stored.run.token.is_some());
    match driver.look(job).await? {
        // It belongs to this try: an earlier one would have been destroyed below, before its successor. How it ended, the watch
        // loop reports.
        SandboxState::Running | SandboxState::Waiting { .. } | SandboxState::Ended(_) if has_token => Ok(true),
        SandboxState::Running | SandboxState::Waiting { .. } | SandboxState::Ended(_) => {
            driver.destroy(job, Scratch::Remove).await?;
            Ok(false)
        }
        // Another process may have started it: one that was killed a moment ago, whose sandbox is still on its way.
        SandboxState::Absent if has_token => {
            tokio::time::sleep(ORPHANED_START).await;
            Ok(driver.look(job).await? != SandboxState::Absent)
        }
        SandboxState::Absent => Ok(false),
    }
}
