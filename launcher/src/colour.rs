//! Colours of the output of commands. `stdout::print_coloured` leaves them out unless standard output shows colours.

use anstyle::Style;
pub(crate) use dtrain_agent::io::output::paint::{ERROR, GOOD, WARNING, paint};

/// Colours the first word of each line that begins with one of these words.
pub(crate) fn first_words(text: &str, words: &[(&str, Style)]) -> String {
    let line = |line: &str| {
        let found = words.iter().find_map(|(word, style)| {
            let rest = line.strip_prefix(word).filter(|rest| rest.starts_with([' ', '\n']))?;
            Some(paint(*style, word) + rest)
        });
        found.unwrap_or_else(|| line.to_owned())
    };
    text.split_inclusive('\n').map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_whole_first_words_have_colours() {
        let text = "ok    GPUs\nokay  x\n      ok\nFAIL  y\n";
        let coloured = first_words(text, &[("ok", GOOD), ("FAIL", ERROR)]);
        let expected =
            format!("{}    GPUs\nokay  x\n      ok\n{}  y\n", paint(GOOD, "ok"), paint(ERROR, "FAIL"));
        assert_eq!(coloured, expected);
    }
}
