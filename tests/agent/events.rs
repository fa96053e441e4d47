//! Events arrive in order and without holes, whatever becomes of the server meanwhile.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use kiln::orchestrate::agents::Refusal;
use kiln_agent::{channel::Ending, events::Events};
use kiln_records::{
    Code, Failure, GivenUp, JobId, TwinLevel, Warning,
    additions::Additions,
    arch::Arch,
    protocol::{
        Answer, BootFiles, Call, Compressor, EventBatch, EventsKept, JobDescription, Purpose, RecipeSource, RecipeType,
        RecipeWork, SquashfsOptions, TemplateMode, What, Work,
    },
};

use crate::agent::server::Server;
use crate::support;

pub fn job_with_patience(seconds: u64) -> JobDescription {
    JobDescription {
        image_name: "image".to_owned(),
        id: JobId::new(),
        arch: Arch::host(),
        work: Work::Create(Box::new(RecipeWork {
            recipe: RecipeSource {
                url: String::new(),
                sha256: String::new(),
                size: 0,
            },
            recipe_type: RecipeType::KiwiNg,
            values: BTreeMap::new(),
            default_values: BTreeMap::new(),
            template_mode: TemplateMode::Strict,
            repos_timeout_s: 0,
            profiles: Vec::new(),
            containerfile: kiln_records::containerfile::ContainerfileOptions::default(),
            secrets: Vec::new(),
            registries: Vec::new(),
            additions: Additions::default(),
        })),
        shell: None,
        environment: Vec::new(),
        emulator: None,
        twins: TwinLevel::Off,
        verify_twins: false,
        cache: kiln_records::CacheDepth::Packages,
        locked: false,
        epoch: None,
        purpose: Purpose::Image,
        failed_twins: Vec::new(),
        given_up: GivenUp::default(),
        squashfs: SquashfsOptions {
            compressor: Compressor::Zstd,
            level: None,
        },
        boot: BootFiles {
            kernel: String::new(),
            initrd: String::new(),
            parameters: String::new(),
            required: false,
        },
        checks: kiln_records::CheckLevels::new(),
        cpus: 1,
        ca_bundle: None,
        kept_authorities: None,
        signing_keys: Vec::new(),
        from: None,
        patience_s: seconds,
        log_bytes: 64 << 20,
    }
}

/// Keeps events as a server is to: passes over those that it has, refuses holes.
#[derive(Clone, Default)]
struct Kept(Arc<Mutex<Batches>>);

#[derive(Default)]
struct Batches {
    texts: Vec<String>,
    /// When each batch came, and how many events were new in it.
    came: Vec<(Instant, usize)>,
}

impl Kept {
    fn keep(&self, batch: EventBatch) -> Result<Answer, Refusal> {
        let mut kept = self.0.lock().unwrap();
        let next = kept.texts.len() as u64;
        if batch.first > next {
            return Err(Refusal::Hole(next));
        }
        let known = usize::try_from(next - batch.first).unwrap();
        let fresh = batch.events.into_iter().skip(known).map(|event| match event.what {
            What::Log { text, .. } => text,
            other => panic!("{other:?}"),
        });
        let before = kept.texts.len();
        kept.texts.extend(fresh);
        let count = kept.texts.len() - before;
        kept.came.push((Instant::now(), count));
        Ok(Answer::Events(EventsKept {
            next: kept.texts.len() as u64,
            stop: false,
            verdict: None,
        }))
    }

    fn texts(&self) -> Vec<String> {
        self.0.lock().unwrap().texts.clone()
    }

    fn batches(&self) -> Vec<(Instant, usize)> {
        self.0.lock().unwrap().came.clone()
    }
}

fn numbered(count: usize) -> Vec<String> {
    (0..count).map(|number| format!("line {number}")).collect()
}

#[test(threads = 2)]
async fn lost_answers_and_a_server_that_restarts_neither_lose_nor_double_a_line() {
    let kept = Kept::default();
    let (server_keeps, mut round) = (kept.clone(), 0);
    let mut server = Server::scripted(move |call| {
        let Call::PostEvents(batch) = call else {
            panic!("{call:?}")
        };
        round += 1;
        match round % 4 {
            // Refused, then kept with an answer that is lost.
            1 => Err(Refusal::Later(Failure::new(Code::StoreUnavailable, "away"))),
            2 => {
                server_keeps.keep(batch)?;
                Err(Refusal::Later(Failure::new(Code::StoreUnavailable, "away")))
            }
            _ => server_keeps.keep(batch),
        }
    });
    let events = Events::new(server.channel());
    for (number, text) in numbered(5_000).into_iter().enumerate() {
        events.say(text).await;
        if number % 1_500 == 1_000 {
            server.kill().await;
            // The length of an outage, whatever the agent does in it.
            tokio::time::sleep(Duration::from_millis(50)).await;
            server.start();
        }
    }
    events.flush().await;
    assert_eq!(kept.texts(), numbered(5_000));
}

#[test(threads = 2)]
async fn the_first_line_comes_at_once_and_later_ones_in_batches() {
    let kept = Kept::default();
    let keeps = kept.clone();
    let server = Server::scripted(move |call| match call {
        Call::PostEvents(batch) => keeps.keep(batch),
        other => panic!("{other:?}"),
    });
    let events = Events::new(server.channel());
    let mut lines = numbered(100).into_iter();
    events.say(lines.next().unwrap()).await;
    // It waits for no other.
    support::eventually_async(|| async { kept.batches().len() == 1 }).await;
    let begun = Instant::now();
    for text in lines {
        events.say(text).await;
        // The pace of a tool.
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    events.flush().await;
    let took = begun.elapsed();
    let batches = kept.batches();
    let most = usize::try_from(took.as_millis() / 250).unwrap() + 3;
    assert!(batches.len() <= most, "{} batches in {took:?}", batches.len());
    assert_eq!(kept.texts(), numbered(100));
}

#[test(threads = 2)]
async fn lines_of_the_worst_kind_fit_into_what_the_server_reads() {
    let kept = Kept::default();
    let keeps = kept.clone();
    let server = Server::scripted(move |call| match call {
        Call::PostEvents(batch) => keeps.keep(batch),
        other => panic!("{other:?}"),
    });
    let events = Events::new(server.channel());
    events.allow(64 << 20);
    // Each byte of it takes six in JSON.
    let worst = "\u{1}".repeat(16 * 1024);
    for _ in 0..500 {
        events.say(&worst).await;
    }
    events.say("x".repeat(17 * 1024)).await;
    events.flush().await;
    let texts = kept.texts();
    assert_eq!(texts.len(), 501);
    assert!(texts[..500].iter().all(|text| *text == worst));
    assert!(texts[500].ends_with("(line cut)"));
}

#[test(threads = 2)]
async fn a_silent_agent_says_that_it_lives() {
    let kept = Kept::default();
    let keeps = kept.clone();
    let server = Server::scripted(move |call| match call {
        Call::PostEvents(batch) => keeps.keep(batch),
        other => panic!("{other:?}"),
    });
    let heartbeat = Duration::from_millis(500);
    let events = Events::with_heartbeat(server.channel(), heartbeat);
    events.say("the last word for a while").await;
    // The work blocks the thread that it has; the heart beats on another.
    support::eventually(|| kept.batches().len() >= 2);
    let batches = kept.batches();
    assert_eq!((batches[0].1, batches[1].1), (1, 0));
    assert!(batches[1].0 - batches[0].0 >= heartbeat / 2, "{batches:?}");
}

#[test(threads = 2)]
async fn a_server_that_says_stop_is_obeyed() {
    let server = Server::scripted(move |call| match call {
        Call::PostEvents(batch) => Ok(Answer::Events(EventsKept {
            next: batch.first + batch.events.len() as u64,
            stop: true,
            verdict: None,
        })),
        other => panic!("{other:?}"),
    });
    let channel = server.channel();
    let events = Events::new(channel.clone());
    events.say("hello").await;
    let Ending::Failed(failure) = channel.ended().await else {
        panic!("it is to finish");
    };
    assert_eq!(failure.code.name(), "cancelled");
    // The remaining lines are still sent.
    events.say("good bye").await;
    events.flush().await;
}

#[test(threads = 2)]
async fn a_server_that_lost_events_ends_the_job() {
    let server = Server::scripted(|call| match call {
        Call::PostEvents(batch) if batch.first == 0 => Ok(Answer::Events(EventsKept {
            next: batch.events.len() as u64,
            stop: false,
            verdict: None,
        })),
        Call::PostEvents(_) => Err(Refusal::Hole(0)),
        other => panic!("{other:?}"),
    });
    let channel = server.channel();
    let events = Events::new(channel.clone());
    events.say("kept, and then lost").await;
    events.flush().await;
    events.say("after it").await;
    let Ending::Failed(failure) = channel.ended().await else {
        panic!("it is to finish");
    };
    assert_eq!(failure.code.name(), "protocol");
    events.flush().await;
}

#[test(threads = 2)]
async fn a_warning_is_a_line_and_an_entry_of_the_record_and_has_no_secret() {
    let told = Arc::new(Mutex::new(Vec::new()));
    let keep = told.clone();
    let server = Server::scripted(move |call| {
        let Call::PostEvents(batch) = call else {
            panic!("{call:?}")
        };
        let mut told = keep.lock().unwrap();
        told.extend(batch.events.into_iter().map(|event| event.what));
        Ok(Answer::Events(EventsKept {
            next: told.len() as u64,
            stop: false,
            verdict: None,
        }))
    });
    let events = Events::new(server.channel());
    events.conceal(["hunter-42".to_owned()]);
    let warning = Warning::new(Code::RecipePaths, "of http://me:pass@host/ and hunter-42").hint("not hunter-42");
    events.warn(warning).await;
    events.flush().await;
    let told = told.lock().unwrap();
    let [What::Log { text, .. }, What::Warning(warning)] = told.as_slice() else {
        panic!("{told:?}");
    };
    assert!(text.starts_with("warning: of http://"), "{text}");
    assert!(text.ends_with("(recipe_paths)"), "{text}");
    assert_eq!(warning.hint.as_deref(), Some("not ***"));
    for secret in ["pass", "hunter-42"] {
        assert!(!format!("{told:?}").contains(secret), "{told:?}");
    }
}
