//! Parsers of hosts, endpoints and numbers of nodes.

use crate::cli::numbers::whole;
use std::ops::RangeInclusive;

/// More nodes are probably a typing error.
const MOST_NODES: usize = 4096;

/// Parses a number of nodes, or a range.
pub(super) fn nodes(text: &str) -> Result<RangeInclusive<usize>, String> {
    let (least, most) = text.split_once(':').unwrap_or((text, text));
    match (whole::<usize>(least), whole::<usize>(most)) {
        (_, Some(most)) if most > MOST_NODES => Err(format!("at most {MOST_NODES} nodes are possible")),
        (Some(least), Some(most)) if least > 0 && least <= most => Ok(least..=most),
        _ => Err("give a number of nodes of at least 1, or a range MIN:MAX".to_owned()),
    }
}

/// Checks a host name or an address, and removes the brackets of an IPv6 address.
pub(super) fn host(text: &str) -> Result<String, &'static str> {
    let host = text.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(text);
    if host.is_empty() || host.contains(|c: char| c.is_whitespace() || "[]/=,".contains(c)) {
        return Err("give a host name or an IP address");
    }
    if host.contains(':') && host.parse::<std::net::Ipv6Addr>().is_err() {
        return Err("give a host name or an IP address; set the port with --master-port");
    }
    Ok(host.to_owned())
}

/// Parses a host with a port; without a port, 0.
pub(super) fn endpoint(text: &str) -> Result<(String, u16), &'static str> {
    // The last colon separates host and port, unless it belongs to an IPv6 address.
    let parts = text
        .rsplit_once(':')
        .filter(|(host, _)| (host.starts_with('[') && host.ends_with(']')) || !host.contains(':'));
    let (name, port) = parts.unwrap_or((text, "0"));
    Ok((host(name)?, whole(port).ok_or("give a port from 1 to 65535, or 0 for the usual one")?))
}

pub(super) fn backend(text: &str) -> Result<String, String> {
    match text {
        "static" | "c10d" => Ok(text.to_owned()),
        "etcd" | "etcd-v2" => Err("dtrain needs no etcd server; use static or c10d".to_owned()),
        _ => Err("unknown backend; use static or c10d".to_owned()),
    }
}
