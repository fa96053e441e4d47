//! The watch loop checks that jobs are alive, make progress and end in time. It reads and writes rows of the store, and
//! looks at sandboxes through their drivers.
//!
//! Three clocks run for each job, all of this process's own: since its agent was heard, since it made progress, since
//! it was launched. The process that watches a job decides that it is over; the watched job never has the last word.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use bytesize::ByteSize;
use futures::{StreamExt, TryStreamExt, future::try_join_all, stream};
use kiln_records::{
    Code, Failure, Step,
    protocol::words,
    run::{How, LOCAL, State, Used},
};
use tracing::Instrument;

use super::{
    answers::{Asked, Troubles, in_time},
    bells::Bells,
    claim::Claim,
    job_doors::JobDoors,
    job_span,
    live::{Live, LiveJobs},
    places::place_name,
    row::Jobs,
    sandboxes::Sandboxes,
    usage::{Usage, out_of_memory},
};
use crate::{
    config::{CapacitySettings, WatchSettings},
    sandbox::{Evidence, SandboxState},
    settings::Period,
    store::{SharedStore, StoreError, StoredRun},
};

/// How many sandboxes of a place are looked at at the same time.
const AT_ONCE: usize = 16;

/// How long a launched job may have no sandbox.
const NO_SANDBOX: Duration = Duration::from_secs(30);

/// Watches jobs.
#[derive(Debug)]
pub struct Watch {
    pub(super) store: SharedStore,
    pub(super) jobs: Arc<Jobs>,
    pub(super) claim: Arc<Claim>,
    pub(super) bells: Arc<Bells>,
    pub(super) live: Arc<LiveJobs>,
    pub(super) sandboxes: Arc<Sandboxes>,
    pub(super) usage: Arc<Usage>,
    pub(super) doors: Arc<JobDoors>,
    /// When jobs are given up.
    pub(super) settings: WatchSettings,
    pub(super) capacity: CapacitySettings,
    /// The places that do not answer.
    pub(super) troubles: Mutex<Troubles>,
}

impl Watch {
    /// For how long an agent may not be heard.
    pub fn longest_unheard(&self) -> Duration {
        self.settings.heartbeat.duration()
    }

    /// Makes one pass over everything that is under way here.
    ///
    /// # Errors
    ///
    /// When the store cannot be read; the next pass starts afresh.
    pub async fn pass(&self) -> Result<(), Failure> {
        if !self.claim.holds_lease() {
            return Ok(());
        }
        let open = self.store.open_runs().await?;
        // Of other servers' jobs, too, whose agents have called here.
        self.live
            .begin_pass(|job| open.iter().any(|stored| stored.job.id == *job));
        let mut at: BTreeMap<&str, Vec<&StoredRun>> = BTreeMap::new();
        for stored in &*open {
            let is_under_way = matches!(stored.run.state, State::Launching | State::Running);
            if is_under_way && self.claim.carries_out(&stored.run) {
                at.entry(place_name(&stored.run)).or_default().push(stored);
            }
        }
        try_join_all(at.iter().map(|(place, jobs)| self.watch_at(place, jobs))).await?;
        self.guard_disk(&open).await
    }

    /// Checks the jobs at a place. Their clocks run, whether it answers or not.
    async fn watch_at(&self, place: &str, jobs: &[&StoredRun]) -> Result<(), StoreError> {
        let asked = Asked::at(place);
        let checks: Vec<_> = jobs.iter().map(|stored| self.check(stored, &asked)).collect();
        let troubles: Vec<_> = stream::iter(checks).buffer_unordered(AT_ONCE).try_collect().await?;
        let trouble = troubles.into_iter().flatten().next_back();
        let mut known = self.troubles.lock().unwrap_or_else(PoisonError::into_inner);
        known.note(place, trouble.as_ref());
        Ok(())
    }

    /// Checks a job, and fails it if something is wrong with it. Returns why it could not be checked, if it could not.
    ///
    /// All is done here, and nothing by the loop over the checks: while that waited for the store, the other checks would rest
    /// with what they hold of it.
    async fn check(&self, stored: &StoredRun, asked: &Asked<'_>) -> Result<Option<Failure>, StoreError> {
        let check = async {
            match self.what_is_wrong(stored, asked).await {
                Ok(None) => Ok(None),
                Ok(Some(failure)) => {
                    self.jobs.fail_own(stored.job.id, stored.run.attempt, failure).await?;
                    Ok(None)
                }
                Err(trouble) => Ok(Some(trouble)),
            }
        };
        check.instrument(job_span(stored.job.id)).await
    }

    async fn what_is_wrong(&self, stored: &StoredRun, asked: &Asked<'_>) -> Result<Option<Failure>, Failure> {
        let (job, run) = (stored.job.id, &stored.run);
        let at = |failure: Failure| match run.step {
            Some(step) => failure.at(step),
            None => failure,
        };
        let mut clocks = self.clocks(stored);
        if self.sandboxes.is_in_hand(job) {
            // There is no agent yet that could be heard: a toolbox may be on its way to the place, or a machine boots.
            self.live.of(job, Live::stand);
            return Ok(None);
        }
        // An earlier process may have started the sandbox: its agent waits for this one.
        self.doors.open(job)?;
        let factor = match run.plan.how {
            How::Native => 1,
            How::Emulated => self.settings.emulated_factor.max(1),
        };
        // The user may take their time; the agent knows how long that may be.
        let waits = run.has_open_shell();
        if clocks.failure(&self.settings, factor, waits).is_some()
            && let Some(pulse) = self
                .store
                .pulse(job)
                .await?
                .filter(|pulse| pulse.attempt == run.attempt)
        {
            // Another server may have heard it.
            clocks.unheard = clocks.unheard.min(pulse.unheard);
            clocks.silent = clocks.silent.min(pulse.silent);
        }
        let state = match asked.ask(self.sandboxes.driver_of(run).look(job)).await {
            Ok(state) => state,
            // The agent may still be heard. If it is not, the job goes elsewhere.
            Err(failure) => {
                // Without an agent yet that could be heard, it waits on.
                if self.live.of(job, Live::wait_on).unwrap_or(false) {
                    return Err(failure);
                }
                return clocks
                    .failure(&self.settings, factor, waits)
                    .map(at)
                    .map(Some)
                    .ok_or(failure);
            }
        };
        match state {
            SandboxState::Ended(evidence) => {
                // The agent's last call may have changed the job since it was read.
                let now = self.store.get_run(job).await?;
                let same = now.is_some_and(|now| now.run.state == run.state && now.run.attempt == run.attempt);
                return Ok(same.then(|| at(verdict(&evidence, run.step))));
            }
            SandboxState::Absent if run.state == State::Running || clocks.since_launch > NO_SANDBOX => {
                return Ok(Some(at(Failure::new(Code::SandboxLost, "the sandbox is gone")
                    .hint("it was removed by hand; the job can be started again"))));
            }
            SandboxState::Absent => {
                // The job is launched, but nothing is starting it: the launch loop will.
                self.bells.launch.notify_one();
                return Ok(None);
            }
            SandboxState::Waiting { why, longest } if run.state == State::Launching => {
                return Ok(self.wait(stored, why, longest).map(at));
            }
            // Its agent was heard, whatever its place knows of that: a node may be lost before it says what it has started.
            SandboxState::Waiting { .. } | SandboxState::Running => {
                self.live.of(job, Live::run);
            }
        }
        let failure = match clocks.failure(&self.settings, factor, waits) {
            Some(failure) if run.state == State::Launching => Some(self.never_called(stored).await.unwrap_or(failure)),
            Some(failure) if failure.code == Code::HeartbeatLost => {
                Some(self.why_silent(stored).await.unwrap_or(failure))
            }
            Some(failure) => Some(failure),
            None => over_disk(self.usage.measure(stored, asked).await?, run.plan.needs.disk_limit),
        };
        Ok(failure.map(at))
    }

    /// Notes why a sandbox has not started, where the job shows it and in the log. Returns the failure when it has waited
    /// too long.
    fn wait(&self, stored: &StoredRun, why: Failure, longest: Duration) -> Option<Failure> {
        let waited = self.live.of(stored.job.id, |live| {
            if live.waits() != Some(&why.detail) {
                tracing::info!(code = why.code.name(), "the sandbox has not started: {why}");
            }
            live.wait(&why.detail)
        })?;
        (waited > longest).then(|| {
            let detail = format!("the sandbox did not start within {} s: {why}", longest.as_secs());
            Failure { detail, ..why }
        })
    }

    /// Why an agent has never called, in its own words. No program of the job has run yet that could put them into its
    /// mouth.
    async fn never_called(&self, stored: &StoredRun) -> Option<Failure> {
        let driver = self.sandboxes.driver_of(&stored.run);
        let words = in_time(place_name(&stored.run), driver.last_words(stored.job.id));
        let words = words.await.ok()?;
        words.iter().rev().find_map(|line| unreachable(line))
    }

    /// Why an agent is not heard, as its place knows it.
    async fn why_silent(&self, stored: &StoredRun) -> Option<Failure> {
        let driver = self.sandboxes.driver_of(&stored.run);
        let why = in_time(place_name(&stored.run), driver.why_silent(stored.job.id));
        why.await.ok()?
    }

    /// The three clocks of a job, started if this process sees it for the first time.
    fn clocks(&self, stored: &StoredRun) -> Clocks {
        if stored.run.state == State::Running && !self.live.has(stored.job.id) {
            tracing::info!("the job goes on, which an earlier process began");
        }
        self.live.with(stored.job.id, &stored.run, |live| Clocks {
            unheard: live.heard.elapsed(),
            silent: live.progressed.elapsed(),
            since_launch: live.begun.elapsed(),
        })
    }

    /// Ends the job with the most data on disk when the host's own disk is nearly full.
    async fn guard_disk(&self, open: &[StoredRun]) -> Result<(), Failure> {
        let capacity = self.sandboxes.places.local().capacity().await?;
        let floor = self.capacity.disk_floor.0 / 2;
        let inodes = u64::from(self.capacity.inode_floor) / 2;
        let few_inodes = capacity.inodes_total > 0 && capacity.inodes_free < inodes;
        if capacity.disk_free >= floor && !few_inodes {
            return Ok(());
        }
        let largest = open
            .iter()
            .filter(|stored| stored.run.state == State::Running)
            .filter(|stored| stored.run.plan.place.as_deref() == Some(LOCAL))
            .filter_map(|stored| Some((stored, self.live.of(stored.job.id, |live| live.used.disk)?)))
            .max_by_key(|(_, disk)| *disk)
            .map(|(stored, disk)| (stored.job.id, stored.run.attempt, disk));
        let Some((job, attempt, disk)) = largest else {
            return Ok(());
        };
        let detail = format!(
            "the host's disk is nearly full ({} and {} inodes are free), and this job had the most on it: {}",
            ByteSize(capacity.disk_free),
            capacity.inodes_free,
            ByteSize(disk)
        );
        self.jobs
            .fail(job, attempt, Failure::disk_full(detail))
            .instrument(job_span(job))
            .await?;
        Ok(())
    }
}

/// The time since each of a job's three clocks last started.
struct Clocks {
    unheard: Duration,
    silent: Duration,
    since_launch: Duration,
}

impl Clocks {
    /// The failure of the clock that has run out, if one has. With `waits` only the first counts.
    fn failure(&self, settings: &crate::config::WatchSettings, factor: u32, waits: bool) -> Option<Failure> {
        let limit = |period: Period| period.duration().saturating_mul(factor);
        let how = if factor > 1 { ", emulated" } else { "" };
        if self.unheard > settings.heartbeat.duration() {
            let detail = format!("the agent said nothing at all for {} s", self.unheard.as_secs());
            return Some(
                Failure::new(Code::HeartbeatLost, detail)
                    .hint("see whether the host or the sandbox is overloaded or frozen"),
            );
        }
        if waits {
            return None;
        }
        if self.silent > limit(settings.silence) {
            let detail = format!(
                "nothing new was said for {} s, and no more than {} s are allowed{how}",
                self.silent.as_secs(),
                limit(settings.silence).as_secs()
            );
            return Some(
                Failure::new(Code::Silent, detail)
                    .hint("the end of the log says what hangs; `silence` in [watch] allows more"),
            );
        }
        if self.since_launch > limit(settings.wall) {
            let detail = format!(
                "it took more than {} s, which is what a job may take{how}",
                limit(settings.wall).as_secs()
            );
            return Some(
                Failure::new(Code::WallLimit, detail).hint("`wall` and `emulated_factor` in [watch] allow more"),
            );
        }
        None
    }
}

fn over_disk(used: Used, limit: u64) -> Option<Failure> {
    (used.disk > limit).then(|| {
        let detail = format!(
            "the build has {} on disk and may have {}",
            ByteSize(used.disk),
            ByteSize(limit)
        );
        Failure::new(Code::DiskFull, detail)
            .hint("allow it more: `build_env_size` of the job, in GiB, or `--disk` of `kiln build`")
    })
}

/// The failure of an agent that wrote this line about its way to the server.
fn unreachable(line: &str) -> Option<Failure> {
    let failure = words::said(line)?;
    let hint = match failure.code {
        Code::AgentUnreachable => {
            "see whether `agent_url` in [server] leads here from the sandbox's place, and `agent_ca_bundle` has the \
             authority of its certificate"
        }
        Code::AgentOffline => "see whether the sandbox's place gives its sandboxes a network",
        _ => return None,
    };
    Some(failure.hint(hint))
}

/// The cause of a job's end, from what remains of its sandbox.
pub(super) fn verdict(evidence: &Evidence, step: Option<Step>) -> Failure {
    if evidence.oom_kills > 0 {
        return out_of_memory(evidence.oom_kills);
    }
    if let Some(failure) = &evidence.failure {
        return failure.clone();
    }
    // Before the first step, only the agent can have said it.
    if step.is_none()
        && let Some(failure) = evidence.last_words.last().and_then(|line| words::said(line))
    {
        return unreachable(&words::say(&failure)).unwrap_or(failure);
    }
    let last = evidence
        .last_words
        .last()
        .map(|line| format!(": {line}"))
        .unwrap_or_default();
    let when = step.map(|step| format!(" in step {step}")).unwrap_or_default();
    let detail = format!(
        "the agent ended{when} with code {} without giving a reason{last}",
        evidence.exit_code
    );
    Failure::new(Code::SandboxLost, detail).hint("something killed it; the kernel's log may say what")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::WatchSettings;

    fn clocks(unheard: u64, silent: u64, since_launch: u64) -> Clocks {
        Clocks {
            unheard: Duration::from_secs(unheard),
            silent: Duration::from_secs(silent),
            since_launch: Duration::from_secs(since_launch),
        }
    }

    #[test]
    fn each_clock_ends_a_job_for_its_own_reason() {
        let settings = WatchSettings {
            heartbeat: Period::seconds(60),
            silence: Period::seconds(100),
            wall: Period::seconds(1000),
            ..WatchSettings::default()
        };
        let code = |clocks: Clocks, factor| clocks.failure(&settings, factor, false).map(|failure| failure.code);
        assert_eq!(code(clocks(60, 100, 1000), 1), None);
        assert_eq!(code(clocks(61, 0, 0), 10), Some(Code::HeartbeatLost));
        assert_eq!(code(clocks(0, 101, 0), 1), Some(Code::Silent));
        assert_eq!(code(clocks(0, 101, 1001), 10), None);
        assert_eq!(code(clocks(0, 0, 1001), 1), Some(Code::WallLimit));
        assert_eq!(code(clocks(0, 0, 10_001), 10), Some(Code::WallLimit));
        let waits = |clocks: Clocks| clocks.failure(&settings, 1, true).map(|failure| failure.code);
        assert_eq!(waits(clocks(60, 101, 1001)), None);
        assert_eq!(waits(clocks(61, 0, 0)), Some(Code::HeartbeatLost));
    }

    #[test]
    fn evidence_says_most_that_it_can() {
        let mut evidence = Evidence {
            exit_code: 137,
            oom_kills: 0,
            failure: None,
            warning: None,
            last_words: vec!["panicked".into()],
        };
        let lost = verdict(&evidence, Some(Step::Build));
        assert_eq!(lost.code, Code::SandboxLost);
        assert_eq!(
            lost.detail,
            "the agent ended in step build with code 137 without giving a reason: panicked"
        );
        evidence.failure = Some(Failure::new(Code::NoUserNamespace, "no"));
        assert_eq!(verdict(&evidence, None).code, Code::NoUserNamespace);
        evidence.oom_kills = 2;
        assert_eq!(verdict(&evidence, None).code, Code::OutOfMemory);
    }

    #[test]
    fn an_agent_that_never_began_says_itself_why() {
        let evidence = |line: &str| Evidence {
            exit_code: 1,
            oom_kills: 0,
            failure: None,
            warning: None,
            last_words: vec![line.to_owned()],
        };
        let of = |line: &str, step| verdict(&evidence(line), step).code;
        let line = "kiln-agent: the trusted certificates cannot be used: no (ca_bundle_invalid)";
        assert_eq!(of(line, None), Code::CaBundleInvalid);
        // Later it may be a recipe that says so.
        assert_eq!(of(line, Some(Step::Build)), Code::SandboxLost);
        let lost = verdict(
            &evidence("kiln-agent: https://kiln: UnknownIssuer (agent_unreachable)"),
            None,
        );
        assert_eq!(
            (lost.code, lost.detail.as_str()),
            (Code::AgentUnreachable, "https://kiln: UnknownIssuer")
        );
        assert!(lost.hint.unwrap().contains("agent_ca_bundle"));
        let offline = verdict(
            &evidence("kiln-agent: https://kiln: Network is unreachable (agent_offline)"),
            None,
        );
        assert_eq!(offline.code, Code::AgentOffline);
        assert!(!offline.hint.unwrap().contains("agent_ca_bundle"));
    }
}
