//! Evaluates the `If-…` headers of requests. Pure: no I/O.

use s3s::{
    S3Error, S3ErrorCode,
    dto::{ETagCondition, Timestamp},
};

use super::fault::Result;

/// Conditions on an object that is read or copied.
#[derive(Debug, Default)]
pub(super) struct ReadConditions {
    /// `If-Match`.
    pub(super) matches: Option<ETagCondition>,
    /// `If-None-Match`.
    pub(super) none_match: Option<ETagCondition>,
    /// `If-Modified-Since`.
    pub(super) modified_since: Option<Timestamp>,
    /// `If-Unmodified-Since`.
    pub(super) unmodified_since: Option<Timestamp>,
}

impl ReadConditions {
    /// Succeeds if the object may be sent; otherwise fails with `NotModified` or `PreconditionFailed`. An entity tag
    /// takes precedence over the date of the same direction (RFC 9110, section 13.2.2).
    pub(super) fn check(&self, etag: &str, modified_us: i64) -> Result<()> {
        // Dates in headers have whole seconds.
        let modified = super::database::timestamp(modified_us / 1_000_000 * 1_000_000);
        let unchanged = match (&self.matches, &self.unmodified_since) {
            (Some(condition), _) => names(condition, etag),
            (None, Some(moment)) => modified <= *moment,
            (None, None) => true,
        };
        if !unchanged {
            return Err(S3ErrorCode::PreconditionFailed.into());
        }
        let news = match (&self.none_match, &self.modified_since) {
            (Some(condition), _) => !names(condition, etag),
            (None, Some(moment)) => modified > *moment,
            (None, None) => true,
        };
        if news {
            Ok(())
        } else {
            Err(S3ErrorCode::NotModified.into())
        }
    }

    /// The same for the source of a copy, where every failure is `PreconditionFailed`.
    pub(super) fn check_source(&self, etag: &str, modified_us: i64) -> Result<()> {
        self.check(etag, modified_us)
            .map_err(|_| S3ErrorCode::PreconditionFailed.into())
    }
}

/// Conditions on the object to be replaced.
#[derive(Debug, Default)]
pub(super) struct WriteConditions {
    /// `If-Match`.
    pub(super) matches: Option<ETagCondition>,
    /// `If-None-Match`.
    pub(super) none_match: Option<ETagCondition>,
}

impl WriteConditions {
    /// Succeeds if the object with entity tag `existing`, or an absent object, may be replaced.
    pub(super) fn check(&self, existing: Option<&str>) -> Result<()> {
        match (&self.matches, existing) {
            (Some(_), None) => return Err(S3ErrorCode::NoSuchKey.into()),
            (Some(condition), Some(etag)) if !names(condition, etag) => return Err(failed("If-Match")),
            _ => {}
        }
        match (&self.none_match, existing) {
            (Some(condition), Some(etag)) if names(condition, etag) => Err(failed("If-None-Match")),
            _ => Ok(()),
        }
    }
}

fn names(condition: &ETagCondition, etag: &str) -> bool {
    match condition {
        ETagCondition::Any => true,
        ETagCondition::ETag(named) => named.value() == etag,
    }
}

fn failed(header: &str) -> super::fault::Fault {
    S3Error::with_message(
        S3ErrorCode::PreconditionFailed,
        format!("the condition {header} is not met"),
    )
    .into()
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, UNIX_EPOCH};

    use super::*;

    #[test]
    fn a_tag_outweighs_a_date() {
        let old = Some(Timestamp::from(UNIX_EPOCH + Duration::from_secs(1)));
        let conditions = ReadConditions {
            none_match: Some("\"other\"".parse().unwrap()),
            modified_since: Some(Timestamp::from(UNIX_EPOCH + Duration::from_secs(99))),
            ..Default::default()
        };
        assert!(conditions.check("tag", 5_000_000).is_ok());
        let conditions = ReadConditions {
            matches: Some("\"tag\"".parse().unwrap()),
            unmodified_since: old,
            ..Default::default()
        };
        assert!(conditions.check("tag", 5_000_000).is_ok());
    }

    #[test]
    fn dates_are_compared_by_whole_seconds() {
        let conditions = ReadConditions {
            modified_since: Some(Timestamp::from(UNIX_EPOCH + Duration::from_secs(5))),
            ..Default::default()
        };
        assert!(conditions.check("tag", 5_900_000).is_err());
        assert!(conditions.check("tag", 6_000_000).is_ok());
    }

    #[test]
    fn an_absent_object_matches_nothing() {
        let any = || Some(ETagCondition::Any);
        let absent = WriteConditions {
            none_match: any(),
            ..Default::default()
        };
        assert!(absent.check(None).is_ok() && absent.check(Some("tag")).is_err());
        let present = WriteConditions {
            matches: any(),
            ..Default::default()
        };
        assert!(present.check(None).is_err() && present.check(Some("tag")).is_ok());
    }
}
