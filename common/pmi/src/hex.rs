//! Texts as hexadecimal digits: PMI's values may have no blanks, semicolons or line ends.

pub(crate) fn encode(text: &str) -> String {
    text.bytes().map(|byte| format!("{byte:02x}")).collect()
}

/// Returns the text; `None` if these are no digits of UTF-8.
pub(crate) fn decode(digits: &str) -> Option<String> {
    if !digits.bytes().all(|byte| byte.is_ascii_hexdigit()) || !digits.len().is_multiple_of(2) {
        return None;
    }
    let byte = |at: usize| u8::from_str_radix(digits.get(at..at + 2)?, 16).ok();
    String::from_utf8((0..digits.len()).step_by(2).map(byte).collect::<Option<_>>()?).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn every_text_survives(text: String) {
            prop_assert_eq!(decode(&encode(&text)), Some(text));
        }

        #[test]
        fn any_digits_are_read_or_refused(digits: String) {
            let _ = decode(&digits);
        }
    }

    #[test]
    fn other_texts_are_refused() {
        for digits in ["0", "zz", "ff", "é", "+1"] {
            assert_eq!(decode(digits), None, "{digits}");
        }
    }
}
