//! Moments, and their written forms: RFC 3339, and that of IMS. Reads the clock, nothing else.

use std::{
    fmt,
    str::FromStr,
    sync::atomic::{AtomicI64, Ordering},
    time::Duration,
};

use jiff::{Timestamp, civil::DateTime, tz::TimeZone};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error as _};

/// A moment, exact to the microsecond.
///
/// Written in UTC as RFC 3339 has it, with the offset (`2026-11-20T13:53:42.680608+00:00`, without the fraction when it is
/// zero). IMS's own fields have no offset ([`Moment::as_ims`]). Read with or without one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Moment(i64);

/// How far the site's clock is ahead of this host's, in microseconds.
static AHEAD: AtomicI64 = AtomicI64::new(0);

/// A smaller difference between the two clocks is left alone, so that moments do not jump whenever they are compared.
const TOLERATED: i64 = 500_000;

impl Moment {
    /// The current moment, by the site's clock: this host's, or the one that [`Self::follow`] was told of.
    pub fn now() -> Self {
        let micros = Timestamp::now().as_microsecond();
        Self(micros.saturating_add(AHEAD.load(Ordering::Relaxed)))
    }

    /// Sets the site's clock for this process by another one, which showed `theirs` within the time `took` that has just
    /// passed. Servers that share their records follow the clock of the database: each compares the current moment with
    /// moments that others noted.
    ///
    /// Returns how far the site's clock is ahead of this host's, in microseconds, if that has changed.
    pub fn follow(theirs: Self, took: Duration) -> Option<i64> {
        let took = i64::try_from(took.as_micros()).unwrap_or(i64::MAX);
        let least = theirs.0.saturating_sub(Timestamp::now().as_microsecond());
        let possible = least.saturating_sub(TOLERATED)..=least.saturating_add(took).saturating_add(TOLERATED);
        let ahead = least.saturating_add(took / 2);
        (!possible.contains(&AHEAD.load(Ordering::Relaxed))).then(|| {
            AHEAD.store(ahead, Ordering::Relaxed);
            ahead
        })
    }

    /// From microseconds since 1970, UTC.
    pub const fn from_micros(micros: i64) -> Self {
        Self(micros)
    }

    /// Adds a duration, up to the end of time.
    #[must_use]
    pub fn plus(self, duration: Duration) -> Self {
        Self(
            self.0
                .saturating_add(i64::try_from(duration.as_micros()).unwrap_or(i64::MAX)),
        )
    }

    /// Subtracts a duration, down to the beginning of time.
    #[must_use]
    pub fn minus(self, duration: Duration) -> Self {
        Self(
            self.0
                .saturating_sub(i64::try_from(duration.as_micros()).unwrap_or(i64::MAX)),
        )
    }

    /// Microseconds since 1970, UTC.
    pub const fn micros(self) -> i64 {
        self.0
    }

    /// The moment to the second, for tables and pages: `2026-11-20T13:53:42Z`.
    pub fn to_the_second(self) -> impl fmt::Display {
        self.timestamp().strftime("%Y-%m-%dT%H:%M:%SZ")
    }

    /// Writes a field of IMS: without the offset, since its clients sort such texts.
    ///
    /// # Errors
    ///
    /// Those of the serializer.
    pub fn as_ims<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&self.timestamp().strftime(self.format()))
    }

    /// As [`Moment::as_ims`], for a field that may be null.
    ///
    /// # Errors
    ///
    /// Those of the serializer.
    pub fn as_ims_if_any<S: Serializer>(moment: &Option<Self>, serializer: S) -> Result<S::Ok, S::Error> {
        match moment {
            Some(moment) => moment.as_ims(serializer),
            None => serializer.serialize_none(),
        }
    }

    fn timestamp(self) -> Timestamp {
        Timestamp::from_microsecond(self.0).unwrap_or_default()
    }

    /// The format without the offset.
    const fn format(self) -> &'static str {
        if self.0 % 1_000_000 == 0 {
            "%Y-%m-%dT%H:%M:%S"
        } else {
            "%Y-%m-%dT%H:%M:%S%.6f"
        }
    }
}

impl From<Timestamp> for Moment {
    fn from(timestamp: Timestamp) -> Self {
        Self(timestamp.as_microsecond())
    }
}

impl fmt::Display for Moment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}+00:00", self.timestamp().strftime(self.format()))
    }
}

impl FromStr for Moment {
    type Err = jiff::Error;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let zoned = text.parse::<Timestamp>();
        let moment = zoned.or_else(|_| Ok(text.parse::<DateTime>()?.to_zoned(TimeZone::UTC)?.timestamp()));
        moment.map(|moment: Timestamp| Self(moment.as_microsecond()))
    }
}

impl Serialize for Moment {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Moment {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = std::borrow::Cow::<'de, str>::deserialize(deserializer)?;
        text.parse().map_err(D::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn is_written_with_an_offset_but_for_ims() {
        let of_ims = |moment: Moment| moment.as_ims(serde_json::value::Serializer).unwrap();
        let moment: Moment = "2026-11-20T13:53:42.680608Z".parse().unwrap();
        assert_eq!(moment.to_string(), "2026-11-20T13:53:42.680608+00:00");
        assert_eq!(of_ims(moment), "2026-11-20T13:53:42.680608");
        assert_eq!(moment.to_the_second().to_string(), "2026-11-20T13:53:42Z");
        let whole: Moment = "2026-11-20T13:53:42Z".parse().unwrap();
        assert_eq!(whole.to_string(), "2026-11-20T13:53:42+00:00");
        assert_eq!(of_ims(whole), "2026-11-20T13:53:42");
    }

    #[test]
    fn is_read_with_and_without_a_zone() {
        let plain: Moment = "2020-06-01T10:00:00.5".parse().unwrap();
        assert_eq!("2020-06-01T10:00:00.500000+00:00".parse::<Moment>().unwrap(), plain);
        assert_eq!("2020-06-01T12:00:00.5+02:00".parse::<Moment>().unwrap(), plain);
        assert!("yesterday".parse::<Moment>().is_err());
    }
}
