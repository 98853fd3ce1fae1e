//! `dtrain launch` on several nodes, which are network namespaces of this machine. Needs root and `iptables`.

#![allow(clippy::unwrap_used)]

mod addresses;
mod corners;
mod elastic;
mod failures;
mod frozen;
mod harness;
mod joining;
mod killed;
mod planted;
mod python;
mod refused;
mod restarts;
mod slurm;
mod start;
mod stop;
mod stops;
