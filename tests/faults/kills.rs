//! Processes are killed, at each point that has a name and at any time.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use crate::faults::{
    invariants::{Observer, check},
    random::Random,
    site::{Site, rank},
    victim::Victim,
};
use crate::support;

/// Jobs under way at the same time.
const LANES: usize = 3;

/// How long a job takes, about: what dies at any time dies within.
const JOB: Duration = Duration::from_secs(6);

/// How long a server stays away, at most.
const AWAY: Duration = Duration::from_secs(3);

/// Points that have a name, by [`rank`].
const POINTS: [(&str, u32); 11] = [
    ("queued", 0),
    ("launching", 1),
    ("running", 2),
    ("prepare", 3),
    ("template", 5),
    ("repos", 6),
    ("build", 7),
    ("package", 8),
    ("upload", 9),
    ("committing", 10),
    ("ended", 11),
];

#[derive(Debug, Clone, Copy)]
enum When {
    /// As soon as the job is seen there, or further.
    At(&'static str, u32),
    /// So long after it was asked for.
    After(Duration),
}

/// The fault for one job.
#[derive(Debug, Clone, Copy)]
struct Round {
    victim: Victim,
    when: When,
}

/// Every victim at every point, then at random times, in random order.
fn plan(rounds: usize, random: &mut Random) -> VecDeque<Round> {
    let at = |(name, rank)| {
        Victim::ALL.map(|victim| Round {
            victim,
            when: When::At(name, rank),
        })
    };
    let mut plan: Vec<Round> = POINTS.into_iter().flat_map(at).collect();
    // A short run has some of each kind, a long one has all of the first. In some rounds the victim is missing.
    let by_chance = plan.len().max(2 * rounds);
    for number in 0..by_chance {
        let millis = random.between(0..u64::try_from(JOB.as_millis()).unwrap());
        plan.push(Round {
            victim: Victim::ALL[number % Victim::ALL.len()],
            when: When::After(Duration::from_millis(millis)),
        });
    }
    random.shuffle(&mut plan);
    plan.into()
}

/// The faults so far.
#[derive(Debug, Default)]
struct Tally {
    killed: usize,
    /// By victim.
    by: BTreeMap<String, usize>,
    /// Rounds in which the victim was not there.
    missed: usize,
}

struct Course {
    site: Arc<Site>,
    recipe: String,
    rounds: usize,
    plan: Mutex<VecDeque<Round>>,
    random: Mutex<Random>,
    tally: Mutex<Tally>,
}

impl Course {
    fn next(&self) -> Option<Round> {
        let done = self.tally.lock().unwrap().killed >= self.rounds;
        if done {
            None
        } else {
            self.plan.lock().unwrap().pop_front()
        }
    }

    /// One job after the other, each with a fault or two.
    async fn lane(&self) {
        while let Some(round) = self.next() {
            let job = self.site.submit(&self.recipe).await;
            self.play(&job, round).await;
            let twice = self.random.lock().unwrap().between(0..3) == 0;
            if twice && let Some(round) = self.next() {
                self.play(&job, round).await;
            }
            self.site.end_of(&job).await;
        }
    }

    async fn play(&self, job: &str, round: Round) {
        match round.when {
            When::At(name, point) => {
                self.site
                    .wait_until(job, name, |progress| rank(progress) >= point)
                    .await;
            }
            When::After(time) => tokio::time::sleep(time).await,
        }
        let hit = round.victim.kill(&self.site, job, &mut self.random.lock().unwrap());
        println!(
            "job {job}: {:?} {:?}{}",
            round.victim,
            round.when,
            if hit { "" } else { ": not there" }
        );
        {
            let mut tally = self.tally.lock().unwrap();
            if hit {
                tally.killed += 1;
                *tally.by.entry(format!("{:?}", round.victim)).or_default() += 1;
            } else {
                tally.missed += 1;
            }
        }
        if hit && round.victim == Victim::Server {
            let away = self
                .random
                .lock()
                .unwrap()
                .between(0..u64::try_from(AWAY.as_millis()).unwrap());
            tokio::time::sleep(Duration::from_millis(away)).await;
            self.site.up().await;
        }
    }
}

#[test(threads = 4)]
async fn whoever_is_killed_every_job_ends_once() {
    needs!(support::no_namespaces());
    let rounds = std::env::var("KILN_FAULT_ROUNDS").map_or(12, |text| text.parse().unwrap());
    let mut random = Random::seeded();
    let site = Arc::new(
        Site::start(&[
            ("KILN__CAPACITY__JOBS", "3"),
            ("KILN__WATCH__INTERRUPTIONS", "2"),
            ("KILN__WATCH__RETRY_PAUSE", "1s"),
        ])
        .await,
    );
    let observer = Observer::of(&site);
    let begun = Instant::now();
    let course = Course {
        recipe: site.small_recipe(),
        site: Arc::clone(&site),
        rounds,
        plan: Mutex::new(plan(rounds, &mut random)),
        random: Mutex::new(random),
        tally: Mutex::default(),
    };
    futures::future::join_all((0..LANES).map(|_| course.lane())).await;
    let ends = check(&site, &observer).await;
    let tally = course.tally.into_inner().unwrap();
    println!(
        "{} processes killed in {:.0?}: {tally:?}; {ends:?}",
        tally.killed,
        begun.elapsed()
    );
    assert!(tally.killed >= rounds, "too few were there to be killed: {tally:?}");
    // Two tries are allowed, and most jobs lose one at most.
    assert!(ends.success > 0, "{ends:?}");
    // A lost place is not a failure of the recipe, nor is a killed tool of the agent's own. But a tool below those looks
    // the same as a failed one, and a killed server cuts the connections through its doors: the package manager says
    // what it misses of the tests' repository.
    let causes = [
        "sandbox_lost",
        "tool_killed",
        "build_failed",
        "squashfs_failed",
        "package_not_found",
        "repo_unreachable",
    ];
    assert!(
        ends.errors.keys().all(|code| causes.contains(&code.as_str())),
        "{ends:?}"
    );
}
