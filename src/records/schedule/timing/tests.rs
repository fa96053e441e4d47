use proptest::prelude::*;

use super::*;

fn moment(text: &str) -> Moment {
    Moment::from_micros(text.parse::<Timestamp>().unwrap().as_microsecond())
}

/// The first `count` runs after a moment, by the clock of the zone.
fn runs(line: &str, zone: &str, after: &str, count: usize) -> Vec<String> {
    let timing = Timing::parse(line, zone).unwrap();
    let runs = timing.after(moment(after)).take(count);
    runs.map(|run| timing.local(run).strftime("%m-%d %H:%M %:z").to_string())
        .collect()
}

const BERLIN: &str = "Europe/Berlin";
const LORD_HOWE: &str = "Australia/Lord_Howe";

/// In Berlin the clock goes from 02:00 to 03:00 on 29 March 2026 and from 03:00 to 02:00 on 25 October; on Lord Howe by
/// half an hour, from 02:00 to 02:30 on 4 October 2026 and from 02:00 to 01:30 on 5 April.
#[test]
fn fixed_times_come_once_when_the_clock_is_changed() {
    for (line, zone, after, expected) in [
        // 02:30 does not exist on the 29th, and occurs at the moment of the change.
        (
            "30 2 * * *",
            BERLIN,
            "2026-03-28T12:00:00Z",
            &["03-29 03:00 +02:00", "03-30 02:30 +02:00"][..],
        ),
        (
            "0 2 * * *",
            BERLIN,
            "2026-03-27T12:00:00Z",
            &["03-28 02:00 +01:00", "03-29 03:00 +02:00", "03-30 02:00 +02:00"],
        ),
        // 02:30 exists twice on the 25th, and occurs the first time.
        (
            "30 2 * * *",
            BERLIN,
            "2026-10-24T12:00:00Z",
            &["10-25 02:30 +02:00", "10-26 02:30 +01:00"],
        ),
        (
            "0 2,14 * * *",
            BERLIN,
            "2026-10-24T20:00:00Z",
            &["10-25 02:00 +02:00", "10-25 14:00 +01:00"],
        ),
        // Starts in the hour that occurs again.
        ("30 2 * * *", BERLIN, "2026-10-25T01:15:00Z", &["10-26 02:30 +01:00"]),
        (
            "15 2 * * *",
            BERLIN,
            "2026-10-25T00:10:00Z",
            &["10-25 02:15 +02:00", "10-26 02:15 +01:00"],
        ),
        // Times that fall on one moment occur once.
        (
            "0,30 2,3 * * *",
            BERLIN,
            "2026-03-28T12:00:00Z",
            &["03-29 03:00 +02:00", "03-29 03:30 +02:00", "03-30 02:00 +02:00"],
        ),
        (
            "0-59/20 2 * * *",
            BERLIN,
            "2026-03-28T12:00:00Z",
            &["03-29 03:00 +02:00", "03-30 02:00 +02:00"],
        ),
        (
            "15 2 * * *",
            LORD_HOWE,
            "2026-10-03T12:00:00Z",
            &["10-04 02:30 +11:00", "10-05 02:15 +11:00"],
        ),
        (
            "45 1 * * *",
            LORD_HOWE,
            "2026-04-04T12:00:00Z",
            &["04-05 01:45 +11:00", "04-06 01:45 +10:30"],
        ),
        (
            "30 2 * * *",
            "UTC",
            "2026-03-28T12:00:00Z",
            &["03-29 02:30 +00:00", "03-30 02:30 +00:00"],
        ),
        (
            "30 2 * * *",
            "Asia/Kolkata",
            "2026-03-28T12:00:00Z",
            &["03-29 02:30 +05:30", "03-30 02:30 +05:30"],
        ),
    ] {
        assert_eq!(
            runs(line, zone, after, expected.len()),
            expected,
            "{line} {zone} after {after}"
        );
    }
}

#[test]
fn lines_with_a_star_follow_the_clock() {
    for (line, zone, after, expected) in [
        (
            "*/30 * * * *",
            BERLIN,
            "2026-03-29T00:30:00Z",
            &["03-29 03:00 +02:00", "03-29 03:30 +02:00"][..],
        ),
        (
            "*/30 2 * * *",
            BERLIN,
            "2026-03-28T12:00:00Z",
            &["03-30 02:00 +02:00", "03-30 02:30 +02:00"],
        ),
        (
            "*/30 * * * *",
            BERLIN,
            "2026-10-25T00:00:00Z",
            &[
                "10-25 02:30 +02:00",
                "10-25 02:00 +01:00",
                "10-25 02:30 +01:00",
                "10-25 03:00 +01:00",
            ],
        ),
        (
            "15 * * * *",
            BERLIN,
            "2026-10-24T23:30:00Z",
            &["10-25 02:15 +02:00", "10-25 02:15 +01:00", "10-25 03:15 +01:00"],
        ),
        (
            "15 * * * *",
            BERLIN,
            "2026-03-29T00:00:00Z",
            &["03-29 01:15 +01:00", "03-29 03:15 +02:00"],
        ),
        (
            "*/15 1 * * *",
            LORD_HOWE,
            "2026-04-04T14:40:00Z",
            &[
                "04-05 01:45 +11:00",
                "04-05 01:30 +10:30",
                "04-05 01:45 +10:30",
                "04-06 01:00 +10:30",
            ],
        ),
        (
            "*/15 2 * * *",
            LORD_HOWE,
            "2026-10-03T12:00:00Z",
            &["10-04 02:30 +11:00", "10-04 02:45 +11:00", "10-05 02:00 +11:00"],
        ),
    ] {
        assert_eq!(
            runs(line, zone, after, expected.len()),
            expected,
            "{line} {zone} after {after}"
        );
    }
}

#[test]
fn days_are_those_of_the_zone_and_either_field_of_days_will_do() {
    assert_eq!(
        runs("0 0 1 * *", "Pacific/Auckland", "2026-11-21T00:00:00Z", 1),
        ["12-01 00:00 +13:00"]
    );
    assert_eq!(
        runs("0 0 13 * FRI", "UTC", "2026-11-01T00:00:00Z", 3),
        ["11-06 00:00 +00:00", "11-13 00:00 +00:00", "11-20 00:00 +00:00"]
    );
    assert_eq!(
        runs("0 0 * * SAT-SUN", "UTC", "2026-11-20T00:00:00Z", 3),
        ["11-21 00:00 +00:00", "11-22 00:00 +00:00", "11-28 00:00 +00:00"]
    );
    assert_eq!(
        runs("0 0 * * 7", "UTC", "2026-11-21T00:00:00Z", 1),
        ["11-22 00:00 +00:00"]
    );
    assert_eq!(
        runs("0 0 29 feb *", "UTC", "2026-11-21T00:00:00Z", 1),
        ["02-29 00:00 +00:00"]
    );
}

#[test]
fn a_line_that_never_comes_is_known_soon() {
    let begun = std::time::Instant::now();
    for line in ["0 0 30 2 *", "0 0 31 4,6,9,11 *", "* * 31 2 *"] {
        let timing = Timing::parse(line, "UTC").unwrap();
        assert_eq!(timing.next_after(moment("2026-11-21T00:00:00Z")), None, "{line}");
    }
    assert!(begun.elapsed().as_secs() < 10, "{:?}", begun.elapsed());
}

#[test]
fn what_other_crons_know_besides_is_refused_with_a_reason() {
    for (line, words) in [
        ("", "this has 0"),
        ("* * * *", "five fields"),
        ("0 * * * * *", "this has 6"),
        ("@daily", "write `0 0 * * *`"),
        ("@reboot", "this has 1"),
        ("60 * * * *", "minute: `60` is not"),
        ("* 24 * * *", "hour: `24` is not"),
        ("* * 0 * *", "day of the month: `0` is not"),
        ("* * * 13 *", "JAN to DEC"),
        ("* * * * 8", "day of the week: `8` is not"),
        ("* * L * *", "`L` is not"),
        ("* * 15W * *", "`15W` is not"),
        ("* * ? * *", "`?` is not"),
        ("* * * * 5#2", "`5#2` is not"),
        ("* * * * +MON", "`+MON` is not"),
        ("MON * * * *", "minute: `MON` is not"),
        ("5/10 * * * *", "write `5-59/…`"),
        ("*/0 * * * *", "the step `0`"),
        ("*/90 * * * *", "the step `90`"),
        ("30-10 * * * *", "goes backwards"),
        ("* * * * FRI-MON", "goes backwards"),
        ("1,,2 * * * *", "`` is not"),
        ("-5 * * * *", "`` is not"),
        ("+5 * * * *", "`+5` is not"),
        (&"1,".repeat(200), "Longer than 256"),
    ] {
        let why = Timing::parse(line, "UTC").unwrap_err();
        assert!(why.contains(words), "{line}: {why}");
    }
}

#[test]
fn zones_are_found_in_any_case_and_slips_are_recognised() {
    assert_eq!(Timing::parse("0 0 * * *", "europe/berlin").unwrap().zone_name(), BERLIN);
    assert_eq!(Timing::parse("0 0 * * *", "utc").unwrap().zone_name(), "UTC");
    for (zone, words) in [
        ("Europe/Berln", "did you mean Europe/Berlin"),
        ("Berlin", "did you mean Europe/Berlin"),
        ("Etc/Unknown", "Not a time zone"),
        ("", "Not a time zone"),
        ("+02:00", "Not a time zone"),
        ("../../etc/passwd", "Not a time zone"),
    ] {
        let why = check_zone(zone).unwrap_err();
        assert!(why.contains(words), "{zone}: {why}");
    }
}

#[test]
fn lines_are_described() {
    let said = |line| Timing::parse(line, "UTC").unwrap().describe();
    assert_eq!(said("0 2 * * *"), "At 02:00.");
    assert_eq!(
        said("*/15 * * * MON-FRI"),
        "At every 15 minutes, on Monday, Tuesday, Wednesday, Thursday, and Friday."
    );
}

#[test]
fn the_last_ones_of_a_long_time_are_found_without_going_through_all() {
    let minutely = Timing::parse("* * * * *", "UTC").unwrap();
    let (from, until) = (moment("2000-01-01T00:00:00Z"), moment("2026-11-21T12:00:30Z"));
    let begun = std::time::Instant::now();
    let last = minutely.last_between(from, until, 100);
    assert_eq!((last.len(), last[99]), (100, moment("2026-11-21T12:00:00Z")));
    assert!(begun.elapsed().as_secs() < 5, "{:?}", begun.elapsed());
    let yearly = Timing::parse("0 0 1 1 *", "UTC").unwrap();
    assert_eq!(yearly.last_between(from, until, 100).len(), 26);
    assert_eq!(
        yearly.last_between(from, until, 2),
        [moment("2025-01-01T00:00:00Z"), moment("2026-01-01T00:00:00Z")]
    );
    assert_eq!(minutely.last_between(until, until, 5), []);
}

/// Whether the line names this civil minute, parsed again without the library.
fn names(line: &str, at: &Zoned) -> bool {
    let values = [at.minute(), at.hour()];
    line.split(' ').zip(values).all(|(field, value)| {
        field.split(',').any(|item| match item.split_once('/') {
            Some((_, step)) => value % step.parse::<i8>().unwrap() == 0,
            None => item == "*" || item.parse() == Ok(value),
        })
    })
}

proptest! {
    /// Checks every minute of some days: each run has to occur exactly where the rule in the module's head says.
    #[test]
    fn every_time_that_exists_comes_and_no_other(
        day in prop::sample::select(vec!["2026-03-28T20:00:00Z", "2026-10-24T20:00:00Z", "2026-04-04T12:00:00Z", "2026-10-03T12:00:00Z", "2026-07-01T00:00:00Z"]),
        zone in prop::sample::select(vec![BERLIN, LORD_HOWE, "UTC", "America/St_Johns"]),
        minute in prop_oneof![Just("*".to_owned()), Just("*/15".to_owned()), (0..60u8).prop_map(|m| m.to_string()), (0..60u8, 0..60u8).prop_map(|(a, b)| format!("{a},{b}"))],
        hour in prop_oneof![Just("*".to_owned()), Just("*/2".to_owned()), (0..4u8).prop_map(|h| h.to_string()), (0..4u8, 0..4u8).prop_map(|(a, b)| format!("{a},{b}"))],
    ) {
        let line = format!("{minute} {hour} * * *");
        let timing = Timing::parse(&line, zone).unwrap();
        let start = moment(day);
        let end = Moment::from_micros(start.micros() + 20 * 3_600_000_000);
        let found: Vec<Moment> = timing.after(start).take_while(|run| *run <= end).collect();
        let is_fixed = !line[..line.len() - 6].contains('*');
        let mut expected = Vec::new();
        let mut before = timing.local(start);
        for n in 1..=20 * 60 {
            let run = Moment::from_micros(start.micros() + n * 60_000_000);
            let at = timing.local(run);
            // The times over which the clock was put forward since the previous minute.
            let mut skipped = before.datetime();
            let mut comes = false;
            loop {
                skipped = skipped.checked_add(jiff::SignedDuration::from_mins(1)).unwrap();
                if skipped >= at.datetime() {
                    break;
                }
                comes |= is_fixed && names(&line, &skipped.to_zoned(TimeZone::UTC).unwrap());
            }
            let is_second = at.time_zone().to_ambiguous_timestamp(at.datetime()).earlier().unwrap() != at.timestamp();
            comes |= names(&line, &at) && !(is_fixed && is_second);
            if comes {
                expected.push(run);
            }
            before = at;
        }
        prop_assert_eq!(found, expected);
    }
}
