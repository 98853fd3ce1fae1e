//! The only table of exit codes; scripts and batch systems rely on it.

/// The end of a command, as its exit code reports it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ExitStatus {
    Success,
    /// The command line, the recipe or the data are wrong (2); nothing was started or overwritten.
    Usage,
    OutOfMemory,
    /// A worker failed (4); `result.json` and the launcher's banner have its own exit code.
    WorkerFailed,
    /// The workers could not connect to each other (5).
    Rendezvous,
    /// Stopped on request after a checkpoint, from which a later launch resumes (75, as in `EX_TEMPFAIL`).
    Requeue,
    Signal(i32),
    /// The exit code of a launched program other than dtrain's trainer.
    Program(i32),
}

impl ExitStatus {
    /// Returns the exit code. A code or signal that does not fit into a byte becomes 255, never 0.
    pub fn code(self) -> u8 {
        match self {
            Self::Success => 0,
            Self::Usage => 2,
            Self::OutOfMemory => 3,
            Self::WorkerFailed => 4,
            Self::Rendezvous => 5,
            Self::Requeue => 75,
            Self::Signal(signal) => {
                signal.checked_add(128).and_then(|code| u8::try_from(code).ok()).unwrap_or(255)
            }
            Self::Program(code) => u8::try_from(code).unwrap_or(255),
        }
    }

    /// Returns the launcher's status if a worker of dtrain's own trainer exits with `code`.
    pub fn from_worker_code(code: i32) -> Self {
        let known = [Self::Success, Self::Usage, Self::OutOfMemory, Self::Rendezvous, Self::Requeue];
        let status = known.into_iter().find(|status| i32::from(status.code()) == code);
        status.unwrap_or(Self::WorkerFailed)
    }

    /// Returns a short description of the code, for banners and `result.json`.
    pub fn describe(self) -> String {
        match self {
            Self::Success => "success".into(),
            Self::Usage => "the command line, the recipe or the data are wrong".into(),
            Self::OutOfMemory => "out of memory even with the smallest micro-batches".into(),
            Self::WorkerFailed => "a worker failed".into(),
            Self::Rendezvous => "the workers could not connect to each other".into(),
            Self::Requeue => "stopped on request with a checkpoint written".into(),
            Self::Signal(signal) => format!("killed by signal {signal}"),
            Self::Program(0) => "the program succeeded".into(),
            Self::Program(code) => format!("the program exited with code {code}"),
        }
    }
}

impl From<ExitStatus> for std::process::ExitCode {
    fn from(status: ExitStatus) -> Self {
        Self::from(status.code())
    }
}

#[cfg(test)]
mod tests {
    use super::ExitStatus::{self, *};

    #[test]
    fn codes_are_the_documented_ones() {
        let table = [
            (Success, 0),
            (Usage, 2),
            (OutOfMemory, 3),
            (WorkerFailed, 4),
            (Rendezvous, 5),
            (Requeue, 75),
            (Signal(9), 137),
            (Signal(15), 143),
            (Program(42), 42),
            (Program(0), 0),
        ];
        for (status, code) in table {
            assert_eq!(status.code(), code, "{status:?}");
        }
    }

    #[test]
    fn a_failure_never_becomes_zero() {
        for status in [Program(256), Program(-1), Signal(128), Signal(i32::MAX)] {
            assert_eq!(status.code(), 255, "{status:?}");
        }
    }

    #[test]
    fn worker_codes_keep_their_meaning() {
        for (code, expected) in [(0, Success), (2, Usage), (3, OutOfMemory), (5, Rendezvous), (75, Requeue)] {
            assert_eq!(ExitStatus::from_worker_code(code), expected);
        }
        for code in [1, 4, 42, 101, 134, -1] {
            assert_eq!(ExitStatus::from_worker_code(code), WorkerFailed, "{code}");
        }
    }

    #[test]
    fn descriptions_name_the_number() {
        assert!(Signal(11).describe().contains("11"));
        assert!(Program(42).describe().contains("42"));
    }
}
