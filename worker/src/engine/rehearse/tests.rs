//! How often the host waits in a step, and how much it has to start, counted on a CPU: the operations are those of a GPU's step.
#![allow(clippy::unwrap_used)]

use std::sync::{Arc, Mutex};
use std::time::Duration;

use dtrain_common::env::WorkerEnv;
use dtrain_common::recipe::Recipe;
use dtrain_torch_shim::count::{Counting, Operations};
use tch::Device;

use super::super::reading::tests::WAITS;
use super::super::verdict::tests::AS_ON_A_GPU;
use super::*;
use crate::collectives::{CollectiveError, Done, ProcessGroup, ReduceOp, Work};
use crate::setup::{Opening, Setup};
use crate::tasks::{BuildTask, Classify, Console};

/// One of two ranks, the other of which has zeros. It notes how often the host had waited when an operation was started.
struct Watching(Arc<Mutex<Vec<u64>>>);

impl ProcessGroup for Watching {
    fn rank(&self) -> usize {
        0
    }
    fn size(&self) -> usize {
        2
    }
    fn backend(&self) -> &'static str {
        "watching"
    }
    fn set_timeout(&mut self, _: Duration) {}
    fn all_reduce(&self, _: &Tensor, _: ReduceOp) -> Result<Box<dyn Work>, CollectiveError> {
        self.0.lock().unwrap().push(WAITS.get());
        self.barrier()
    }
    fn broadcast(&self, _: &Tensor, _: usize) -> Result<Box<dyn Work>, CollectiveError> {
        self.barrier()
    }
    fn all_gather(&self, _: &Tensor, _: &Tensor) -> Result<Box<dyn Work>, CollectiveError> {
        self.barrier()
    }
    fn reduce_scatter(&self, _: &Tensor, _: &Tensor, op: ReduceOp) -> Result<Box<dyn Work>, CollectiveError> {
        self.all_reduce(&Tensor::new(), op)
    }
    fn barrier(&self) -> Result<Box<dyn Work>, CollectiveError> {
        Ok(Box::new(Done))
    }
    fn shutdown(self: Box<Self>) -> Result<(), CollectiveError> {
        Ok(())
    }
}

struct Counted {
    operations: Operations,
    waits: u64,
    /// For every reduction: how often the host had waited in the step.
    reductions: Vec<u64>,
}

/// A ResNet-18 with AdamW, clipping and a batch of 8, on generated images.
fn resnet(others: &[&str]) -> Setup {
    let sets = [
        "model.name=resnet18",
        "data.image_size=32",
        "train.effective_batch=8",
        "optim.clip=1.0",
    ];
    let sets = sets.iter().chain(others);
    let recipe = Recipe::load("demo", &sets.map(ToString::to_string).collect::<Vec<_>>()).unwrap();
    let mut console = Console {
        threads: 1,
        say: &mut |_| (),
        warn: &mut |_| (),
    };
    let survey = serde_json::to_value(Classify::survey(&recipe, &mut console).unwrap()).unwrap();
    let opening = Opening::rehearsed(survey);
    Setup::build::<Classify>(&recipe, &opening, &WorkerEnv::single(), Device::Cpu, None).unwrap()
}

/// Its third step.
fn step(as_on_a_gpu: bool) -> Counted {
    let mut setup = resnet(&[]);
    let seen = Arc::default();
    let ranks = Ranks::new(Box::new(Watching(Arc::clone(&seen))));
    // As with graphs, behind which all buckets leave at once.
    let options = ReduceOptions {
        overlap: false,
        compress: None,
    };
    AS_ON_A_GPU.set(as_on_a_gpu);
    let mut counted = None;
    for _ in 0..3 {
        let fields = setup.model.task.train_set().fields().to_vec();
        let batch = Batch::blank(&fields, 8, Device::Cpu).unwrap();
        seen.lock().unwrap().clear();
        let (counting, before) = (Counting::begin().unwrap(), WAITS.get());
        rehearse(
            &mut setup.model,
            &ranks,
            options,
            &mut setup.precision,
            None,
            Books::Device(Device::Cpu),
            std::iter::once(Ok(batch)),
        )
        .unwrap();
        counted = Some(Counted {
            operations: counting.so_far(),
            waits: WAITS.get() - before,
            reductions: seen.lock().unwrap().iter().map(|waits| waits - before).collect(),
        });
    }
    AS_ON_A_GPU.set(false);
    counted.unwrap()
}

#[test]
fn the_host_waits_once_in_a_step_of_a_gpu_and_behind_all_it_starts() {
    let (gpu, cpu) = (step(true), step(false));
    println!("{:?} as on a GPU, {:?} on a CPU", gpu.operations, cpu.operations);
    assert_eq!((gpu.waits, cpu.waits), (1, 2));
    assert_eq!((gpu.operations.reads, cpu.operations.reads), (0, 0));
    // Buckets, buffers, totals and status.
    assert!(gpu.reductions.len() > 4);
    assert!(
        gpu.reductions.iter().all(|waits| *waits == 0),
        "{:?}",
        gpu.reductions
    );
    let decision = gpu.operations.kernels.abs_diff(cpu.operations.kernels);
    assert!(decision <= 40, "{decision} kernels to decide");
}

#[test]
fn a_rehearsed_step_that_is_skipped_takes_what_one_that_counts_takes() {
    let mut setup = resnet(&["ema.decay=0.9"]);
    let data = setup.model.table.data().next().unwrap().shallow_clone();
    tch::no_grad(|| drop(data.shallow_clone().fill_(f64::NAN)));
    AS_ON_A_GPU.set(true);
    let fields = setup.model.task.train_set().fields().to_vec();
    let batch = Batch::blank(&fields, 8, Device::Cpu).unwrap();
    rehearse(
        &mut setup.model,
        &Ranks::single(),
        ReduceOptions::default(),
        &mut setup.precision,
        None,
        Books::Device(Device::Cpu),
        std::iter::once(Ok(batch)),
    )
    .unwrap();
    AS_ON_A_GPU.set(false);
    assert_eq!(setup.model.average.map(|average| average.updates()), Some(1));
}
