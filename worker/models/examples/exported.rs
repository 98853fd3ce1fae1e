//! Runs an exported program on given inputs, for a comparison with PyTorch: outputs, the loss and its gradients, or the
//! time of a step. The loss is the sum of the mean squares of all floating-point outputs.
//!
//! `exported MODEL.pt2 INPUTS.safetensors OUT.safetensors [--evaluate] [--recompute N] [--bf16] [--seed S]
//! [--serve] [--calls N] [--memory [--gpu] [--channels-last]]`
//!
//! - `--serve` runs one more step for each line of its input, and prints the step's seconds.
//! - `--calls N` prints the time of a step beside that of N operations on one number that are called without a program:
//!   what libtorch itself costs.
//! - `--memory` prints the peak of a step in bytes: measured, and predicted by symbolic tensors. `--gpu`: on a GPU.
//!   `--channels-last`: weights of convolutions are N x H x W x C in memory.

use std::error::Error;
use std::path::Path;
use std::time::Instant;

use dtrain_models::{Exported, Registry, channels_last};
use dtrain_torch_shim::autocast::Autocast;
use dtrain_torch_shim::cuda;
use dtrain_torch_shim::memory;
use dtrain_torch_shim::symbolic::Symbolic;
use tch::{Device, Kind, Tensor};

/// What the command line asks for.
#[derive(Default)]
struct Options {
    files: Vec<String>,
    evaluate: bool,
    recompute: usize,
    serve: bool,
    seed: i64,
    memory: bool,
    gpu: bool,
    channels_last: bool,
    bf16: bool,
    calls: usize,
}

fn options() -> Result<Options, Box<dyn Error>> {
    let mut options = Options::default();
    let mut words = std::env::args().skip(1);
    while let Some(word) = words.next() {
        match word.as_str() {
            "--memory" => options.memory = true,
            "--gpu" => options.gpu = true,
            "--channels-last" => options.channels_last = true,
            "--bf16" => options.bf16 = true,
            "--evaluate" => options.evaluate = true,
            "--calls" => options.calls = words.next().ok_or("--calls needs a number")?.parse()?,
            "--recompute" => options.recompute = words.next().ok_or("--recompute needs a number")?.parse()?,
            "--serve" => options.serve = true,
            "--seed" => options.seed = words.next().ok_or("--seed needs a number")?.parse()?,
            file => options.files.push(file.to_owned()),
        }
    }
    Ok(options)
}

fn loss(outputs: &[Tensor]) -> Result<Tensor, Box<dyn Error>> {
    let mut total: Option<Tensor> = None;
    for output in outputs {
        let output = match output.kind() {
            Kind::Float | Kind::Double => output.shallow_clone(),
            Kind::BFloat16 => output.f_to_kind(Kind::Float)?,
            _ => continue,
        };
        let term = output.f_square()?.f_mean(Kind::Float)?;
        total = Some(match total {
            Some(total) => total.f_add(&term)?,
            None => term,
        });
    }
    total.ok_or_else(|| "the program has no floating-point output".into())
}

/// A program with its inputs.
struct Loaded {
    registry: Registry,
    program: Exported,
    inputs: Vec<Tensor>,
}

impl Loaded {
    fn new(options: &Options, model: &str, inputs: &str, device: Device) -> Result<Self, Box<dyn Error>> {
        let mut registry = Registry::new(device);
        let program = Exported::load(Path::new(model), &mut registry)?;
        registry.recompute().set(options.recompute);
        for entry in registry.parameters() {
            if options.channels_last && entry.tensor().dim() == 4 {
                entry.tensor().shallow_clone().f_set_data(&channels_last(entry.tensor())?)?;
            }
            let _ = entry.tensor().shallow_clone().f_set_requires_grad(!entry.is_frozen())?;
        }
        let given = Tensor::read_safetensors(inputs)?;
        let named = program.inputs().iter().map(|port| {
            let found = given.iter().find(|(name, _)| *name == port.name);
            let (_, tensor) = found.ok_or_else(|| format!("no input `{}`", port.name))?;
            Ok(tensor.f_to_device(device)?)
        });
        let inputs = named.collect::<Result<_, Box<dyn Error>>>()?;
        Ok(Self { registry, program, inputs })
    }

    /// Runs a step. Returns the outputs, the loss and the seconds.
    fn step(&self, options: &Options) -> Result<(Vec<Tensor>, Tensor, f64), Box<dyn Error>> {
        let inputs: Vec<&Tensor> = self.inputs.iter().collect();
        let began = Instant::now();
        let autocast = options.bf16.then(|| Autocast::enter(Device::Cpu, Kind::BFloat16)).transpose()?;
        let outputs = match options.evaluate {
            true => tch::no_grad(|| self.program.run(&inputs, false))?,
            false => self.program.run(&inputs, true)?,
        };
        drop(autocast);
        let loss = loss(&outputs)?;
        if !options.evaluate {
            self.registry.recompute().backward(&loss)?;
        }
        Ok((outputs, loss, began.elapsed().as_secs_f64()))
    }

    /// Returns outputs, loss, gradients and buffers by name.
    fn named(&self, options: &Options, outputs: &[Tensor], loss: &Tensor) -> Vec<(String, Tensor)> {
        let ports = if options.evaluate { self.program.evaluation_outputs() } else { self.program.outputs() };
        let outputs = ports.iter().zip(outputs);
        let outputs = outputs.map(|(port, value)| (format!("output.{}", port.name), value.shallow_clone()));
        let leaves = self.registry.parameters().filter(|_| !options.evaluate);
        let gradients = leaves.map(|entry| (format!("grad.{}", entry.name()), entry.tensor().grad()));
        let buffers = self.registry.buffers();
        let buffers =
            buffers.map(|entry| (format!("buffer.{}", entry.name()), entry.tensor().shallow_clone()));
        let loss = [("loss".to_owned(), loss.shallow_clone())];
        let all = outputs.chain(loss).chain(gradients.filter(|(_, value)| value.defined())).chain(buffers);
        all.map(|(name, value)| (name, value.detach().contiguous())).collect()
    }
}

/// Prints the peak of two steps, with the gradients of the first in the second: measured, and predicted.
fn compare_memory(options: &Options, model: &str, inputs: &str) -> Result<(), Box<dyn Error>> {
    let device = if options.gpu { Device::Cuda(0) } else { Device::Cpu };
    if options.gpu {
        cuda::load()?;
    }
    memory::enable_stats()?;
    let loaded = Loaded::new(options, model, inputs, device)?;
    memory::reset_peak(device)?;
    for _ in 0..2 {
        let _ = loaded.step(options)?;
    }
    let measured = memory::usage(device)?.peak;
    drop(loaded);
    let gpu = if options.gpu { Some(cuda::simulated(0)?) } else { None };
    let region = Symbolic::enter(gpu)?;
    let loaded = Loaded::new(options, model, inputs, Device::Cpu)?;
    region.reset_peak()?;
    for _ in 0..2 {
        let _ = loaded.step(options)?;
    }
    let libraries = if options.gpu { region.take_library_bytes(cuda::blas_workspace()?) } else { 0 };
    println!("{{\"measured\": {measured}, \"predicted\": {}}}", region.usage()?.peak + libraries);
    Ok(())
}

/// Prints the median seconds of steps of a chain of operations on one number: called directly, and by the program.
fn compare_calls(options: &Options, model: &str, inputs: &str) -> Result<(), Box<dyn Error>> {
    const STEPS: usize = 50;
    let loaded = Loaded::new(options, model, inputs, Device::Cpu)?;
    let (weight, input) = (Tensor::f_ones([1], (Kind::Float, Device::Cpu))?, &loaded.inputs[0]);
    let weight = weight.f_set_requires_grad(true)?;
    let (mut direct, mut program) = (Vec::new(), Vec::new());
    for _ in 0..STEPS {
        let began = Instant::now();
        let mut value = input.f_mul(&weight)?;
        for _ in 1..options.calls {
            value = value.f_sigmoid()?;
        }
        loss(&[value])?.f_backward()?;
        direct.push(began.elapsed().as_secs_f64());
        program.push(loaded.step(options)?.2);
    }
    let median = |times: &mut Vec<f64>| {
        times.sort_by(f64::total_cmp);
        times[STEPS / 2]
    };
    println!("{{\"direct_s\": {}, \"program_s\": {}}}", median(&mut direct), median(&mut program));
    Ok(())
}

fn main() -> Result<(), Box<dyn Error>> {
    let options = options()?;
    tch::set_num_threads(1);
    tch::set_num_interop_threads(1);
    let [model, inputs, out] = options.files.as_slice() else {
        return Err(
            "usage: exported MODEL.pt2 INPUTS.safetensors OUT.safetensors [FLAGS]; the source describes them"
                .into(),
        );
    };
    if options.memory {
        return compare_memory(&options, model, inputs);
    }
    if options.calls > 0 {
        return compare_calls(&options, model, inputs);
    }
    let loaded = Loaded::new(&options, model, inputs, Device::Cpu)?;
    tch::manual_seed(options.seed);
    let (outputs, loss, _) = loaded.step(&options)?;
    Tensor::write_safetensors(&loaded.named(&options, &outputs, &loss), out)?;
    drop((outputs, loss));
    let (segments, draws) = (loaded.registry.recompute().segments(), loaded.program.draws_random_numbers());
    println!("{{\"segments\": {segments}, \"draws\": {draws}}}");
    if options.serve {
        for line in std::io::stdin().lines() {
            line?;
            loaded.registry.parameters().for_each(|entry| entry.tensor().shallow_clone().zero_grad());
            println!("{}", loaded.step(&options)?.2);
        }
    }
    Ok(())
}
