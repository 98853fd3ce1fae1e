//! A worker's last messages, prepared for the search and for the user.

use super::python;

/// Characters of a line that are read.
const LONGEST_LINE: usize = 2000;
/// Lines of a traceback, or frames of C++, that are shown as they are.
const SHORT: usize = 4;

/// Returns the message in torchrun's error file, `{"message": {"message": ...}}` or `{"message": "..."}`.
pub fn error_message(error_file: &str) -> Option<String> {
    let message = error_parts(error_file)?.0?.trim().to_owned();
    (!message.is_empty()).then_some(message)
}

/// Returns the lines of an error file's message and call stack.
pub(super) fn reported(error_file: &str) -> Vec<String> {
    let (message, stack) = error_parts(error_file).unwrap_or_default();
    let texts = [message, stack].into_iter().flatten().collect::<Vec<_>>();
    texts.iter().flat_map(|text| text.lines()).map(plain).collect()
}

fn error_parts(error_file: &str) -> Option<(Option<String>, Option<String>)> {
    let json: serde_json::Value = serde_json::from_str(error_file).ok()?;
    let outer = json.get("message")?;
    let text = |value: &serde_json::Value| value.as_str().map(str::to_owned);
    let message = text(outer.get("message").unwrap_or(outer));
    Some((message, outer.pointer("/extraInfo/py_callstack").and_then(text)))
}

/// Shortens a long traceback to its last place and a long C++ stack to a note, and keeps all other lines.
pub fn shortened(lines: &[String]) -> Vec<String> {
    let plain: Vec<_> = lines.iter().map(|line| plain(line)).collect();
    let mut short = Vec::new();
    let mut at = 0;
    while at < lines.len() {
        let native = plain[at..].iter().take_while(|line| is_native_frame(line));
        let (count, left_out) = match (python::frames(&plain[at..]), native.count()) {
            (Some((count, place)), _) => (count, format!("  ({count} lines left out; raised at {place})")),
            (None, 0) => (1, String::new()),
            (None, count) => (count, format!("  ({count} frames of C++ left out)")),
        };
        match count > SHORT {
            true => short.push(left_out),
            false => short.extend_from_slice(&lines[at..at + count]),
        }
        at += count;
    }
    // The last line of Python's faulthandler, often of hundreds of names.
    short.retain(|line| !line.starts_with("Extension modules: "));
    short
}

/// Returns whether the line is a frame of torch's C++ stack.
fn is_native_frame(line: &str) -> bool {
    let rest = line.trim_start().strip_prefix("frame #");
    rest.is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit()))
}

/// Removes colours, torch's `[rank1]: ` before exceptions, and the bars of an exception group.
pub(super) fn plain(line: &str) -> String {
    let mut text = without_colours(line);
    if let Some(rest) = text.strip_prefix("[rank")
        && let Some((rank, rest)) = rest.split_once("]: ")
        && rank.bytes().all(|byte| byte.is_ascii_digit())
    {
        text = rest.to_owned();
    }
    for bar in ["  | ", "  + "] {
        if let Some(rest) = text.strip_prefix(bar) {
            text = rest.to_owned();
        }
    }
    let end = text.char_indices().nth(LONGEST_LINE);
    text.truncate(end.map_or(text.trim_end().len(), |(end, _)| end));
    text
}

/// Removes the sequences that colour text on a terminal (`ESC [ ... m`).
fn without_colours(line: &str) -> String {
    let mut parts = line.split("\u{1b}[");
    let mut text = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let rest = part.trim_start_matches(|c: char| c.is_ascii_digit() || c == ';');
        text.push_str(rest.strip_prefix(['m', 'K']).unwrap_or(part));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn owned(lines: &[&str]) -> Vec<String> {
        lines.iter().map(|line| (*line).to_owned()).collect()
    }

    #[test]
    fn prefixes_and_suffixes_of_a_line_are_removed() {
        for (line, expected) in [
            ("[rank12]: ValueError: no", "ValueError: no"),
            ("[rank1]:   File \"a.py\", line 1", "  File \"a.py\", line 1"),
            ("[rank1]:[W1121 05:20:00 x.cpp:7] w", "[rank1]:[W1121 05:20:00 x.cpp:7] w"),
            ("\u{1b}[1;31mValueError\u{1b}[0m: \u{1b}[35mno\u{1b}[0m", "ValueError: no"),
            ("  | ExceptionGroup: two (2 sub-exceptions)", "ExceptionGroup: two (2 sub-exceptions)"),
            ("\u{1b}[", ""),
        ] {
            assert_eq!(plain(line), expected, "{line}");
        }
        assert_eq!(plain(&"ä".repeat(9000)).chars().count(), LONGEST_LINE);
    }

    #[test]
    fn an_error_files_message_and_stack_are_both_read() {
        let file = r#"{"message":{"message":"E: x","extraInfo":{"py_callstack":"Traceback\n  File","timestamp":"1"}}}"#;
        assert_eq!(reported(file), ["E: x", "Traceback", "  File"]);
        assert_eq!(reported(r#"{"message":"short"}"#), ["short"]);
        for useless in ["", "{", "[]", "{}", r#"{"message":{"message":3}}"#, "null"] {
            assert_eq!(reported(useless), [""; 0], "{useless}");
        }
    }

    #[test]
    fn a_long_traceback_is_where_it_ended_and_a_short_one_stays() {
        let long = owned(&[
            "before",
            "Traceback (most recent call last):",
            "  File \"train.py\", line 9, in <module>",
            "    main()",
            "  File \"train.py\", line 5, in main",
            "    step()",
            "  File \"/x/site-packages/torch/a.py\", line 1, in step",
            "    raise",
            "ValueError: no",
            "after",
        ]);
        assert_eq!(
            shortened(&long),
            [
                "before",
                "Traceback (most recent call last):",
                "  (6 lines left out; raised at train.py:5, in main)",
                "ValueError: no",
                "after"
            ]
        );
        let short = owned(&["  File \"a.py\", line 9, in f", "    g()", "ValueError: no"]);
        assert_eq!(shortened(&short), short);
    }

    #[test]
    fn rows_of_native_frames_are_left_out() {
        let mut lines = owned(&["Exception raised from f at x.cpp:1 (most recent call first):"]);
        lines.extend((0..30).map(|n| format!("frame #{n}: <unknown function> + 0x1 (0x2 in libtorch.so)")));
        lines.extend(owned(&["end", "Extension modules: numpy._core, torch._C (total: 2)"]));
        assert_eq!(shortened(&lines)[1..], ["  (30 frames of C++ left out)", "end"]);
    }
}
