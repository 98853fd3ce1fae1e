//! `dtrain launch` on several nodes, which are network namespaces of this machine. Needs root and `iptables`.

#![allow(clippy::unwrap_used)]

mod corners;
mod elastic;
mod failures;
mod frozen;
mod harness;
mod planted;
mod python;
mod refused;
mod restarts;
mod slurm;
mod start;
mod stop;
