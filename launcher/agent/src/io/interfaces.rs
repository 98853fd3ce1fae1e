//! The network interfaces of this machine and their addresses, from the kernel.

use rustix::net::netlink::SocketAddrNetlink;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType};
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
    let addresses = addresses()?;
    let mut found: Vec<Interface> = Vec::new();
    for entry in fs::read_dir("/sys/class/net")? {
        let path = entry?.path();
        let read = |file: &str| fs::read_to_string(path.join(file)).unwrap_or_default().trim().to_owned();
        // A file such as `bonding_masters` is no interface.
        let Ok(index) = read("ifindex").parse::<u32>() else { continue };
        let own = addresses.iter().filter(|(of, _)| *of == index).map(|(_, address)| *address);
        found.push(Interface {
            name: path.file_name().unwrap_or_default().to_string_lossy().into_owned(),
            addresses: own.collect(),
            mtu: read("mtu").parse().unwrap_or(0),
            is_up: is_up(&read("flags"), &read("operstate")),
        });
    }
    found.sort_by(|one, other| one.name.cmp(&other.name));
    Ok(found)
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

/// Reads the files `flags` and `operstate` of an interface. Loopback and tunnels have an unknown link.
fn is_up(flags: &str, operstate: &str) -> bool {
    const IFF_UP: u32 = 1;
    let flags = u32::from_str_radix(flags.trim_start_matches("0x"), 16).unwrap_or(0);
    flags & IFF_UP != 0 && ["up", "unknown"].contains(&operstate)
}

/// Types of rtnetlink's messages and attributes (`linux/rtnetlink.h`, `linux/if_addr.h`).
const NLMSG_DONE: u16 = 3;
const RTM_NEWADDR: u16 = 20;
const RTM_GETADDR: u16 = 22;
const IFA_ADDRESS: u16 = 1;
const IFA_LOCAL: u16 = 2;
/// `NLM_F_REQUEST | NLM_F_DUMP`: list all.
const REQUEST_ALL: u16 = 0x301;
/// Bytes of the header of a message, of an address in it, and of an attribute.
const HEADER: usize = 16;
const ADDRESS: usize = 8;
const ATTRIBUTE: usize = 4;

/// Asks the kernel for all addresses, each with the index of its interface.
fn addresses() -> io::Result<Vec<(u32, IpAddr)>> {
    let (family, kind) = (AddressFamily::NETLINK, SocketType::RAW);
    // Without a protocol: NETLINK_ROUTE.
    let socket = rustix::net::socket_with(family, kind, SocketFlags::CLOEXEC, None)?;
    let mut request = [0; HEADER + ADDRESS];
    request[..4].copy_from_slice(&((HEADER + ADDRESS) as u32).to_ne_bytes());
    request[4..6].copy_from_slice(&RTM_GETADDR.to_ne_bytes());
    request[6..8].copy_from_slice(&REQUEST_ALL.to_ne_bytes());
    rustix::net::sendto(&socket, &request, SendFlags::empty(), &SocketAddrNetlink::new(0, 0))?;
    let (mut found, mut buffer) = (Vec::new(), vec![0; 64 << 10]);
    loop {
        let (length, _) = rustix::net::recv(&socket, buffer.as_mut_slice(), RecvFlags::empty())?;
        if read_messages(&buffer[..length], &mut found) || length == 0 {
            return Ok(found);
        }
    }
}

/// Adds the addresses of one reply; returns whether it ends the list.
fn read_messages(mut reply: &[u8], found: &mut Vec<(u32, IpAddr)>) -> bool {
    while let Some((kind, message)) = next(&mut reply, HEADER, |head| (u32_at(head, 0), u16_at(head, 4))) {
        match kind {
            RTM_NEWADDR if message.len() >= ADDRESS => found.extend(read_address(message)),
            RTM_NEWADDR => {}
            // Also an error ends the list.
            _ => return kind <= NLMSG_DONE,
        }
    }
    false
}

/// Reads family, index and attributes of an address. A local address comes before that of a peer.
fn read_address(message: &[u8]) -> Option<(u32, IpAddr)> {
    let (index, mut rest) = (u32_at(message, 4), &message[ADDRESS..]);
    let mut best: Option<(u16, IpAddr)> = None;
    while let Some((kind, value)) =
        next(&mut rest, ATTRIBUTE, |head| (u32::from(u16_at(head, 0)), u16_at(head, 2)))
    {
        let address = match value.len() {
            4 => <[u8; 4]>::try_from(value).ok().map(IpAddr::from),
            16 => <[u8; 16]>::try_from(value).ok().map(IpAddr::from),
            _ => None,
        };
        if let Some(address) = address.filter(|_| [IFA_ADDRESS, IFA_LOCAL].contains(&kind)) {
            best = best.max(Some((kind, address)));
        }
    }
    let is_of_one_link = |address: &IpAddr| matches!(address, IpAddr::V6(v6) if v6.is_unicast_link_local());
    best.map(|(_, address)| address)
        .filter(|address| !is_of_one_link(address))
        .map(|address| (index, address))
}

/// Splits off the next item: a head with its length and kind, then its content, up to a multiple of 4 bytes.
fn next<'a>(rest: &mut &'a [u8], head: usize, read: impl Fn(&[u8]) -> (u32, u16)) -> Option<(u16, &'a [u8])> {
    let (length, kind) = read(rest.get(..head)?);
    let item = rest.get(head..length as usize)?;
    *rest = rest.get((length as usize).next_multiple_of(4)..).unwrap_or_default();
    Some((kind, item))
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_ne_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_ne_bytes([bytes[at], bytes[at + 1]])
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;
    use proptest::prelude::*;
    use std::net::{Ipv4Addr, Ipv6Addr, TcpListener};

    #[test]
    fn loopback_is_found_and_every_address_can_be_bound() {
        let found = interfaces().unwrap();
        let loopback = found.iter().find(|interface| interface.is_loopback()).unwrap();
        assert!(loopback.addresses.contains(&Ipv4Addr::LOCALHOST.into()), "{loopback:?}");
        assert!(loopback.is_up && loopback.mtu > 0, "{loopback:?}");
        for address in found.iter().flat_map(|interface| &interface.addresses) {
            TcpListener::bind((*address, 0)).unwrap();
        }
        assert_eq!(address_towards(Ipv4Addr::LOCALHOST.into()).unwrap(), Ipv4Addr::LOCALHOST);
    }

    fn attribute(kind: u16, value: &[u8]) -> Vec<u8> {
        let head = [(value.len() as u16 + 4).to_ne_bytes(), kind.to_ne_bytes()].concat();
        [head, value.to_vec(), vec![0; value.len().next_multiple_of(4) - value.len()]].concat()
    }

    fn message(kind: u16, index: u32, attributes: &[Vec<u8>]) -> Vec<u8> {
        let attributes = attributes.concat();
        let length = (HEADER + ADDRESS + attributes.len()) as u32;
        let mut bytes = length.to_ne_bytes().to_vec();
        bytes.extend(kind.to_ne_bytes());
        bytes.extend([0; 14]);
        bytes.extend(index.to_ne_bytes());
        [bytes, attributes].concat()
    }

    #[test]
    fn the_local_address_counts_and_not_that_of_the_peer() {
        let label = attribute(3, b"tun0\0");
        let (peer, own) = ([10, 0, 0, 1], [10, 0, 0, 2]);
        let tunnel =
            message(RTM_NEWADDR, 7, &[attribute(IFA_ADDRESS, &peer), attribute(IFA_LOCAL, &own), label]);
        let link =
            message(RTM_NEWADDR, 8, &[attribute(IFA_ADDRESS, &[&[0xfe, 0x80][..], &[1; 14]].concat())]);
        let six = message(RTM_NEWADDR, 9, &[attribute(IFA_ADDRESS, &Ipv6Addr::LOCALHOST.octets())]);
        let mut found = Vec::new();
        assert!(!read_messages(&[tunnel, link, six].concat(), &mut found));
        assert_eq!(found, [(7, IpAddr::from(own)), (9, Ipv6Addr::LOCALHOST.into())]);
        assert!(read_messages(&message(NLMSG_DONE, 0, &[]), &mut found));
        assert_eq!(found.len(), 2);
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

    #[test]
    fn an_interface_is_up_with_a_link() {
        for (flags, state, expected) in [
            ("0x1003", "up", true),
            ("0x9", "unknown", true),
            ("0x1003", "down", false),
            ("0x1002", "up", false),
            ("", "", false),
        ] {
            assert_eq!(is_up(flags, state), expected, "{flags} {state}");
        }
    }

    proptest! {
        #[test]
        fn no_reply_panics(bytes in prop::collection::vec(any::<u8>(), 0..200), v4 in "(\\PC|\t|\n|0){0,80}") {
            read_messages(&bytes, &mut Vec::new());
            let sized = [&(bytes.len() as u32 + 16).to_ne_bytes()[..], &20u16.to_ne_bytes(), &[0; 10], &bytes];
            read_messages(&sized.concat(), &mut Vec::new());
            default_of(&v4, &v4);
        }
    }
}
