//! Waits, kernels and allocations of a step, counted on a CPU with the operations of a GPU's step.
#![allow(clippy::unwrap_used)]

use std::process::Command;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use dtrain_common::env::WorkerEnv;
use dtrain_recipe::{Budget, Recipe, Reduce};
use dtrain_torch_shim::count::{OperationCounter, Operations};
use dtrain_torch_shim::memory;
use tch::Device;

use super::decide::tests::AS_ON_A_GPU;
use super::reading::tests::WAITS;
use super::*;
use crate::collectives::{Collective, CollectiveError, ProcessGroup, Ranks, Work};
use crate::faults::Fault;
use crate::memory::MemoryStats;
use crate::planning::rehearsal;
use crate::setup::Setup;
use crate::setup::opening::Opening;
use crate::tasks::{BuildTask, Classify, SurveyContext};

/// An operation that counts waits for it.
struct CountedWork(Arc<AtomicU64>);

impl Work for CountedWork {
    fn wait(self: Box<Self>) -> Result<(), CollectiveError> {
        self.0.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }
}

/// One of two ranks; the other has zeros. Records the host's waits before each operation.
struct RecordingGroup(Arc<Mutex<Vec<u64>>>, Arc<AtomicU64>);

impl ProcessGroup for RecordingGroup {
    fn rank_and_size(&self) -> (usize, usize) {
        (0, 2)
    }
    fn set_timeout(&mut self, _: Duration) {}
    fn start(&self, one: Collective<'_>) -> Result<Box<dyn Work>, CollectiveError> {
        if let Collective::AllReduce(..) | Collective::ReduceScatter { .. } = one {
            self.0.lock().unwrap().push(WAITS.get());
        }
        self.barrier()
    }
    fn barrier(&self) -> Result<Box<dyn Work>, CollectiveError> {
        Ok(Box::new(CountedWork(Arc::clone(&self.1))))
    }
    fn shutdown(self: Box<Self>) -> Result<(), CollectiveError> {
        Ok(())
    }
}

/// Limit for tensor allocations in a step of a ResNet-18.
const MAX_ALLOCATIONS: u64 = 800;

struct Counted {
    operations: Operations,
    waits: u64,
    /// The number of waits for operations between ranks.
    works: u64,
    /// By reduction: the host's waits in the step before it.
    reductions: Vec<u64>,
}

/// Returns a ResNet-18 with AdamW, clipping and a batch of 8, on generated images.
fn resnet(others: &[&str]) -> Setup {
    let sets = ["model.name=resnet18", "data.image_size=32", "train.effective_batch=8", "optim.clip=1.0"];
    let sets = sets.iter().chain(others);
    let recipe = Recipe::load("demo", &sets.map(ToString::to_string).collect::<Vec<_>>()).unwrap();
    let survey = SurveyContext::with_log(|context| Classify::survey(&recipe, context)).unwrap();
    let opening = Opening::rehearsed(serde_json::to_value(survey).unwrap());
    Setup::build::<Classify>(&recipe, &opening, &WorkerEnv::single(), Device::Cpu, None).unwrap()
}

/// A rank that repeats one step on a batch of 8 without values.
struct Bench {
    setup: Setup,
    exchange: Exchange,
    stepper: Stepper<'static, BlankFeed>,
    seen: Arc<Mutex<Vec<u64>>>,
    works: Arc<AtomicU64>,
}

impl Bench {
    fn new(setup: Setup, two_ranks: bool) -> Self {
        let (seen, works) = (Arc::default(), Arc::default());
        let ranks = match two_ranks {
            true => Ranks::new(Box::new(RecordingGroup(Arc::clone(&seen), Arc::clone(&works)))),
            false => Ranks::single(),
        };
        // As with graphs, after which all buckets start at once.
        let options = Reduce { overlap: false, ..Reduce::default() };
        let model = &setup.replica.model;
        let mut exchange = Exchange::new(ranks, None, &model.table, options).unwrap();
        let facts = model.task.facts();
        exchange.prepare_statuses(&*facts.train).unwrap();
        let feed = BlankFeed::new(model.task.facts().train.fields(), &[8]);
        let phases = Phases::new(MemoryStats::Device(Device::Cpu), Fault::default());
        let limits = Limits::new(Device::Cpu, Budget::Auto);
        let stepper = Stepper::new(feed, Box::new(Eager), phases, limits).unwrap();
        Self { setup, exchange, stepper, seen, works }
    }

    fn step(&mut self) -> Counted {
        self.stepper.feed.again();
        self.seen.lock().unwrap().clear();
        self.works.store(0, Ordering::Relaxed);
        let (counting, before) = (OperationCounter::start().unwrap(), WAITS.get());
        let plan = rehearsal::plan_step(&[8]);
        let attempt = self.stepper.step(&mut self.setup.replica, &mut self.exchange, &plan, &mut ()).unwrap();
        assert!(matches!(attempt, Attempt::Taken(_)));
        Counted {
            operations: counting.counts(),
            waits: WAITS.get() - before,
            works: self.works.load(Ordering::Relaxed),
            reductions: self.seen.lock().unwrap().iter().map(|waits| waits - before).collect(),
        }
    }

    /// Takes a step, and counts the tensors that the whole process allocates meanwhile.
    fn allocating_step(&mut self) -> (Counted, u64) {
        const MANY: u64 = 1 << 40;
        memory::fail_allocation(MANY);
        let counted = self.step();
        let allocations = MANY - memory::allocations_until_failure();
        memory::fail_allocation(0);
        (counted, allocations)
    }
}

/// Returns the counts of a third step.
fn third(as_on_a_gpu: bool) -> Counted {
    AS_ON_A_GPU.set(as_on_a_gpu);
    let mut bench = Bench::new(resnet(&[]), true);
    let counted: Vec<Counted> = (0..3).map(|_| bench.step()).collect();
    AS_ON_A_GPU.set(false);
    counted.into_iter().next_back().unwrap()
}

#[test]
fn a_gpu_step_waits_once_after_queueing_all_work() {
    let (gpu, cpu) = (third(true), third(false));
    println!("{:?} as on a GPU, {:?} on a CPU", gpu.operations, cpu.operations);
    assert_eq!((gpu.waits, cpu.waits), (1, 2));
    assert_eq!((gpu.operations.reads, cpu.operations.reads), (0, 0));
    // Buckets, buffers, totals and status.
    assert!(gpu.reductions.len() > 4);
    assert!(gpu.reductions.iter().all(|waits| *waits == 0), "{:?}", gpu.reductions);
    let decision = gpu.operations.kernels.abs_diff(cpu.operations.kernels);
    assert!(decision <= 40, "{decision} kernels to decide");
}

/// Runs in a separate process, because it counts allocations of the whole process.
#[test]
fn waits_and_allocations_do_not_grow_over_steps() {
    const ALONE: &str = "DTRAIN_TEST_ALONE";
    if std::env::var_os(ALONE).is_none() {
        let name = "step::tests::waits_and_allocations_do_not_grow_over_steps";
        let mut alone = Command::new(std::env::current_exe().unwrap());
        let output = alone.args([name, "--exact", "--nocapture"]).env(ALONE, "1").output().unwrap();
        let output_text = [output.stdout, output.stderr].concat();
        let output_text = String::from_utf8_lossy(&output_text);
        assert!(output.status.success() && output_text.contains("1 passed"), "{output_text}");
        return;
    }
    memory::enable_stats().unwrap();
    let mut bench = Bench::new(resnet(&[]), true);
    let counted: Vec<_> = (0..10).map(|_| bench.allocating_step()).collect();
    let (_, steady) = counted.split_at(2);
    let (first, _) = &steady[0];
    for (step, allocations) in steady {
        assert_eq!((step.waits, step.works, step.operations), (first.waits, first.works, first.operations));
        // The host waits once for every reduction.
        assert_eq!(step.works, step.reductions.len() as u64);
        assert!(*allocations <= MAX_ALLOCATIONS, "{allocations}");
    }
    let most = |steps: &[(Counted, u64)]| steps.iter().map(|(_, allocations)| *allocations).max();
    let (early, late) = (most(&steady[..4]).unwrap(), most(&steady[4..]).unwrap());
    assert!(late <= early, "{early} allocations, and {late} four steps later");
}

#[test]
fn a_rehearsed_step_with_nan_still_updates() {
    let setup = resnet(&["ema.decay=0.9"]);
    let data = setup.replica.model.table.data().next().unwrap().shallow_clone();
    tch::no_grad(|| drop(data.shallow_clone().fill_(f64::NAN)));
    AS_ON_A_GPU.set(true);
    let mut bench = Bench::new(setup, false);
    bench.step();
    AS_ON_A_GPU.set(false);
    let average = bench.setup.replica.model.average;
    assert_eq!(average.map(|average| average.updates()), Some(1));
}
