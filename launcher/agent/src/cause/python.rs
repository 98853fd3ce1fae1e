//! Python's tracebacks: the exception that ended the program, and its place in the program's own code.

use std::fmt;

/// Lines after an exception's first line that may belong to its message: numpy's import error has 16.
const MESSAGE_LINES: usize = 24;
/// Lines of an exception that are searched for known wordings: later lines may come from elsewhere.
pub(super) const SEARCHED_LINES: usize = 7;
/// The lines that Python writes between an exception and the exception to which it led.
const LINKS: [&str; 2] = [
    "During handling of the above exception, another exception occurred:",
    "The above exception was the direct cause of the following exception:",
];

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Place {
    file: String,
    line: u64,
    function: Option<String>,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.file, self.line)?;
        match self.function.as_deref() {
            // `<module>` does not help the user.
            None | Some("<module>") => Ok(()),
            Some(function) => write!(f, ", in {function}"),
        }
    }
}

impl Place {
    /// Parses a line such as `  File "train.py", line 3, in main`.
    fn parse(line: &str) -> Option<Self> {
        let rest = line.strip_prefix(' ')?.trim_start().strip_prefix("File \"")?;
        let (file, rest) = rest.split_once("\", line ")?;
        let (line, rest) = rest.split_at(rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len()));
        let function = match rest {
            "" => None,
            function => Some(function.strip_prefix(", in ")?.to_owned()),
        };
        Some(Self { file: file.to_owned(), line: line.parse().ok()?, function })
    }

    /// Returns whether the file belongs to Python or an installed package, and not to the program.
    fn is_library(&self) -> bool {
        let installed = ["/site-packages/", "/dist-packages/", "/lib/python", "/lib64/python"];
        self.file.starts_with("<frozen ") || installed.iter().any(|folder| self.file.contains(folder))
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Exception {
    /// The type without its module.
    pub(super) name: String,
    /// `Type: message` and the further lines of the message.
    pub(super) lines: Vec<String>,
    /// The innermost place in the program's own code, else the innermost of all.
    pub(super) place: Place,
    /// Whether the previous exception led to this exception.
    linked: bool,
}

impl Exception {
    /// Returns the first line, with later lines if it has only the type, or with numpy's original error.
    pub(super) fn summary(&self) -> String {
        let mut lines = self.lines.iter().map(|line| line.trim());
        let first = lines.next().unwrap_or_default();
        let more: Vec<_> = lines.filter(|line| !line.is_empty()).collect();
        let original = more.iter().rfind(|line| line.starts_with("Original error was:"));
        match original {
            Some(original) => format!("{first} {original}"),
            None if first.ends_with(':') => format!("{first} {}", more.join(" ")).trim_end().to_owned(),
            None => first.to_owned(),
        }
    }
}

/// Returns the number of lines with places at the start of `lines`, and the place to show; else `None`.
pub(super) fn frames(lines: &[String]) -> Option<(usize, Place)> {
    let first = Place::parse(lines.first()?)?;
    let count = lines.iter().take_while(|line| line.starts_with(' ')).count();
    let places: Vec<_> = lines[..count].iter().filter_map(|line| Place::parse(line)).collect();
    let own = places.iter().rfind(|place| !place.is_library());
    let place = own.or(places.last()).cloned().unwrap_or(first);
    Some((count, place))
}

/// Returns the place of a crash in the stack that Python's faulthandler has printed: `  File "a.py", line 3 in f`, innermost
/// first.
pub(super) fn crash(lines: &[String]) -> Option<Place> {
    let header =
        |line: &String| line.starts_with("Current thread ") && line.ends_with("(most recent call first):");
    let begin = lines.iter().rposition(header)? + 1;
    let places = lines[begin..].iter().map_while(|line| {
        let (place, function) = line.rsplit_once(" in ")?;
        Place::parse(&format!("{place}, in {function}"))
    });
    let places: Vec<_> = places.collect();
    let own = places.iter().find(|place| !place.is_library());
    own.or(places.first()).cloned()
}

/// Returns the last exception in `lines` and the exceptions that led to it, the last first.
pub(super) fn exceptions(lines: &[String]) -> Vec<Exception> {
    let mut found: Vec<Exception> = Vec::new();
    let mut linked = false;
    let mut at = 0;
    while at < lines.len() {
        linked |= LINKS.contains(&lines[at].as_str());
        let Some((count, place)) = frames(&lines[at..]) else {
            at += 1;
            continue;
        };
        at += count;
        // Frames may also be quoted in a message, or belong to a thread that is only shown.
        if let Some(name) = lines.get(at).and_then(|line| type_name(line)) {
            let more = lines[at + 1..].iter().take(MESSAGE_LINES).take_while(|line| belongs_to_message(line));
            found.push(Exception {
                name: name.to_owned(),
                lines: std::iter::once(&lines[at]).chain(more).cloned().collect(),
                place,
                linked,
            });
            linked = false;
        }
    }
    found.reverse();
    let chain = found.iter().take_while(|exception| exception.linked).count() + 1;
    found.truncate(chain);
    found
}

/// Returns the type in `package.Type: message`, without its package.
fn type_name(line: &str) -> Option<&str> {
    let path = line.split(':').next()?;
    let is_name = |part: &str| {
        let mut letters = part.chars();
        letters.next().is_some_and(|c| c.is_alphabetic() || c == '_')
            && letters.all(|c| c.is_alphanumeric() || c == '_')
    };
    // Python shows a function's local class as `f.<locals>.Name`.
    let good = path.split('.').all(|part| is_name(part) || part == "<locals>");
    good.then(|| path.rsplit('.').next()).flatten()
}

/// Returns whether a line after an exception may belong to its message: no log line, no traceback.
fn belongs_to_message(line: &str) -> bool {
    !line.starts_with('[') && !line.contains("Traceback (most recent call last)") && !LINKS.contains(&line)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;
    use proptest::prelude::*;

    fn read(text: &str) -> Vec<Exception> {
        let lines: Vec<_> = text.lines().map(str::to_owned).collect();
        exceptions(&lines)
    }

    #[track_caller]
    fn last(text: &str) -> (String, String, String) {
        let exception = read(text).swap_remove(0);
        (exception.name, exception.lines[0].clone(), exception.place.to_string())
    }

    #[test]
    fn the_place_is_the_innermost_of_the_programs_own_code() {
        let text = r#"
Traceback (most recent call last):
  File "<frozen runpy>", line 198, in _run_module_as_main
  File "/home/a/train.py", line 16, in <module>
    work()
  File "/home/a/train.py", line 13, in work
    dist.all_reduce(x)
    ^^^^^^^^^^^^^^^^^^
  File "/venv/lib/python3.11/site-packages/torch/distributed/c10d_logger.py", line 83, in wrapper
    return func(*args, **kwargs)
pkg.errors.Bad: no
"#;
        let expected = ("Bad", "pkg.errors.Bad: no", "/home/a/train.py:13, in work");
        let (name, line, place) = last(text);
        assert_eq!((name.as_str(), line.as_str(), place.as_str()), expected);
    }

    #[test]
    fn without_own_code_it_is_the_innermost_of_all() {
        let text = "  File \"/usr/lib/python3.11/runpy.py\", line 5, in run\n    x\nKeyError: 'a'\n";
        assert_eq!(last(text).2, "/usr/lib/python3.11/runpy.py:5, in run");
    }

    #[test]
    fn a_syntax_error_has_no_header_and_no_function() {
        let text = "  File \"/a/t.py\", line 3\n    def f(\n         ^\nSyntaxError: '(' was never closed\n";
        let (name, _, place) = last(text);
        assert_eq!((name.as_str(), place.as_str()), ("SyntaxError", "/a/t.py:3"));
    }

    #[test]
    fn linked_exceptions_come_along_and_earlier_ones_do_not() {
        let one = |n: u32| {
            format!("Traceback (most recent call last):\n  File \"a.py\", line {n}\n    x\nE{n}: m\n")
        };
        let text = format!("{}{}{}\n{}", one(1), one(2), LINKS[0], one(3));
        let names: Vec<_> = read(&text).into_iter().map(|e| e.name).collect();
        assert_eq!(names, ["E3", "E2"]);
    }

    #[test]
    fn the_exception_of_a_loader_process_is_the_one_that_counts() {
        let text = r#"Traceback (most recent call last):
  File "train.py", line 9, in <module>
    for batch in loader:
RuntimeError: Caught IndexError in DataLoader worker process 0.
Original Traceback (most recent call last):
  File "/v/lib/python3.11/site-packages/torch/utils/data/_utils/worker.py", line 349, in _worker_loop
    data = fetcher.fetch(index)
  File "data.py", line 4, in __getitem__
    return self.items[i]
IndexError: list index out of range
"#;
        let (name, _, place) = last(text);
        assert_eq!((name.as_str(), place.as_str()), ("IndexError", "data.py:4, in __getitem__"));
    }

    #[test]
    fn a_message_ends_where_a_log_goes_on() {
        let text =
            "  File \"a.py\", line 1\n    x\nValueError: one\ntwo\n[rank0]:[W1121 a.cpp:1] three\nfour\n";
        assert_eq!(read(text)[0].lines, ["ValueError: one", "two"]);
    }

    #[test]
    fn a_message_that_begins_on_the_next_line_is_not_lost() {
        // numpy's message if one of its libraries does not load.
        let text = "  File \"a.py\", line 1, in <module>\n    import numpy\nImportError: \n\nIMPORTANT: PLEASE READ THIS\n\n\
                    Importing the numpy C-extensions failed. This error can happen for\nmany reasons, often due to issues\n\
                    with your setup or how NumPy was\ninstalled.\n\nWe have compiled some\n\n    https://numpy.org/x.html\n\n\
                    Please note\n\n  * The Python version is: 3.11\n  * The NumPy version is: 2.0\n\nand make sure\nPlease carefully\n\n\
                    Original error was: libopenblas.so.0: cannot open shared object file\n\n";
        assert_eq!(
            read(text)[0].summary(),
            "ImportError: Original error was: libopenblas.so.0: cannot open shared object file"
        );
        let text = "  File \"a.py\", line 1\n    x\nValueError:\none\n\n  two\n";
        assert_eq!(read(text)[0].summary(), "ValueError: one two");
        let text = "  File \"a.py\", line 1\n    x\nValueError: one\nmore\n";
        assert_eq!(read(text)[0].summary(), "ValueError: one");
    }

    #[test]
    fn a_crash_is_where_the_programs_own_code_called_native_code() {
        let text = r#"Fatal Python error: Segmentation fault

Thread 0x00007f62 (most recent call first):
  File "/usr/lib/python3.11/threading.py", line 324 in wait

Current thread 0x00007f63 (most recent call first):
  File "/usr/lib/python3.11/ctypes/__init__.py", line 519 in string_at
  File "/home/a b/train in.py", line 3 in f
  File "/home/a b/train in.py", line 9 in <module>

Extension modules: numpy (total: 1)
"#;
        let place =
            |text: &str| crash(&text.lines().map(str::to_owned).collect::<Vec<_>>()).map(|it| it.to_string());
        assert_eq!(place(text).as_deref(), Some("/home/a b/train in.py:3, in f"));
        let library = text.replace("/home/a b", "/v/site-packages/x");
        assert_eq!(
            place(&library).as_deref(),
            Some("/usr/lib/python3.11/ctypes/__init__.py:519, in string_at")
        );
        assert_eq!(place("Current thread 0x1 (most recent call first):\n  <no Python frame>\n"), None);
        assert_eq!(place("Segmentation fault\n"), None);
    }

    #[test]
    fn text_that_resembles_a_traceback_is_not_one() {
        for text in [
            "",
            "ValueError: no frames\n",
            "Fatal Python error: Aborted\n  File \"a.py\", line 3 in f\nExtension modules: numpy (total: 1)\n",
            "  File \"a.py\", line 3, in f\n    x\nSet TORCHDYNAMO_VERBOSE=1 for the internal stack trace\n",
            "  File \"a.py\", line 3, in f\n",
            "File \"a.py\", line 3, in f\nValueError: not indented\n",
        ] {
            assert_eq!(read(text), [], "{text}");
        }
    }

    proptest! {
        #[test]
        fn no_input_panics(
            lines in proptest::collection::vec("(  File \"|\", line |[0-9]{0,30}|, in |E: |\\.|\\PC){0,6}", 0..12),
        ) {
            exceptions(&lines);
            frames(&lines);
        }
    }
}
