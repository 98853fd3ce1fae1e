//! The files that this process inherited, except the three standard streams: a shell's `>(...)`, a log.

use rustix::fs::{Mode, OFlags};
use rustix::io::FdFlags;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

const FIRST: i32 = 3;

/// The inherited files. Dropping closes them.
#[derive(Debug)]
pub struct Inherited(Vec<OwnedFd>);

/// Takes ownership of the inherited files. Call it before any other file is opened.
pub fn inherited() -> Inherited {
    let Ok(entries) = fs::read_dir("/proc/self/fd") else {
        return Inherited(Vec::new());
    };
    let mut numbers: Vec<i32> = entries
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
        .filter(|number| *number >= FIRST)
        .collect();
    // The list also has the folder's own descriptor, which is closed by now.
    numbers.retain(|number| fs::symlink_metadata(format!("/proc/self/fd/{number}")).is_ok());
    #[expect(unsafe_code, reason = "descriptors from before main have no owner")]
    // SAFETY: all descriptors are open, and nothing in this program owns them: the callers have opened
    // nothing yet, and the standard library opens nothing by itself.
    let owned = |number| unsafe { OwnedFd::from_raw_fd(number) };
    Inherited(numbers.into_iter().map(owned).collect())
}

impl Inherited {
    /// Hides the files from programs started later, except files named in `args`, such as `/dev/fd/63`.
    pub fn keep_to_this_process(&self, args: &[OsString]) {
        for file in &self.0 {
            if !args.iter().any(|word| names(word, file.as_raw_fd())) {
                // Cannot fail for an open file.
                let _ = rustix::io::fcntl_setfd(file, FdFlags::CLOEXEC);
            }
        }
    }
}

/// Returns whether the word ends with the descriptor's name, as in `--config=/dev/fd/63`.
fn names(word: &OsStr, number: i32) -> bool {
    let word = word.as_encoded_bytes();
    ["/dev/fd/", "/proc/self/fd/"].iter().any(|name| word.ends_with(format!("{name}{number}").as_bytes()))
}

/// Redirects standard output and standard error to /dev/null: their readers see the end.
pub fn close_output() {
    if let Ok(nowhere) = rustix::fs::open("/dev/null", OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty()) {
        // Neither call can fail for an open file.
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
