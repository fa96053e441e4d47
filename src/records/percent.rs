//! Percent-encoding. Pure: no I/O.

/// Encodes every byte of `text` that is not `plain` as `%XX`. Bytes beyond ASCII are never plain.
pub fn encode(text: &str, plain: impl Fn(u8) -> bool) -> String {
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
