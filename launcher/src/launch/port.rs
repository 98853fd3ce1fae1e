//! The TCP port where the workers meet.
//!
//! If the launcher serves the store, it takes the port at once. Else rank 0 takes it later, so another
//! program can be first. Three things make that unlikely: the port is outside of the system's range for
//! automatic ports; it is free on all addresses when chosen; and no other dtrain on this machine chooses it
//! while this launcher runs. If it is lost anyway, the group restarts at another port.

use anyhow::Context;
use std::collections::hash_map::RandomState;
use std::fs;
use std::hash::BuildHasher;
use std::io::{self, ErrorKind};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener};
use std::ops::Range;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::UnixDatagram;

/// The lowest candidate port; well-known services use lower ports.
const LOWEST: u16 = 20_000;
/// Candidates to try before the system chooses a port.
const TRIES: u64 = 200;

/// A port that other launches do not choose while this value exists.
#[derive(Debug)]
pub(crate) struct MasterPort {
    pub(crate) number: u16,
    /// Whether the launcher chose the port, and can choose another.
    pub(super) chosen: bool,
    _claim: Option<UnixDatagram>,
}

impl MasterPort {
    pub(crate) fn choose() -> anyhow::Result<Self> {
        let range =
            candidates(&fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range").unwrap_or_default());
        let random = RandomState::new();
        for attempt in 0..TRIES {
            let offset = random.hash_one(attempt) % u64::from(range.end - range.start).max(1);
            let number = range.start + offset as u16;
            let Ok(claim) = claim(number) else { continue };
            if is_free(number) {
                return Ok(Self { number, chosen: true, _claim: Some(claim) });
            }
        }
        let any = TcpListener::bind((Ipv4Addr::UNSPECIFIED, 0)).and_then(|listener| listener.local_addr());
        let any = any.context("cannot find a free TCP port for the workers")?;
        Ok(Self { number: any.port(), chosen: true, _claim: None })
    }

    /// Returns the user's port.
    pub(super) fn fixed(number: u16) -> Self {
        Self { number, chosen: false, _claim: None }
    }

    /// Returns whether these lines of a failed worker report this port as taken.
    pub(super) fn was_taken<'a>(&self, mut lines: impl Iterator<Item = &'a str>) -> bool {
        let number = self.number.to_string();
        lines.any(|line| {
            let line = line.to_ascii_lowercase();
            let in_use = line.contains("eaddrinuse") || line.contains("address already in use");
            let mut words = line.split(|c: char| !c.is_ascii_digit());
            in_use && words.any(|word| word == number)
        })
    }
}

/// Returns the ports below the system's automatic ports (`ip_local_port_range`: lowest and highest).
pub(crate) fn candidates(local_range: &str) -> Range<u16> {
    const USUAL: u16 = 32_768;
    let lowest = local_range.split_whitespace().next();
    let given_out = lowest.and_then(|lowest| lowest.parse().ok()).unwrap_or(USUAL);
    // If the automatic ports begin too low, any port is equally good.
    if given_out >= LOWEST + 1000 { LOWEST..given_out } else { LOWEST..USUAL }
}

/// Binds a name that only one process can have, and that is free again after its end.
fn claim(number: u16) -> io::Result<UnixDatagram> {
    let name = std::os::unix::net::SocketAddr::from_abstract_name(format!("dtrain-master-port-{number}"))?;
    UnixDatagram::bind_addr(&name)
}

fn is_free(number: u16) -> bool {
    let free = |address: SocketAddr| match TcpListener::bind(address) {
        Ok(_) => true,
        // The machine has no IPv6.
        Err(error) => !matches!(error.kind(), ErrorKind::AddrInUse | ErrorKind::PermissionDenied),
    };
    free((Ipv4Addr::UNSPECIFIED, number).into()) && free((Ipv6Addr::UNSPECIFIED, number).into())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn a_port_is_free_and_not_chosen_twice() {
        let chosen: Vec<MasterPort> = (0..50).map(|_| MasterPort::choose().unwrap()).collect();
        let mut numbers: Vec<u16> = chosen.iter().map(|port| port.number).collect();
        assert!(numbers.iter().all(|&number| is_free(number)));
        numbers.sort_unstable();
        numbers.dedup();
        assert_eq!(numbers.len(), 50);
    }

    #[test]
    fn a_port_in_use_is_not_free() {
        let taken = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        assert!(!is_free(taken.local_addr().unwrap().port()));
    }

    #[test]
    fn candidates_lie_below_what_the_system_gives_out() {
        assert_eq!(candidates("32768\t60999\n"), LOWEST..32_768);
        assert_eq!(candidates("30000 60999"), LOWEST..30_000);
        assert_eq!(candidates("1024 65535"), LOWEST..32_768);
        assert_eq!(candidates(""), LOWEST..32_768);
    }

    #[test]
    fn only_this_port_counts_as_taken() {
        let port = MasterPort { number: 29_500, chosen: true, _claim: None };
        let taken = |line: &str| port.was_taken(std::iter::once(line));
        assert!(taken(
            "The server socket has failed to listen on any local network address. port: 29500, useIpv6: false, code: -98, \
             name: EADDRINUSE, message: address already in use"
        ));
        assert!(!taken("bind 127.0.0.1:2950: Address already in use"));
        assert!(!taken("bind 127.0.0.1:129500: Address already in use"));
        assert!(!taken("connected to port 29500"));
    }
}
