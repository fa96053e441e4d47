//! Decodes XML by its byte order mark or its declaration, as kiwi's parser does. Pure: no I/O.

use std::borrow::Cow;

use encoding_rs::{Encoding, UTF_8, UTF_16BE, UTF_16LE};

/// The most bytes of a declaration, in any encoding.
const LONGEST_DECLARATION: usize = 512;

/// The text of an XML file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Decoded<'a> {
    /// The text. It declares no other encoding than UTF-8.
    pub text: Cow<'a, str>,
    /// The encoding of the bytes, if they are not just UTF-8 and said to be.
    pub was: Option<&'static str>,
}

/// Decodes a file.
///
/// # Errors
///
/// Why the file cannot be read.
pub fn decode(bytes: &[u8]) -> Result<Decoded<'_>, String> {
    let (encoding, mark) = by_mark(bytes);
    let body = &bytes[mark..];
    let encoding = match encoding {
        Some(encoding) => encoding,
        None => declared(body)?,
    };
    let text = encoding
        .decode_without_bom_handling_and_without_replacement(body)
        .ok_or_else(|| wrong(encoding, body))?;
    let (text, redeclared) = declare_utf8(text);
    let was = match (encoding == UTF_8, mark, redeclared) {
        (true, 0, false) => None,
        (true, 0, true) => Some("UTF-8, declared as another encoding"),
        (true, ..) => Some("UTF-8 with a byte order mark"),
        _ => Some(encoding.name()),
    };
    Ok(Decoded { text, was })
}

/// The encoding that the first bytes show, and the length of their byte order mark.
fn by_mark(bytes: &[u8]) -> (Option<&'static Encoding>, usize) {
    if let Some((encoding, mark)) = Encoding::for_bom(bytes) {
        return (Some(encoding), mark);
    }
    // Without a mark, `<` shows it (XML 1.0, appendix F).
    let encoding = match bytes {
        [b'<', 0, next, 0, ..] if *next != 0 => Some(UTF_16LE),
        [0, b'<', 0, next, ..] if *next != 0 => Some(UTF_16BE),
        _ => None,
    };
    (encoding, 0)
}

/// The encoding that the declaration names; UTF-8 without one.
fn declared(bytes: &[u8]) -> Result<&'static Encoding, String> {
    let head = &bytes[..bytes.len().min(LONGEST_DECLARATION)];
    // What is beyond ASCII is not in a declaration.
    let head: String = head.iter().map(|byte| char::from(*byte)).collect();
    let Some((start, end)) = place_of_encoding(&head) else {
        return Ok(UTF_8);
    };
    let label = &head[start..end];
    let encoding =
        Encoding::for_label(label.as_bytes()).ok_or_else(|| format!("its encoding `{label}` is not supported"))?;
    // A declaration that can be read byte by byte is not in UTF-16, whatever it says.
    let is_wide = [UTF_16LE, UTF_16BE].contains(&encoding);
    Ok(if is_wide { UTF_8 } else { encoding })
}

/// Where the name of the encoding is in the declaration at the beginning of `text`.
fn place_of_encoding(text: &str) -> Option<(usize, usize)> {
    let rest = text.strip_prefix("<?xml")?;
    let declaration = &rest[..rest.find("?>")?];
    let at = declaration.find("encoding")? + "encoding".len();
    let value = declaration[at..].trim_start().strip_prefix('=')?.trim_start();
    let quote = value.chars().next().filter(|quote| matches!(quote, '"' | '\''))?;
    let name = &value[1..];
    let length = name.find(quote)?;
    let start = name.as_ptr() as usize - text.as_ptr() as usize;
    Some((start, start + length))
}

/// The text with UTF-8 in its declaration, and whether another encoding was there.
fn declare_utf8(text: Cow<'_, str>) -> (Cow<'_, str>, bool) {
    let Some((start, end)) = place_of_encoding(&text) else {
        return (text, false);
    };
    if text[start..end].eq_ignore_ascii_case("utf-8") {
        return (text, false);
    }
    (Cow::Owned([&text[..start], "UTF-8", &text[end..]].concat()), true)
}

fn wrong(encoding: &'static Encoding, bytes: &[u8]) -> String {
    let name = encoding.name();
    if encoding != UTF_8 {
        return format!("it is not in its encoding {name}");
    }
    let valid = std::str::from_utf8(bytes).err().map_or(0, |error| error.valid_up_to());
    let line = memchr::memchr_iter(b'\n', &bytes[..valid]).count() + 1;
    format!(
        "line {line} is not in {name}, and its first line declares no other encoding, such as `<?xml version=\"1.0\" encoding=\"ISO-8859-1\"?>`"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn utf16(text: &str, to_bytes: fn(u16) -> [u8; 2]) -> Vec<u8> {
        text.encode_utf16().flat_map(to_bytes).collect()
    }

    #[test]
    fn every_encoding_is_read_as_it_says() {
        let text = |encoding: &str| format!("<?xml version='1.0' encoding='{encoding}'?>\r\n<image name='ü'/>");
        let in_utf8 = text("UTF-8");
        let latin: Vec<u8> = text("iso-8859-1").chars().map(|letter| letter as u8).collect();
        let wide = text("UTF-16");
        for (bytes, was) in [
            (in_utf8.clone().into_bytes(), None),
            (
                format!("\u{feff}{in_utf8}").into_bytes(),
                Some("UTF-8 with a byte order mark"),
            ),
            (latin, Some("windows-1252")),
            (utf16(&format!("\u{feff}{wide}"), u16::to_le_bytes), Some("UTF-16LE")),
            (utf16(&format!("\u{feff}{wide}"), u16::to_be_bytes), Some("UTF-16BE")),
            (utf16(&wide, u16::to_le_bytes), Some("UTF-16LE")),
            (utf16(&wide, u16::to_be_bytes), Some("UTF-16BE")),
            // As programs write it that make a string first.
            (wide.clone().into_bytes(), Some("UTF-8, declared as another encoding")),
        ] {
            let decoded = decode(&bytes).unwrap();
            assert_eq!((decoded.text.as_ref(), decoded.was), (in_utf8.as_str(), was));
        }
        for text in [
            "<image/>",
            "",
            "{# a #}<image/>",
            "<?xml version=\"1.0\"?><a/>",
            "<?xml encoding",
        ] {
            assert_eq!(
                decode(text.as_bytes()).unwrap(),
                Decoded {
                    text: text.into(),
                    was: None
                }
            );
        }
        let other = "<?xml version=\"1.0\" encoding=\"utf-8\"?><a encoding='x'/>";
        assert_eq!(decode(other.as_bytes()).unwrap().was, None);
    }

    #[test]
    fn what_cannot_be_read_is_told() {
        for (bytes, says) in [
            (&b"<image>\n<a name='\xfc'/>"[..], "line 2 is not in UTF-8"),
            (
                b"<?xml version='1.0' encoding='EBCDIC-US'?><a/>",
                "`EBCDIC-US` is not supported",
            ),
            (b"\xff\xfe<\0\0\xd8>\0", "UTF-16LE"),
            (b"<?xml version='1.0' encoding='EUC-JP'?><a b='\xff'/>", "EUC-JP"),
        ] {
            let why = decode(bytes).unwrap_err();
            assert!(why.contains(says), "{why}");
        }
    }
}
