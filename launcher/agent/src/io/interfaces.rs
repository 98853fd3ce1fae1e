//! The network interfaces of this machine and their addresses, from the kernel.

use nix::ifaddrs::getifaddrs;
use nix::net::if_::InterfaceFlags;
use nix::sys::socket::SockaddrStorage;
use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::net::{IpAddr, UdpSocket};
use std::path::Path;

/// A network interface.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Interface {
    pub name: String,
    /// Without IPv6 addresses that are valid on one link only.
    pub addresses: Vec<IpAddr>,
    /// The largest packet in bytes; 0 if unknown.
    pub mtu: u32,
    /// Whether it is switched on and has a link.
    pub is_up: bool,
}

impl Interface {
    pub fn is_loopback(&self) -> bool {
        self.name == "lo" || self.addresses.iter().any(IpAddr::is_loopback)
    }
}

/// Returns the interfaces, by name.
pub fn interfaces() -> io::Result<Vec<Interface>> {
    let mut found = BTreeMap::new();
    for entry in getifaddrs()? {
        // An address with a label, such as `eth0:1`, belongs to `eth0`.
        let name = entry.interface_name.split(':').next().unwrap_or_default().to_owned();
        let interface = found.entry(name).or_insert_with_key(|name| Interface {
            name: name.clone(),
            addresses: Vec::new(),
            mtu: mtu(name),
            // Running: it has a link, or cannot tell, as loopback and tunnels.
            is_up: entry.flags.contains(InterfaceFlags::IFF_UP | InterfaceFlags::IFF_RUNNING),
        });
        interface.addresses.extend(entry.address.as_ref().and_then(ip_of));
    }
    Ok(found.into_values().collect())
}

/// Returns whether an address is one of this machine: of an interface, of the loopback network, or that for all addresses.
/// A program may bind others too (`ip_nonlocal_bind`), where nothing arrives.
pub fn is_own(address: IpAddr) -> bool {
    let address = address.to_canonical();
    let is_of = |interface: &Interface| interface.addresses.contains(&address);
    address.is_loopback() || address.is_unspecified() || interfaces().is_ok_and(|all| all.iter().any(is_of))
}

fn mtu(interface: &str) -> u32 {
    let file = Path::new("/sys/class/net").join(interface).join("mtu");
    fs::read_to_string(file).ok().and_then(|mtu| mtu.trim().parse().ok()).unwrap_or(0)
}

fn ip_of(address: &SockaddrStorage) -> Option<IpAddr> {
    let v4 = address.as_sockaddr_in().map(|address| IpAddr::V4(address.ip()));
    let v6 = || address.as_sockaddr_in6().map(|address| address.ip());
    v4.or_else(|| v6().filter(|address| !address.is_unicast_link_local()).map(IpAddr::V6))
}

/// Returns the address that this machine uses towards `peer`. Sends nothing.
pub fn address_towards(peer: IpAddr) -> io::Result<IpAddr> {
    let any = if peer.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
    let socket = UdpSocket::bind(any)?;
    socket.connect((peer, 9))?;
    Ok(socket.local_addr()?.ip())
}

/// Returns the name of the interface of the default route, if there is one.
pub fn default_interface() -> Option<String> {
    let read = |file: &str| fs::read_to_string(Path::new("/proc/net").join(file)).unwrap_or_default();
    default_of(&read("route"), &read("ipv6_route"))
}

/// Reads `/proc/net/route` and `/proc/net/ipv6_route`: IPv4 first, then the smallest metric.
fn default_of(v4: &str, v6: &str) -> Option<String> {
    let v4 = v4.lines().filter_map(|line| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let is_default = fields.get(1) == Some(&"00000000") && fields.get(7) == Some(&"00000000");
        is_default.then(|| Some((fields[6].parse::<u32>().ok()?, fields[0].to_owned())))?
    });
    let v6 = v6.lines().filter_map(|line| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let is_default = fields.get(1) == Some(&"00") && fields.last().is_some_and(|name| *name != "lo");
        is_default
            .then(|| Some((u32::from_str_radix(fields.get(5)?, 16).ok()?, fields.last()?.to_string())))?
    });
    v4.min().or_else(|| v6.min()).map(|(_, name)| name)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;
    use proptest::prelude::*;
    use std::net::{Ipv4Addr, TcpListener};

    #[test]
    fn loopback_is_found_and_every_address_can_be_bound() {
        let found = interfaces().unwrap();
        let loopback = found.iter().find(|interface| interface.is_loopback()).unwrap();
        assert!(loopback.addresses.contains(&Ipv4Addr::LOCALHOST.into()), "{loopback:?}");
        assert!(loopback.is_up && loopback.mtu > 0, "{loopback:?}");
        for address in found.iter().flat_map(|interface| &interface.addresses) {
            TcpListener::bind((*address, 0)).unwrap();
            assert!(is_own(*address));
        }
        // The last is from the block reserved for documentation.
        for (address, own) in
            [("127.9.9.9", true), ("::ffff:127.0.0.1", true), ("0.0.0.0", true), ("192.0.2.1", false)]
        {
            assert_eq!(is_own(address.parse().unwrap()), own, "{address}");
        }
        assert_eq!(address_towards(Ipv4Addr::LOCALHOST.into()).unwrap(), Ipv4Addr::LOCALHOST);
    }

    #[test]
    fn the_default_route_with_the_smallest_metric_counts() {
        let v4 = "Iface Destination Gateway Flags RefCnt Use Metric Mask MTU Window IRTT\n\
                  eth1 00000000 010200C0 0003 0 0 200 00000000 0 0 0\n\
                  eth0 00000000 010200C0 0003 0 0 100 00000000 0 0 0\n\
                  eth2 000200C0 00000000 0001 0 0 0 00FFFFFF 0 0 0\n";
        let zero = "0".repeat(32);
        let v6 = format!(
            "{zero} 00 {zero} 00 {zero} ffffffff 00000001 00000000 00200200 lo\n\
             {zero} 00 {zero} 00 {zero} 00000400 00000001 00000000 00000003 ib0\n"
        );
        assert_eq!(default_of(v4, &v6).as_deref(), Some("eth0"));
        assert_eq!(default_of("Iface\n", &v6).as_deref(), Some("ib0"));
        assert_eq!(default_of("", ""), None);
    }

    proptest! {
        #[test]
        fn no_table_panics(table in "(\\PC|\t|\n|0){0,80}") {
            default_of(&table, &table);
        }
    }
}
