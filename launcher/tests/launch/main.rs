//! `dtrain launch` as a user sees it: real processes, real signals, real terminals.

#![allow(clippy::unwrap_used)]

mod contract;
mod exit_codes;
mod harness;
mod output;
mod pytorch;
mod recipes;
mod signals;
mod supervision;
mod terminal;
mod usage;
