//! The file by which a root says of which distribution it is: os-release(5). Pure: no I/O.

/// Its places, relative to the root. The first is usually a link to the second.
pub const PLACES: [&str; 2] = ["etc/os-release", "usr/lib/os-release"];

/// The most bytes of it that are worth reading.
pub const LONGEST: u64 = 64 << 10;

/// The value of a variable, without its quotes; none if it is not set, or empty.
pub fn value<'t>(text: &'t str, name: &str) -> Option<&'t str> {
    let value = text
        .lines()
        .find_map(|line| line.strip_prefix(name)?.strip_prefix('='))?;
    let value = value.trim().trim_matches(['"', '\'']);
    (!value.is_empty()).then_some(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_lose_their_quotes() {
        let text = "NAME=\"Debian GNU/Linux\"\nVERSION_ID='12'\nID=debian\nBUILD_ID=\n";
        assert_eq!(value(text, "NAME"), Some("Debian GNU/Linux"));
        assert_eq!(
            (value(text, "ID"), value(text, "VERSION_ID")),
            (Some("debian"), Some("12"))
        );
        assert_eq!((value(text, "BUILD_ID"), value(text, "VERSION")), (None, None));
    }
}
