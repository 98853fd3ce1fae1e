//! Progress frames: cuts them to the width of the terminal, and finds text that was printed over one.

use memchr::memmem;

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

/// Divides a line into the bar of tqdm that it was printed over, such as ` 10%|#   | 4/40 [00:01<00:09, 3.98it/s]`, and
/// the printed text. The bar is empty if the line has no bar, or only a bar.
pub(super) fn split_bar(line: &[u8]) -> (&[u8], &[u8]) {
    match end_of_bar(line) {
        Some(end) if !line[end..].trim_ascii().is_empty() => line.split_at(end),
        _ => (&[], line),
    }
}

fn end_of_bar(line: &[u8]) -> Option<usize> {
    let drawn = memmem::find(line, b"%|")? + 2;
    let counts = drawn + memmem::find(&line[drawn..], b"| ")? + 2;
    let times = counts + memmem::find(&line[counts..], b" [")? + 1;
    let mut open = 0;
    // The bar ends with the bracket, in which there may be others, as in a list of rates.
    for (at, byte) in line.iter().enumerate().skip(times) {
        match byte {
            b'[' => open += 1,
            b']' => open -= 1,
            _ => {}
        }
        if open == 0 {
            // A bar that is shorter than the one before ends with spaces.
            let spaces = line[at + 1..].iter().take_while(|byte| **byte == b' ');
            return Some(at + 1 + spaces.count());
        }
    }
    None
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
    fn text_printed_over_a_bar_is_found() {
        let split = |line: &'static str| {
            let (bar, text) = split_bar(line.as_bytes());
            [bar, text].map(|part| std::str::from_utf8(part).unwrap_or("?"))
        };
        let bar = "train:  10%|\u{2588}   | 4/40 [00:01<00:09, 3.98it/s, lr=[0.1, 0.2]]";
        for (line, expected) in [
            (
                "train:  10%|\u{2588}   | 4/40 [00:01<00:09, 3.98it/s, lr=[0.1, 0.2]]{'loss': [1]}\n",
                [bar, "{'loss': [1]}\n"],
            ),
            (" 10%|#  | 4/40 [00:01<00:09, 3.98it/s]\n", ["", " 10%|#  | 4/40 [00:01<00:09, 3.98it/s]\n"]),
            (" 9%|#  | 4/40 [00:01]   text\n", [" 9%|#  | 4/40 [00:01]   ", "text\n"]),
            ("accuracy 93%| x\n", ["", "accuracy 93%| x\n"]),
            (" 10%|#  | 4/40 [00:01", ["", " 10%|#  | 4/40 [00:01"]),
            ("plain [1] text\n", ["", "plain [1] text\n"]),
        ] {
            assert_eq!(split(line), expected);
        }
    }

    #[test]
    fn invalid_text_does_not_matter() {
        assert_eq!(fit(b"\xff1", 80).as_deref(), Some("\u{fffd}1".as_bytes()));
    }
}
