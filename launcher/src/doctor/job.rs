//! The doctor in a job: one on each node, of which one leads, collects the others' reports, lets all pairs try
//! each other, and prints one table.

use super::pairs::{Node, Tries, judge};
use super::row::{Level, Row};
use super::{Machine, show};
use crate::cli::{DoctorArgs, Rendezvous};
use crate::launch::port::MasterPort;
use crate::launch::{Meeting, cannot_connect, usual_address};
use anyhow::{Context, anyhow, bail};
use dtrain_agent::cluster::trial::Place;
use dtrain_agent::io::interfaces::{address_towards, interfaces};
use dtrain_agent::io::probe::{self, Listeners, Outcome};
use dtrain_agent::io::wire::{Client, ClientEvent, Limits, Server, ServerEvent};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;
use std::net::{IpAddr, Ipv4Addr, ToSocketAddrs};
use std::process::ExitCode;
use std::sync::mpsc::{Receiver, channel};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// The most nodes: the list of all must fit one message.
const MOST: usize = 512;
/// The longest wait for all nodes.
const JOIN: Duration = Duration::from_secs(30);
/// A longer wait is explained on standard error.
const PATIENCE: Duration = Duration::from_secs(1);
/// The time for all tries, and for their results.
const TRIES: Duration = Duration::from_secs(10);

#[derive(Debug, Serialize, Deserialize)]
enum ToLeader {
    /// The id of the run, and the node.
    Join(Option<String>, Box<Node>),
    Tried(Vec<Outcome>),
}

#[derive(Debug, Serialize, Deserialize)]
enum ToMember {
    Try(Vec<Place>),
    /// Whether a row fails, and a message.
    End(bool, String),
}

/// Runs the doctor of this node.
pub(super) fn run(args: &DoctorArgs, rendezvous: Rendezvous) -> anyhow::Result<ExitCode> {
    let begun = Instant::now();
    if *rendezvous.nodes.end() > MOST {
        bail!("--nnodes: the doctor checks at most {MOST} nodes at a time; start it on a part of the nodes");
    }
    let (sender, opened) = channel();
    let (endpoint, wait) = (rendezvous.endpoint.host.clone(), JOIN.min(rendezvous.join_timeout));
    // Waits for a name server, perhaps for long.
    thread::Builder::new().spawn(move || drop(sender.send(Meeting::open(rendezvous))))?;
    let listeners = Listeners::open(Some(MasterPort::choose()?.number));
    let listeners = listeners.context("cannot listen for the other nodes")?;
    let mut node = Node {
        name: dtrain_common::host::name(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        place: listeners.place(Ipv4Addr::LOCALHOST.into(), None),
        mtu: None,
        machine: Machine::default(),
    };
    // The nodes meet meanwhile.
    let checks = super::checks(args);
    let mut examined = Some(thread::Builder::new().spawn(move || super::run_all(checks))?);
    let mut notice = Notice::new(wait);
    let meeting = loop {
        let text = || format!("no name server has resolved {endpoint}");
        match opened.recv_timeout(notice.wait(text)) {
            Ok(meeting) => break meeting,
            Err(_) if notice.is_over() => {
                let remedy =
                    "check the servers in /etc/resolv.conf, add the name to /etc/hosts, or give an address";
                node.examine(&mut examined);
                node.machine.rows.push(Row::fail("rendezvous", text(), remedy));
                return show(args, &node.machine.rows, begun);
            }
            Err(_) => {}
        }
    };
    let meeting = meeting.map_err(|error| anyhow!("{error:#}"))?;
    if meeting.bound.is_some() {
        let rows = Leader { node, meeting, examined }.run()?;
        return show(args, &rows, begun);
    }
    follow(args, meeting, node, examined, begun)
}

/// The checks of this machine, until their result is taken.
type Examined = Option<JoinHandle<Machine>>;

impl Node {
    /// Waits for the checks of this machine, the first time.
    fn examine(&mut self, examined: &mut Examined) {
        if let Some(Ok(machine)) = examined.take().map(JoinHandle::join) {
            self.machine = machine;
            // The rows of all nodes must fit one message.
            self.machine.rows.retain(|row| row.level != Level::Ok);
        }
    }

    /// Sets the address by which the others reach this node.
    fn settle(&mut self, address: IpAddr) {
        self.place.address = address;
        let found = interfaces().unwrap_or_default();
        let own = found.into_iter().find(|interface| interface.addresses.contains(&address));
        (self.place.interface, self.mtu) = own.map(|own| (own.name, own.mtu)).unzip();
    }
}

/// Returns the remedy for a leader that cannot be reached from the chosen address.
fn remedy(host: &str, chosen: Option<IpAddr>) -> String {
    let usual = || {
        let leader = (host, 0).to_socket_addrs().ok()?.next()?;
        address_towards(leader.ip()).ok()
    };
    match (chosen, chosen.and_then(|_| usual())) {
        (Some(chosen), Some(usual)) if chosen != usual => format!(
            "{chosen} (--rdzv-interface or --local-addr) may not lead there: leave it out, to use {usual}"
        ),
        _ => "start `dtrain doctor` on that node too; check the name, the port and firewalls".to_owned(),
    }
}

struct Leader {
    meeting: Meeting,
    node: Node,
    examined: Examined,
}

impl Leader {
    fn run(mut self) -> anyhow::Result<Vec<Row>> {
        let (sender, events) = channel();
        let bound = self.meeting.bound.take().context("this node does not lead")?;
        let secret = self.meeting.secret.clone();
        let server: Server<ToMember> = bound.serve(secret, Limits::default(), move |event| {
            // Fails at the end.
            let _ = sender.send(event);
        })?;
        if let Some(warning) = self.meeting.warning() {
            let _ = writeln!(std::io::stderr(), "dtrain: {warning}");
        }
        let (mut rows, mut joined) = (Vec::new(), BTreeMap::new());
        self.collect(&server, &events, &mut joined, &mut rows)?;
        let usual = || usual_address(&self.meeting.rendezvous.endpoint.host);
        let address = self.meeting.address.unwrap_or_else(usual);
        self.node.settle(address);
        self.node.examine(&mut self.examined);
        let mut members: Vec<(u64, Node)> = joined.into_iter().collect();
        members.sort_by(|(_, one), (_, other)| one.name.cmp(&other.name));
        let ids: Vec<u64> = members.iter().map(|(id, _)| *id).collect();
        let mut nodes = vec![self.node];
        nodes.extend(members.into_iter().map(|(_, node)| node));
        let places: Vec<Place> = nodes.iter().map(|node| node.place.clone()).collect();
        for id in &ids {
            server.send(*id, &ToMember::Try(places.clone()))?;
        }
        let mut tries: Vec<Tries> = nodes.iter().map(|_| None).collect();
        tries[0] = Some(probe::try_all(&places));
        let until = Instant::now() + TRIES;
        let mut left: BTreeSet<u64> = ids.iter().copied().collect();
        while !left.is_empty() {
            match events.recv_timeout(until.saturating_duration_since(Instant::now())) {
                Ok(ServerEvent::Received { id, message: ToLeader::Tried(outcomes) }) => {
                    if let (true, Some(position)) =
                        (left.remove(&id), ids.iter().position(|known| *known == id))
                    {
                        tries[position + 1] =
                            Some(outcomes).filter(|outcomes| outcomes.len() == places.len());
                    }
                }
                Ok(ServerEvent::Received { id, message: ToLeader::Join(..) }) => {
                    let message = "all nodes have come already; check --nnodes".to_owned();
                    server.send(id, &ToMember::End(true, message))?;
                }
                Ok(ServerEvent::Closed { id, .. }) => drop(left.remove(&id)),
                Ok(_) => {}
                Err(_) => break,
            }
        }
        rows.extend(judge(&nodes, &tries));
        let fails = rows.iter().any(|row| row.level == Level::Fail);
        let end = if fails { "a check fails" } else { "nothing fails" };
        let message = format!("{end}; node {} prints the table", nodes[0].name);
        for id in ids {
            server.send(id, &ToMember::End(fails, message.clone()))?;
        }
        server.end();
        Ok(rows)
    }

    /// Waits until all nodes have joined. Adds rows about nodes that are missing or do not belong here.
    fn collect(
        &mut self,
        server: &Server<ToMember>,
        events: &Receiver<ServerEvent<ToLeader>>,
        joined: &mut BTreeMap<u64, Node>,
        rows: &mut Vec<Row>,
    ) -> anyhow::Result<()> {
        let wait = JOIN.min(self.meeting.rendezvous.join_timeout);
        let Meeting { rendezvous: Rendezvous { nodes, run_id, .. }, address, .. } = &mut self.meeting;
        let mut notice = Notice::new(wait);
        while joined.len() + 1 < *nodes.end() {
            let came = joined.len() + 1;
            match events.recv_timeout(notice.wait(|| format!("{came} of {} nodes came", nodes.end()))) {
                Ok(ServerEvent::Opened { local, peer, .. }) if address.is_none() => {
                    let local = local.ip().to_canonical();
                    *address = Some(address_towards(peer.ip().to_canonical()).unwrap_or(local));
                }
                Ok(ServerEvent::Received { id, message: ToLeader::Join(run, node) }) if run == *run_id => {
                    joined.insert(id, *node);
                }
                Ok(ServerEvent::Received { id, message: ToLeader::Join(run, node) }) => {
                    let id_of = |run: &Option<String>| run.clone().unwrap_or("without an id".to_owned());
                    let remedy = "give each run its own port in --rdzv-endpoint";
                    let message = format!(
                        "node {} leads the run {} here, and --rdzv-id is {}; {remedy}",
                        self.node.name,
                        id_of(run_id),
                        id_of(&run)
                    );
                    server.send(id, &ToMember::End(true, message))?;
                    let value = format!("{} belongs to the run {}", node.name, id_of(&run));
                    rows.push(Row::fail("rendezvous", value, remedy));
                }
                Ok(ServerEvent::Closed { id, .. }) => drop(joined.remove(&id)),
                Ok(ServerEvent::Stranger { peer, reason }) => {
                    let remedy = "use the same dtrain and the same secret on all nodes; else ignore it";
                    rows.push(Row::warn("rendezvous", format!("{}: {reason}", peer.to_canonical()), remedy));
                }
                Ok(_) => {}
                Err(_) if notice.is_over() => break,
                Err(_) => {}
            }
        }
        if joined.len() + 1 < *nodes.start() {
            let names: Vec<&str> = joined.values().map(|node| node.name.as_str()).collect();
            let value = format!(
                "{} of {} nodes came within {} s: {}",
                joined.len() + 1,
                nodes.start(),
                wait.as_secs(),
                [vec![self.node.name.as_str()], names].concat().join(", ")
            );
            let remedy =
                "start `dtrain doctor` on the others with the same flags; each prints why it cannot connect";
            rows.push(Row::fail("rendezvous", value, remedy));
        }
        Ok(())
    }
}

/// A wait that is explained on standard error if it takes long.
struct Notice {
    /// When to explain it; `None` if that is done.
    at: Option<Instant>,
    until: Instant,
}

impl Notice {
    fn new(wait: Duration) -> Self {
        let now = Instant::now();
        Self { at: Some(now + PATIENCE), until: now + wait }
    }

    /// Returns the time until the explanation or the end of the wait; prints the explanation when it is due.
    fn wait(&mut self, text: impl Fn() -> String) -> Duration {
        let now = Instant::now();
        if self.at.is_some_and(|at| at <= now) {
            self.at = None;
            let seconds = self.until.saturating_duration_since(now).as_secs();
            let _ = writeln!(std::io::stderr(), "dtrain: {}; waiting {seconds} s more", text());
        }
        self.at.unwrap_or(self.until).min(self.until).saturating_duration_since(now)
    }

    fn is_over(&self) -> bool {
        self.until <= Instant::now()
    }
}

/// Joins the leader, tries the other nodes, and ends as the leader says.
fn follow(
    args: &DoctorArgs,
    meeting: Meeting,
    mut node: Node,
    mut examined: Examined,
    begun: Instant,
) -> anyhow::Result<ExitCode> {
    let shown = meeting.shown();
    let Meeting { rendezvous, secret, address: chosen, .. } = meeting;
    let Rendezvous { endpoint, run_id, join_timeout, .. } = rendezvous;
    let host = endpoint.host.clone();
    let (sender, events) = channel();
    let client: Client<ToLeader> = Client::connect(endpoint, secret, chosen, move |event| {
        // Fails at the end.
        let _ = sender.send(event);
    })?;
    // Explained after the first attempt, but not while the leader may be starting.
    let Notice { at: first, until } = Notice::new(JOIN.min(join_timeout));
    let mut notice = Notice { at: None, until };
    let mut reason = format!("cannot reach the leader at {shown}: no answer in time");
    let rows = |node: &mut Node, examined: &mut Examined, reason: &str| -> Vec<Row> {
        node.examine(examined);
        let remedy = remedy(&host, chosen);
        let Machine { rows, .. } = &node.machine;
        [rows.clone(), vec![Row::fail("rendezvous", reason, remedy)]].concat()
    };
    loop {
        match events.recv_timeout(notice.wait(|| reason.clone())) {
            Ok(ClientEvent::Connected { local, .. }) => {
                node.settle(chosen.unwrap_or(local.ip().to_canonical()));
                node.examine(&mut examined);
                client.send(&ToLeader::Join(run_id.clone(), Box::new(node.clone())))?;
                // The leader may wait for other nodes.
                notice = Notice { at: None, until: Instant::now() + JOIN + TRIES };
                reason = format!("the leader at {shown} has stopped answering");
            }
            Ok(ClientEvent::Received(ToMember::Try(places))) => {
                client.send(&ToLeader::Tried(probe::try_all(&places)))?;
            }
            Ok(ClientEvent::Received(ToMember::End(fails, message))) => {
                client.end();
                // Only for a person who looks at this node.
                let _ = writeln!(std::io::stderr(), "dtrain: {message}");
                return Ok(if fails { ExitCode::FAILURE } else { ExitCode::SUCCESS });
            }
            Ok(ClientEvent::CannotConnect { address, reason: why }) => {
                reason = cannot_connect(&shown, address, chosen, &why);
                notice.at = first.max(Some(Instant::now()));
                if why.is_permanent() {
                    return show(args, &rows(&mut node, &mut examined, &reason), begun);
                }
            }
            Ok(ClientEvent::Disconnected { reason: why }) => {
                notice = Notice::new(TRIES);
                reason = format!("lost the leader at {shown}: {why}");
            }
            Err(_) if notice.is_over() => return show(args, &rows(&mut node, &mut examined, &reason), begun),
            Err(_) => {}
        }
    }
}
