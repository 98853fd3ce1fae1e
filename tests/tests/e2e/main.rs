//! Tests of whole programs, and comparisons of the trainer's library with PyTorch on the CPU. One binary:
//! each binary that links libtorch takes seconds to build, and the tests of one binary share the cores.

#![allow(clippy::unwrap_used)]

mod apart;
mod bad_input;
mod batch;
mod batchnorm;
mod best;
mod checkpoints;
mod cluster;
mod conformance;
mod containers;
mod damage;
mod ddp;
mod documents;
mod evaluation;
mod exported;
mod fake_faults;
mod fake_gpus;
mod fake_memory;
mod figures;
mod file_systems;
mod forks;
mod guides;
mod import;
mod import_check;
mod import_fuzz;
mod import_sources;
mod invariance;
mod kills;
mod layout;
mod lists;
mod memory_copies;
mod memory_nodes;
mod memory_oom;
mod memory_plan;
mod nodes;
mod odd_files;
mod own_trainer;
mod parity;
mod program_state;
mod resized;
mod rollback;
mod sampling;
mod schedules;
mod slurm;
mod soak;
mod stages;
mod starters;
mod step_losses;
mod stopping;
mod tables;
mod tasks;
mod training;
mod tutorials;
mod unused;
