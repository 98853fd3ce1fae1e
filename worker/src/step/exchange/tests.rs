//! The exchange on one rank. Tests of whole runs cover several ranks.
#![allow(clippy::unwrap_used)]

use std::sync::Mutex;
use std::time::Duration;

use dtrain_torch_shim::autocast::{Autocast, substitute_shadow};
use dtrain_torch_shim::tensor::is_same_memory;
use tch::{Device, Kind, Tensor};

use super::*;
use crate::collectives::{Collective, LoneGroup, ProcessGroup, Work};
use crate::state::{Group, LayoutOptions, Parameter};
use crate::step::StepError;

/// Returns three layers of 40 parameters, one bucket each.
fn table() -> (Vec<Tensor>, Table) {
    let leaves: Vec<Tensor> =
        (0..3).map(|_| Tensor::ones([40], (Kind::Float, Device::Cpu)).set_requires_grad(true)).collect();
    let parameters: Vec<Parameter<'_>> = ["a", "b", "c"]
        .into_iter()
        .zip(&leaves)
        .map(|(name, tensor)| Parameter { name, tensor, group: Group::Trained(0) })
        .collect();
    let options = LayoutOptions { first_bucket_bytes: 64, bucket_bytes: 64, shards: 1, whole_rows: false };
    let table = Table::new(&parameters, options, 0).unwrap();
    (leaves, table)
}

fn exchange(table: &Table, overlap: bool) -> Exchange {
    let options = Reduce { overlap, ..Reduce::default() };
    Exchange::new(Ranks::single(), None, table, options).unwrap()
}

#[test]
fn a_step_records_used_parameters_and_their_order() {
    let (leaves, table) = table();
    let mut exchange = exchange(&table, true);
    exchange.begin(0).unwrap();
    // A micro-step with a and c that is not armed, then the last micro-step with c only.
    (&leaves[0] * &leaves[2]).sum(Kind::Float).backward();
    exchange.arm();
    (&leaves[2] * 2.0).sum(Kind::Float).backward();
    let status = exchange.agree(&Buffers::default(), Status::default(), None).unwrap();
    assert_eq!(status.used(false), [true, false, true]);
    assert_eq!(exchange.gradient_order().unwrap(), [2, 1, 0], "parameters without a gradient come last");
    let first = |table: &Table| -> Vec<f64> {
        let grads = table.grads().unwrap();
        grads.iter().map(|grad| grad.double_value(&[0])).collect()
    };
    assert_eq!(first(&table), [1.0, 0.0, 3.0]);
    assert_eq!(leaves[2].grad().data_ptr(), table.grads().unwrap()[2].data_ptr());

    exchange.begin(0).unwrap();
    exchange.arm();
    let status = exchange.agree(&Buffers::default(), Status::default(), None).unwrap();
    assert_eq!(status.used(false), [false; 3], "a rank without samples");
    assert_eq!(first(&table), [0.0; 3], "nothing is left of the step before");
}

/// A backend that records the number of operations in each launch.
struct RecordingGroup(Arc<Mutex<Vec<usize>>>);

impl ProcessGroup for RecordingGroup {
    fn rank_and_size(&self) -> (usize, usize) {
        (0, 1)
    }

    fn set_timeout(&mut self, _timeout: Duration) {}

    fn start(&self, one: Collective<'_>) -> Result<Box<dyn Work>, CollectiveError> {
        match one {
            Collective::AllReduce(..) => self.start_all(&[one]),
            _ => LoneGroup(1).start(one),
        }
    }

    fn start_all(&self, all: &[Collective<'_>]) -> Result<Box<dyn Work>, CollectiveError> {
        self.0.lock().unwrap().push(all.len());
        LoneGroup(1).start_all(all)
    }

    fn barrier(&self) -> Result<Box<dyn Work>, CollectiveError> {
        LoneGroup(1).barrier()
    }

    fn shutdown(self: Box<Self>) -> Result<(), CollectiveError> {
        Ok(())
    }
}

#[test]
fn buckets_start_one_by_one_with_and_without_hooks() {
    let (leaves, table) = table();
    let launches = Arc::new(Mutex::new(Vec::new()));
    let ranks = Ranks::new(Box::new(RecordingGroup(Arc::clone(&launches))));
    let exchange = Exchange::new(ranks, None, &table, Reduce::default()).unwrap();
    let since = || std::mem::take(&mut *launches.lock().unwrap());
    // After a replay, without samples, or after a failed allocation: all buckets start at the end.
    exchange.begin(0).unwrap();
    exchange.record_replay(&[true; 3]).unwrap();
    assert!(!exchange.start_remaining().unwrap());
    assert_eq!(since(), [1; 3]);
    // By hooks. The first bucket has the last parameter and completes last; the others wait for it.
    exchange.begin(0).unwrap();
    exchange.arm();
    for leaf in [&leaves[0], &leaves[1]] {
        leaf.sum(Kind::Float).backward();
    }
    assert_eq!(since(), [0; 0]);
    leaves[2].sum(Kind::Float).backward();
    assert!(!exchange.start_remaining().unwrap());
    assert_eq!(since(), [1; 3]);
}

#[test]
fn replayed_gradients_accumulate_like_others() {
    let (leaves, table) = table();
    let mut exchange = exchange(&table, true);
    let views = table.grads().unwrap();
    // Gradients of the previous step.
    for view in &views {
        let _ = view.shallow_clone().fill_(9.0);
    }
    exchange.begin(0).unwrap();
    // The first micro-step is replayed: the graph leaves gradients of a and c, without hooks.
    let _ = views[0].shallow_clone().fill_(1.0);
    let _ = views[2].shallow_clone().fill_(2.0);
    exchange.record_replay(&[true, false, true]).unwrap();
    exchange.record_replay(&[true, false, true]).unwrap();
    assert_eq!(exchange.finish_capture().unwrap(), [true, false, true]);
    // The second micro-step runs with hooks.
    exchange.arm();
    (&leaves[2] * 3.0).sum(Kind::Float).backward();
    let status = exchange.agree(&Buffers::default(), Status::default(), None).unwrap();
    assert_eq!(status.used(false), [true, false, true]);
    let first: Vec<f64> = views.iter().map(|view| view.double_value(&[0])).collect();
    assert_eq!(first, [1.0, 0.0, 5.0], "b has no gradient");
}

#[test]
fn an_undone_capture_leaves_no_error_and_no_gradient() {
    let (leaves, table) = table();
    let mut exchange = exchange(&table, true);
    let fail = || {
        let mut state = exchange.shared.state();
        state.failed = Some(TchError::Torch("not while capturing".to_owned()).into());
        state.ran_out = true;
    };
    exchange.begin(0).unwrap();
    // The hooks ran in a capture that failed.
    leaves[0].sum(Kind::Float).backward();
    fail();
    let error = exchange.finish_capture().unwrap_err();
    assert!(error.to_string().contains("not while capturing"), "{error}");
    assert!(exchange.finish_capture().is_err(), "memory ran out as well");
    fail();
    exchange.undo_capture(&[false; 3]).unwrap();
    assert_eq!(exchange.finish_capture().unwrap(), [false; 3]);
    // A micro-step without a graph, then a failed capture of a later micro-step.
    leaves[0].sum(Kind::Float).backward();
    exchange.end_micro_step().unwrap();
    let used = exchange.used();
    // A graph would compute this later; its place has another step's values.
    leaves[1].sum(Kind::Float).backward();
    exchange.end_micro_step().unwrap();
    fail();
    exchange.undo_capture(&used).unwrap();
    leaves[1].sum(Kind::Float).backward();
    exchange.arm();
    leaves[0].sum(Kind::Float).backward();
    let status = exchange.agree(&Buffers::default(), Status::default(), None).unwrap();
    assert_eq!(status.used(false), [true, true, false]);
    let first = |leaf: usize| table.grads().unwrap()[leaf].double_value(&[0]);
    assert_eq!([first(0), first(1)], [2.0, 1.0]);
}

#[test]
fn a_gradient_changed_after_its_bucket_started_is_an_error() {
    let backward_twice = |overlap| {
        let (leaves, table) = table();
        let mut exchange = exchange(&table, overlap);
        exchange.begin(0).unwrap();
        exchange.arm();
        for _ in 0..2 {
            (&leaves[0] + &leaves[1] + &leaves[2]).sum(Kind::Float).backward();
        }
        exchange.agree(&Buffers::default(), Status::default(), None)
    };
    assert!(backward_twice(false).is_ok());
    let error = backward_twice(true).unwrap_err();
    assert!(matches!(error, StepError::LateGradient { .. }), "{error}");
    assert!(error.to_string().contains("reduce.overlap = false"), "{error}");
}

/// Returns the operand of a product that has `leaf`'s values in bfloat16.
fn operand(leaf: &Tensor) -> Tensor {
    let _region = Autocast::enter(Device::Cpu, Kind::BFloat16).unwrap();
    substitute_shadow(leaf, &leaf.detach().to_kind(Kind::BFloat16)).unwrap()
}

#[test]
fn backward_writes_the_first_gradient_of_a_shadow_into_the_table() {
    let (leaves, table) = table();
    let exchange = exchange(&table, true);
    let views = table.grads().unwrap();
    let value = |leaf: usize| views[leaf].double_value(&[0]);
    let is_there = |leaf: usize| is_same_memory(&leaves[leaf].grad(), &views[leaf]).unwrap();
    exchange.begin(0).unwrap();
    (operand(&leaves[0]) * 2.0).sum(Kind::Float).backward();
    // Two uses in one pass: libtorch adds their gradients. The second is not written over the first.
    (operand(&leaves[1]) * 3.0 + operand(&leaves[1]) * 4.0).sum(Kind::Float).backward();
    (operand(&leaves[2]) * 5.0 + &leaves[2] * 6.0).sum(Kind::Float).backward();
    assert!(is_there(0) && value(0) == 2.0, "before the exchange does anything");
    exchange.end_micro_step().unwrap();
    assert!(is_there(1) && is_there(2));
    assert_eq!([value(1), value(2)], [7.0, 11.0]);
    // The next micro-step adds.
    (operand(&leaves[0]) * 2.0 + operand(&leaves[1])).sum(Kind::Float).backward();
    exchange.end_micro_step().unwrap();
    assert_eq!([value(0), value(1), value(2)], [4.0, 8.0, 11.0]);
    // A recomputed segment has its own pass, in which the outer pass may hold what it has put into the table.
    exchange.begin(1).unwrap();
    (operand(&leaves[0]) * 2.0).sum(Kind::Float).backward();
    assert!(!is_there(0));
    exchange.end_micro_step().unwrap();
    assert!(is_there(0) && value(0) == 2.0);
    // It also adds to gradients of a replay, and begins anew in the next step.
    exchange.begin(0).unwrap();
    exchange.record_replay(&[true, false, false]).unwrap();
    (operand(&leaves[0]) * 2.0 + operand(&leaves[1])).sum(Kind::Float).backward();
    exchange.end_micro_step().unwrap();
    assert_eq!([value(0), value(1)], [4.0, 1.0]);
}

#[test]
fn small_gradients_wait_for_the_bucket_or_the_end_of_the_micro_step() {
    let (leaves, table) = table();
    let exchange = exchange(&table, true);
    let views = table.grads().unwrap();
    let value = |leaf: usize| views[leaf].double_value(&[0]);
    exchange.begin(0).unwrap();
    leaves[0].sum(Kind::Float).backward();
    leaves[0].sum(Kind::Float).backward();
    assert_eq!(value(0), 0.0);
    exchange.end_micro_step().unwrap();
    assert_eq!(value(0), 2.0, "of both passes");
    exchange.arm();
    leaves[1].sum(Kind::Float).backward();
    leaves[0].sum(Kind::Float).backward();
    assert_eq!([value(0), value(1)], [3.0, 0.0]);
    leaves[2].sum(Kind::Float).backward();
    assert_eq!(value(1), 1.0, "the first bucket is complete");
    exchange.abandon().unwrap();
    exchange.begin(0).unwrap();
    leaves[1].sum(Kind::Float).backward();
    exchange.abandon().unwrap();
    assert!(!exchange.start_remaining().unwrap());
    assert_eq!(value(1), 0.0, "nothing of a dropped step is stored later");
}

/// As with segments that share `c`: each recomputed one has its own backward pass.
#[test]
fn a_gradient_of_several_passes_is_reduced_after_backward() {
    let (leaves, mut table) = table();
    let launches = Arc::new(Mutex::new(Vec::new()));
    let ranks = Ranks::new(Box::new(RecordingGroup(Arc::clone(&launches))));
    let mut exchange = Exchange::new(ranks, None, &table, Reduce::default()).unwrap();
    let since = || std::mem::take(&mut *launches.lock().unwrap()).len();
    // Returns the buckets that start with each pass, and after the last one.
    let step = |exchange: &mut Exchange, table: &Table, recomputed: usize| {
        exchange.begin(recomputed).unwrap();
        exchange.arm();
        let started = [2, 0, 1, 2].map(|leaf: usize| {
            leaves[leaf].sum(Kind::Float).backward();
            since()
        });
        let status = exchange.agree(&Buffers::default(), Status::default(), None);
        let grads: Vec<f64> = table.grads().unwrap().iter().map(|grad| grad.double_value(&[0])).collect();
        assert_eq!((status.unwrap().used(false), grads), (vec![true; 3], vec![1.0, 1.0, 2.0]));
        // Buffers and status are an operation each.
        (started, since() - 2)
    };
    assert_eq!(step(&mut exchange, &table, 2), ([0; 4], 3), "nothing is known yet");
    assert_eq!(step(&mut exchange, &table, 2), ([0; 4], 3), "the others wait for their turn");
    let order = exchange.gradient_order().unwrap();
    assert_eq!(order, [0, 1, 2], "in the order of their last passes");
    assert!(table.rearrange(&order, &Ranks::single()).unwrap());
    exchange.adapt_to(&table).unwrap();
    let _ = since();
    assert_eq!(step(&mut exchange, &table, 2), ([0; 4], 3), "the addresses are new");
    assert_eq!(step(&mut exchange, &table, 2), ([0, 1, 1, 0], 1));
    assert_eq!(step(&mut exchange, &table, 3), ([0; 4], 3), "other segments are recomputed");
    assert_eq!(step(&mut exchange, &table, 3), ([0, 1, 1, 0], 1));
}

#[test]
fn an_exchange_adapts_to_a_rearranged_table() {
    let (leaves, mut table) = table();
    let mut exchange = exchange(&table, true);
    assert!(table.rearrange(&[1, 0, 2], &Ranks::single()).unwrap());
    exchange.adapt_to(&table).unwrap();
    exchange.begin(0).unwrap();
    exchange.arm();
    leaves[1].sum(Kind::Float).backward();
    let status = exchange.agree(&Buffers::default(), Status::default(), None).unwrap();
    assert_eq!(status.used(false), [false, true, false]);
    // Dropping the exchange removes its hooks.
    drop(exchange);
    leaves[1].sum(Kind::Float).backward();
}
