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

/// Decodes every `%XX`. `None` when there is something else behind a `%`, or the result is no text.
pub fn decode(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        bytes.push(if byte == b'%' {
            let mut digit = || char::from(rest.next()?).to_digit(16);
            u8::try_from(digit()? * 16 + digit()?).ok()?
        } else {
            byte
        });
    }
    String::from_utf8(bytes).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_encoded_is_decoded() {
        for text in ["", "a b", "100 %", "näme/\"'"] {
            assert_eq!(
                decode(&encode(text, |byte| byte.is_ascii_alphabetic())).as_deref(),
                Some(text)
            );
        }
        for wrong in ["%", "%4", "%zz", "%ff"] {
            assert_eq!(decode(wrong), None, "{wrong}");
        }
    }
}
