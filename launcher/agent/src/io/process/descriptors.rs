//! The open files that this process was started with, besides the three standard ones: a shell's `>(...)`, a log.

use rustix::fs::{Mode, OFlags};
use rustix::io::FdFlags;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

const FIRST: i32 = 3;

/// What was inherited. Dropping it closes it.
#[derive(Debug)]
pub struct Inherited(Vec<OwnedFd>);

/// Takes over what this process was started with. Call it before anything else is opened.
pub fn inherited() -> Inherited {
    let Ok(entries) = fs::read_dir("/proc/self/fd") else {
        return Inherited(Vec::new());
    };
    let mut numbers: Vec<i32> = entries
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
        .filter(|number| *number >= FIRST)
        .collect();
    // The folder that was read was open then, too.
    numbers.retain(|number| fs::symlink_metadata(format!("/proc/self/fd/{number}")).is_ok());
    #[expect(unsafe_code, reason = "descriptors from before main have no owner")]
    // SAFETY: all are open, and nothing in this program owns them: the callers have opened nothing yet, and the standard
    // library opens nothing by itself.
    let owned = |number| unsafe { OwnedFd::from_raw_fd(number) };
    Inherited(numbers.into_iter().map(owned).collect())
}

impl Inherited {
    /// Programs started from now on do not have them, except those that a word of `args` names, such as `/dev/fd/63`.
    pub fn keep_to_this_process(&self, args: &[OsString]) {
        for file in &self.0 {
            if !args.iter().any(|word| names(word, file.as_raw_fd())) {
                // It cannot fail for an open file.
                let _ = rustix::io::fcntl_setfd(file, FdFlags::CLOEXEC);
            }
        }
    }
}

/// Whether this word ends with the descriptor's name, as in `--config=/dev/fd/63`.
fn names(word: &OsStr, number: i32) -> bool {
    let word = word.as_encoded_bytes();
    ["/dev/fd/", "/proc/self/fd/"].iter().any(|name| word.ends_with(format!("{name}{number}").as_bytes()))
}

/// Standard output and standard error go nowhere from now on: their readers see the end.
pub fn close_output() {
    if let Ok(nowhere) = rustix::fs::open("/dev/null", OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty()) {
        // Both cannot fail for an open file.
        let _ = rustix::stdio::dup2_stdout(&nowhere);
        let _ = rustix::stdio::dup2_stderr(&nowhere);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_names_a_descriptor_by_its_whole_number() {
        for (word, number, named) in [
            ("/dev/fd/63", 63, true),
            ("--config=/proc/self/fd/63", 63, true),
            ("/dev/fd/63", 3, false),
            ("/dev/fd/6", 63, false),
            ("63", 63, false),
        ] {
            assert_eq!(names(OsStr::new(word), number), named, "{word} {number}");
        }
    }
}
