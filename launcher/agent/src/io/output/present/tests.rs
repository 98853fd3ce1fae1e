#![allow(clippy::unwrap_used)]

use super::*;
use proptest::prelude::*;

const PATIENCE: Duration = Duration::from_millis(200);

/// A stream that is shown line by line, and a clock.
struct Watched {
    presenter: Presenter,
    now: Instant,
    lines: Vec<String>,
}

impl Watched {
    fn new(frames: FrameStyle) -> Self {
        let style = Style::Lines { frames, line_timeout: PATIENCE };
        Self {
            presenter: Presenter::new(style, Form::of_text("[0] ")),
            now: Instant::now(),
            lines: Vec::new(),
        }
    }

    /// Returns the output written at once after these bytes.
    fn comes(&mut self, bytes: &str) -> String {
        let lines = &mut self.lines;
        let each = |line: &[u8]| lines.push(String::from_utf8(line.to_vec()).unwrap());
        text(self.presenter.push(Some(bytes.as_bytes()), self.now, each))
    }

    fn ends(&mut self) -> String {
        let lines = &mut self.lines;
        let each = |line: &[u8]| lines.push(String::from_utf8(line.to_vec()).unwrap());
        text(self.presenter.push(None, self.now, each))
    }

    /// Returns the output written during this time.
    fn passes(&mut self, time: Duration) -> String {
        let end = self.now + time;
        let mut written = String::new();
        while let Some(deadline) = self.presenter.deadline().filter(|deadline| *deadline <= end) {
            self.now = deadline;
            written += &text(self.presenter.overdue(deadline));
        }
        self.now = end;
        written
    }
}

fn text(output: Option<Output>) -> String {
    output.map_or_else(String::new, |output| String::from_utf8(output.text).unwrap())
}

#[test]
fn a_line_that_has_only_begun_is_shown_after_a_moment_and_its_end_follows_it() {
    let mut stream = Watched::new(FrameStyle::Drawn);
    assert_eq!(stream.comes("one\nName: "), "[0] one\n");
    assert_eq!(stream.passes(PATIENCE / 2), "");
    assert_eq!(stream.passes(PATIENCE), "[0] Name: ");
    assert_eq!(stream.passes(PATIENCE * 9), "", "once");
    assert_eq!(stream.comes("x"), "");
    assert_eq!(stream.passes(PATIENCE), "x");
    let rest = stream.presenter.push(Some(b"y\nnext\n"), stream.now, |line| {
        stream.lines.push(String::from_utf8(line.to_vec()).unwrap());
    });
    let rest = rest.unwrap();
    assert_eq!(rest.start, Start::Continued(b"[0] ".to_vec()));
    assert_eq!(rest.text, b"y\n[0] next\n");
    assert_eq!(stream.lines, ["one\n", "Name: xy\n", "next\n"], "whole for those who keep lines");
}

#[test]
fn dots_that_never_pause_are_seen_too() {
    let mut stream = Watched::new(FrameStyle::Drawn);
    let mut seen = String::new();
    for _ in 0..20 {
        seen += &stream.comes(".");
        seen += &stream.passes(PATIENCE / 4);
    }
    assert!(seen.starts_with("[0] .") && seen.len() > 15, "{seen:?}");
}

#[test]
fn a_last_line_that_is_shown_already_only_gets_its_end() {
    let mut stream = Watched::new(FrameStyle::Lines);
    stream.comes("last");
    assert_eq!(stream.passes(PATIENCE), "[0] last");
    assert_eq!(stream.ends(), "\n");
}

#[test]
fn a_frame_every_few_seconds_where_nothing_can_be_drawn() {
    let mut stream = Watched::new(FrameStyle::Lines);
    let mut seen = String::new();
    for percent in 0..=100 {
        seen += &stream.comes(&format!("\r{percent}%"));
        seen += &stream.passes(Duration::from_millis(200));
    }
    seen += &stream.comes("\n");
    let lines: Vec<_> = seen.lines().collect();
    assert_eq!(lines[0], "[0] 0%");
    assert!((4..8).contains(&lines.len()), "{lines:?}");
    assert_eq!(lines.last(), Some(&"[0] 100%"));
    // Bars that write the carriage return last and end without a line.
    let mut stream = Watched::new(FrameStyle::Lines);
    stream.comes("10%\r20%\r");
    assert_eq!(stream.passes(PATIENCE), "[0] 20%\n");
    stream.comes("30%\r");
    assert_eq!(stream.passes(PATIENCE), "");
    assert_eq!(stream.ends(), "[0] 30%\n");
}

#[test]
fn a_frame_that_was_shown_is_not_shown_again_as_the_last_line() {
    let mut stream = Watched::new(FrameStyle::Lines);
    stream.comes("\r100%");
    assert_eq!(stream.passes(PATIENCE), "[0] 100%\n");
    assert_eq!(stream.comes("\n"), "");
    assert_eq!(stream.comes("100%\n"), "[0] 100%\n", "another line is another");
}

#[test]
fn a_line_of_another_system_is_no_frame() {
    let mut stream = Watched::new(FrameStyle::Lines);
    assert_eq!(stream.comes("dos\r"), "");
    assert_eq!(stream.comes("\n"), "[0] dos\r\n");
    assert_eq!(stream.passes(FRAME_PERIOD), "");
}

#[test]
fn a_wiped_bar_leaves_no_line() {
    let mut stream = Watched::new(FrameStyle::Lines);
    stream.comes("\r      \r");
    assert_eq!(stream.passes(FRAME_PERIOD) + &stream.ends(), "");
}

#[test]
fn raw_bytes_pass_as_they_come() {
    let mut presenter = Presenter::new(Style::Raw, Form::default());
    let mut lines = Vec::new();
    for part in [&b"a"[..], b"b\r", b"\xffc"] {
        let output = presenter.push(Some(part), Instant::now(), |line| lines.push(line.to_vec()));
        assert_eq!(output.unwrap().text, part);
    }
    assert_eq!((presenter.deadline(), lines.len()), (None, 0));
    presenter.push(None, Instant::now(), |line| lines.push(line.to_vec()));
    assert_eq!(lines.len(), 1);
}

#[test]
fn whole_lines_and_frames_pass_and_the_rest_follows_after_a_moment() {
    let mut stream = Watched {
        presenter: Presenter::new(Style::Whole { line_timeout: PATIENCE }, Form::default()),
        ..Watched::new(FrameStyle::Lines)
    };
    assert_eq!(stream.comes("one\n 10%\r 20%"), "one\n 10%\r");
    assert_eq!(stream.comes("\r"), "", "a line feed may follow");
    assert_eq!(stream.comes("\nName: "), " 20%\r\n");
    assert_eq!(stream.passes(PATIENCE * 2), "Name: ");
    assert_eq!(stream.comes("Ada\nlast"), "Ada\n");
    assert_eq!(stream.ends(), "last");
}

#[test]
fn text_over_a_bar_is_a_line_and_the_bar_waits_for_its_turn() {
    let bar = " 10%|#   | 4/40 [00:01<00:09, 3.98it/s]";
    let mut stream = Watched::new(FrameStyle::Lines);
    assert_eq!(stream.comes(&format!("\r{bar}loss 1\n")), "[0] loss 1\n");
    assert_eq!(stream.passes(PATIENCE * 2), format!("[0] {bar}\n"));
    assert_eq!(stream.comes(&format!("\r{bar}loss 2\n")), "[0] loss 2\n");
    assert_eq!(stream.passes(FRAME_PERIOD / 2), "");
    assert_eq!(stream.comes(&format!("\r{bar}\n")), format!("[0] {bar}\n"));
    assert_eq!(stream.lines[..2], ["loss 1\n", "loss 2\n"]);
}

proptest! {
    #[test]
    fn no_byte_of_a_line_is_lost_or_shown_twice_whenever_the_bytes_come(
        parts in prop::collection::vec(("[ab\n]{0,6}", 0_u64..500), 0..12),
    ) {
        let mut stream = Watched::new(FrameStyle::Lines);
        let mut seen = String::new();
        for (part, pause) in &parts {
            seen += &stream.comes(part);
            seen += &stream.passes(Duration::from_millis(*pause));
        }
        seen += &stream.ends();
        let mut all: String = parts.into_iter().map(|(part, _)| part).collect();
        if !all.is_empty() && !all.ends_with('\n') {
            all.push('\n');
        }
        let expected: String = all.lines().map(|line| format!("[0] {line}\n")).collect();
        prop_assert_eq!(seen, expected);
    }
}
