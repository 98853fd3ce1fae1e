//! Runs an exported program on given inputs, for a comparison with PyTorch: outputs, the loss and its gradients, or the
//! time of a step. The loss is the sum of the mean squares of all floating-point outputs.
//!
//! `exported MODEL.pt2 INPUTS.safetensors OUT.safetensors [--evaluate] [--recompute N] [--steps N] [--seed S] [--memory]`
//!
//! `exported --chain N` calls N operations on one number without a program, and prints the time of a step: what libtorch
//! itself costs. `--memory` prints the peak of a step in bytes instead: measured, and predicted by symbolic tensors.

use std::error::Error;
use std::path::Path;
use std::time::Instant;

use dtrain_models::{Exported, Registry};
use dtrain_torch_shim::memory;
use dtrain_torch_shim::symbolic::Symbolic;
use tch::{Device, Kind, Tensor};

/// What the command line asks for.
#[derive(Default)]
struct Options {
    files: Vec<String>,
    evaluate: bool,
    recompute: usize,
    steps: usize,
    seed: i64,
    memory: bool,
    chain: usize,
}

fn options() -> Result<Options, Box<dyn Error>> {
    let mut options = Options::default();
    let mut words = std::env::args().skip(1);
    while let Some(word) = words.next() {
        match word.as_str() {
            "--memory" => options.memory = true,
            "--evaluate" => options.evaluate = true,
            "--chain" => options.chain = words.next().ok_or("--chain needs a number")?.parse()?,
            "--recompute" => options.recompute = words.next().ok_or("--recompute needs a number")?.parse()?,
            "--steps" => options.steps = words.next().ok_or("--steps needs a number")?.parse()?,
            "--seed" => options.seed = words.next().ok_or("--seed needs a number")?.parse()?,
            file => options.files.push(file.to_owned()),
        }
    }
    Ok(options)
}

fn loss(outputs: &[Tensor]) -> Result<Tensor, Box<dyn Error>> {
    let floats = outputs.iter().filter(|output| matches!(output.kind(), Kind::Float | Kind::Double));
    let mut total: Option<Tensor> = None;
    for output in floats {
        let term = output.f_square()?.f_mean(Kind::Float)?;
        total = Some(match total {
            Some(total) => total.f_add(&term)?,
            None => term,
        });
    }
    total.ok_or_else(|| "the program has no floating-point output".into())
}

/// Returns the peak of two steps, with the gradients of the first in the second.
fn peak(
    model: &str,
    inputs: &str,
    options: &Options,
    region: Option<&Symbolic>,
) -> Result<u64, Box<dyn Error>> {
    let mut registry = Registry::new(Device::Cpu);
    let program = Exported::load(Path::new(model), &mut registry)?;
    registry.recompute().set(options.recompute);
    for entry in registry.parameters() {
        let _ = entry.tensor().shallow_clone().f_set_requires_grad(!entry.is_frozen())?;
    }
    let given = Tensor::read_safetensors(inputs)?;
    let tensors = program.inputs().iter().map(|port| {
        let found = given.iter().find(|(name, _)| *name == port.name).map(|(_, tensor)| tensor);
        found.map(|tensor| tensor.f_zeros_like()).ok_or_else(|| format!("no input `{}`", port.name))
    });
    let tensors = tensors.collect::<Result<Result<Vec<Tensor>, _>, _>>()??;
    drop(given);
    match region {
        Some(region) => region.reset_peak()?,
        None => memory::reset_peak(Device::Cpu)?,
    }
    for _ in 0..2 {
        let outputs = program.run(&tensors.iter().collect::<Vec<_>>(), true)?;
        registry.recompute().backward(&loss(&outputs)?)?;
    }
    let usage = match region {
        Some(region) => region.usage()?,
        None => memory::usage(Device::Cpu)?,
    };
    Ok(usage.peak)
}

/// Returns the median time of steps of a chain of operations that are called directly.
fn chain(operations: usize) -> Result<f64, Box<dyn Error>> {
    const STEPS: usize = 25;
    let weight = Tensor::f_ones([1], (Kind::Float, Device::Cpu))?.f_set_requires_grad(true)?;
    let input = Tensor::f_zeros([2, 1], (Kind::Float, Device::Cpu))?;
    let mut times = Vec::with_capacity(STEPS);
    for _ in 0..STEPS {
        let began = Instant::now();
        let mut value = input.f_mul(&weight)?;
        for _ in 1..operations {
            value = value.f_sigmoid()?;
        }
        loss(&[value])?.f_backward()?;
        times.push(began.elapsed().as_secs_f64());
    }
    Ok(median(times))
}

fn median(mut times: Vec<f64>) -> f64 {
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}

fn main() -> Result<(), Box<dyn Error>> {
    let options = options()?;
    if options.chain > 0 {
        tch::set_num_threads(1);
        println!("{{\"step_s\": {:.6}}}", chain(options.chain)?);
        return Ok(());
    }
    let [model, inputs, out] = options.files.as_slice() else {
        return Err("usage: exported MODEL.pt2 INPUTS.safetensors OUT.safetensors [--evaluate] [--recompute N] [--steps N]".into());
    };
    tch::set_num_threads(1);
    tch::set_num_interop_threads(1);
    if options.memory {
        memory::enable_stats()?;
        let measured = peak(model, inputs, &options, None)?;
        let region = Symbolic::enter(None)?;
        let predicted = peak(model, inputs, &options, Some(&region))?;
        println!("{{\"measured\": {measured}, \"predicted\": {predicted}}}");
        return Ok(());
    }
    let mut registry = Registry::new(Device::Cpu);
    let began = Instant::now();
    let program = Exported::load(Path::new(model), &mut registry)?;
    let loaded = began.elapsed();
    if options.recompute > 0 {
        registry.recompute().set(options.recompute);
    }
    for entry in registry.parameters() {
        let _ = entry.tensor().shallow_clone().f_set_requires_grad(!entry.is_frozen())?;
    }
    let given = Tensor::read_safetensors(inputs)?;
    let named = program.inputs().iter().map(|port| {
        let found = given.iter().find(|(name, _)| *name == port.name);
        found.map(|(_, tensor)| tensor).ok_or_else(|| format!("no input `{}`", port.name))
    });
    let inputs: Vec<&Tensor> = named.collect::<Result<_, _>>()?;
    let mut saved: Vec<(String, Tensor)> = Vec::new();
    let mut times = Vec::new();
    for step in 0..=options.steps {
        tch::manual_seed(options.seed);
        for entry in registry.parameters() {
            entry.tensor().shallow_clone().zero_grad();
        }
        let began = Instant::now();
        let outputs = match options.evaluate {
            true => tch::no_grad(|| program.run(&inputs, false))?,
            false => program.run(&inputs, true)?,
        };
        let loss = loss(&outputs)?;
        if !options.evaluate {
            registry.recompute().backward(&loss)?;
        }
        times.push(began.elapsed().as_secs_f64());
        if step == 0 {
            let ports = if options.evaluate { program.evaluation_outputs() } else { program.outputs() };
            let copied = ports
                .iter()
                .zip(&outputs)
                .map(|(port, value)| (format!("output.{}", port.name), value.copy()));
            saved.extend(copied);
            saved.push(("loss".to_owned(), loss.copy()));
            for entry in registry.parameters().filter(|_| !options.evaluate) {
                let gradient = entry.tensor().grad();
                if gradient.defined() {
                    saved.push((format!("grad.{}", entry.name()), gradient.copy()));
                }
            }
            let buffers =
                registry.buffers().map(|entry| (format!("buffer.{}", entry.name()), entry.tensor().copy()));
            saved.extend(buffers);
        }
    }
    let contiguous: Vec<(String, Tensor)> =
        saved.into_iter().map(|(name, tensor)| (name, tensor.detach().contiguous())).collect();
    Tensor::write_safetensors(&contiguous, out)?;
    println!(
        "{{\"load_s\": {:.4}, \"segments\": {}, \"step_s\": {:.6}, \"draws\": {}}}",
        loaded.as_secs_f64(),
        registry.recompute().segments(),
        median(times),
        program.draws_random_numbers()
    );
    Ok(())
}
