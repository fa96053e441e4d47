//! Moments, in IMS's written form. Reads the clock, nothing else.

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
/// Written in UTC as ISO 8601 without a zone (`2026-11-20T13:53:42.680608`, without the fraction when it is zero): IMS
/// does the same, and its clients sort it as text. Read with or without a zone: old IMS releases wrote `+00:00`.
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
}

impl From<Timestamp> for Moment {
    fn from(timestamp: Timestamp) -> Self {
        Self(timestamp.as_microsecond())
    }
}

impl fmt::Display for Moment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let moment = Timestamp::from_microsecond(self.0).unwrap_or_default();
        let format = if self.0 % 1_000_000 == 0 {
            "%Y-%m-%dT%H:%M:%S"
        } else {
            "%Y-%m-%dT%H:%M:%S%.6f"
        };
        moment.strftime(format).fmt(f)
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
    fn is_written_as_ims_writes_it() {
        let moment: Moment = "2026-11-20T13:53:42.680608Z".parse().unwrap();
        assert_eq!(moment.to_string(), "2026-11-20T13:53:42.680608");
        let whole: Moment = "2026-11-20T13:53:42Z".parse().unwrap();
        assert_eq!(whole.to_string(), "2026-11-20T13:53:42");
    }

    #[test]
    fn is_read_with_and_without_a_zone() {
        let plain: Moment = "2020-06-01T10:00:00.5".parse().unwrap();
        assert_eq!("2020-06-01T10:00:00.500000+00:00".parse::<Moment>().unwrap(), plain);
        assert_eq!("2020-06-01T12:00:00.5+02:00".parse::<Moment>().unwrap(), plain);
        assert!("yesterday".parse::<Moment>().is_err());
    }
}
