//! The addresses on which this process listens.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, ToSocketAddrs, UdpSocket};

use dtrain_common::env::WorkerEnv;

/// Returns the addresses of MASTER_ADDR that other nodes can use too; none if it cannot be resolved here.
fn master(env: &WorkerEnv) -> Vec<SocketAddr> {
    let host = env.master_addr.as_str();
    let resolved = (host, env.master_port).to_socket_addrs().map(Vec::from_iter).unwrap_or_default();
    // Many systems resolve their own name to a loopback address, which other nodes cannot reach.
    let is_own_name = host != "localhost" && host.parse::<IpAddr>().is_err();
    let is_hidden = |address: &SocketAddr| address.ip().is_loopback() && is_own_name;
    match env.is_one_node() || !resolved.iter().any(is_hidden) {
        true => resolved,
        false => Vec::new(),
    }
}

/// Binds MASTER_PORT on the address of MASTER_ADDR. Returns None if the store must listen on all addresses:
/// MASTER_ADDR cannot be resolved, is not of this machine, or over several nodes has several addresses.
pub(crate) fn listener(env: &WorkerEnv) -> io::Result<Option<TcpListener>> {
    let addresses = master(env);
    if addresses.is_empty() || addresses.len() > 1 && !env.is_one_node() {
        return Ok(None);
    }
    match TcpListener::bind(&addresses[..]) {
        Ok(listener) => Ok(Some(listener)),
        Err(error) if error.kind() == io::ErrorKind::AddrNotAvailable => Ok(None),
        Err(error) => Err(error),
    }
}

/// Returns the address of this machine from which it reaches MASTER_ADDR. Sends nothing.
pub(crate) fn own(env: &WorkerEnv) -> Option<IpAddr> {
    master(env).into_iter().find_map(|master| {
        let any: IpAddr = match master {
            SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
            SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
        };
        let socket = UdpSocket::bind((any, 0)).ok()?;
        socket.connect(master).ok()?;
        Some(socket.local_addr().ok()?.ip())
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn env(host: &str, port: u16, nodes: usize) -> WorkerEnv {
        WorkerEnv {
            world_size: 2,
            local_world_size: 2 / nodes,
            group_world_size: nodes,
            master_addr: host.into(),
            master_port: port,
            ..WorkerEnv::single()
        }
    }

    #[test]
    fn the_store_listens_on_the_address_of_master_addr_only() {
        for (host, nodes) in [("127.0.0.1", 1), ("127.0.0.1", 2), ("127.0.0.2", 2), ("localhost", 1)] {
            let listener = listener(&env(host, 0, nodes)).unwrap().unwrap();
            assert!(listener.local_addr().unwrap().ip().is_loopback(), "{host}");
            let port = listener.local_addr().unwrap().port();
            // A second store on the same address fails instead of listening elsewhere.
            if host != "localhost" {
                let error = super::listener(&env(host, port, nodes)).unwrap_err();
                assert_eq!(error.kind(), io::ErrorKind::AddrInUse);
            }
        }
    }

    #[test]
    fn the_store_listens_everywhere_if_master_addr_is_another_machine_or_unknown() {
        for host in ["192.0.2.1", "unknown.invalid"] {
            assert!(listener(&env(host, 0, 2)).unwrap().is_none(), "{host}");
        }
    }

    #[test]
    fn the_own_address_is_on_the_route_to_master_addr() {
        assert_eq!(own(&env("127.0.0.1", 29500, 2)), Some(Ipv4Addr::LOCALHOST.into()));
        assert_eq!(own(&env("unknown.invalid", 29500, 2)), None);
    }
}
