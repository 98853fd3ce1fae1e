//! Words for connections between nodes that fail: those of the doctor and of a launch.

use dtrain_agent::cluster::trial::{FailedConnection, FailedTry, Fault, Place};

/// Connections that fail in the same way.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Finding {
    /// `FROM -> TO`.
    pub(crate) pair: String,
    pub(crate) cause: String,
    pub(crate) remedy: String,
}

/// Returns the findings; failures of one node that have the same cause are one.
pub(crate) fn findings(failed: &[FailedConnection]) -> Vec<Finding> {
    let is_workers = |it: &FailedConnection| it.place.worker_port == Some(it.failure.port);
    let kind = |it: &FailedConnection| {
        let FailedTry { fault, other_works, .. } = it.failure;
        (it.to.clone(), it.place.number, fault, other_works, is_workers(it))
    };
    let mut groups: Vec<Vec<&FailedConnection>> = Vec::new();
    for one in failed {
        match groups.iter_mut().find(|group| kind(group[0]) == kind(one)) {
            Some(group) => group.push(one),
            None => groups.push(vec![one]),
        }
    }
    let describe = |group: Vec<&FailedConnection>| {
        let FailedConnection { to, place, failure, .. } = group[0];
        let from: Vec<&str> = group.iter().map(|one| one.from.as_str()).collect();
        let (cause, remedy) = explain(to, place, *failure);
        Finding { pair: format!("{} -> {to}", short(&from)), cause, remedy }
    };
    groups.into_iter().map(describe).collect()
}

/// Joins names; of many, the first ones.
pub(crate) fn short(names: &[&str]) -> String {
    const MOST: usize = 4;
    match names.len() {
        0..=MOST => names.join(", "),
        count => format!("{} and {} more", names[..MOST].join(", "), count - MOST),
    }
}

/// Returns the cause and the remedy.
fn explain(name: &str, place: &Place, failure: FailedTry) -> (String, String) {
    let FailedTry { fault, port, other_works } = failure;
    let address = place.address;
    if address.is_loopback() && fault != Fault::LargeLost {
        return (
            format!("{name} has only the address {address}, which leads each node to itself"),
            format!("on {name}, give --rdzv-interface, or correct the name of --rdzv-endpoint in /etc/hosts"),
        );
    }
    let interface = place.interface.as_deref().unwrap_or("INTERFACE");
    match fault {
        Fault::Silent if other_works => {
            let is_workers = place.worker_port == Some(port);
            let ports = if is_workers { "20000 to 32767" } else { "32768 to 60999" };
            (
                format!(
                    "no answer from {address} at port {port}, but at another port: a firewall blocks some ports"
                ),
                format!("open the TCP ports {ports} of {name} for the other nodes"),
            )
        }
        Fault::Silent => (
            format!(
                "no answer from {address}, port {port}: a firewall drops packets, or the address is on another network"
            ),
            format!("open the TCP ports from 20000 of {name} for the other nodes, or give --rdzv-interface"),
        ),
        Fault::Refused => (
            format!(
                "{address} refuses port {port}: a firewall rejects it, or the address is of another machine"
            ),
            format!("open the TCP ports from 20000 of {name} for the other nodes, or give --rdzv-interface"),
        ),
        Fault::Unreachable => (
            format!("there is no route to {address}"),
            format!("on {name}, choose an interface that all nodes reach, with --rdzv-interface"),
        ),
        Fault::Stranger => (
            format!("another machine or program answers at {address}: two machines have this address"),
            "give each node its own address, or choose another --rdzv-interface".to_owned(),
        ),
        Fault::LargeLost => (
            "small messages arrive, but large ones do not: packets above the MTU of the path are lost"
                .to_owned(),
            format!(
                "run `sudo ip link set {interface} mtu 1400` on all nodes, or `sudo sysctl net.ipv4.tcp_mtu_probing=1`"
            ),
        ),
        Fault::Broken => (
            format!("the connection to {address}, port {port}, breaks off"),
            "look for a proxy or a firewall between the nodes, and try again".to_owned(),
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn failed(from: &str, fault: Fault, port: u16, other_works: bool) -> FailedConnection {
        let place = Place {
            address: [10, 0, 0, 2].into(),
            interface: Some("eth0".into()),
            worker_port: Some(20_000),
            automatic_port: 40_000,
            number: 2,
        };
        let failure = FailedTry { fault, port, other_works };
        FailedConnection { from: from.into(), to: "n2".into(), place, failure }
    }

    #[test]
    fn a_node_that_all_miss_is_one_finding_with_the_cause() {
        for (fault, port, other_works, cause, remedy) in [
            (Fault::Silent, 20_000, true, "blocks some ports", "open the TCP ports 20000 to 32767 of n2"),
            (Fault::Silent, 40_000, true, "blocks some ports", "open the TCP ports 32768 to 60999 of n2"),
            (Fault::Silent, 20_000, false, "a firewall drops packets", "--rdzv-interface"),
            (Fault::Refused, 20_000, false, "10.0.0.2 refuses port 20000", "--rdzv-interface"),
            (Fault::Unreachable, 20_000, false, "no route to 10.0.0.2", "--rdzv-interface"),
            (Fault::Stranger, 20_000, false, "two machines have this address", "its own address"),
            (Fault::LargeLost, 20_000, false, "packets above the MTU", "`sudo ip link set eth0 mtu 1400`"),
            (Fault::Broken, 20_000, false, "breaks off", "proxy"),
        ] {
            let found = findings(&["n0", "n1"].map(|from| failed(from, fault, port, other_works)));
            assert_eq!((found.len(), found[0].pair.as_str()), (1, "n0, n1 -> n2"));
            assert!(found[0].cause.contains(cause) && found[0].remedy.contains(remedy), "{found:?}");
        }
        let two = [failed("n0", Fault::Silent, 20_000, true), failed("n0", Fault::Silent, 40_000, true)];
        assert_eq!(findings(&two).len(), 2);
        assert_eq!(short(&["a", "b", "c", "d", "e", "f"]), "a, b, c, d and 2 more");
    }

    #[test]
    fn an_address_that_leads_each_node_to_itself_is_named() {
        let mut failed = failed("n0", Fault::Refused, 20_000, false);
        failed.place.address = [127, 0, 1, 1].into();
        let found = findings(&[failed]);
        assert_eq!(found[0].cause, "n2 has only the address 127.0.1.1, which leads each node to itself");
    }
}
