//! Logs of jobs.

use std::{sync::Arc, time::Duration};

use futures::future::join_all;
use jiff::{RoundMode, Timestamp, TimestampRound, Unit};
use kiln::store::{Appended, Pulse, SharedStore, StoreError};
use kiln_records::{JobId, LogLine, LogRow, LogStream, Moment, Step};

use crate::store::place::{Place, job};

on_both!(
    lines_come_back_as_they_were_said,
    what_came_twice_is_kept_once,
    events_without_a_line_count,
    a_hole_is_named_and_nothing_kept,
    each_attempt_counts_anew,
    the_server_speaks_in_between,
    pages_follow_each_other,
    a_page_of_long_lines_takes_little_memory,
    a_flood_of_lines_ends_at_the_logs_size,
    each_attempt_has_room_for_its_last_words,
    many_may_write_at_once,
    a_pulse_tells_life_from_progress,
    a_log_goes_piece_by_piece,
    a_damaged_line_is_reported,
    what_was_answered_stays
);

/// Seconds since 1970.
fn at(second: i64) -> Moment {
    Moment::from_micros(second * 1_000_000)
}

fn line(text: &str) -> LogLine {
    LogLine {
        time: Timestamp::from_microsecond(1_700_000_000_123_456).unwrap(),
        step: Some(Step::Build),
        stream: LogStream::Stdout,
        text: text.to_owned(),
    }
}

fn numbered(range: std::ops::Range<u64>) -> Vec<Option<LogLine>> {
    range.map(|n| Some(line(&format!("line {n}")))).collect()
}

/// More than any log here needs.
const LIMIT: u64 = 1 << 40;

async fn whole(store: &SharedStore, job: JobId) -> Vec<LogRow> {
    let page = store.log_page(job, None, u32::MAX).await.unwrap();
    assert!(!page.more);
    page.rows
}

async fn texts(store: &SharedStore, job: JobId) -> Vec<String> {
    let rows = whole(store, job).await;
    for (row, seq) in rows.iter().zip(0..) {
        assert_eq!(row.seq, seq, "the numbers have no holes");
    }
    assert_eq!(store.log_length(job).await.unwrap(), rows.len() as u64);
    rows.into_iter().map(|row| row.line.text).collect()
}

async fn lines_come_back_as_they_were_said(place: &Place) {
    let store = place.open().await;
    let id = JobId::new();
    assert_eq!(whole(&store, id).await, []);
    assert_eq!(store.log_length(id).await.unwrap(), 0);
    let mut lines = Vec::new();
    for stream in LogStream::ALL {
        for step in Step::ALL.map(Some).into_iter().chain([None]) {
            lines.push(LogLine {
                step,
                stream,
                ..line("said")
            });
        }
    }
    for text in [
        "",
        " ",
        "näme \u{1f600}",
        "a\tb \u{1b}[31mred\u{1b}[0m \u{7} \u{85} \u{202e}",
    ] {
        lines.push(line(text));
    }
    for time in [Timestamp::MIN, Timestamp::MAX, Timestamp::UNIX_EPOCH] {
        lines.push(LogLine {
            time: time
                .round(TimestampRound::new().smallest(Unit::Microsecond).mode(RoundMode::Trunc))
                .unwrap(),
            ..line("whenever")
        });
    }
    lines.push(line(&"long ".repeat(100_000)));
    let said: Vec<_> = lines.iter().cloned().map(Some).collect();
    let next = store.append((id, 1), 0, &said, false, LIMIT, at(7)).await.unwrap();
    assert_eq!(next, Appended::Next(lines.len() as u64));
    let expected: Vec<_> = lines
        .into_iter()
        .zip(0..)
        .map(|(line, seq)| LogRow { seq, kept: at(7), line })
        .collect();
    assert_eq!(whole(&store, id).await, expected);

    let hostile = JobId::new();
    store
        .append(
            (hostile, 1),
            0,
            &[Some(line("a\0b\nerror: c\r\n"))],
            false,
            LIMIT,
            at(7),
        )
        .await
        .unwrap();
    assert_eq!(texts(&store, hostile).await, ["a␀b␊error: c␍␊"]);
}

async fn what_came_twice_is_kept_once(place: &Place) {
    let store = place.open().await;
    let id = JobId::new();
    let say = async |range: std::ops::Range<u64>| {
        let first = range.start;
        store
            .append((id, 1), first, &numbered(range), false, LIMIT, at(1))
            .await
            .unwrap()
    };
    assert_eq!(say(0..3).await, Appended::Next(3));
    assert_eq!(say(0..3).await, Appended::Next(3));
    assert_eq!(say(1..2).await, Appended::Next(3));
    assert_eq!(say(2..5).await, Appended::Next(5));
    assert_eq!(say(5..5).await, Appended::Next(5));
    assert_eq!(say(0..0).await, Appended::Next(5));
    // More than one statement takes.
    assert_eq!(say(4..2504).await, Appended::Next(2504));
    let expected: Vec<_> = (0..2504).map(|n| format!("line {n}")).collect();
    assert_eq!(texts(&store, id).await, expected);
}

async fn events_without_a_line_count(place: &Place) {
    let store = place.open().await;
    let id = JobId::new();
    let said = [None, Some(line("a")), None, None, Some(line("b")), None];
    for (first, events, next) in [(0, 0..2, 2), (0, 0..4, 4), (1, 1..5, 5), (3, 3..6, 6), (0, 0..6, 6)] {
        let kept = store
            .append((id, 1), first, &said[events], false, LIMIT, at(1))
            .await
            .unwrap();
        assert_eq!(kept, Appended::Next(next));
    }
    assert_eq!(texts(&store, id).await, ["a", "b"]);
}

async fn a_hole_is_named_and_nothing_kept(place: &Place) {
    let store = place.open().await;
    let id = JobId::new();
    for first in [1, 1000, u64::MAX] {
        let hole = store
            .append((id, 1), first, &numbered(0..2), true, LIMIT, at(1))
            .await
            .unwrap();
        assert_eq!(hole, Appended::Hole { expected: 0 });
    }
    store
        .append((id, 1), 0, &numbered(0..2), true, LIMIT, at(1))
        .await
        .unwrap();
    let hole = store
        .append((id, 1), 3, &numbered(3..4), true, LIMIT, at(2))
        .await
        .unwrap();
    assert_eq!(hole, Appended::Hole { expected: 2 });
    tokio::time::sleep(Duration::from_millis(40)).await;
    let hole = store.append((id, 1), 3, &[], false, LIMIT, at(3)).await.unwrap();
    assert_eq!(hole, Appended::Hole { expected: 2 });
    assert_eq!(texts(&store, id).await, ["line 0", "line 1"]);
    // Every message proves that the agent is alive, even with gaps; but it is not progress.
    let pulse = store.pulse(id).await.unwrap().unwrap();
    assert!(!has_progressed_since(&pulse, Duration::from_millis(40)), "{pulse:?}");
}

async fn each_attempt_counts_anew(place: &Place) {
    let store = place.open().await;
    let id = JobId::new();
    let say = async |attempt, first, text: &str| {
        let lines = [Some(line(text))];
        store
            .append((id, attempt), first, &lines, false, LIMIT, at(i64::from(attempt)))
            .await
            .unwrap()
    };
    assert_eq!(say(1, 0, "a").await, Appended::Next(1));
    assert_eq!(say(1, 1, "b").await, Appended::Next(2));
    assert_eq!(say(3, 1, "early").await, Appended::Hole { expected: 0 });
    assert_eq!(say(3, 0, "c").await, Appended::Next(1));
    for old in [1, 2] {
        assert_eq!(say(old, 2, "late").await, Appended::OldAttempt);
        assert_eq!(say(old, 0, "late").await, Appended::OldAttempt);
    }
    assert_eq!(say(3, 1, "d").await, Appended::Next(2));
    assert_eq!(texts(&store, id).await, ["a", "b", "c", "d"]);
    assert_eq!(store.pulse(id).await.unwrap().unwrap().attempt, 3);
}

async fn the_server_speaks_in_between(place: &Place) {
    let store = place.open().await;
    let id = JobId::new();
    store.say(id, &[LogLine::of_server("waits")], at(1)).await.unwrap();
    assert_eq!(store.pulse(id).await.unwrap(), None);
    assert_eq!(
        store
            .append((id, 1), 0, &numbered(0..2), false, LIMIT, at(2))
            .await
            .unwrap(),
        Appended::Next(2)
    );
    let ending = [LogLine::of_server("lost"), LogLine::of_server("again")];
    store.say(id, &ending, at(3)).await.unwrap();
    store.say(id, &[], at(4)).await.unwrap();
    assert_eq!(
        store
            .append((id, 1), 2, &numbered(2..3), false, LIMIT, at(5))
            .await
            .unwrap(),
        Appended::Next(3)
    );
    assert_eq!(
        texts(&store, id).await,
        ["waits", "line 0", "line 1", "lost", "again", "line 2"]
    );
    let kept: Vec<_> = whole(&store, id).await.into_iter().map(|row| row.kept).collect();
    assert_eq!(kept, [1, 2, 2, 3, 3, 5].map(at));
}

async fn pages_follow_each_other(place: &Place) {
    let store = place.open().await;
    let (id, other) = (JobId::new(), JobId::new());
    for job in [id, other] {
        store
            .append((job, 1), 0, &numbered(0..25), false, LIMIT, at(1))
            .await
            .unwrap();
    }
    let (mut after, mut seen) = (None, Vec::new());
    loop {
        let page = store.log_page(id, after, 10).await.unwrap().rows;
        let Some(last) = page.last() else { break };
        after = Some(last.seq);
        seen.push(page.iter().map(|row| row.seq).collect::<Vec<_>>());
    }
    assert_eq!(seen, [(0..10), (10..20), (20..25)].map(Vec::from_iter));
    for beyond in [24, 1000, i64::MAX as u64, u64::MAX] {
        assert_eq!(store.log_page(id, Some(beyond), 10).await.unwrap().rows, []);
    }
    assert_eq!(store.log_page(id, None, 0).await.unwrap().rows, []);
}

/// Repeating agents, a talkative server, and one that removes: the numbers stay without holes, and each agent's lines in
/// their order.
async fn a_page_of_long_lines_takes_little_memory(place: &Place) {
    let store = place.open().await;
    let id = JobId::new();
    let text = "x".repeat(16 * 1024);
    let lines: Vec<_> = (0..1000).map(|_| Some(line(&text))).collect();
    store.append((id, 1), 0, &lines, false, LIMIT, at(1)).await.unwrap();
    let (mut after, mut seen) = (None, 0);
    loop {
        let page = store.log_page(id, after, 10_000).await.unwrap();
        let bytes: usize = page.rows.iter().map(|row| row.line.text.len()).sum();
        assert!(bytes <= 8 << 20, "a page has {bytes} bytes");
        seen += page.rows.len();
        after = page.rows.last().map(|row| row.seq);
        if !page.more {
            break;
        }
    }
    assert_eq!((seen, after), (1000, Some(999)));
    // Short lines come in one page.
    let short = JobId::new();
    store
        .append((short, 1), 0, &numbered(0..5000), false, LIMIT, at(1))
        .await
        .unwrap();
    let page = store.log_page(short, None, 4999).await.unwrap();
    assert_eq!((page.rows.len(), page.more), (4999, true));
    let page = store.log_page(short, None, 5000).await.unwrap();
    assert_eq!((page.rows.len(), page.more), (5000, false));
}

async fn a_flood_of_lines_ends_at_the_logs_size(place: &Place) {
    const LIMIT: u64 = 1 << 20;
    let store = place.open().await;
    for text in ["", &"x".repeat(16 * 1024)] {
        let id = JobId::new();
        let lines: Vec<_> = (0..500).map(|_| Some(line(text))).collect();
        for batch in 0..40 {
            let kept = store
                .append((id, 1), batch * 500, &lines, false, LIMIT, at(1))
                .await
                .unwrap();
            assert_eq!(kept, Appended::Next((batch + 1) * 500), "the agent goes on");
        }
        let rows = whole(&store, id).await;
        let size: u64 = rows.iter().map(|row| row.line.text.len() as u64 + 100).sum();
        assert!((LIMIT / 4..LIMIT).contains(&size), "{size}");
        let last = &rows.last().unwrap().line;
        assert_eq!(last.stream, LogStream::Server);
        assert!(last.text.starts_with("the log of this try is full"), "{}", last.text);
        // It does not help to say less, and the server is always heard.
        store
            .append((id, 1), 20_000, &[Some(line("a"))], true, LIMIT, at(2))
            .await
            .unwrap();
        assert_eq!(whole(&store, id).await.len(), rows.len());
        store.say(id, &[LogLine::of_server("ended")], at(3)).await.unwrap();
        assert_eq!(whole(&store, id).await.len(), rows.len() + 1);
    }
}

async fn each_attempt_has_room_for_its_last_words(place: &Place) {
    const LIMIT: u64 = 1 << 20;
    let store = place.open().await;
    let id = JobId::new();
    let lines: Vec<_> = (0..200).map(|_| Some(line(&"x".repeat(16 * 1024)))).collect();
    for attempt in 1..=16 {
        store
            .append((id, attempt), 0, &[Some(line("begins"))], false, LIMIT, at(1))
            .await
            .unwrap();
        store
            .append((id, attempt), 1, &lines, false, LIMIT, at(1))
            .await
            .unwrap();
    }
    let rows = whole(&store, id).await;
    let begun = rows.iter().filter(|row| row.line.text == "begins").count();
    assert_eq!(begun, 16);
    let size: u64 = rows.iter().map(|row| row.line.text.len() as u64 + 100).sum();
    assert!(size < 2 * LIMIT, "{size}");
    let pulse = store.pulse(id).await.unwrap().unwrap();
    assert!(
        pulse.log_bytes > pulse.log_bytes_before && pulse.log_bytes < 2 * LIMIT,
        "{pulse:?}"
    );
}

async fn many_may_write_at_once(place: &Place) {
    const LINES: u64 = 40;
    // Two servers on one database.
    let stores = [place.open().await, place.open().await];
    let jobs: Arc<Vec<_>> = Arc::new((0..4).map(|_| JobId::new()).collect());
    let gone = JobId::new();
    let writers = (0..16_usize).map(|n| {
        let (store, jobs) = (stores[n % 2].clone(), jobs.clone());
        tokio::spawn(async move {
            let id = jobs[n % 4];
            if n < 4 {
                for _ in 0..LINES {
                    store.say(id, &[LogLine::of_server("server")], at(1)).await.unwrap();
                }
                return;
            }
            // Three that say the same, as when answers are lost.
            for first in (0..LINES).step_by(4) {
                let said = store
                    .append((id, 1), first, &numbered(first..first + 4), true, LIMIT, at(1))
                    .await
                    .unwrap();
                assert!(matches!(said, Appended::Next(next) if next >= first + 4), "{said:?}");
                store.say(gone, &[LogLine::of_server("to go")], at(1)).await.unwrap();
                store.drop_log(gone, 3).await.unwrap();
            }
        })
    });
    for done in join_all(writers).await {
        done.unwrap();
    }
    for id in jobs.iter() {
        let texts = texts(&stores[0], *id).await;
        let of_server = texts.iter().filter(|text| *text == "server").count();
        assert_eq!(of_server as u64, LINES);
        let of_agent: Vec<_> = texts.into_iter().filter(|text| text != "server").collect();
        let expected: Vec<_> = (0..LINES).map(|n| format!("line {n}")).collect();
        assert_eq!(of_agent, expected);
    }
    while stores[0].drop_log(gone, 1000).await.unwrap() {}
    assert_eq!(whole(&stores[1], gone).await, []);
}

async fn a_pulse_tells_life_from_progress(place: &Place) {
    const PAUSE: Duration = Duration::from_millis(100);
    // The pauses go by this process's clock, the pulse by the database's, which may be adjusted meanwhile.
    const LEAST: Duration = Duration::from_millis(50);
    let store = place.open().await;
    let id = JobId::new();
    assert_eq!(store.pulse(id).await.unwrap(), None);
    // By the database's clock, whatever the server's says.
    let beat = async |attempt, progressed, second| {
        tokio::time::sleep(PAUSE).await;
        let empty = store.append((id, attempt), 0, &[], progressed, LIMIT, at(second));
        empty.await.unwrap();
        let pulse = store.pulse(id).await.unwrap().unwrap();
        (pulse.attempt, has_progressed_since(&pulse, LEAST))
    };
    assert_eq!(beat(1, false, 10).await, (1, true));
    assert_eq!(beat(1, false, 20).await, (1, false));
    assert_eq!(beat(1, true, 30).await, (1, true));
    assert_eq!(beat(1, false, 5).await, (1, false));
    assert_eq!(beat(2, false, 40).await, (2, true));
    assert_eq!(
        store.append((id, 1), 0, &[], true, LIMIT, at(50)).await.unwrap(),
        Appended::OldAttempt
    );
    tokio::time::sleep(PAUSE).await;
    let pulse = store.pulse(id).await.unwrap().unwrap();
    assert_eq!((pulse.attempt, pulse.log_bytes, pulse.log_bytes_before), (2, 0, 0));
    assert!(pulse.unheard >= LEAST && pulse.silent >= LEAST, "{pulse:?}");
}

/// Whether the last sign of life, or one shortly before it, was progress.
fn has_progressed_since(pulse: &Pulse, pause: Duration) -> bool {
    pulse.silent.saturating_sub(pulse.unheard) < pause
}

async fn a_log_goes_piece_by_piece(place: &Place) {
    let store = place.open().await;
    let (there, gone) = (job("there"), job("gone"));
    for job in [&there, &gone] {
        store.insert_job(job).await.unwrap();
        store
            .append((job.id, 1), 0, &numbered(0..10), false, LIMIT, at(1))
            .await
            .unwrap();
    }
    assert_eq!(store.logs_left_behind(10).await.unwrap(), []);
    store.delete_job(gone.id).await.unwrap();
    assert_eq!(store.logs_left_behind(10).await.unwrap(), [gone.id]);
    assert!(store.drop_log(gone.id, 4).await.unwrap());
    assert_eq!(store.log_page(gone.id, None, 100).await.unwrap().rows[0].seq, 4);
    assert_eq!(store.logs_left_behind(10).await.unwrap(), [gone.id]);
    assert!(store.drop_log(gone.id, 4).await.unwrap());
    assert!(!store.drop_log(gone.id, 4).await.unwrap());
    assert_eq!(whole(&store, gone.id).await, []);
    assert_eq!(store.pulse(gone.id).await.unwrap(), None);
    assert_eq!(store.logs_left_behind(10).await.unwrap(), []);
    // An agent that has not heard of it yet.
    store.append((gone.id, 1), 10, &[], false, LIMIT, at(2)).await.unwrap();
    assert_eq!(store.logs_left_behind(10).await.unwrap(), [gone.id]);
    assert!(!store.drop_log(gone.id, 10).await.unwrap());
    assert!(!store.drop_log(gone.id, 10).await.unwrap());
    assert_eq!(store.logs_left_behind(10).await.unwrap(), []);
    assert!(!store.drop_log(there.id, 10).await.unwrap());
    assert_eq!(whole(&store, there.id).await, []);
}

async fn a_damaged_line_is_reported(place: &Place) {
    let store = place.open().await;
    for damage in [
        "UPDATE job_log SET stream = 'stdlog'",
        "UPDATE job_log SET step = 'stepping'",
        "UPDATE job_log SET agent_time = 9223372036854775807",
        "UPDATE job_log SET seq = -1",
    ] {
        let id = JobId::new();
        store
            .append((id, 1), 0, &numbered(0..1), false, LIMIT, at(1))
            .await
            .unwrap();
        place.execute(damage).await;
        let found = store.log_page(id, None, 10).await;
        assert!(matches!(found, Err(StoreError::Damaged(_))), "{damage}: {found:?}");
        place.execute("DELETE FROM job_log").await;
    }
}

async fn what_was_answered_stays(place: &Place) {
    let id = JobId::new();
    let store = place.open().await;
    store
        .append((id, 1), 0, &numbered(0..3), true, LIMIT, at(1))
        .await
        .unwrap();
    store.close().await;
    let store = place.open().await;
    assert_eq!(texts(&store, id).await, ["line 0", "line 1", "line 2"]);
    assert_eq!(
        store
            .append((id, 1), 2, &numbered(2..4), true, LIMIT, at(2))
            .await
            .unwrap(),
        Appended::Next(4)
    );
    assert_eq!(texts(&store, id).await.len(), 4);
}
