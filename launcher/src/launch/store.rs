//! Which launches have a store of the launcher's, and where it is.

use super::meeting::Meeting;
use super::port::MasterPort;
use anyhow::Context;
use dtrain_agent::io::store::Place;
use dtrain_common::env::TORCHELASTIC_USE_AGENT_STORE;
use std::ffi::OsString;
use std::io::ErrorKind;

/// How often a chosen port may be lost before it is taken.
const TRIES: u32 = 10;

/// Whether Python programs of so many workers have it: torchrun's do, unless the user's environment says otherwise. A worker
/// alone serves itself.
pub(super) fn is_for_python(workers: usize, get: impl Fn(&str) -> Option<OsString>) -> bool {
    let is_refused =
        |value: OsString| !value.is_empty() && !value.eq_ignore_ascii_case("true") && value != "1";
    workers > 1 && !get(TORCHELASTIC_USE_AGENT_STORE).is_some_and(is_refused)
}

/// The workers' port, and the place of the store where one is served.
///
/// # Errors
/// No port is free, or not the one that the user wants.
pub(super) fn place(meeting: &Meeting, is_served: bool) -> anyhow::Result<(MasterPort, Option<Place>)> {
    let choose = || {
        meeting
            .port
            .map_or_else(MasterPort::choose, |number| Ok(MasterPort::fixed(number)))
    };
    let mut port = choose()?;
    if !is_served {
        return Ok((port, None));
    }
    for _ in 0..TRIES {
        match Place::take(&meeting.addresses, port.number) {
            // Another program was faster.
            Err(error) if meeting.port.is_none() && error.kind() == ErrorKind::AddrInUse => port = choose()?,
            taken => {
                let place = taken.with_context(|| {
                    format!(
                        "cannot serve the workers' store at {}, port {}",
                        meeting.host, port.number
                    )
                })?;
                return Ok((port, Some(place)));
            }
        }
    }
    anyhow::bail!("cannot find a free TCP port for the workers' store")
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;
    use std::net::{Ipv4Addr, TcpListener};

    #[test]
    fn python_programs_of_several_workers_have_it_unless_the_user_says_no() {
        let served = |workers, value: Option<&str>| is_for_python(workers, |_| value.map(Into::into));
        for value in [None, Some(""), Some("True"), Some("1")] {
            assert!(served(2, value) && !served(1, value), "{value:?}");
        }
        for value in ["False", "0", "no"] {
            assert!(!served(2, Some(value)), "{value}");
        }
    }

    #[test]
    fn the_port_is_taken_where_workers_are_and_given_back() {
        let meeting = Meeting {
            host: "127.0.0.1".into(),
            addresses: vec![Ipv4Addr::LOCALHOST.into()],
            port: None,
        };
        let (port, place) = place(&meeting, true).unwrap();
        let again = || TcpListener::bind((Ipv4Addr::UNSPECIFIED, port.number));
        assert_eq!(again().unwrap_err().kind(), ErrorKind::AddrInUse);
        let taken = Meeting {
            port: Some(port.number),
            ..meeting
        };
        let error = super::place(&taken, true).unwrap_err().to_string();
        assert!(
            error.starts_with("cannot serve the workers' store at 127.0.0.1, port "),
            "{error}"
        );
        drop(place);
        again().unwrap();
    }
}
