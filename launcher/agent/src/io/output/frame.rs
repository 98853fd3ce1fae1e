//! Cuts progress frames to the width of the terminal.

/// Resets the colours that a cut frame leaves switched on.
const RESET: &str = "\x1b[0m";

/// Cuts the frame to `width` columns; `None` for a blank frame, which programs write to erase their bar.
/// Escape sequences take no column. The last column stays free: writing there makes some terminals wrap.
pub(super) fn fit(frame: &[u8], width: usize) -> Option<Vec<u8>> {
    let text = String::from_utf8_lossy(frame);
    if text.trim().is_empty() {
        return None;
    }
    let mut fitted = String::with_capacity(frame.len());
    let mut column = 0;
    let mut coloured = false;
    let mut characters = text.chars();
    while let Some(character) = characters.next() {
        if character == '\x1b' {
            if let Some(colour) = colour(&mut characters) {
                fitted.push_str(&format!("\x1b[{colour}m"));
                coloured = true;
            }
        } else if !character.is_control() {
            if column + 1 >= width {
                break;
            }
            column += 1;
            fitted.push(character);
        }
    }
    if coloured {
        fitted.push_str(RESET);
    }
    Some(fitted.into_bytes())
}

/// Returns a colour sequence's parameters (`ESC [ ... m`); `None` for sequences that may move the cursor.
fn colour(characters: &mut std::str::Chars<'_>) -> Option<String> {
    if characters.next() != Some('[') {
        return None;
    }
    let mut parameters = String::new();
    for character in characters.by_ref() {
        if ('\x40'..='\x7e').contains(&character) {
            return (character == 'm').then_some(parameters);
        }
        parameters.push(character);
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fitted(frame: &str, width: usize) -> Option<String> {
        fit(frame.as_bytes(), width).map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
    }

    #[test]
    fn a_frame_is_cut_to_the_width_less_one() {
        assert_eq!(fitted("12345", 80).as_deref(), Some("12345"));
        assert_eq!(fitted("12345", 5).as_deref(), Some("1234"));
        assert_eq!(fitted("█████", 4).as_deref(), Some("███"));
        assert_eq!(fitted("12345", 0).as_deref(), Some(""));
    }

    #[test]
    fn a_blank_frame_wipes() {
        assert_eq!(fitted("", 80), None);
        assert_eq!(fitted("      ", 80), None);
    }

    #[test]
    fn colours_take_no_room_and_are_switched_off() {
        assert_eq!(fitted("\x1b[32mab\x1b[0mcd", 4).as_deref(), Some("\x1b[32mab\x1b[0mc\x1b[0m"));
    }

    #[test]
    fn cursor_movements_are_omitted() {
        assert_eq!(fitted("a\x1b[2Ab\tc\x1b[K", 80).as_deref(), Some("abc"));
        assert_eq!(fitted("a\x1b", 80).as_deref(), Some("a"));
        assert_eq!(fitted("a\x1b[3", 80).as_deref(), Some("a"));
    }

    #[test]
    fn invalid_text_does_not_matter() {
        assert_eq!(fit(b"\xff1", 80).as_deref(), Some("\u{fffd}1".as_bytes()));
    }
}
