//! What a run ran on, for plan.json: versions, devices, threads, and hashes of programs, weights and data.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::thread::{self, JoinHandle};

use dtrain_common::env::{CUDA_VISIBLE_DEVICES, WorkerEnv};
use dtrain_common::file_hash::quick_hash;
use dtrain_common::gpu::{Nvidia, Visible};
use dtrain_recipe::Recipe;
use serde_json::{Value, json};
use tch::{Device, Kind, Tensor};

use crate::collectives::{Collective, Nccl, Ranks};
use crate::run::TrainError;
use crate::setup::Setup;
use crate::setup::facts::describe_libtorch;
use crate::setup::host::Host;
use crate::setup::loader::loader_options;

/// The key of the environment in plan.json, and of those of earlier attempts.
const NOW: &str = "environment";
const EARLIER: &str = "earlier_environments";
/// The field of an environment with the first step that it took.
const FIRST_STEP: &str = "first_step";

/// Hashes of the files that decide a result, while a thread computes them.
pub(super) struct FileHashes(Option<JoinHandle<BTreeMap<String, String>>>);

impl FileHashes {
    /// Begins to hash the program of rank 0, and the recipe's models, weights and programs. The start of a run does not wait.
    pub(super) fn begin(recipe: &Recipe, env: &WorkerEnv) -> Self {
        if env.rank != 0 {
            return Self(None);
        }
        let mut files: Vec<(String, PathBuf)> = vec![("trainer".into(), "/proc/self/exe".into())];
        for (name, file) in [("model.file", &recipe.model.file), ("model.weights", &recipe.model.weights)] {
            files.extend(file.as_ref().map(|file| (name.to_owned(), file.clone())));
        }
        files.extend(recipe.own_programs());
        let shards = recipe.model.weights.iter().flat_map(|weights| crate::models::shards(weights));
        files.extend(shards.map(|shard| {
            (format!("model.weights {}", shard.file_name().unwrap_or_default().display()), shard)
        }));
        let libraries = recipe.model.libraries.iter().enumerate();
        files.extend(libraries.map(|(at, file)| (format!("model.libraries[{at}]"), file.clone())));
        let hashed = move || {
            let hash = |(name, file): (String, PathBuf)| Some((name, quick_hash(&file).ok()?));
            files.into_iter().filter_map(hash).collect()
        };
        Self(thread::Builder::new().name("hashes".into()).spawn(hashed).ok())
    }

    /// A file that cannot be read has no hash: whoever needs it reports that.
    fn finish(self) -> BTreeMap<String, String> {
        self.0.and_then(|thread| thread.join().ok()).unwrap_or_default()
    }
}

/// What a run ran on; only rank 0 knows all of it.
pub(super) struct Environment {
    /// The number of ranks.
    pub(super) ranks: usize,
    facts: Value,
}

/// What a rank runs on.
struct Place {
    host: String,
    device: String,
}

/// Returns the environment of a run on rank 0. Every rank calls it.
pub(super) fn of_run(
    recipe: &Recipe,
    env: &WorkerEnv,
    host: &Host,
    ranks: &Ranks,
    setup: &Setup,
    hashes: FileHashes,
) -> Result<Environment, TrainError> {
    let nvidia = host.device.is_cuda().then(Nvidia::open).and_then(Result::ok);
    let own = Place { host: dtrain_common::host::name(), device: device_name(host.device, nvidia.as_ref()) };
    let places = gather(ranks, own)?;
    if env.rank != 0 {
        return Ok(Environment { ranks: env.world_size, facts: Value::Null });
    }
    let mut files = hashes.finish();
    let trainer = std::env::current_exe().ok();
    let trainer =
        trainer.as_deref().and_then(Path::file_name).map(|name| name.to_string_lossy().into_owned());
    let versions = nvidia.as_ref().and_then(|driver| driver.versions().ok());
    let nccl = host.device.is_cuda().then(Nccl::load).and_then(Result::ok);
    let mut facts = json!({
        FIRST_STEP: setup.course.done + 1,
        "dtrain": env!("CARGO_PKG_VERSION"),
        "trainer": trainer,
        "trainer_hash": files.remove("trainer"),
        "libtorch": describe_libtorch(),
        "cuda": versions.as_ref().and_then(|versions| versions.cuda.clone()),
        "driver": versions.map(|versions| versions.driver),
        "nccl": nccl.map(|nccl| nccl.version().to_string()),
        "precision": setup.replica.precision.describe(),
        "hosts": places.iter().map(|place| &place.host).collect::<Vec<_>>(),
        "devices": places.iter().map(|place| &place.device).collect::<Vec<_>>(),
        "cpu": cpu_model(),
        "cores": crate::tasks::cores(),
        "threads": tch::get_num_threads(),
        "loader_threads": loader_options(recipe, env.local_world_size).threads,
        "data": setup.course.data.sha256,
        "files": files,
    });
    // Without a GPU there is no driver.
    if let Some(facts) = facts.as_object_mut() {
        facts.retain(|_, value| !value.is_null());
    }
    Ok(Environment { ranks: env.world_size, facts })
}

fn device_name(device: Device, nvidia: Option<&Nvidia>) -> String {
    let Device::Cuda(index) = device else { return "CPU".to_owned() };
    let name = || {
        let inventory = nvidia?.inventory().ok()?;
        let visible = Visible::new(&inventory, std::env::var(CUDA_VISIBLE_DEVICES).ok().as_deref());
        Some(inventory.device(*visible.devices().get(index)?).name.clone())
    };
    name().unwrap_or_else(|| "GPU".to_owned())
}

/// Returns the model of the processor, as Linux names it.
fn cpu_model() -> Option<String> {
    let text = std::fs::read_to_string("/proc/cpuinfo").ok()?;
    let named =
        |key: &str| text.lines().find_map(|line| line.strip_prefix(key)?.trim_start().strip_prefix(':'));
    // The second is for ARM, whose kernel knows only numbers.
    Some(named("model name").or_else(|| named("CPU part"))?.trim().to_owned())
}

/// Returns the places of all ranks.
fn gather(ranks: &Ranks, own: Place) -> Result<Vec<Place>, TrainError> {
    /// Numbers of 8 bytes for the text of a rank. Longer names are cut.
    const WORDS: usize = 48;
    let mut text = [0u8; 8 * WORDS];
    let names = format!("{}\0{}", own.host, own.device);
    text.iter_mut().zip(names.bytes()).for_each(|(to, byte)| *to = byte);
    let words: Vec<i64> = text.as_chunks::<8>().0.iter().map(|word| i64::from_le_bytes(*word)).collect();
    let all = Tensor::f_zeros([(WORDS * ranks.size()) as i64], (Kind::Int64, Device::Cpu))?;
    let input = Tensor::f_from_slice(&words)?;
    ranks.start(Collective::AllGather { output: &all, input: &input })?.wait()?;
    let bytes: Vec<u8> = Vec::<i64>::try_from(&all)?.into_iter().flat_map(i64::to_le_bytes).collect();
    let place = |bytes: &[u8]| {
        let text = String::from_utf8_lossy(bytes);
        let mut names = text.split('\0').map(str::to_owned);
        Place { host: names.next().unwrap_or_default(), device: names.next().unwrap_or_default() }
    };
    Ok(bytes.chunks_exact(8 * WORDS).map(place).collect())
}

impl Environment {
    /// Adds it to the plan, and the environments of `earlier`, the plan of earlier attempts, that took other steps.
    pub(super) fn add_to(&self, plan: &mut Value, earlier: Option<&Value>) {
        let first = |environment: &Value| environment[FIRST_STEP].as_u64().unwrap_or(1);
        let mut now = self.facts.clone();
        let begins = first(&now);
        let mut before: Vec<Value> =
            earlier.and_then(|plan| plan[EARLIER].as_array()).cloned().unwrap_or_default();
        before.extend(earlier.map(|plan| plan[NOW].clone()).filter(|last| !last.is_null()));
        // All its steps are repeated.
        before.retain(|environment| first(environment) < begins);
        let same = |last: &Value| {
            let mut last = last.clone();
            last[FIRST_STEP] = now[FIRST_STEP].clone();
            last == now
        };
        if before.last().is_some_and(same)
            && let Some(last) = before.pop()
        {
            now = last;
        }
        plan[NOW] = now;
        if !before.is_empty() {
            plan[EARLIER] = before.into();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plan_keeps_the_environments_that_took_its_steps() {
        let of = |step: u64, threads: u64| json!({ FIRST_STEP: step, "threads": threads });
        let mut plan = json!({});
        let mut attempt = |step, threads| {
            let earlier = plan.clone();
            plan = json!({});
            Environment { ranks: 1, facts: of(step, threads) }.add_to(&mut plan, Some(&earlier));
            plan.clone()
        };
        assert_eq!(attempt(1, 4), json!({ NOW: of(1, 4) }));
        assert_eq!(attempt(11, 4), json!({ NOW: of(1, 4) }), "the same machine");
        assert_eq!(attempt(21, 8), json!({ NOW: of(21, 8), EARLIER: [of(1, 4)] }));
        assert_eq!(attempt(21, 2), json!({ NOW: of(21, 2), EARLIER: [of(1, 4)] }), "without a step");
        assert_eq!(attempt(31, 4), json!({ NOW: of(31, 4), EARLIER: [of(1, 4), of(21, 2)] }));
        assert_eq!(attempt(15, 4), json!({ NOW: of(1, 4) }), "back to an earlier checkpoint");
        assert_eq!(attempt(1, 5), json!({ NOW: of(1, 5) }), "from the beginning");
    }

    #[test]
    fn a_machine_has_a_processor() {
        assert!(cpu_model().is_some_and(|name| !name.is_empty()));
        assert_eq!(device_name(Device::Cpu, None), "CPU");
    }
}
