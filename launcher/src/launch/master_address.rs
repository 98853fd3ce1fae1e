//! The meeting point of the workers: the address and port at which rank 0 listens.

use super::port::MasterPort;
use crate::cli::RendezvousArgs;
use anyhow::{Context, bail};
use dtrain_agent::io::interfaces::is_own;
use dtrain_agent::io::store::BoundPort;
use std::collections::BTreeSet;
use std::io::ErrorKind;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, TcpListener, ToSocketAddrs};

/// The default address.
const LOOPBACK: &str = "127.0.0.1";

/// The number of tries if other programs take the chosen port first.
const TRIES: u32 = 10;

/// The checked meeting point.
#[derive(Debug, Default)]
pub(super) struct MasterAddress {
    /// The host in the form for the workers.
    pub(super) host: String,
    pub(super) addresses: Vec<IpAddr>,
    /// The user's port.
    pub(super) port: Option<u16>,
}

impl MasterAddress {
    /// Checks the user's choice: an address of this machine, and a free port.
    pub(super) fn check(args: &RendezvousArgs) -> anyhow::Result<Self> {
        Self::at(args.host(), args.port())
    }

    /// Returns the meeting point at an address of this machine, with any port.
    pub(super) fn of(address: IpAddr) -> Self {
        Self { host: address.to_string(), addresses: vec![address], port: None }
    }

    /// Returns the meeting point at the leader's port, which passes clients of the store on.
    pub(super) fn at_leaders_port(address: IpAddr, port: u16) -> Self {
        Self { host: address.to_string(), addresses: Vec::new(), port: Some(port) }
    }

    fn at(host: Option<(&str, &str)>, port: Option<(&str, u16)>) -> anyhow::Result<Self> {
        let (host, addresses) = match host {
            None => (LOOPBACK, vec![Ipv4Addr::LOCALHOST.into()]),
            Some((flag, host)) => (host, own_addresses(flag, host)?),
        };
        if let Some((flag, port)) = port {
            expect_free(flag, &addresses, port)?;
        }
        Ok(Self { host: host.to_owned(), addresses, port: port.map(|(_, port)| port) })
    }

    /// Returns the workers' port, and the bound store if the launcher serves it.
    pub(super) fn bind_port(&self, is_served: bool) -> anyhow::Result<(MasterPort, Option<BoundPort>)> {
        let choose = || match self.port {
            Some(number) => Ok(MasterPort::fixed(number)),
            None => MasterPort::choose(),
        };
        if !is_served {
            return Ok((choose()?, None));
        }
        for _ in 0..TRIES {
            let port = choose()?;
            match BoundPort::bind(&self.addresses, port.number) {
                // Another program took the port first.
                Err(error) if self.port.is_none() && error.kind() == ErrorKind::AddrInUse => {}
                taken => {
                    let number = port.number;
                    let place = taken.with_context(|| {
                        format!("cannot serve the workers' store at {}, port {number}", self.host)
                    })?;
                    return Ok((port, Some(place)));
                }
            }
        }
        bail!("cannot find a free TCP port for the workers' store")
    }
}

/// Returns the addresses of this name that belong to this machine.
fn own_addresses(flag: &str, host: &str) -> anyhow::Result<Vec<IpAddr>> {
    let known: BTreeSet<IpAddr> = match (host, 0).to_socket_addrs() {
        Ok(found) => found.map(|address| address.ip()).collect(),
        Err(error) => {
            bail!("{flag} {host}: cannot resolve this name ({error}); give an address of this machine")
        }
    };
    let own: Vec<IpAddr> = known.into_iter().filter(|address| is_own(*address)).collect();
    if own.is_empty() {
        bail!(
            "{flag} {host} is not an address of this machine, where rank 0 runs; for several nodes, give --nnodes; \
             for one, leave it out, or use {LOOPBACK}"
        );
    }
    Ok(own)
}

/// Tries the port at the addresses, and at all addresses, where PyTorch's own store listens.
fn expect_free(flag: &str, addresses: &[IpAddr], port: u16) -> anyhow::Result<()> {
    let everywhere = [IpAddr::from(Ipv6Addr::UNSPECIFIED), Ipv4Addr::UNSPECIFIED.into()];
    for tried in addresses.iter().copied().chain(everywhere) {
        match TcpListener::bind((tried, port)) {
            Ok(_) => {}
            Err(error) if error.kind() == ErrorKind::AddrInUse => bail!(
                "{flag}: port {port} is taken by another program on this machine; choose another port, or leave it out \
                 for a free one"
            ),
            Err(error) if error.kind() == ErrorKind::PermissionDenied => bail!(
                "{flag}: port {port} needs special privileges; choose one of at least 1024, or leave it out for a free \
                 one"
            ),
            // A machine without IPv6 does not have this address.
            Err(_) if !addresses.contains(&tried) => {}
            Err(error) => bail!("{flag}: port {port} cannot be used on {tried}: {error}"),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn without_a_wish_it_is_the_loopback_address_and_any_port() {
        let master_address = MasterAddress::at(None, None).unwrap();
        assert_eq!(master_address.host, "127.0.0.1");
        assert_eq!(master_address.port, None);
    }

    #[test]
    fn a_port_that_is_taken_is_refused_wherever_it_is_taken() {
        for holder in ["127.0.0.1:0", "0.0.0.0:0", "127.0.0.2:0"] {
            let held = TcpListener::bind(holder).unwrap();
            let port = held.local_addr().unwrap().port();
            let error = MasterAddress::at(None, Some(("--master-port", port))).unwrap_err().to_string();
            assert!(error.starts_with(&format!("--master-port: port {port} is taken")), "{error}");
            drop(held);
        }
    }

    #[test]
    fn the_name_is_kept_as_the_user_gave_it() {
        let master_address = MasterAddress::at(Some(("--rdzv-endpoint", "localhost")), None).unwrap();
        assert_eq!(master_address.host, "localhost");
        assert!(master_address.addresses.contains(&Ipv4Addr::LOCALHOST.into()));
    }

    #[test]
    fn an_address_of_another_machine_is_refused() {
        // From the block reserved for documentation.
        let error = MasterAddress::at(Some(("--master-addr", "192.0.2.1")), None).unwrap_err().to_string();
        assert!(error.contains("192.0.2.1 is not an address of this machine"), "{error}");
    }

    #[test]
    fn the_port_is_taken_where_workers_are_and_given_back() {
        let master_address = MasterAddress {
            host: "127.0.0.1".into(),
            addresses: vec![Ipv4Addr::LOCALHOST.into()],
            port: None,
        };
        let (port, place) = master_address.bind_port(true).unwrap();
        let again = || TcpListener::bind((Ipv4Addr::UNSPECIFIED, port.number));
        assert_eq!(again().unwrap_err().kind(), ErrorKind::AddrInUse);
        let taken = MasterAddress { port: Some(port.number), ..master_address };
        let error = taken.bind_port(true).unwrap_err().to_string();
        assert!(error.starts_with("cannot serve the workers' store at 127.0.0.1, port "), "{error}");
        drop(place);
        again().unwrap();
    }
}
