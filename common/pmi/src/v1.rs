//! PMI-1: a line for each command, and one for its answer.

use crate::socket::{Socket, value};
use crate::{KeyValues, PmiError};

#[derive(Debug)]
pub(crate) struct V1 {
    socket: Socket,
    /// Name of the key-value space.
    space: String,
}

impl V1 {
    /// Returns the socket if the starter refuses this version.
    pub(crate) fn connect(mut socket: Socket) -> Result<Result<Self, Socket>, PmiError> {
        let answer = socket.ask("cmd=init pmi_version=1 pmi_subversion=1\n")?;
        if value(&answer, "cmd", ' ') != Some("response_to_init") {
            return Err(PmiError::Answer { expected: "response_to_init", answer });
        }
        if value(&answer, "rc", ' ') != Some("0") {
            return Ok(Err(socket));
        }
        let mut connected = Self { socket, space: String::new() };
        connected.space = connected.ask("cmd=get_my_kvsname", "my_kvsname", Some("kvsname"))?;
        Ok(Ok(connected))
    }

    /// Sends a command, and returns a value of its answer.
    fn ask(&mut self, command: &str, expected: &'static str, key: Option<&str>) -> Result<String, PmiError> {
        let answer = self.socket.ask(&format!("{command}\n"))?;
        let is_expected = value(&answer, "cmd", ' ') == Some(expected)
            && value(&answer, "rc", ' ').is_none_or(|code| code == "0");
        let found = match key {
            None => Some(String::new()),
            Some(key) => value(&answer, key, ' ').map(str::to_owned),
        };
        found.filter(|_| is_expected).ok_or(PmiError::Answer { expected, answer })
    }
}

impl KeyValues for V1 {
    fn put(&mut self, key: &str, value: &str) -> Result<(), PmiError> {
        let command = format!("cmd=put kvsname={} key={key} value={value}", self.space);
        self.ask(&command, "put_result", None).map(drop)
    }

    fn fence(&mut self) -> Result<(), PmiError> {
        self.ask("cmd=barrier_in", "barrier_out", None).map(drop)
    }

    fn get(&mut self, _rank: usize, key: &str) -> Result<String, PmiError> {
        self.ask(&format!("cmd=get kvsname={} key={key}", self.space), "get_result", Some("value"))
    }

    fn finalize(&mut self) -> Result<(), PmiError> {
        self.ask("cmd=finalize", "finalize_ack", None).map(drop)
    }
}
