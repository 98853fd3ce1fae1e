//! `dtrain launch` as a user sees it: real processes, real signals, real terminals.

#![allow(clippy::unwrap_used)]

mod batch;
mod causes;
mod ckpt;
mod contract;
mod doctor;
mod doctor_nodes;
mod exit_codes;
mod faults;
mod forms;
mod gpus;
mod hangs;
mod import;
mod logs;
mod notices;
mod order;
mod output;
mod pid_one;
mod plan;
mod pty;
mod pytorch;
mod recipes;
mod restarts;
mod runs;
mod shell;
mod signals;
mod store;
mod streams;
mod supervision;
mod terminal;
mod torchrun;
mod usage;

/// Helpers shared with tests of other crates.
mod harness {
    pub(crate) use dtrain_test_kit::process::{LONG, kill, repeat, repeats, wait_until};
    pub(crate) use dtrain_test_kit::scene::{Finished, Launch, Scene};
}
