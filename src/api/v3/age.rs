//! Parses ages in filters of jobs: `30m`, `6h`, `1d`, `2w`, `1w2d`. Pure: no I/O.
//!
//! IMS reads an invalid age as zero, and so deletes everything. Kiln refuses it.

const MINUTE: i64 = 60 * 1_000_000;

/// Microseconds of an age.
///
/// # Errors
///
/// One clause, to follow the parameter's name.
pub(super) fn parse(text: &str) -> Result<i64, String> {
    const WANTED: &str = "has to be numbers with units, such as 30m, 6h, 1d, 2w or 1w2d";
    let mut rest = text;
    let mut seen = Vec::new();
    let mut total: i64 = 0;
    while !rest.is_empty() {
        let digits = rest.len() - rest.trim_start_matches(|c: char| c.is_ascii_digit()).len();
        let (number, after) = rest.split_at(digits);
        let letters = after.len() - after.trim_start_matches(|c: char| c.is_ascii_alphabetic()).len();
        let (word, after) = after.split_at(letters);
        rest = after;

        let unit = match word.to_ascii_lowercase().as_str() {
            "m" | "min" | "mins" | "minute" | "minutes" => MINUTE,
            "h" | "hour" | "hours" => 60 * MINUTE,
            "d" | "day" | "days" => 24 * 60 * MINUTE,
            "w" | "week" | "weeks" => 7 * 24 * 60 * MINUTE,
            _ => return Err(format!("{WANTED}; `{text}` is not.")),
        };
        if digits == 0 {
            return Err(format!("{WANTED}; `{text}` is not."));
        }
        if seen.contains(&unit) {
            return Err(format!("names a unit twice: `{text}`."));
        }
        seen.push(unit);
        let part = number.parse::<i64>().ok().and_then(|number| number.checked_mul(unit));
        total = part
            .and_then(|part| total.checked_add(part))
            .ok_or_else(|| format!("is too large: `{text}`."))?;
    }
    if seen.is_empty() {
        Err(format!("{WANTED}; it is empty."))
    } else {
        Ok(total)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_forms_of_ims_mean_what_they_say() {
        let day = 24 * 60 * MINUTE;
        for (text, micros) in [
            ("1d", day),
            ("6h", day / 4),
            ("30m", 30 * MINUTE),
            ("2w", 14 * day),
            ("2days", 2 * day),
            ("1D", day),
            ("1d5w", 36 * day),
            ("1w2d", 9 * day),
            ("0d", 0),
            ("1week2hours", 7 * day + day / 12),
        ] {
            assert_eq!(parse(text), Ok(micros), "{text}");
        }
    }

    #[test]
    fn w8_what_cannot_be_read_is_refused() {
        for text in [
            "",
            "foo",
            "10",
            "2 days",
            "d",
            "1month",
            "1d1d",
            "-1d",
            "1.5d",
            "1d ",
            "99999999999w",
            "1y",
            "٣d",
        ] {
            assert!(parse(text).is_err(), "{text}");
        }
    }
}
