//! Time and memory of a step with more and fewer segments computed again: `recompute-bench WIDTH CONTEXT BATCH ROUNDS`.
//!
//! A GPT of 12 layers on random tokens of 65 kinds: forward, loss, backward, an update by AdamW. A round takes one step with
//! every number of segments, one after the other, so that what else the machine does falls on all alike. Before the one that
//! is timed it takes two: in these the bits of segments are compared, in most steps of a training they are not. Times are
//! medians over the rounds, ratios those of the rounds' own ratios. Activations are the peak of a step over what is allocated between
//! two steps: weights, gradients and the optimizer's state. Writes a table in Markdown to standard output.

use std::time::Instant;

use dtrain_torch_shim::memory;
use dtrain_worker::engine::Arena;
use dtrain_worker::models::{Gpt, GptConfig, Registry};
use dtrain_worker::optim::{Adam, AdamOptions, GroupOptions, Optimizer, WeightDecay};
use tch::{Device, Kind, Reduction, Tensor};

type Failure = Box<dyn std::error::Error>;

const DEPTH: usize = 12;
const KINDS: usize = 65;
/// Numbers of segments, the plain way first.
const COUNTS: [usize; 4] = [0, 6, 11, 12];

fn main() -> Result<(), Failure> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [width, context, batch, rounds] = args.as_slice() else {
        return Err("four arguments are needed: WIDTH CONTEXT BATCH ROUNDS".into());
    };
    let (width, context): (usize, usize) = (width.parse()?, context.parse()?);
    let (batch, rounds): (i64, usize) = (batch.parse()?, rounds.parse()?);
    if rounds == 0 {
        return Err("ROUNDS must be at least 1".into());
    }
    memory::account()?;
    dtrain_torch_shim::keep_freed_memory()?;
    tch::manual_seed(1);
    let mut bench = Bench::new(width, context, batch)?;
    // The first step makes gradients and moments.
    bench.step(0)?;
    let mut times = COUNTS.map(|_| Vec::new());
    let mut activations = [0; COUNTS.len()];
    for _ in 0..rounds {
        for (number, count) in COUNTS.into_iter().enumerate() {
            for _ in 0..2 {
                bench.step(count)?;
            }
            let (seconds, bytes) = bench.step(count)?;
            times[number].push(seconds);
            activations[number] = bytes;
        }
    }
    println!("width {width}, context {context}, batch {batch}, {DEPTH} layers, {rounds} rounds\n");
    println!("| Segments computed again | Activations | Step | Against none |");
    println!("|---|---|---|---|");
    for (number, count) in COUNTS.into_iter().enumerate() {
        let ratios = times[number]
            .iter()
            .zip(&times[0])
            .map(|(own, plain)| own / plain);
        println!(
            "| {count} | {:.1} MiB | {:.0} ms | {:.2} times the memory, {:.3} times the time |",
            activations[number] as f64 / (1 << 20) as f64,
            median(times[number].clone()) * 1e3,
            activations[number] as f64 / activations[0] as f64,
            median(ratios.collect()),
        );
    }
    Ok(())
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    let (lower, upper) = ((values.len() - 1) / 2, values.len() / 2);
    (values[lower] + values[upper]) / 2.0
}

/// What is trained.
struct Bench {
    registry: Registry,
    model: Gpt,
    arena: Arena,
    optimizer: Adam,
    tokens: Tensor,
}

impl Bench {
    fn new(width: usize, context: usize, batch: i64) -> Result<Self, Failure> {
        let config = GptConfig {
            vocabulary: KINDS,
            context,
            width,
            depth: DEPTH,
            heads: width.div_ceil(64),
        };
        let mut registry = Registry::new(Device::Cpu);
        let model = Gpt::new(config, &mut registry)?;
        let arena = Arena::new(registry.parameters().map(|entry| (entry.name(), entry.tensor())))?;
        let options = AdamOptions {
            betas: (0.9, 0.95),
            eps: 1e-8,
            decay: WeightDecay::Decoupled,
            groups: vec![GroupOptions::plain(0.1)],
        };
        let tokens = Tensor::f_randint(
            KINDS as i64,
            [batch, i64::try_from(context)? + 1],
            (Kind::Int64, Device::Cpu),
        )?;
        Ok(Self {
            optimizer: Adam::new(&arena, options)?,
            registry,
            model,
            arena,
            tokens,
        })
    }

    /// Seconds that a step takes, and bytes of its activations.
    fn step(&mut self, count: usize) -> Result<(f64, u64), Failure> {
        self.registry.recompute().set(count);
        let before = memory::usage(Device::Cpu)?.allocated;
        memory::reset_peak(Device::Cpu)?;
        let begun = Instant::now();
        self.arena.zero_grad()?;
        let length = self.tokens.size()[1] - 1;
        let logits = self.model.forward(&self.tokens.f_narrow(1, 0, length)?)?;
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
        self.optimizer.step(&self.arena, 1e-4, &used)?;
        let seconds = begun.elapsed().as_secs_f64();
        Ok((seconds, memory::usage(Device::Cpu)?.peak - before))
    }
}
