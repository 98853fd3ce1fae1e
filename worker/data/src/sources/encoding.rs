//! The text of a table, without a byte order mark: UTF-8, or UTF-16 with the mark.

use std::borrow::Cow;

/// Why bytes are no text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum NoText {
    /// UTF-16 without a byte order mark, by the name of `iconv`.
    Unmarked(&'static str),
    /// A byte order mark of UTF-16 before something else.
    DamagedUtf16,
    NotUtf8,
}

/// Returns the text, or why the bytes are no text and the line that shows it, from 1.
pub(super) fn decode(bytes: &[u8]) -> Result<Cow<'_, str>, (usize, NoText)> {
    match bytes {
        [0xff, 0xfe, rest @ ..] => decode_utf16(rest, u16::from_le_bytes).map(Cow::Owned),
        [0xfe, 0xff, rest @ ..] => decode_utf16(rest, u16::from_be_bytes).map(Cow::Owned),
        [0xef, 0xbb, 0xbf, rest @ ..] => decode_utf8(rest),
        _ => decode_utf8(bytes),
    }
}

fn decode_utf8(bytes: &[u8]) -> Result<Cow<'_, str>, (usize, NoText)> {
    match (unmarked(bytes), std::str::from_utf8(bytes)) {
        (Some(name), _) => Err((1, NoText::Unmarked(name))),
        (None, Ok(text)) => Ok(Cow::Borrowed(text)),
        (None, Err(error)) => {
            let before = &bytes[..error.valid_up_to()];
            Err((1 + before.iter().filter(|&&byte| byte == b'\n').count(), NoText::NotUtf8))
        }
    }
}

fn decode_utf16(bytes: &[u8], unit: fn([u8; 2]) -> u16) -> Result<String, (usize, NoText)> {
    let (pairs, rest) = bytes.as_chunks::<2>();
    let mut text = String::with_capacity(bytes.len() / 2);
    for letter in char::decode_utf16(pairs.iter().map(|pair| unit(*pair))) {
        match letter {
            Ok(letter) => text.push(letter),
            Err(_) => return Err((1 + text.matches('\n').count(), NoText::DamagedUtf16)),
        }
    }
    match rest {
        [] => Ok(text),
        _ => Err((1 + text.matches('\n').count(), NoText::DamagedUtf16)),
    }
}

/// Returns the form of UTF-16 that a file without a byte order mark looks like: letters of ASCII have a zero byte there.
fn unmarked(bytes: &[u8]) -> Option<&'static str> {
    /// Enough to tell; names of columns are rarely longer.
    const START: usize = 128;
    let (pairs, _) = bytes[..bytes.len().min(START)].as_chunks::<2>();
    let count = |at: usize| pairs.iter().filter(|pair| pair[at] == 0 && pair[1 - at] != 0).count();
    let most = |zeros: usize| pairs.len() >= 2 && 2 * zeros > pairs.len();
    match (count(0), count(1)) {
        (0, low) if most(low) => Some("UTF-16LE"),
        (high, 0) if most(high) => Some("UTF-16BE"),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use proptest::prelude::*;

    use super::*;

    fn utf16(text: &str, bytes: fn(u16) -> [u8; 2]) -> Vec<u8> {
        text.encode_utf16().flat_map(bytes).collect()
    }

    #[test]
    fn bytes_without_a_text_are_told_apart() {
        for (bytes, expected) in [
            (utf16("path;kind\r\n", u16::to_le_bytes), (1, NoText::Unmarked("UTF-16LE"))),
            (utf16("path;kind\r\n", u16::to_be_bytes), (1, NoText::Unmarked("UTF-16BE"))),
            (b"\xff\xfea\0\n\0b".to_vec(), (2, NoText::DamagedUtf16)),
            (b"\xff\xfea\0\n\0\n\0\0\xdcb\0".to_vec(), (3, NoText::DamagedUtf16)),
            (b"a\nb\xe9\n".to_vec(), (2, NoText::NotUtf8)),
        ] {
            assert_eq!(decode(&bytes).unwrap_err(), expected, "{bytes:?}");
        }
        assert_eq!(decode(b"a,b\n").unwrap(), "a,b\n");
        assert_eq!(decode(b"").unwrap(), "");
    }

    proptest! {
        #[test]
        fn marked_texts_read(text: String) {
            let text = format!("\u{feff}{text}");
            for bytes in [utf16(&text, u16::to_le_bytes), utf16(&text, u16::to_be_bytes)] {
                prop_assert_eq!(decode(&bytes).unwrap(), text.strip_prefix('\u{feff}').unwrap());
            }
            prop_assert_eq!(decode(text.as_bytes()).unwrap(), text.strip_prefix('\u{feff}').unwrap());
        }

        #[test]
        fn any_bytes_read_or_are_an_error_in_a_line(bytes: Vec<u8>) {
            if let Err((line, _)) = decode(&bytes) {
                prop_assert!(line <= 1 + bytes.iter().filter(|byte| **byte == b'\n').count());
            }
        }
    }
}
