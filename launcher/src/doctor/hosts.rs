//! `--nodes`: other machines as this one sees them, without a program there.

use super::network::unresolved;
use super::row::{Level, Row};
use dtrain_agent::io::interfaces::{self, Interface};
use std::io::{self, ErrorKind};
use std::net::{IpAddr, SocketAddr, TcpStream, ToSocketAddrs};
use std::thread;
use std::time::Duration;

/// The time for a connection.
const PATIENCE: Duration = Duration::from_millis(1500);

/// What is known of one address of a host.
#[derive(Debug)]
struct Address {
    address: IpAddr,
    /// The local address towards it, or the error.
    local: io::Result<IpAddr>,
    /// The result of a connection to the port.
    connected: io::Result<()>,
}

/// Returns the rows of one host. Waits for the name service, then tries all addresses at once.
pub(super) fn check(host: &str, port: u16) -> Vec<Row> {
    let found = (host, port).to_socket_addrs();
    let mut found: Vec<IpAddr> = match found {
        Ok(found) => found.map(|address| address.ip()).collect(),
        Err(error) => {
            let remedy = "correct the name, or add it to /etc/hosts or the DNS";
            let value = format!("the name does not resolve: {}", unresolved(&error));
            return vec![Row::fail(host, value, remedy)];
        }
    };
    found.dedup();
    let try_address = |address: &IpAddr| Address {
        address: *address,
        local: interfaces::address_towards(*address),
        connected: TcpStream::connect_timeout(&SocketAddr::new(*address, port), PATIENCE).map(drop),
    };
    let tried: Vec<Address> = thread::scope(|scope| {
        let tries: Vec<_> = found.iter().map(|address| scope.spawn(move || try_address(address))).collect();
        tries.into_iter().filter_map(|tried| tried.join().ok()).collect()
    });
    let own = interfaces::interfaces().unwrap_or_default();
    let is_here = dtrain_common::host::name() == host;
    let mut rows: Vec<Row> = tried.iter().map(|tried| judge(host, is_here, port, tried, &own)).collect();
    // Programs try all addresses of a name.
    if rows.iter().any(|row| row.level == Level::Ok) {
        rows.iter_mut().for_each(|row| row.level = row.level.min(Level::Warn));
    }
    rows
}

fn judge(host: &str, is_here: bool, port: u16, tried: &Address, own: &[Interface]) -> Row {
    let Address { address, local, connected } = tried;
    let local = local.as_ref().ok();
    let way = local.and_then(|local| own.iter().find(|interface| interface.addresses.contains(local)));
    let way = way.map(|it| format!(" by {} (MTU {})", it.name, it.mtu)).unwrap_or_default();
    let value = |rest: &str| format!("{address}{way}: {rest}");
    let is_loopback =
        address.is_loopback() && !is_here && !["localhost", &address.to_string()].contains(&host);
    match connected.as_ref().map_err(io::Error::kind) {
        _ if is_loopback => Row::fail(
            host,
            value("the name leads to this machine itself"),
            format!("give {host} its network address in /etc/hosts"),
        ),
        Ok(()) => Row::ok(host, value(&format!("answers at port {port}"))),
        Err(ErrorKind::ConnectionRefused) => {
            Row::ok(host, value(&format!("up; no program listens at port {port} now")))
        }
        Err(ErrorKind::TimedOut) => Row::fail(
            host,
            value(&format!("no answer at port {port}: a firewall drops packets, or the machine is down")),
            format!("start the machine, or open TCP port {port} there"),
        ),
        Err(ErrorKind::HostUnreachable | ErrorKind::NetworkUnreachable) => Row::fail(
            host,
            value("unreachable: no route leads there, or the machine is down"),
            "start the machine, check its address, or use another network",
        ),
        Err(kind) => Row::fail(host, value(&kind.to_string()), "check the address and the network"),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;
    use std::net::TcpListener;

    #[test]
    fn what_happens_at_the_port_is_told() {
        let own = [Interface {
            name: "eth0".into(),
            addresses: vec!["10.0.0.1".parse().unwrap()],
            mtu: 1500,
            is_up: true,
        }];
        let row = |address: &str, connected: Result<(), ErrorKind>| {
            let (address, local) = (address.parse().unwrap(), Ok("10.0.0.1".parse().unwrap()));
            let tried = Address { address, local, connected: connected.map_err(io::Error::from) };
            judge("n2", false, 29_400, &tried, &own)
        };
        let good = row("10.0.0.2", Ok(()));
        assert_eq!(good, Row::ok("n2", "10.0.0.2 by eth0 (MTU 1500): answers at port 29400"));
        let up = row("10.0.0.2", Err(ErrorKind::ConnectionRefused));
        assert!(up.level == Level::Ok && up.value.contains("up; no program listens"), "{up:?}");
        for (kind, text) in [
            (ErrorKind::TimedOut, "a firewall drops packets"),
            (ErrorKind::HostUnreachable, "unreachable"),
            (ErrorKind::PermissionDenied, "permission denied"),
        ] {
            let bad = row("10.0.0.2", Err(kind));
            assert!(bad.level == Level::Fail && bad.value.contains(text), "{bad:?}");
        }
        let itself = row("127.0.1.1", Ok(()));
        assert!(
            itself.level == Level::Fail && itself.value.ends_with("leads to this machine itself"),
            "{itself:?}"
        );
    }

    #[test]
    fn hosts_are_tried() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let row = &check("127.0.0.1", port)[0];
        assert!(
            row.level == Level::Ok && row.value.contains("by lo (MTU") && row.value.contains("answers"),
            "{row:?}"
        );
        drop(listener);
        assert!(check("127.0.0.1", port)[0].value.contains("up; no program listens"));
        let unknown = &check("no-such-host.invalid", port)[0];
        assert!(
            unknown.level == Level::Fail && unknown.value.starts_with("the name does not resolve"),
            "{unknown:?}"
        );
    }
}
