//! Computes when a schedule runs: a cron line, read by the clock of a time zone. Reads the database of time zones,
//! nothing else.
//!
//! The line is the classic one of five fields. croner accepts more (seconds, years, `L`, `W`, `#`, `?`, `+`, `@daily`);
//! Kiln rejects all of that, so that a line means the same here as in a crontab.
//!
//! # When the clock is changed
//!
//! As in cron, the rule depends on whether the minutes or the hours have a `*`.
//!
//! * Neither has one (`30 2 * * *`, `0 2,14 * * *`): every time that the line names occurs once. A time that does not
//!   exist, because the clock was put forward over it, occurs at the moment of the change. A time that exists twice
//!   occurs the first time.
//! * One has one (`*/30 * * * *`, `15 * * * *`): the line follows the clock. A time that does not exist is left out,
//!   and a time that exists twice occurs twice, so that the intervals stay the same.

use croner::{
    Cron,
    parser::{CronParser, Seconds, Year},
};
use jiff::{
    Timestamp, Zoned,
    civil::DateTime,
    tz::{AmbiguousOffset, TimeZone},
};

use crate::Moment;

/// The fields of a line: name, smallest and largest number, and names for the numbers from the smallest on.
const FIELDS: [Field; 5] = [
    Field::new("minute", 0, 59, &[]),
    Field::new("hour", 0, 23, &[]),
    Field::new("day of the month", 1, 31, &[]),
    Field::new(
        "month",
        1,
        12,
        &[
            "JAN", "FEB", "MAR", "APR", "MAY", "JUN", "JUL", "AUG", "SEP", "OCT", "NOV", "DEC",
        ],
    ),
    Field::new(
        "day of the week",
        0,
        7,
        &["SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT"],
    ),
];

/// The shorthands of other crons, and their lines.
const WORDS: [(&str, &str); 7] = [
    ("@yearly", "0 0 1 1 *"),
    ("@annually", "0 0 1 1 *"),
    ("@monthly", "0 0 1 * *"),
    ("@weekly", "0 0 * * 0"),
    ("@daily", "0 0 * * *"),
    ("@midnight", "0 0 * * *"),
    ("@hourly", "0 * * * *"),
];

/// The longest accepted line, in bytes: longer than any useful one.
const LONGEST: usize = 256;

/// A cron line and the time zone whose clock it is read by.
#[derive(Debug, Clone)]
pub struct Timing {
    cron: Cron,
    /// Neither minutes nor hours have a `*`.
    is_fixed: bool,
    zone: TimeZone,
}

impl Timing {
    /// Parses a line and the name of a zone.
    ///
    /// # Errors
    ///
    /// One sentence about the mistake in either.
    pub fn parse(line: &str, zone: &str) -> Result<Self, String> {
        Self::new(line, check_zone(zone)?)
    }

    /// Parses a line, for a given zone.
    ///
    /// # Errors
    ///
    /// One sentence about the mistake in the line.
    pub fn new(line: &str, zone: TimeZone) -> Result<Self, String> {
        let is_fixed = check_line(line)?;
        let parser = CronParser::builder()
            .seconds(Seconds::Disallowed)
            .year(Year::Disallowed)
            .build();
        let cron = parser
            .parse(line)
            .map_err(|error| format!("Not a cron line: {error}"))?;
        Ok(Self { cron, is_fixed, zone })
    }

    /// The first moment after this one; none if the line never occurs, as with the 30th of February.
    pub fn next_after(&self, moment: Moment) -> Option<Moment> {
        let start = Timestamp::from_microsecond(moment.micros()).ok()?;
        let next = if self.is_fixed {
            self.next_fixed(start)
        } else {
            self.next_by_clock(start)
        };
        Some(Moment::from_micros(next?.as_microsecond()))
    }

    /// The moments after this one, in order.
    pub fn after(&self, moment: Moment) -> impl Iterator<Item = Moment> {
        std::iter::successors(self.next_after(moment), |last| self.next_after(*last))
    }

    /// The last moments after `from`, up to and including `until`, in order; at most `most`.
    pub fn last_between(&self, from: Moment, until: Moment, most: usize) -> Vec<Moment> {
        const HOUR: i64 = 3_600_000_000;
        // The search window grows backwards: a line that occurs every minute has half a million moments in a year.
        let mut span = HOUR;
        loop {
            let start = from.max(Moment::from_micros(until.micros().saturating_sub(span)));
            let mut found: Vec<Moment> = self.after(start).take_while(|moment| *moment <= until).collect();
            if start == from || found.len() >= most {
                found.drain(..found.len().saturating_sub(most));
                return found;
            }
            span = span.saturating_mul(16);
        }
    }

    /// The moment by the clock of the zone.
    pub fn local(&self, moment: Moment) -> Zoned {
        let moment = Timestamp::from_microsecond(moment.micros()).unwrap_or_default();
        moment.to_zoned(self.zone.clone())
    }

    /// The name of the zone, as the database of time zones spells it.
    pub fn zone_name(&self) -> &str {
        self.zone.iana_name().unwrap_or("UTC")
    }

    /// The line in words.
    pub fn describe(&self) -> String {
        self.cron.describe()
    }

    /// Goes through the times that the line names, on a clock without changes, and computes the moment of each.
    fn next_fixed(&self, start: Timestamp) -> Option<Timestamp> {
        let mut named: DateTime = self.zone.to_datetime(start);
        let mut inclusive = true;
        loop {
            named = self.cron.find_next_occurrence(&named, inclusive).ok()?;
            inclusive = false;
            let comes = self.comes(named)?;
            if comes > start {
                return Some(comes);
            }
        }
    }

    /// The moment of a time that the line names.
    fn comes(&self, named: DateTime) -> Option<Timestamp> {
        let ambiguous = self.zone.to_ambiguous_timestamp(named);
        match ambiguous.offset() {
            AmbiguousOffset::Unambiguous { .. } | AmbiguousOffset::Fold { .. } => ambiguous.earlier().ok(),
            AmbiguousOffset::Gap { .. } => {
                let before = ambiguous.earlier().ok()?;
                let change = self.zone.following(before).next()?;
                Some(change.timestamp())
            }
        }
    }

    fn next_by_clock(&self, start: Timestamp) -> Option<Timestamp> {
        let whole_second = Timestamp::from_second(start.as_second()).ok()?;
        let mut from = whole_second.to_zoned(self.zone.clone());
        loop {
            from = self.cron.find_next_occurrence(&from, false).ok()?;
            if from.timestamp() > start {
                return Some(from.timestamp());
            }
        }
    }
}

/// The zone of this name, in any case.
///
/// # Errors
///
/// One sentence about the mistake, with similar names.
pub fn check_zone(name: &str) -> Result<TimeZone, String> {
    let zone = TimeZone::get(name).ok().filter(|zone| !zone.is_unknown());
    zone.ok_or_else(|| {
        let known: Vec<String> = jiff::tz::db().available().map(|name| name.to_string()).collect();
        let near = crate::near::nearest(name, known.iter().map(String::as_str));
        match near.first() {
            Some(near) => format!("Not a time zone; did you mean {near}?"),
            None => "Not a time zone: names such as Europe/Berlin or UTC are expected.".to_owned(),
        }
    })
}

/// Whether the line names fixed times, or else one sentence about its mistake.
fn check_line(line: &str) -> Result<bool, String> {
    if line.len() > LONGEST {
        return Err(format!("Longer than {LONGEST} bytes."));
    }
    let line = line.trim();
    if let Some((_, same)) = WORDS.iter().find(|(word, _)| line.eq_ignore_ascii_case(word)) {
        return Err(format!("Words are not taken; write `{same}`."));
    }
    let fields: Vec<&str> = line.split_whitespace().collect();
    if fields.len() != FIELDS.len() {
        return Err(format!(
            "A cron line has five fields (minute, hour, day of the month, month, day of the week); this has {}.",
            fields.len()
        ));
    }
    for (field, text) in FIELDS.iter().zip(&fields) {
        field.check(text)?;
    }
    Ok(!fields[..2].iter().any(|text| text.contains('*')))
}

/// The rules for one field of a line.
struct Field {
    name: &'static str,
    least: u8,
    greatest: u8,
    words: &'static [&'static str],
}

impl Field {
    const fn new(name: &'static str, least: u8, greatest: u8, words: &'static [&'static str]) -> Self {
        Self {
            name,
            least,
            greatest,
            words,
        }
    }

    /// Accepts lists of `*`, numbers and ranges; a `*` or a range may have a step.
    fn check(&self, text: &str) -> Result<(), String> {
        for item in text.split(',') {
            let (range, step) = match item.split_once('/') {
                Some((range, step)) => (range, Some(step)),
                None => (item, None),
            };
            match range.split_once('-') {
                _ if range == "*" => {}
                Some((from, to)) => self.check_range(from, to)?,
                None => {
                    self.number(range)?;
                    if step.is_some() {
                        return Err(format!(
                            "{}: `{item}` has a step after one number; write `{range}-{}/…`.",
                            self.name, self.greatest
                        ));
                    }
                }
            }
            let is_step = |step: &str| step.parse::<u8>().is_ok_and(|step| (1..=self.greatest).contains(&step));
            if let Some(step) = step.filter(|step| !is_step(step)) {
                return Err(format!(
                    "{}: the step `{step}` is no number from 1 to {}.",
                    self.name, self.greatest
                ));
            }
        }
        Ok(())
    }

    fn check_range(&self, from: &str, to: &str) -> Result<(), String> {
        let least = self.number(from)?;
        let greatest = match self.number(to)? {
            // A week may end with Sunday.
            0 if to.eq_ignore_ascii_case("SUN") => 7,
            number => number,
        };
        if least > greatest {
            return Err(format!("{}: `{from}-{to}` goes backwards.", self.name));
        }
        Ok(())
    }

    fn number(&self, text: &str) -> Result<u8, String> {
        let named = self.words.iter().position(|word| word.eq_ignore_ascii_case(text));
        if let Some(index) = named {
            return Ok(self.least + u8::try_from(index).unwrap_or_default());
        }
        let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
        let number = text.parse().ok().filter(|_| digits);
        let number = number.filter(|number| (self.least..=self.greatest).contains(number));
        number.ok_or_else(|| {
            let words = match self.words {
                [first, .., last] => format!(" or {first} to {last}"),
                _ => String::new(),
            };
            format!(
                "{}: `{text}` is not `*`, a number from {} to {}{words}, a range, or a list of these.",
                self.name, self.least, self.greatest
            )
        })
    }
}

#[cfg(test)]
mod tests;
