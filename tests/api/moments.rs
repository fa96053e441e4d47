//! Moments as IMS writes them: ISO 8601 to the microsecond, no zone.

use serde_json::Value;

/// Sees that it is one.
#[track_caller]
pub fn is_moment(value: &Value) {
    let text = value.as_str().unwrap_or_else(|| panic!("{value} is no moment"));
    let shape: String = text.chars().map(|c| if c.is_ascii_digit() { '0' } else { c }).collect();
    // The fraction is absent when it is exactly zero.
    let known = ["0000-00-00T00:00:00.000000", "0000-00-00T00:00:00"];
    assert!(
        known.contains(&shape.as_str()),
        "{text} is not written as IMS writes moments"
    );
    let moment: jiff::civil::DateTime = text.parse().unwrap();
    let now = jiff::Timestamp::now().to_zoned(jiff::tz::TimeZone::UTC).datetime();
    let age = now.since(moment).unwrap().total(jiff::Unit::Second).unwrap();
    assert!((-1.0..600.0).contains(&age), "{text} is not now, in UTC");
}
