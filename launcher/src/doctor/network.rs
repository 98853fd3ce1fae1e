//! Host name, interfaces and ports.

use super::row::Row;
use crate::launch::port::{self, MasterPort};
use dtrain_agent::io::interfaces::{self, Interface};
use std::fs;
use std::io;
use std::net::{IpAddr, ToSocketAddrs};
use std::time::{Duration, Instant};

/// A slower resolution delays each start noticeably.
const SLOW: Duration = Duration::from_secs(1);
/// Smaller packets than Ethernet's need the whole path to know.
const ETHERNET_MTU: u32 = 1500;
/// The most interfaces without use to show.
const OTHERS: usize = 6;

/// Checks the name of this machine.
pub(super) fn check_name() -> Vec<Row> {
    let name = dtrain_common::host::name();
    let begun = Instant::now();
    let found = (name.as_str(), 0).to_socket_addrs();
    let found = found.map(|found| found.map(|address| address.ip()).collect());
    let found = found.map_err(|error| unresolved(&error));
    let own = interfaces::interfaces().unwrap_or_default();
    let own: Vec<IpAddr> = own.into_iter().flat_map(|interface| interface.addresses).collect();
    vec![judge_name(&name, found, begun.elapsed(), &own)]
}

/// Describes why a name does not resolve.
pub(super) fn unresolved(error: &io::Error) -> String {
    let text = error.to_string();
    let text = text.rsplit_once("information: ").map_or(text.as_str(), |(_, why)| why);
    match text {
        "Temporary failure in name resolution" => "no name server of /etc/resolv.conf answers".to_owned(),
        other => other.to_owned(),
    }
}

fn judge_name(name: &str, found: Result<Vec<IpAddr>, String>, time: Duration, own: &[IpAddr]) -> Row {
    const WHAT: &str = "host name";
    let mut found = match found {
        Ok(found) => found,
        Err(error) => {
            let remedy =
                format!("add a line with this machine's address and `{name}` to /etc/hosts, or to the DNS");
            return Row::warn(WHAT, format!("{name} does not resolve: {error}"), remedy);
        }
    };
    found.dedup();
    let listed = list(&found);
    if let Some(strange) = found.iter().find(|address| !address.is_loopback() && !own.contains(address)) {
        let remedy = format!(
            "correct {name} in /etc/hosts or the DNS; with several nodes, also give --rdzv-interface"
        );
        return Row::warn(WHAT, format!("{name} is {listed}, but {strange} is not on this machine"), remedy);
    }
    if found.iter().all(IpAddr::is_loopback) {
        let remedy = format!(
            "harmless on one machine; with several nodes, give {name} its network address in /etc/hosts, or launch with \
             --rdzv-interface"
        );
        return Row::warn(WHAT, format!("{name} is {listed}, which other machines cannot reach"), remedy);
    }
    if time > SLOW {
        let remedy = format!("add {name} to /etc/hosts, or check the servers in /etc/resolv.conf");
        return Row::warn(WHAT, format!("{name} resolves only after {:.1} s", time.as_secs_f64()), remedy);
    }
    Row::ok(WHAT, format!("{name} is {listed}"))
}

/// Checks the interfaces. `wanted` is the user's choice, else that of the default route is used.
pub(super) fn check_interfaces(wanted: Option<&str>) -> Vec<Row> {
    match interfaces::interfaces() {
        Ok(found) => judge_interfaces(&found, wanted, interfaces::default_interface().as_deref()),
        Err(error) => {
            vec![Row::warn("network", format!("cannot list the interfaces: {error}"), "mount /sys here")]
        }
    }
}

fn judge_interfaces(found: &[Interface], wanted: Option<&str>, default: Option<&str>) -> Vec<Row> {
    const WHAT: &str = "network";
    let names = || {
        let names: Vec<&str> = found.iter().map(|interface| interface.name.as_str()).collect();
        names.join(", ")
    };
    let used = wanted.or(default);
    let mut rows = Vec::new();
    match used.map(|name| (name, found.iter().find(|interface| interface.name == name))) {
        None => rows.push(Row::warn(
            WHAT,
            "no default route: other machines may be out of reach",
            format!(
                "harmless on one machine; with several nodes, give --rdzv-interface (one of {})",
                names()
            ),
        )),
        Some((name, None)) => {
            let remedy = format!("choose one of {}", names());
            rows.push(Row::fail(WHAT, format!("this machine has no interface {name}"), remedy));
        }
        Some((name, Some(interface))) => rows.push(judge_interface(name, interface, wanted.is_some())),
    }
    let others: Vec<String> = found
        .iter()
        .filter(|interface| Some(interface.name.as_str()) != used && !interface.addresses.is_empty())
        .map(describe)
        .collect();
    if !others.is_empty() {
        // A machine with containers has hundreds.
        let more = others.len().saturating_sub(OTHERS);
        let more = if more > 0 { format!("; and {more} more") } else { String::new() };
        let first = &others[..others.len().min(OTHERS)];
        rows.push(Row::ok(WHAT, format!("not used: {}{more}", first.join("; "))));
    }
    rows
}

fn judge_interface(name: &str, interface: &Interface, is_wanted: bool) -> Row {
    let why = if is_wanted { "--rdzv-interface" } else { "the default route" };
    let value = format!("{}, used by {why}", describe(interface));
    let worse = if is_wanted { Row::fail } else { Row::warn };
    if !interface.is_up {
        worse(
            "network",
            format!("{value}, is down"),
            format!("run `sudo ip link set {name} up`, or use another"),
        )
    } else if interface.addresses.is_empty() {
        worse(
            "network",
            format!("{value}, has no address"),
            "give it one, or use another interface".to_owned(),
        )
    } else if interface.mtu < ETHERNET_MTU && !interface.is_loopback() {
        // Common in containers and clouds; several nodes are tried with large messages.
        Row::ok("network", format!("{value} (below 1500: use it on all nodes)"))
    } else {
        Row::ok("network", value)
    }
}

fn describe(interface: &Interface) -> String {
    let Interface { name, addresses, mtu, .. } = interface;
    format!(
        "{name} with {}, MTU {mtu}",
        if addresses.is_empty() { "no address".to_owned() } else { list(addresses) }
    )
}

fn list(addresses: &[IpAddr]) -> String {
    let addresses: Vec<String> = addresses.iter().map(IpAddr::to_string).collect();
    addresses.join(", ")
}

/// Checks that workers can get a port.
pub(super) fn check_ports() -> Vec<Row> {
    let range = fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range").unwrap_or_default();
    vec![judge_ports(&range, MasterPort::choose().map(|port| port.number).map_err(io::Error::other))]
}

/// `range` are the system's automatic ports, `chosen` the port that a launch would get.
fn judge_ports(range: &str, chosen: io::Result<u16>) -> Row {
    const WHAT: &str = "ports";
    let workers = port::candidates(range);
    let mut ends = range.split_whitespace().map(str::parse::<u16>);
    let automatic = ends.next().and_then(Result::ok).zip(ends.next().and_then(Result::ok));
    let value = format!("{} to {} for workers", workers.start, workers.end - 1);
    match (chosen, automatic) {
        (Err(error), _) => {
            let remedy = "end programs that hold ports (`ss -ltn` lists them)";
            Row::fail(WHAT, format!("{value}, none of them free: {error}"), remedy)
        }
        (Ok(_), Some((lowest, highest))) if lowest < workers.end && highest > workers.start => Row::warn(
            WHAT,
            format!("{value}, but the system gives the same ports ({lowest} to {highest}) to any program"),
            "run `sudo sysctl net.ipv4.ip_local_port_range=\"32768 60999\"`; else a start may need a second try",
        ),
        (Ok(_), _) => Row::ok(WHAT, value),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::super::row::Level;
    use super::*;

    fn addresses(texts: &[&str]) -> Vec<IpAddr> {
        texts.iter().map(|text| text.parse().unwrap()).collect()
    }

    #[test]
    fn a_host_name_must_lead_to_this_machine() {
        let own = addresses(&["127.0.0.1", "10.0.0.5", "::1"]);
        let named = |found: &[&str]| judge_name("n1", Ok(addresses(found)), Duration::ZERO, &own);
        assert_eq!(named(&["10.0.0.5", "10.0.0.5"]), Row::ok("host name", "n1 is 10.0.0.5"));
        let debian = named(&["127.0.1.1"]);
        assert!(debian.value == "n1 is 127.0.1.1, which other machines cannot reach", "{debian:?}");
        assert!(debian.level == Level::Warn && debian.remedy.unwrap().contains("/etc/hosts"));
        let stale = named(&["10.0.0.9"]);
        assert!(stale.value.ends_with("10.0.0.9 is not on this machine"), "{stale:?}");
        let unknown = judge_name("n1", Err("Name or service not known".into()), Duration::ZERO, &own);
        assert!(unknown.value == "n1 does not resolve: Name or service not known", "{unknown:?}");
        let slow = judge_name("n1", Ok(addresses(&["10.0.0.5"])), Duration::from_secs(2), &own);
        assert_eq!((slow.level, slow.value.as_str()), (Level::Warn, "n1 resolves only after 2.0 s"));
    }

    fn interface(name: &str, addresses: &[&str], mtu: u32, is_up: bool) -> Interface {
        let addresses = self::addresses(addresses);
        Interface { name: name.into(), addresses, mtu, is_up }
    }

    #[test]
    fn the_used_interface_must_work() {
        let found = [
            interface("eth0", &["10.0.0.5", "fd00::2"], 1500, true),
            interface("eth1", &[], 1500, true),
            interface("eth2", &["10.1.0.5"], 1500, false),
            interface("eth3", &["10.2.0.5"], 1400, true),
            interface("lo", &["127.0.0.1"], 65_536, true),
        ];
        let first = |wanted, default| judge_interfaces(&found, wanted, default).remove(0);
        let good = first(None, Some("eth0"));
        assert_eq!(
            good,
            Row::ok("network", "eth0 with 10.0.0.5, fd00::2, MTU 1500, used by the default route")
        );
        assert_eq!(first(Some("lo"), Some("eth0")).level, Level::Ok);
        assert!(first(Some("eth3"), None).value.contains("MTU 1400"));
        for (wanted, text) in [("eth1", "has no address"), ("eth2", "is down")] {
            assert_eq!(first(None, Some(wanted)).level, Level::Warn);
            let row = first(Some(wanted), Some("eth0"));
            assert!(row.level == Level::Fail && row.value.ends_with(text), "{row:?}");
        }
        let absent = first(Some("ib0"), Some("eth0"));
        assert_eq!(absent.value, "this machine has no interface ib0");
        assert_eq!(absent.remedy.unwrap(), "choose one of eth0, eth1, eth2, eth3, lo");
        assert_eq!(first(None, None).level, Level::Warn);
        let others = &judge_interfaces(&found, None, Some("eth0"))[1];
        assert!(others.value.starts_with("not used: eth2 with 10.1.0.5, MTU 1500; eth3"), "{others:?}");
        assert_eq!(judge_interfaces(&found[..1], None, Some("eth0")).len(), 1);
        let many: Vec<_> =
            (0..9).map(|index| interface(&format!("cali{index}"), &["10.9.0.1"], 1500, true)).collect();
        let many = &judge_interfaces(&many, None, Some("cali0"))[1].value;
        assert!(
            many.contains("cali6") && !many.contains("cali7") && many.ends_with("; and 2 more"),
            "{many}"
        );
    }

    #[test]
    fn ports_of_workers_are_not_given_out_by_the_system() {
        let judge = |range| judge_ports(range, Ok(20_000));
        assert_eq!(judge("32768\t60999\n"), Row::ok("ports", "20000 to 32767 for workers"));
        assert_eq!(judge("").level, Level::Ok);
        let wide = judge("1024 65535");
        assert!(wide.level == Level::Warn && wide.value.contains("(1024 to 65535)"), "{wide:?}");
        let none = judge_ports("32768 60999", Err(io::Error::other("address in use")));
        assert_eq!(none.level, Level::Fail);
    }
}
