//! Percent-encoding.

/// `text` with `%XX` for every byte that is not `plain`. Bytes beyond ASCII never are.
pub(crate) fn encode(text: &str, plain: impl Fn(u8) -> bool) -> String {
    use std::fmt::Write;

    let mut encoded = String::with_capacity(text.len());
    for byte in text.bytes() {
        if byte.is_ascii() && plain(byte) {
            encoded.push(char::from(byte));
        } else {
            // Writing to a string cannot fail.
            let _ = write!(encoded, "%{byte:02X}");
        }
    }
    encoded
}
