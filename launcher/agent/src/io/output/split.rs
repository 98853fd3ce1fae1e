//! Splits a stream of bytes into lines and carriage-return frames.

use memchr::{memchr2, memrchr};

/// A piece of a worker's output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Piece<'a> {
    /// A line with its end (`\n` or `\r\n`), which a stream's last line and parts of a long line may lack.
    Line(&'a [u8]),
    /// Text ended by `\r`, without it: the next text overwrites it, as progress bars do.
    Frame(&'a [u8]),
}

/// Longer lines are split, so that binary data without line ends does not fill the launcher's memory.
pub(super) const LONGEST_LINE: usize = 16 << 20;

/// Collects bytes until a line or a frame is complete.
#[derive(Debug)]
pub(super) struct Splitter {
    pending: Vec<u8>,
    /// Whether `pending` ends in `\r`: the next byte decides whether it is a frame or a line with `\r\n`.
    carriage_return: bool,
    /// Whether the text before `pending` was a frame.
    after_frame: bool,
    longest: usize,
}

impl Splitter {
    pub(super) fn new(longest: usize) -> Self {
        Self { pending: Vec::new(), carriage_return: false, after_frame: false, longest }
    }

    /// Takes `bytes` and passes every complete piece to `each`, in order.
    pub(super) fn push(&mut self, mut bytes: &[u8], each: &mut impl FnMut(Piece<'_>)) {
        while let Some(&first) = bytes.first() {
            if self.carriage_return {
                match first {
                    b'\n' => {
                        self.pending.push(first);
                        self.line(each);
                        bytes = &bytes[1..];
                        continue;
                    }
                    // Nothing is overwritten yet: a terminal's own translation makes "\r\r\n" of "\r\n".
                    b'\r' if self.pending.len() < self.longest => {
                        self.pending.push(first);
                        bytes = &bytes[1..];
                        continue;
                    }
                    _ => {
                        self.pending.clear();
                        self.carriage_return = false;
                        self.after_frame = true;
                    }
                }
            }
            let Some(end) = memchr2(b'\n', b'\r', bytes) else {
                self.pending.extend_from_slice(bytes);
                if self.pending.len() >= self.longest {
                    self.line(each);
                }
                return;
            };
            let (piece, rest) = bytes.split_at(end + 1);
            if piece[end] == b'\n' {
                if self.pending.is_empty() {
                    each(Piece::Line(piece));
                    self.after_frame = false;
                } else {
                    self.pending.extend_from_slice(piece);
                    self.line(each);
                }
            } else {
                self.pending.extend_from_slice(piece);
                self.carriage_return = true;
                if rest.first() != Some(&b'\n') {
                    each(Piece::Frame(&self.pending[..self.pending.len() - 1]));
                }
            }
            bytes = rest;
        }
    }

    /// Takes `bytes`, or `None` at the end of the stream.
    pub(super) fn take(&mut self, bytes: Option<&[u8]>, each: &mut impl FnMut(Piece<'_>)) {
        match bytes {
            Some(bytes) => self.push(bytes, each),
            None => self.finish(each),
        }
    }

    /// Returns the unfinished line.
    pub(super) fn unfinished_line(&self) -> Option<&[u8]> {
        (!self.after_frame && !self.carriage_return && !self.pending.is_empty()).then_some(&self.pending[..])
    }

    /// Returns the text after a frame, for programs that write the `\r` before each frame.
    pub(super) fn unfinished_frame(&self) -> Option<&[u8]> {
        (self.after_frame && !self.carriage_return && !self.pending.is_empty()).then_some(&self.pending[..])
    }

    /// Ends the stream: passes on a last line without an end.
    pub(super) fn finish(&mut self, each: &mut impl FnMut(Piece<'_>)) {
        if !self.carriage_return && !self.pending.is_empty() {
            self.line(each);
        }
        self.pending.clear();
    }

    fn line(&mut self, each: &mut impl FnMut(Piece<'_>)) {
        each(Piece::Line(&self.pending));
        self.pending.clear();
        self.carriage_return = false;
        self.after_frame = false;
    }
}

/// Returns the end of the last line or frame. A final carriage return is undecided: a line feed may follow.
pub(super) fn last_end(bytes: &[u8]) -> Option<usize> {
    let line = memrchr(b'\n', bytes).map(|at| at + 1);
    let decided = &bytes[line.unwrap_or(0)..bytes.len().saturating_sub(1).max(line.unwrap_or(0))];
    let frame = memrchr(b'\r', decided).map(|at| line.unwrap_or(0) + at + 1);
    frame.or(line)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Returns the pieces of `parts` as text: lines unchanged, frames in angle brackets.
    fn split(parts: &[&[u8]], longest: usize) -> Vec<Vec<u8>> {
        let mut splitter = Splitter::new(longest);
        let mut pieces = Vec::new();
        let mut each = |piece: Piece<'_>| match piece {
            Piece::Line(line) => pieces.push(line.to_vec()),
            Piece::Frame(frame) => pieces.push([b"<", frame, b">"].concat()),
        };
        for part in parts {
            splitter.push(part, &mut each);
        }
        splitter.finish(&mut each);
        pieces
    }

    fn check(input: &[u8], expected: &[&[u8]]) {
        let bytes: Vec<&[u8]> = input.chunks(1).collect();
        assert_eq!(split(&[input], 1000), expected, "in one part");
        let lines = |pieces: Vec<Vec<u8>>| -> Vec<Vec<u8>> {
            pieces.into_iter().filter(|piece| !piece.starts_with(b"<")).collect()
        };
        let expected = expected.iter().map(|piece| piece.to_vec()).collect();
        assert_eq!(lines(split(&bytes, 1000)), lines(expected), "byte by byte");
    }

    #[test]
    fn lines_and_frames() {
        check(b"", &[]);
        check(b"a\nb\n", &[b"a\n", b"b\n"]);
        check(b"a\n\nlast", &[b"a\n", b"\n", b"last"]);
        check(b"10%\r20%\rdone\n", &[b"<10%>", b"<20%>", b"done\n"]);
        check(b"\r10%\r20%\n", &[b"<>", b"<10%>", b"20%\n"]);
        check(b"dos\r\nnext\r\n", &[b"dos\r\n", b"next\r\n"]);
        check(b"bar\r", &[b"<bar>"]);
        check(b"\xff\xfe\x00\n\x80", &[b"\xff\xfe\x00\n", b"\x80"]);
    }

    #[test]
    fn doubled_carriage_returns_belong_to_the_line() {
        assert_eq!(split(&[b"text\r\r\n"], 1000), [&b"<text>"[..], b"text\r\r\n"]);
    }

    #[test]
    fn a_line_without_end_does_not_grow_for_ever() {
        assert_eq!(split(&[b"abc", b"def", b"gh"], 6), [&b"abcdef"[..], b"gh"]);
        let returns = vec![b'\r'; 100];
        assert!(split(&[&returns, b"x\n"], 6).iter().all(|piece| piece.len() <= 8));
    }

    #[test]
    fn a_frame_that_is_begun_can_be_seen() {
        let mut splitter = Splitter::new(1000);
        let mut ignore = |_: Piece<'_>| {};
        splitter.push(b"plain", &mut ignore);
        assert_eq!(splitter.unfinished_frame(), None, "a line in the making is no frame");
        splitter.push(b"\r 10%", &mut ignore);
        assert_eq!(splitter.unfinished_frame(), Some(&b" 10%"[..]));
        splitter.push(b"\n", &mut ignore);
        assert_eq!(splitter.unfinished_frame(), None);
    }

    proptest! {
        #[test]
        fn text_without_carriage_returns_comes_out_as_it_went_in(
            parts in prop::collection::vec("[a\n]{0,12}", 0..12),
        ) {
            let parts: Vec<&[u8]> = parts.iter().map(String::as_bytes).collect();
            let lines = split(&parts, 1000);
            prop_assert_eq!(lines.concat(), parts.concat());
            for line in lines.iter().rev().skip(1) {
                prop_assert!(line.ends_with(b"\n"));
            }
        }

        #[test]
        fn the_lines_do_not_depend_on_how_the_bytes_arrive(input in "[ab\r\n]{0,40}", cut in 0_usize..41) {
            let bytes = input.as_bytes();
            let cut = cut.min(bytes.len());
            let lines = |pieces: Vec<Vec<u8>>| -> Vec<Vec<u8>> {
                pieces.into_iter().filter(|piece| !piece.starts_with(b"<")).collect()
            };
            prop_assert_eq!(lines(split(&[bytes], 1000)), lines(split(&[&bytes[..cut], &bytes[cut..]], 1000)));
        }
    }
}
