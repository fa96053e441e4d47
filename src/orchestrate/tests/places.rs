//! Tests what a job is told of its place, and which place it waits for.

use kiln_records::run::DriverKind;

use super::*;
use crate::orchestrate::{
    place::Wish,
    places::{Decision, Places},
};

#[tokio::test]
async fn a_sandbox_has_a_stated_number_of_cpus_and_its_build_is_told_the_same() {
    let site = Site::new().await;
    let server = site.server(WatchSettings::default());
    let job = site.launched(&server).await;
    let limits = server.place.sandboxes.lock().unwrap()[&job].0.limits;
    // A container without a stated number gets a machine with one CPU from Kata.
    assert_eq!(limits.cpus, Some(2));
    let run = site.store.get_run(job).await.unwrap().unwrap().run;
    assert_eq!(server.orchestrator.sandboxes.cpus_of(&run).await.unwrap(), 2);
}

#[tokio::test]
async fn a_place_that_measures_slowly_gets_jobs_all_the_same() {
    let site = Site::new().await;
    let server = site.server(WatchSettings::default());
    server.place.measures_slowly.store(true, Ordering::Relaxed);
    let job = server
        .orchestrator
        .intake
        .accept(job(), NewRun::default())
        .await
        .unwrap()
        .id;
    let launched = async {
        while site.state(job).await == State::Queued {
            server.orchestrator.launch.pass().await.unwrap();
        }
    };
    tokio::time::timeout(Duration::from_secs(20), launched).await.unwrap();
}

#[tokio::test]
async fn an_agent_that_has_never_called_says_itself_why() {
    let site = Site::new().await;
    let watch = || WatchSettings {
        heartbeat: Period::seconds(0),
        attempts: 1,
        interruptions: 1,
        ..WatchSettings::default()
    };
    for (words, expected) in [
        (
            "kiln-agent: the server at https://kiln cannot be reached: UnknownIssuer (agent_unreachable)",
            Code::AgentUnreachable,
        ),
        ("kiln-agent: something else (job_over)", Code::HeartbeatLost),
        ("a program's own words", Code::HeartbeatLost),
    ] {
        let server = site.server(watch());
        *server.place.words.lock().unwrap() = vec![words.to_owned(), "and more".to_owned()];
        let job = site.launched(&server).await;
        let State::Failed(failure) = site.state(job).await else {
            panic!("{:?}", site.state(job).await);
        };
        assert_eq!(failure.code, expected, "{failure}");
        if expected == Code::AgentUnreachable {
            assert!(
                failure.detail.contains("UnknownIssuer") && failure.hint.is_some(),
                "{failure:?}"
            );
        }
    }
}

#[tokio::test]
async fn a_kind_of_sandbox_that_the_site_prefers_is_waited_for_until_it_is_known() {
    let equipment = Arc::new(Equipment::new(Agents::beside("/none".into()), [toolbox(Arch::host())]));
    let local = Place::new(Some(Arch::host()));
    let places = Places::new(
        ServerId::new(),
        local,
        Arch::host(),
        Vec::new(),
        Box::new(|_| panic!("no nodes")),
        equipment,
    );
    let wish = Wish {
        arch: Arch::host(),
        own_kernel: false,
    };
    let decide = |drivers: &[DriverKind]| {
        let rule = IsolationSettings {
            drivers: drivers.to_vec(),
            ..IsolationSettings::default()
        };
        places.decide(wish, &rule, false, |_, _| 0)
    };
    let driver = |decision: Decision| match decision {
        Decision::Placed(placement) => Some(placement.driver),
        _ => None,
    };
    assert_eq!(driver(decide(&[])), Some(DriverKind::Namespace));
    let preferred = [DriverKind::Microvm, DriverKind::Namespace];
    assert!(matches!(decide(&preferred), Decision::Later(_)));
    join_all(places.looks(&[])).await;
    assert_eq!(driver(decide(&preferred)), Some(DriverKind::Microvm));
    assert!(matches!(decide(&[DriverKind::Kata]), Decision::Refused(_)));
}

#[tokio::test]
async fn a_job_waits_for_the_only_place_that_would_do_while_that_is_away() {
    let foreign = if Arch::host() == Arch::X86_64 {
        Arch::Aarch64
    } else {
        Arch::X86_64
    };
    let equipment = Arc::new(Equipment::new(Agents::beside("/none".into()), [toolbox(Arch::host())]));
    let only = Place::new(Some(Arch::host()));
    only.away.store(true, Ordering::Relaxed);
    let places = Places::new(
        ServerId::new(),
        Arc::clone(&only) as _,
        Arch::host(),
        Vec::new(),
        Box::new(|_| panic!("no nodes")),
        equipment,
    );
    let rule = IsolationSettings {
        drivers: vec![DriverKind::Namespace],
        ..IsolationSettings::default()
    };
    let decide = |arch, is_command| {
        let wish = Wish {
            arch,
            own_kernel: false,
        };
        places.decide(wish, &rule, is_command, |_, _| 0)
    };
    let look = || join_all(places.looks(&[]));
    look().await;
    let decision = decide(Arch::host(), false);
    assert!(
        matches!(&decision, Decision::Later(why) if why == "local: it does not answer"),
        "{decision:?}"
    );
    // A command does not wait, and that is no place for these.
    for (arch, is_command) in [(Arch::host(), true), (foreign, false)] {
        let decision = decide(arch, is_command);
        assert!(matches!(decision, Decision::Refused(_)), "{decision:?}");
    }
    only.away.store(false, Ordering::Relaxed);
    look().await;
    let decision = decide(Arch::host(), false);
    assert!(matches!(decision, Decision::Placed(_)), "{decision:?}");
}

#[tokio::test]
async fn a_place_where_nothing_starts_any_more_is_looked_at_again_and_its_jobs_wait() {
    let site = Site::new().await;
    let server = site.server(WatchSettings {
        retry_pause: Period::seconds(0),
        ..WatchSettings::default()
    });
    let (orchestrator, place) = (&server.orchestrator, &server.place);
    let look = async || drop(join_all(orchestrator.places.looks(&[])).await);
    look().await;
    place.refuses.store(true, Ordering::Relaxed);
    let jobs = [site.launched(&server).await, site.launched(&server).await];
    // The first has cost a try, which is not its fault; the other one goes nowhere before the place is known again.
    for _ in 0..3 {
        orchestrator.launch.pass().await.unwrap();
        for job in jobs {
            server.has_started(job).await;
        }
    }
    let attempts = async || {
        let mut attempts = Vec::new();
        for job in jobs {
            let run = site.store.get_run(job).await.unwrap().unwrap().run;
            assert_eq!(run.state, State::Queued, "{run:?}");
            attempts.push(run.attempt);
        }
        attempts
    };
    assert_eq!(attempts().await, [2, 1]);
    look().await;
    let waits = orchestrator.places.decide(
        Wish {
            arch: Arch::host(),
            own_kernel: false,
        },
        &IsolationSettings {
            drivers: vec![DriverKind::Namespace],
            ..IsolationSettings::default()
        },
        false,
        |_, _| 0,
    );
    assert!(
        matches!(&waits, Decision::Later(why) if why == "local: no such shim"),
        "{waits:?}"
    );
    place.refuses.store(false, Ordering::Relaxed);
    look().await;
    orchestrator.launch.pass().await.unwrap();
    for job in jobs {
        server.has_started(job).await;
        assert_eq!(site.state(job).await, State::Launching);
    }
}

/// A trial is believed for minutes, a measurement is made at each look.
#[tokio::test]
async fn a_place_that_is_gone_is_not_called_ready_because_of_an_earlier_trial() {
    let site = Site::new().await;
    let server = site.server(WatchSettings::default());
    let places = &server.orchestrator.places;
    let look = async || {
        join_all(places.looks(&[])).await;
        let seen = places.look_back().remove(0);
        (seen.is_usable(), seen.lacks)
    };
    assert_eq!(look().await, (true, None));
    server.place.unmeasured.store(true, Ordering::Relaxed);
    assert_eq!(look().await, (false, Some("no route to host".to_owned())));
    server.place.unmeasured.store(false, Ordering::Relaxed);
    assert_eq!(look().await, (true, None));
}

/// The first job at a new site makes the toolbox, and with it the kernel of virtual machines comes.
#[tokio::test]
async fn a_place_that_cannot_be_looked_at_yet_is_not_taken_for_one_without_machines() {
    let equipment = Arc::new(Equipment::new(Agents::beside("/none".into()), [toolbox(Arch::host())]));
    let local = Place::new(Some(Arch::host()));
    local.lacks_toolbox.store(true, Ordering::Relaxed);
    let places = Places::new(
        ServerId::new(),
        Arc::clone(&local) as _,
        Arch::host(),
        Vec::new(),
        Box::new(|_| panic!("no nodes")),
        equipment,
    );
    let wish = Wish {
        arch: Arch::host(),
        own_kernel: true,
    };
    let decide = || places.decide(wish, &IsolationSettings::default(), false, |_, _| 0);
    for _ in 0..2 {
        let decision = decide();
        assert!(matches!(decision, Decision::Later(_)), "{decision:?}");
        join_all(places.looks(&[])).await;
    }
    local.lacks_toolbox.store(false, Ordering::Relaxed);
    let decision = decide();
    assert!(matches!(decision, Decision::Later(_)), "{decision:?}");
    join_all(places.looks(&[])).await;
    let decision = decide();
    assert!(
        matches!(&decision, Decision::Placed(placement) if placement.driver == DriverKind::Microvm),
        "{decision:?}"
    );
}
