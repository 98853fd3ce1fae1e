//! Where the nodes meet: this node's role, its address, and the secret.

use super::holder::Holder;
use crate::cli::Rendezvous;
use crate::stdout::join_causes;
use anyhow::{Context, bail};
use crossbeam_channel::RecvTimeoutError;
use dtrain_agent::cluster::message::{ToLeader, ToMember};
use dtrain_agent::io::interfaces::{address_towards, interfaces, is_own};
use dtrain_agent::io::output::Message;
use dtrain_agent::io::wire::{BoundServer, Client, ClientEvent, ConnectError, Endpoint, Secret};
use dtrain_common::env::DTRAIN_RDZV_SECRET;
use dtrain_common::log_line::LogFormat;
use std::io::{self, ErrorKind};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, ToSocketAddrs};
use std::thread;
use std::time::Duration;

/// After this time, the user hears of a name server that does not answer.
const SLOW_NAME: Duration = Duration::from_secs(4);
/// After this time without an answer of the leader, a node gives up.
const REJOIN: Duration = Duration::from_secs(30);

/// The time for an answer of the program at the endpoint's port of this machine.
const ANSWER: Duration = Duration::from_secs(2);

/// In place of a secret: any program may join.
const OPEN: &str = "none";

/// The nodes cannot meet: exit code 5.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(crate) struct RendezvousFailed(pub(super) String);

/// This node before it joins.
#[derive(Debug)]
pub(crate) struct Meeting {
    pub(crate) rendezvous: Rendezvous,
    pub(crate) secret: Secret,
    /// The leader's port, on its node.
    pub(crate) bound: Option<BoundServer>,
    /// The address by which other nodes reach this one, if the user names it.
    pub(crate) address: Option<IpAddr>,
}

impl Meeting {
    /// Opens the meeting, and tells the user if a name server is slow.
    ///
    /// # Errors
    ///
    /// As [`Meeting::open`]. Also without a secret, unless the user asks for an open run: a secret that got lost on the way
    /// must not open the run to everybody.
    pub(in crate::launch) fn open_patiently(
        rendezvous: Rendezvous,
        format: LogFormat,
    ) -> anyhow::Result<Self> {
        if !is_loopback(&rendezvous.endpoint.host) && matches!(secret(&rendezvous), Ok(None)) {
            bail!(
                "several nodes need a secret: make one by `touch job.secret; chmod 600 job.secret; head -c 32 /dev/urandom | base64 > job.secret` and \
                 give all nodes --rdzv-secret job.secret; --rdzv-secret {OPEN} lets any program join that reaches the leader"
            );
        }
        let host = rendezvous.endpoint.host.clone();
        let (opened, waits) = crossbeam_channel::bounded::<()>(0);
        let notice = move || {
            if waits.recv_timeout(SLOW_NAME) == Err(RecvTimeoutError::Timeout) {
                let text =
                    format!("dtrain: waiting for a name server to resolve {host}; see /etc/resolv.conf");
                Message::warning(text).print(format);
            }
        };
        thread::Builder::new().name("notice".to_owned()).spawn(notice)?;
        let meeting = Self::open(rendezvous);
        drop(opened);
        meeting
    }

    /// Reads the secret, and takes the leader's port if this node leads.
    pub(crate) fn open(rendezvous: Rendezvous) -> anyhow::Result<Self> {
        Self::try_open(rendezvous).map_err(|error| RendezvousFailed(join_causes(&error)).into())
    }

    fn try_open(rendezvous: Rendezvous) -> anyhow::Result<Self> {
        let secret = secret(&rendezvous)?.unwrap_or_else(Secret::none);
        let address = own_address(&rendezvous)?;
        let endpoint = &rendezvous.endpoint;
        let bound = match rendezvous.leads {
            Some(false) => None,
            Some(true) => Some(bind(endpoint, address).with_context(|| cannot_lead(endpoint))?),
            None if is_of_this_machine(&endpoint.host) => match bind(endpoint, address) {
                // Another agent of this machine leads.
                Err(error) if error.kind() == ErrorKind::AddrInUse => {
                    expect_leader(endpoint, &secret, address)?;
                    None
                }
                bound => Some(bound.with_context(|| cannot_lead(endpoint))?),
            },
            None => None,
        };
        Ok(Self { rendezvous, secret, bound, address })
    }

    pub(in crate::launch) fn leads(&self) -> bool {
        self.bound.is_some()
    }

    pub(super) fn rejoin_timeout(&self) -> Duration {
        REJOIN.min(self.rendezvous.join_timeout)
    }

    /// Returns the endpoint for messages.
    pub(crate) fn shown(&self) -> String {
        let Endpoint { host, port } = &self.rendezvous.endpoint;
        if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") }
    }

    /// Returns a warning about a run that everybody can join, or only this machine.
    pub(crate) fn warning(&self) -> Option<String> {
        let at = self.shown();
        if is_loopback(&self.rendezvous.endpoint.host) {
            return Some(format!(
                "only agents of this machine can join at {at}; for others, use a name that they know"
            ));
        }
        self.secret.is_none().then(|| {
            format!(
                "without a secret, any program that reaches {at} can join the run; give all nodes the same --rdzv-secret FILE"
            )
        })
    }
}

/// Returns the user's secret, which is none for an open run; `None`: the user gives neither.
fn secret(rendezvous: &Rendezvous) -> anyhow::Result<Option<Secret>> {
    match (&rendezvous.secret, std::env::var(DTRAIN_RDZV_SECRET)) {
        (Some(path), _) if path.as_os_str() == OPEN => Ok(Some(Secret::none())),
        (Some(path), _) => Ok(Some(Secret::from_file(path)?)),
        (None, Ok(text)) if text == OPEN => Ok(Some(Secret::none())),
        (None, Ok(text)) if !text.is_empty() => {
            let secret = Secret::from_text(text.as_bytes());
            secret.map(Some).with_context(|| format!("{DTRAIN_RDZV_SECRET} is set wrongly"))
        }
        (None, _) => Ok(None),
    }
}

/// Returns the address that the user names for this node, by itself or by its interface.
fn own_address(rendezvous: &Rendezvous) -> anyhow::Result<Option<IpAddr>> {
    if let Some(host) = &rendezvous.local_addr {
        let found = (host.as_str(), 0).to_socket_addrs();
        let found = found.with_context(|| format!("--local-addr {host}: cannot resolve this name"))?;
        let mut own = found.map(|address| address.ip()).filter(|address| is_own(*address));
        return match own.next() {
            Some(address) => Ok(Some(address)),
            None => bail!("--local-addr {host} is not an address of this machine"),
        };
    }
    let Some(name) = &rendezvous.interface else { return Ok(None) };
    let all = interfaces().context("cannot list the network interfaces")?;
    let Some(interface) = all.iter().find(|interface| interface.name == *name) else {
        let names: Vec<_> = all.iter().map(|interface| interface.name.as_str()).collect();
        bail!("--rdzv-interface {name}: there is no such interface; this machine has {}", names.join(", "));
    };
    if !interface.is_up {
        bail!("--rdzv-interface {name}: the interface is down");
    }
    let is_v6 = rendezvous.endpoint.host.parse::<Ipv6Addr>().is_ok();
    let preferred = interface.addresses.iter().find(|address| address.is_ipv6() == is_v6);
    match preferred.or(interface.addresses.first()) {
        Some(address) => Ok(Some(*address)),
        None => bail!("--rdzv-interface {name}: the interface has no address"),
    }
}

/// Checks that the program which listens at the endpoint's port of this machine can be another agent.
fn expect_leader(endpoint: &Endpoint, secret: &Secret, address: Option<IpAddr>) -> anyhow::Result<()> {
    let port = endpoint.port;
    let holder = match Holder::of(port) {
        Some(holder) if holder.has_own_program() => return Ok(()),
        Some(holder) => holder.to_string(),
        // A process of another user, or one that does not listen yet.
        None if is_other_program(endpoint, secret, address) => "a program that is not dtrain".to_owned(),
        None => return Ok(()),
    };
    bail!(
        "this node should lead, but {holder} listens at port {port}; end it, or choose another port on all nodes"
    )
}

/// Returns whether a program that answers in another protocol listens at the endpoint.
fn is_other_program(endpoint: &Endpoint, secret: &Secret, address: Option<IpAddr>) -> bool {
    let (sender, events) = std::sync::mpsc::channel();
    let heard = move |event: ClientEvent<ToMember>| drop(sender.send(event));
    let client: io::Result<Client<ToLeader>> =
        Client::connect(endpoint.clone(), secret.clone(), address, heard);
    let is_other =
        |event| matches!(event, ClientEvent::CannotConnect { reason: ConnectError::NotALeader, .. });
    // Without an answer, it may be an agent that has not finished its checks.
    client.is_ok_and(|_client| events.recv_timeout(ANSWER).is_ok_and(is_other))
}

fn cannot_lead(endpoint: &Endpoint) -> String {
    format!("this node leads, but cannot listen at port {}; choose another port on all nodes", endpoint.port)
}

/// Binds the leader's port: at a loopback address if the endpoint is one, otherwise at all addresses, because
/// a name may mean another address on this machine than on the others.
fn bind(endpoint: &Endpoint, address: Option<IpAddr>) -> io::Result<BoundServer> {
    let port = endpoint.port;
    if is_loopback(&endpoint.host) {
        let addresses: Vec<_> = (endpoint.host.as_str(), port).to_socket_addrs()?.collect();
        return BoundServer::bind(&addresses);
    }
    if let Some(address) = address {
        return BoundServer::bind(&[(address, port).into()]);
    }
    let everywhere: [SocketAddr; 2] =
        [(Ipv6Addr::UNSPECIFIED, port).into(), (Ipv4Addr::UNSPECIFIED, port).into()];
    match BoundServer::bind(&everywhere[..1]) {
        // Without IPv6.
        Err(error) if error.kind() != ErrorKind::AddrInUse => BoundServer::bind(&everywhere[1..]),
        bound => bound,
    }
}

/// Returns whether only this machine can reach the host, whatever its name service says.
fn is_loopback(host: &str) -> bool {
    let names = ["localhost", "localhost.", "localhost.localdomain", "ip6-localhost", "ip6-loopback"];
    names.contains(&host) || host.parse().is_ok_and(|address: IpAddr| address.is_loopback())
}

/// Returns whether a name is one of this machine.
fn is_of_this_machine(host: &str) -> bool {
    (host, 0).to_socket_addrs().is_ok_and(|mut found| found.any(|address| is_own(address.ip())))
}

/// Returns the address of this machine if no other node has reached it yet: that of the endpoint's name, but
/// rather one that is not loopback.
pub(crate) fn usual_address(host: &str) -> IpAddr {
    let found = (host, 0).to_socket_addrs().into_iter().flatten().map(|address| address.ip());
    let mut own: Vec<IpAddr> = found.filter(|address| is_own(*address)).collect();
    own.sort_by_key(|address| (address.is_loopback(), address.is_ipv6()));
    own.first().copied().unwrap_or(Ipv4Addr::LOCALHOST.into())
}

/// Returns the name of the interface with this address; `None` for loopback.
pub(super) fn interface_of(address: IpAddr) -> Option<String> {
    if address.is_loopback() || address_towards(address).is_err() {
        return None;
    }
    let all = interfaces().ok()?;
    let found = all.into_iter().find(|interface| interface.addresses.contains(&address));
    found.map(|interface| interface.name)
}
