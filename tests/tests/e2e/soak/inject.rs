//! Injects faults and ends them.

use std::time::Instant;

use dtrain_test_kit::faults::{Fault, Kind, Target};
use dtrain_test_kit::process::{Signal, kill};
use dtrain_test_kit::scene::Scene;

use super::cluster::Cluster;

/// The share of packets that a lossy link loses.
const LOSS: f64 = 0.2;

/// A fault that lasts.
pub(super) struct Lasting {
    fault: Fault,
    until: Instant,
    frozen: Vec<u32>,
    is_cut: bool,
}

/// Injects a fault. Returns false if the node has no such process now.
pub(super) fn inject(cluster: &Cluster<'_>, fault: Fault, lasting: &mut Vec<Lasting>) -> bool {
    let node = &cluster.network[fault.node];
    let pids = match fault.kind {
        Kind::Kill(target) | Kind::Freeze(target) => {
            let pids = pids(cluster, fault.node, target);
            if pids.is_empty() {
                return false;
            }
            pids
        }
        _ => Vec::new(),
    };
    match fault.kind {
        Kind::Kill(_) => pids.iter().for_each(|pid| kill(*pid, Signal::KILL)),
        Kind::Freeze(_) => pids.iter().for_each(|pid| kill(*pid, Signal::STOP)),
        Kind::Terminate => match &cluster.agents[fault.node].launch {
            Some(launch) => launch.signal(Signal::TERM),
            None => return false,
        },
        Kind::Reset => node.reset_connections(),
        Kind::Reject => node.reject_packets(),
        Kind::Lossy => node.lose_some_packets(LOSS),
        Kind::Cut | Kind::Flapping => cluster.network.cut(&[fault.node]),
        other => panic!("{other} is no fault of these trainings"),
    }
    if fault.lasts() {
        let until = Instant::now() + fault.lasting;
        lasting.push(Lasting { fault, until, frozen: pids, is_cut: true });
    }
    true
}

/// Ends the faults that are over, and moves the flapping ones.
pub(super) fn poll(cluster: &Cluster<'_>, lasting: &mut Vec<Lasting>) {
    lasting.retain_mut(|it| {
        let is_over = Instant::now() >= it.until;
        match it.fault.kind {
            Kind::Flapping if !is_over => {
                it.is_cut = !it.is_cut;
                match it.is_cut {
                    true => cluster.network.cut(&[it.fault.node]),
                    false => cluster.network.heal(),
                }
            }
            _ if !is_over => {}
            Kind::Cut | Kind::Flapping => cluster.network.heal(),
            Kind::Lossy | Kind::Reject => cluster.network[it.fault.node].unblock(),
            _ => it.frozen.iter().for_each(|pid| kill(*pid, Signal::CONT)),
        }
        !is_over
    });
}

fn pids(cluster: &Cluster<'_>, node: usize, target: Target) -> Vec<u32> {
    let guardian = || cluster.agents[node].launch.iter().map(|launch| launch.child.id());
    let here = |all: fn(&Scene) -> Vec<u32>| cluster.on(node, all(cluster.scene));
    match target {
        Target::Worker => here(Scene::workers).into_iter().take(1).collect(),
        Target::Workers => here(Scene::workers),
        Target::Guardian => guardian().collect(),
        Target::Launcher => here(Scene::launcher),
        Target::Agent => here(Scene::launcher).into_iter().chain(guardian()).collect(),
        Target::Everything => here(Scene::alive),
    }
}
