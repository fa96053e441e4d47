//! Kills processes while they write, a hundred times on each database: every confirmed write exists afterwards.
//!
//! The killed process is this program itself, told by its environment where to write. It prints each write once it was
//! answered, so all that was printed has to be found, and nothing further than one write beyond it.

use crate::support::{self, eventually_async, postgres};

use std::{
    collections::{BTreeMap, HashMap},
    io::{BufRead, BufReader},
    process::{Command, Stdio},
    time::Duration,
};

use kiln::store::{self, Collection, SharedStore, Side};
use kiln_records::{Image, ImageId, Link, Moment, arch::Arch};
use postgres::Server;
use sqlx::{Connection, PgConnection, SqliteConnection};
use uuid::Uuid;

const ROUNDS: u64 = 100;

/// Names the place to a process that is to be killed.
const PLACE: &str = "KILN_TEST_CRASH_PLACE";

/// Writers of one process.
const WRITERS: usize = 8;

/// How far a record has come: each stage is one write after the one before.
const STAGES: u8 = 5;

fn images(store: &SharedStore) -> &dyn Collection<Image> {
    &**store
}

/// The content of a record, which follows from its id.
fn image(id: ImageId) -> (Image, Vec<String>) {
    let image = Image {
        id,
        created: Moment::from_micros(1),
        link: Some(Link::s3("boot-images", &format!("{id}/manifest.json"), "")),
        name: "first".to_owned(),
        arch: Arch::Aarch64,
        metadata: BTreeMap::new(),
        deleted: None,
    };
    let objects = ["kernel", "rootfs"].map(|name| format!("s3://boot-images/{id}/{name}"));
    (image, objects.to_vec())
}

/// Brings a record from one stage to the next.
async fn step(store: &SharedStore, id: ImageId, stage: u8) -> store::Result<()> {
    let (mut image, objects) = image(id);
    match stage {
        1 => images(store).insert(&image, &objects).await,
        2 => {
            "second".clone_into(&mut image.name);
            images(store).replace(&image, 1, &[]).await
        }
        3 => images(store).delete(Some(id), Moment::now()).await.map(drop),
        4 => images(store).undelete(id).await.map(drop),
        _ => images(store).purge(Side::Live, Some(id), false).await.map(drop),
    }
}

/// How far a record is found to have come, none of it half.
async fn stage_of(store: &SharedStore, doomed: &[String], id: ImageId) -> u8 {
    let live = images(store).get(Side::Live, id).await.unwrap();
    let deleted = images(store).get(Side::Deleted, id).await.unwrap();
    let (image, objects) = image(id);
    let are_doomed = objects.iter().filter(|object| doomed.contains(object)).count();
    match (live, deleted, are_doomed) {
        (None, None, 0) => 0,
        (Some(stored), None, 0) if stored.record == image && stored.revision == 1 => 1,
        (Some(stored), None, 0) if stored.record.name == "second" && stored.revision == 2 => 2,
        (None, Some(stored), 0) if stored.record.name == "second" && stored.revision == 3 => 3,
        (Some(stored), None, 0) if stored.record.name == "second" && stored.revision == 4 => 4,
        (None, None, 2) => 5,
        other => panic!("{id}: {other:?}"),
    }
}

/// The process that is killed. Does nothing in an ordinary run.
#[test(threads = 2)]
async fn writer() {
    let Ok(place) = std::env::var(PLACE) else {
        return;
    };
    let store = store::open(&place).await.unwrap();
    let writers = (0..WRITERS).map(|_| {
        let store = store.clone();
        tokio::spawn(async move {
            loop {
                let id = ImageId::new();
                // Not every record comes to the end.
                let last = 1 + id.0.as_bytes()[0] % STAGES;
                for stage in 1..=last {
                    println!("try {id} {stage}");
                    if step(&store, id, stage).await.is_err() {
                        // The server was killed, not this process.
                        return;
                    }
                    println!("did {id} {stage}");
                }
            }
        })
    });
    // Otherwise it would outlive a test that fails.
    std::thread::spawn(|| {
        let _ = std::io::copy(&mut std::io::stdin(), &mut std::io::sink());
        std::process::abort();
    });
    futures::future::join_all(writers.collect::<Vec<_>>()).await;
    std::future::pending::<()>().await;
}

/// The progress of a killed process, by record: the last stage answered, and the last begun.
type Done = HashMap<Uuid, (u8, u8)>;

/// Lets a process write for a time after its first answer, then does as told, and kills it.
fn write_and_die(place: &str, time: Duration, then: impl FnOnce()) -> Done {
    let mut process = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "crash::writer", "--nocapture"])
        // Killed, it would be listed as a test that did not end.
        .env_remove("KILN_TEST_TIMES")
        .env(PLACE, place)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let lines = BufReader::new(process.stdout.take().unwrap()).lines();
    let (first, begun) = std::sync::mpsc::channel();
    // Reads on while this thread waits: the pipe must not stop the writers.
    let reader = std::thread::spawn(move || {
        let mut done = Done::new();
        for line in lines {
            // The last line may be a torn one.
            let Some((verb, id, stage)) = line.ok().and_then(|line| parse(&line)) else {
                continue;
            };
            let stages = done.entry(id).or_default();
            match verb {
                Verb::Try => stages.1 = stage,
                Verb::Did => {
                    stages.0 = stage;
                    let _ = first.send(());
                }
            }
        }
        done
    });
    let answered = begun.recv_timeout(support::PATIENCE);
    std::thread::sleep(time);
    then();
    process.kill().unwrap();
    process.wait().unwrap();
    answered.expect("a write was answered");
    reader.join().unwrap()
}

enum Verb {
    Try,
    Did,
}

fn parse(line: &str) -> Option<(Verb, Uuid, u8)> {
    let words: Vec<&str> = line.split(' ').collect();
    let [verb, id, stage] = words[..] else {
        return None;
    };
    let verb = match verb {
        "try" => Verb::Try,
        "did" => Verb::Did,
        _ => return None,
    };
    Some((verb, id.parse().ok()?, stage.parse().ok()?))
}

/// Looks for everything that a process did. Answers how many writes that were.
async fn check(store: &SharedStore, done: &Done) -> u64 {
    let doomed = store.doomed(u32::MAX).await.unwrap();
    let doomed: Vec<_> = doomed.into_iter().map(|object| object.path).collect();
    let mut writes = 0;
    for (&id, &(answered, begun)) in done {
        let found = stage_of(store, &doomed, ImageId(id)).await;
        // Begun may be unknown when the line that says so was torn, but not answered.
        assert!(
            found >= answered && found <= begun.max(answered + 1),
            "{id}: {answered} answered, {begun} begun, {found} found"
        );
        writes += u64::from(answered);
    }
    store.forget_doomed(&doomed).await.unwrap();
    writes
}

/// A few milliseconds, another number each round.
fn time(round: u64) -> Duration {
    Duration::from_micros(500 + round * 7919 % 60_000)
}

#[test(threads = 2)]
async fn sqlite_loses_nothing_that_was_answered() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("records.sqlite");
    let place = file.to_str().unwrap();
    let mut writes = 0;
    for round in 0..ROUNDS {
        let done = write_and_die(place, time(round), || {});
        let store = store::open(place).await.unwrap();
        writes += check(&store, &done).await;
        store.close().await;
    }
    let mut connection = SqliteConnection::connect(&format!("sqlite://{place}")).await.unwrap();
    let intact: String = sqlx::query_scalar("PRAGMA integrity_check")
        .fetch_one(&mut connection)
        .await
        .unwrap();
    assert_eq!(intact, "ok");
    println!("{writes} writes in {ROUNDS} rounds");
    assert!(writes > ROUNDS);
}

#[test(threads = 2)]
async fn postgresql_loses_nothing_that_was_answered() {
    let mut server = Server::start();
    let place = server.new_database();
    let store = store::open(&place).await.unwrap();
    let mut writes = 0;
    for round in 0..ROUNDS {
        let done = write_and_die(&place, time(round), || {
            // This store stays open: its connections have to be replaced unnoticed.
            if round % 10 == 9 {
                server.crash();
            }
        });
        settled(&place).await;
        writes += check(&store, &done).await;
    }
    println!("{writes} writes in {ROUNDS} rounds");
    assert!(writes > ROUNDS);
}

/// Waits until the server has noticed that a client is gone: it may still be committing for it.
async fn settled(place: &str) {
    let connection = tokio::sync::Mutex::new(PgConnection::connect(place).await.unwrap());
    eventually_async(async || {
        let busy: i64 = sqlx::query_scalar(
            "SELECT count(*) FROM pg_stat_activity \
             WHERE datname = current_database() AND state <> 'idle' AND pid <> pg_backend_pid()",
        )
        .fetch_one(&mut *connection.lock().await)
        .await
        .unwrap();
        busy == 0
    })
    .await;
    connection.into_inner().close().await.unwrap();
}
