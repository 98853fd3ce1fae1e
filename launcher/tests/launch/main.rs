//! `dtrain launch` as a user sees it: real processes, real signals, real terminals.

#![allow(clippy::unwrap_used)]

mod contract;
mod exit_codes;
mod harness;
mod logs;
mod output;
mod recipes;
mod signals;
mod streams;
mod supervision;
mod terminal;
mod usage;
