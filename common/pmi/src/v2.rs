//! PMI-2: `KEY=VALUE;` pairs after their length in six characters.

use crate::socket::{Socket, Task, value};
use crate::{KeyValues, PmiError};

/// Characters of a length.
const HEAD: usize = 6;

#[derive(Debug)]
pub(crate) struct V2 {
    socket: Socket,
}

impl V2 {
    /// Begins again after a refused PMI-1, on the same socket.
    pub(crate) fn connect(mut socket: Socket) -> Result<(Self, Task), PmiError> {
        let answer = socket.ask("cmd=init pmi_version=2 pmi_subversion=0\n")?;
        if value(&answer, "cmd", ' ') != Some("response_to_init") || value(&answer, "rc", ' ') != Some("0") {
            return Err(PmiError::Answer { expected: "response_to_init with version 1.1 or 2.0", answer });
        }
        let mut connected = Self { socket };
        let id = std::env::var("PMI_JOBID").map_or_else(|_| String::new(), |id| format!("pmijobid={id};"));
        let rank = std::env::var(crate::PMI_RANK).unwrap_or_default();
        let command = format!("cmd=fullinit;{id}pmirank={rank};threaded=FALSE;");
        let answer = connected.ask(&command, "fullinit-response")?;
        let number = |key| value(&answer, key, ';').and_then(|number| number.trim().parse().ok());
        match (number("rank"), number("size")) {
            (Some(rank), Some(size)) if rank < size => Ok((connected, Task { rank, size })),
            _ => Err(PmiError::Answer { expected: "rank and size", answer }),
        }
    }

    /// Sends a command and returns its answer, if it is the expected one.
    fn ask(&mut self, command: &str, expected: &'static str) -> Result<String, PmiError> {
        self.socket.send(&format!("{:HEAD$}{command}", command.len()))?;
        let head = self.socket.bytes(HEAD)?;
        let head = String::from_utf8_lossy(&head).into_owned();
        let Ok(length) = head.trim().parse() else {
            return Err(PmiError::Answer { expected: "a length", answer: head });
        };
        let answer = String::from_utf8_lossy(&self.socket.bytes(length)?).into_owned();
        let is_expected = value(&answer, "cmd", ';') == Some(expected)
            && value(&answer, "rc", ';').is_none_or(|code| code == "0");
        if is_expected { Ok(answer) } else { Err(PmiError::Answer { expected, answer }) }
    }
}

impl KeyValues for V2 {
    fn put(&mut self, key: &str, value: &str) -> Result<(), PmiError> {
        self.ask(&format!("cmd=kvs-put;key={key};value={value};"), "kvs-put-response").map(drop)
    }

    fn fence(&mut self) -> Result<(), PmiError> {
        self.ask("cmd=kvs-fence;", "kvs-fence-response").map(drop)
    }

    fn get(&mut self, rank: usize, key: &str) -> Result<String, PmiError> {
        let answer = self.ask(&format!("cmd=kvs-get;srcid={rank};key={key};"), "kvs-get-response")?;
        match value(&answer, "value", ';') {
            Some(value) => Ok(value.to_owned()),
            None => Err(PmiError::Answer { expected: "a value", answer }),
        }
    }

    fn finalize(&mut self) -> Result<(), PmiError> {
        self.ask("cmd=finalize;", "finalize-response").map(drop)
    }
}
