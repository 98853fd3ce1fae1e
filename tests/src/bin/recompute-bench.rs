//! Measures time and memory of a step by recomputed segments: `recompute-bench WIDTH CONTEXT BATCH ROUNDS`.
//!
//! Trains GPTs of 12 layers on random tokens (65 kinds), one GPT per number of segments: forward, loss,
//! backward, an AdamW update. A round takes one step with each GPT in turn: other load on the machine affects
//! all of them. Times are medians over the rounds, and ratios are medians of the rounds' ratios; on a busy
//! machine, processor time is more reliable than wall time. Activations are the peak of a step minus the
//! memory between steps (weights, gradients, optimizer state). Prints a table in Markdown.

use std::time::Instant;

use dtrain_tests::cpu;
use dtrain_torch_shim::memory;
use dtrain_worker::models::{Gpt, GptConfig, Registry};
use dtrain_worker::optim::{GroupOptions, Optimizer, Rule, WeightDecay};
use dtrain_worker::state::Table;
use tch::{Device, Kind, Reduction, Tensor};

type Failure = Box<dyn std::error::Error>;

const DEPTH: usize = 12;
const KINDS: usize = 65;
/// Numbers of recomputed segments; 0 is first.
const COUNTS: [usize; 4] = [0, 7, 11, 12];

fn main() -> Result<(), Failure> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [width, context, batch, rounds] = args.as_slice() else {
        return Err("usage: recompute-bench WIDTH CONTEXT BATCH ROUNDS".into());
    };
    let (width, context): (usize, usize) = (width.parse()?, context.parse()?);
    let (batch, rounds): (i64, usize) = (batch.parse()?, rounds.parse()?);
    if rounds == 0 {
        return Err("ROUNDS must be at least 1".into());
    }
    memory::enable_stats()?;
    dtrain_torch_shim::keep_freed_memory()?;
    tch::manual_seed(1);
    let mut benches = Vec::new();
    for count in COUNTS {
        let mut bench = Bench::new(width, context, batch)?;
        bench.registry.recompute().set(count);
        // The first step creates gradients and moments.
        bench.step()?;
        benches.push(bench);
    }
    let mut steps = COUNTS.map(|_| Vec::new());
    for _ in 0..rounds {
        for (bench, steps) in benches.iter_mut().zip(&mut steps) {
            steps.push(bench.step()?);
        }
    }
    println!("width {width}, context {context}, batch {batch}, {DEPTH} layers, {rounds} rounds\n");
    println!(
        "| Recomputed segments | Activations | Share of plain | Step | Processor time | Ratio to plain |"
    );
    println!("|---|---|---|---|---|---|");
    for (own, count) in steps.iter().zip(COUNTS) {
        let mib = |steps: &[Step]| steps[0].bytes as f64 / (1 << 20) as f64;
        let ratios = own.iter().zip(&steps[0]).map(|(own, plain)| own.cpu / plain.cpu);
        println!(
            "| {count} | {:.1} MiB | {:.2} | {:.0} ms | {:.0} ms | {:.3} |",
            mib(own),
            mib(own) / mib(&steps[0]),
            median(own.iter().map(|step| step.wall).collect()) * 1e3,
            median(own.iter().map(|step| step.cpu).collect()) * 1e3,
            median(ratios.collect()),
        );
    }
    Ok(())
}

/// The costs of a step.
struct Step {
    /// Seconds of wall time.
    wall: f64,
    /// Processor seconds of all threads of this process.
    cpu: f64,
    /// Peak bytes above the memory before the step.
    bytes: u64,
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    let (lower, upper) = ((values.len() - 1) / 2, values.len() / 2);
    (values[lower] + values[upper]) / 2.0
}

/// A GPT with its optimizer.
struct Bench {
    registry: Registry,
    model: Gpt,
    table: Table,
    optimizer: Optimizer,
    tokens: Tensor,
}

impl Bench {
    fn new(width: usize, context: usize, batch: i64) -> Result<Self, Failure> {
        let config = GptConfig { vocabulary: KINDS, context, width, depth: DEPTH, heads: width.div_ceil(64) };
        let mut registry = Registry::new(Device::Cpu);
        let model = Gpt::new(config, &mut registry)?;
        let mut table = Table::of(registry.parameters().map(|entry| (entry.name(), entry.tensor())))?;
        let decay = WeightDecay::Decoupled;
        let rule = Rule::Adam { betas: (0.9, 0.95), eps: 1e-8, decay, amsgrad: false };
        let tokens = Tensor::f_randint(
            KINDS as i64,
            [batch, i64::try_from(context)? + 1],
            (Kind::Int64, Device::Cpu),
        )?;
        Ok(Self {
            optimizer: Optimizer::new(rule, vec![GroupOptions::plain(0.1)], &mut table)?,
            registry,
            model,
            table,
            tokens,
        })
    }

    fn step(&mut self) -> Result<Step, Failure> {
        let before = memory::usage(Device::Cpu)?.allocated;
        memory::reset_peak(Device::Cpu)?;
        let (begun, worked) = (Instant::now(), cpu::time());
        self.table.zero_grad()?;
        let length = self.tokens.size()[1] - 1;
        let logits = self.model.forward(&self.tokens.f_narrow(1, 0, length)?, true)?;
        let targets = self.tokens.f_narrow(1, 1, length)?.f_reshape([-1])?;
        let loss = logits.f_view([-1, KINDS as i64])?.f_cross_entropy_loss(
            &targets,
            None::<Tensor>,
            Reduction::Mean,
            -100,
            0.0,
        )?;
        drop(logits);
        self.registry.recompute().backward(&loss)?;
        drop(loss);
        let used = vec![true; self.registry.parameters().count()];
        self.optimizer.step(&mut self.table, 1e-4, &used, None)?;
        Ok(Step {
            wall: begun.elapsed().as_secs_f64(),
            cpu: (cpu::time() - worked).as_secs_f64(),
            bytes: memory::usage(Device::Cpu)?.peak - before,
        })
    }
}
