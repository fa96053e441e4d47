//! Compares versions as package managers do. Pure: no I/O.

use std::cmp::Ordering;

use super::format::Format;

/// Whether the version `one` is newer than `other`. Both are `[EPOCH:]VERSION[-RELEASE]`.
pub(super) fn is_newer(format: Format, one: &str, other: &str) -> bool {
    let part = match format {
        Format::Deb => debian,
        Format::Rpm => rpm,
    };
    let (one, other) = (parts(one), parts(other));
    let compared = (one.0.cmp(&other.0))
        .then_with(|| part(one.1, other.1))
        .then_with(|| part(one.2, other.2));
    compared.is_gt()
}

/// Epoch, version and release.
fn parts(version: &str) -> (u64, &str, &str) {
    let (epoch, rest) = version.split_once(':').unwrap_or(("0", version));
    let (version, release) = rest.rsplit_once('-').unwrap_or((rest, ""));
    (epoch.parse().unwrap_or_default(), version, release)
}

/// Splits off the beginning whose bytes are all `of` a kind.
fn split(text: &str, of: impl Fn(&u8) -> bool) -> (&str, &str) {
    let end = text.bytes().position(|byte| !of(&byte)).unwrap_or(text.len());
    text.split_at_checked(end).unwrap_or((text, ""))
}

/// Compares numbers of any length.
fn numbers(one: &str, other: &str) -> Ordering {
    let [one, other] = [one, other].map(|number| number.trim_start_matches('0'));
    one.len().cmp(&other.len()).then_with(|| one.cmp(other))
}

/// deb-version(7): texts and numbers alternate. `~` is before the end, and letters are before all other signs.
fn debian(mut one: &str, mut other: &str) -> Ordering {
    let weight = |byte: Option<u8>| match byte {
        Some(b'~') => -1,
        None => 0,
        Some(byte) if byte.is_ascii_alphabetic() => i32::from(byte),
        Some(byte) => i32::from(byte) + 256,
    };
    while !one.is_empty() || !other.is_empty() {
        let (text, rest) = split(one, |byte| !byte.is_ascii_digit());
        let (other_text, other_rest) = split(other, |byte| !byte.is_ascii_digit());
        for at in 0..text.len().max(other_text.len()) {
            let weights = [text, other_text].map(|text| weight(text.as_bytes().get(at).copied()));
            if weights[0] != weights[1] {
                return weights[0].cmp(&weights[1]);
            }
        }
        let (number, rest) = split(rest, u8::is_ascii_digit);
        let (other_number, other_rest) = split(other_rest, u8::is_ascii_digit);
        let compared = numbers(number, other_number);
        if compared.is_ne() {
            return compared;
        }
        (one, other) = (rest, other_rest);
    }
    Ordering::Equal
}

/// rpm-version(7): runs of digits and of letters, whatever separates them. `~` is before the end, and `^` just after
/// it.
fn rpm<'a>(mut one: &'a str, mut other: &'a str) -> Ordering {
    let separates = |byte: &u8| !byte.is_ascii_alphanumeric() && !b"~^".contains(byte);
    loop {
        [one, other] = [one, other].map(|text: &'a str| split(text, separates).1);
        for (sign, at_end) in [('~', Ordering::Greater), ('^', Ordering::Less)] {
            match (one.strip_prefix(sign), other.strip_prefix(sign)) {
                (Some(rest), Some(other_rest)) => {
                    return rpm(rest, other_rest);
                }
                (None, Some(_)) if one.is_empty() || sign == '~' => return at_end,
                (Some(_), None) if other.is_empty() || sign == '~' => return at_end.reverse(),
                (None, Some(_)) => return Ordering::Greater,
                (Some(_), None) => return Ordering::Less,
                (None, None) => {}
            }
        }
        if one.is_empty() || other.is_empty() {
            return one.len().cmp(&other.len());
        }
        let is_number = one.starts_with(|sign: char| sign.is_ascii_digit());
        let of: fn(&u8) -> bool = if is_number {
            u8::is_ascii_digit
        } else {
            u8::is_ascii_alphabetic
        };
        let ((run, rest), (other_run, other_rest)) = (split(one, of), split(other, of));
        let compared = match (is_number, other_run.is_empty()) {
            // A number is newer than letters.
            (true, true) => Ordering::Greater,
            (false, true) => Ordering::Less,
            (true, false) => numbers(run, other_run),
            (false, false) => run.cmp(other_run),
        };
        if compared.is_ne() {
            return compared;
        }
        (one, other) = (rest, other_rest);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_ordered_as_package_managers_order_them() {
        for (format, older, newer) in [
            (Format::Deb, "4.9-1", "4.9-1+deb12u1"),
            (Format::Deb, "4.9-1+deb12u9", "4.9-1+deb12u10"),
            (Format::Deb, "4.9~rc1-1", "4.9-1"),
            (Format::Deb, "4.9-1~bpo1", "4.9-1"),
            (Format::Deb, "9.9-1", "1:0.1-1"),
            (Format::Deb, "1.0a-1", "1.0+b-1"),
            (Format::Deb, "2.36", "2.36-1"),
            (Format::Rpm, "0:5.2-1", "0:5.2-1.1"),
            (Format::Rpm, "0:5.9-1", "0:5.10-1"),
            (Format::Rpm, "0:1.0~rc1-1", "0:1.0-1"),
            (Format::Rpm, "0:1.0-1", "0:1.0^git1-1"),
            (Format::Rpm, "0:1.0^git1-1", "0:1.0.1-1"),
            (Format::Rpm, "0:1.a-1", "0:1.1-1"),
            (Format::Rpm, "0:1.0-1", "0:1.0a-1"),
            (Format::Rpm, "0:9-9", "1:0-0"),
        ] {
            assert!(is_newer(format, newer, older), "{newer} is newer than {older}");
            assert!(!is_newer(format, older, newer), "{older} is older than {newer}");
        }
        for (format, one, other) in [(Format::Deb, "1.0-1", "0:1.00-1"), (Format::Rpm, "0:1.0-1", "0:1_0-01")] {
            assert!(!is_newer(format, one, other) && !is_newer(format, other, one));
        }
    }

    #[test]
    fn any_text_is_compared() {
        for format in [Format::Deb, Format::Rpm] {
            for text in ["", ":", "-", "é:é-é", "~", "^", "99999999999999999999999:1"] {
                assert!(!is_newer(format, text, text));
                is_newer(format, text, "1:2-3");
            }
        }
    }
}
