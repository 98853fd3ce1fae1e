//! Recomputing segments in backward: the same training to the last bit, in less memory, and an error if a
//! segment cannot be recomputed.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, MutexGuard};

use dtrain_common::env::WorkerEnv;
use dtrain_common::exit::ExitStatus;
use dtrain_common::run_dir::Resume;
use dtrain_recipe::Recipe;
use dtrain_tests::process::output_text;
use dtrain_tests::programs::{launch, own_trainer};
use dtrain_tests::runs::{Sandbox, TINY, resnet18};
use dtrain_tests::segments::dropout_draws_the_same;
use dtrain_torch_shim::memory;
use dtrain_worker::data::{Generated, Split};
use dtrain_worker::models::{Gpt, GptConfig, LayerNorm, Linear, Recompute, Registry, Segment};
use dtrain_worker::tasks::{
    Batch, BuildContext, BuildTask, Facts, Loss, Mode, SurveyContext, Task, TaskError,
};
use dtrain_worker::{OutOfMemory as _, Request, run_task};
use tch::{Device, Kind, Tensor};

const ON: &str = "memory.recompute=\"on\"";
const OFF: &str = "memory.recompute=\"off\"";

/// Keeps other tests from allocating, and counts allocations.
fn alone() -> MutexGuard<'static, ()> {
    let held = crate::alone();
    memory::enable_stats().unwrap();
    held
}

/// Runs the same training twice: losses, norms and every byte of the weights must be equal.
fn same(recipe: &str, ranks: usize, sets: &[&str], segments: usize) {
    let _alone = crate::alone();
    let sandbox = Sandbox::new(recipe);
    let off = sandbox.train(ranks, "off", &[sets, &[OFF]].concat());
    let on = sandbox.train(ranks, "on", &[sets, &[ON]].concat());
    for figure in ["loss", "grad_norm"] {
        assert_eq!(on.per_step(figure), off.per_step(figure), "{figure} of {sets:?}");
    }
    assert!(on.weights() == off.weights(), "weights of {sets:?}");
    let log = on.log(0);
    let message = format!("recompute: all {segments} segments of the model are recomputed in backward");
    assert!(log.contains(&message), "{log}");
}

const LM: &str = r#"
task = "lm"
[data]
kind = "generated"
train_samples = 64
test_samples = 13
workers = 1
[model]
width = 32
depth = 3
heads = 2
context = 16
[train]
effective_batch = 10
steps = 6
seed = 3
[optim]
lr = 0.01
[memory]
micro_batch = 3
[log]
every_steps = 1
"#;

#[test]
fn recompute_does_not_change_a_language_model() {
    same(LM, 1, &[], 3);
    same(LM, 2, &["precision.amp=\"bf16\"", "optim.clip=0.5"], 3);
}

#[test]
fn recompute_does_not_change_networks_with_batch_norm() {
    let steps = "train.steps=2";
    // Joint sums over the ranks within segments, during the sums of the gradients.
    same(&resnet18(), 2, &[steps, "model.batchnorm=\"synced\""], 9);
    same(
        &resnet18(),
        1,
        &[steps, "memory.micro_batch=5", "model.freeze=[\"conv1.*\", \"bn1.*\", \"layer1.*\"]"],
        9,
    );
    let unet = ["task=\"segment\"", "model.name=\"unet\"", "model.width=4", "model.depth=2"];
    let more = [steps, "memory.micro_batch=4", "model.memory_format=\"channels-last\""];
    same(&resnet18(), 2, &[&unet[..], &more].concat(), 5);
}

#[test]
fn recompute_does_not_change_a_vision_transformer() {
    let vit = ["model.name=\"vit\"", "model.patch=8", "model.width=24", "model.depth=2", "model.heads=2"];
    same(TINY, 2, &[&vit[..], &["train.steps=4", "reduce.overlap=false"]].concat(), 2);
}

#[test]
fn recompute_does_not_change_a_custom_trainer() {
    let _alone = crate::alone();
    let recipe = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/examples/own-trainer/recipe.toml");
    let sandbox = Sandbox::new("");
    let train = |run: &str, set: &str| {
        let output = launch()
            .env("DTRAIN_WORKER", own_trainer())
            .args(["--nproc", "2", "--run-dir", run, "--set", set])
            .args(["--set", "train.steps=20", recipe])
            .current_dir(sandbox.path(""))
            .output()
            .unwrap();
        assert!(output.status.success(), "{}", output_text(&output));
        sandbox.run(run)
    };
    let (off, on) = (train("off", OFF), train("on", ON));
    assert_eq!(on.per_step("loss"), off.per_step("loss"));
    assert!(on.weights() == off.weights());
}

#[test]
fn recompute_without_segments_is_an_error() {
    let outcome = train::<Moody<0>>(&Sandbox::new(MOODY), ON);
    let error = outcome.unwrap_err();
    let text = error.to_string();
    assert_eq!(error.exit_status(), ExitStatus::Usage, "{text}");
    assert!(text.contains("no segments") && text.contains("Scope::segment"), "{text}");
}

#[test]
fn a_nondeterministic_segment_ends_the_run() {
    let sandbox = Sandbox::new(MOODY);
    train::<Moody<1>>(&sandbox, OFF).unwrap();
    let error = train::<Moody<1>>(&sandbox, ON).unwrap_err();
    let text = error.to_string();
    assert_eq!(error.exit_status(), ExitStatus::Usage, "{text}");
    for words in ["`block.0`", "other values", "random numbers outside torch", "memory.recompute = \"off\""] {
        assert!(text.contains(words), "no {words} in: {text}");
    }
}

/// Returns the MiB that forward keeps for backward, and then gradients, above the memory before the step.
fn activations(model: &Gpt, recompute: &Recompute, tokens: &Tensor) -> f64 {
    let step = || {
        let loss = model.forward(tokens, true).unwrap().logsumexp([-1], false).sum(Kind::Float);
        recompute.backward(&loss).unwrap();
    };
    // The first step creates the gradients.
    step();
    let before = memory::usage(Device::Cpu).unwrap().allocated;
    memory::reset_peak(Device::Cpu).unwrap();
    step();
    (memory::usage(Device::Cpu).unwrap().peak - before) as f64 / (1 << 20) as f64
}

#[test]
fn recompute_more_than_halves_the_activations_of_twelve_layers() {
    let _alone = alone();
    let config = GptConfig { vocabulary: 65, context: 64, width: 64, depth: 12, heads: 4 };
    let mut registry = Registry::new(Device::Cpu);
    let model = Gpt::new(config, &mut registry).unwrap();
    let tokens = Tensor::randint(65, [4, 64], (Kind::Int64, Device::Cpu));
    let mut last = f64::INFINITY;
    let mut measured = Vec::new();
    for count in [0, 3, 6, 9, 11] {
        registry.recompute().set(count);
        let own = activations(&model, registry.recompute(), &tokens);
        assert!(own < last, "{count} segments: {own} MiB after {last}");
        last = own;
        measured.push(own);
    }
    registry.recompute().set_all();
    let all = activations(&model, registry.recompute(), &tokens);
    // The last segment is recomputed immediately: this saves no memory, but stores a generator's state.
    assert!(all < 1.01 * last && 4.0 * all < measured[0], "{all} MiB of {measured:?}");
}

#[test]
fn running_out_of_memory_in_recompute_is_reported() {
    let _alone = alone();
    let config = GptConfig { vocabulary: 11, context: 16, width: 16, depth: 2, heads: 2 };
    let mut registry = Registry::new(Device::Cpu);
    let model = Gpt::new(config, &mut registry).unwrap();
    registry.recompute().set_all();
    let tokens = Tensor::zeros([2, 16], (Kind::Int64, Device::Cpu));
    // Fails in the recomputed forward, and in the backward pass through it.
    for allocation in [1, 10, 20, 30, 60] {
        let loss = model.forward(&tokens, true).unwrap().sum(Kind::Float);
        memory::fail_allocation(allocation);
        let outcome = registry.recompute().backward(&loss);
        let left = memory::allocations_until_failure();
        memory::fail_allocation(0);
        let error = outcome.unwrap_err();
        assert!(left == 0 && error.is_out_of_memory(), "{allocation}: {error}");
    }
    let loss = model.forward(&tokens, true).unwrap().sum(Kind::Float);
    registry.recompute().backward(&loss).unwrap();
}

#[test]
fn dropout_in_recomputed_segments_is_equal() {
    let _alone = alone();
    dropout_draws_the_same(Device::Cpu);
}

const MOODY: &str = r#"
task = "custom"
[train]
effective_batch = 4
steps = 3
[optim]
lr = 0.01
"#;

/// A task of `SEGMENTS` segments that each compute different values every time.
struct Moody<const SEGMENTS: usize> {
    first: Linear,
    blocks: Vec<Segment<LayerNorm>>,
    calls: Arc<AtomicU32>,
    facts: Facts,
}

impl<const SEGMENTS: usize> BuildTask for Moody<SEGMENTS> {
    type Survey = ();

    fn survey(_: &Recipe, _: &mut SurveyContext<'_>) -> Result<(), TaskError> {
        Ok(())
    }

    fn build(_: &Recipe, (): (), context: BuildContext<'_>) -> Result<Self, TaskError> {
        let mut root = context.registry.root();
        let first = Linear::new(&mut root.sub("first"), 48, 8)?;
        let mut scope = root.sub("block");
        let blocks = (0..SEGMENTS)
            .map(|index| scope.sub(index).segment(|scope| LayerNorm::new(scope, 8, 1e-5)))
            .collect::<Result<_, _>>()?;
        let set = Arc::new(Generated::new(2, 12, 4, 1, Split::Train));
        let facts = Facts::new(set.clone(), set, "moods");
        Ok(Self { first, blocks, calls: Arc::default(), facts })
    }
}

impl<const SEGMENTS: usize> Task for Moody<SEGMENTS> {
    fn facts(&self) -> &Facts {
        &self.facts
    }

    fn loss(&self, batch: &Batch, mode: Mode) -> Result<Loss, TaskError> {
        let images = batch.field("image")?.f_flatten(1, -1)?;
        let mut x = self.first.forward(&images, mode == Mode::Train)?;
        for block in &self.blocks {
            let calls = Arc::clone(&self.calls);
            x = block.run(&x, move |norm, x| {
                let call = calls.fetch_add(1, Ordering::SeqCst);
                Ok(norm.forward(x)?.f_mul_scalar(1.0 + f64::from(call))?)
            })?;
        }
        Ok(Loss {
            sum: x.f_square()?.f_mean_dim([1].as_slice(), false, None::<Kind>)?.f_dot(&batch.weights)?,
            weight: batch.weights.f_sum(Kind::Double)?,
            sums: Tensor::f_zeros([0], (Kind::Double, Device::Cpu))?,
        })
    }
}

/// Trains within this process.
fn train<T: BuildTask + 'static>(
    sandbox: &Sandbox,
    set: &str,
) -> Result<ExitStatus, dtrain_worker::WorkerError> {
    let _alone = alone();
    let request = Request {
        recipe: sandbox.path("recipe.toml").display().to_string(),
        overrides: vec![set.to_owned()],
        run_dir: Some(sandbox.path(if set == ON { "on" } else { "off" })),
        resume: Resume::Never,
        prepared: false,
        job: None,
    };
    run_task::<T>(&request, &WorkerEnv::from_process().unwrap())
}
