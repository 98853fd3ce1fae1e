//! From a recipe to what a trainer is made of. Rank 0 goes first: it looks at the data and the checkpoint, builds
//! everything, and only then lets the others begin, so that a run that cannot begin fails once, with one message.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use dtrain_common::recipe::{Augment, DataKind, ModelName, OptimName, Recipe};
use serde::{Deserialize, Serialize};
use tch::Device;

use super::error::WorkerError;
use crate::checkpoint;
use crate::data::{
    self, Dataset, Depth, Generated, ImageFolder, ImageIndex, LoaderOptions, Normalize, Split,
};
use crate::engine::{Arena, Buffers, RunPlan};
use crate::models::{self, Architecture, LoadMode, Registry};
use crate::optim::{AdamW, AdamWOptions, Optimizer, Sgd, SgdOptions};
use crate::tasks::{Classify, Task};

/// What rank 0 tells the others before the run begins.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Opening {
    /// Where the run writes.
    pub(crate) run_dir: PathBuf,
    /// The checkpoint to resume from.
    pub(crate) resume: Option<PathBuf>,
    /// The image folder as rank 0 found it, without unreadable images: (training, test).
    pub(crate) images: Option<(ImageIndex, ImageIndex)>,
}

/// Scans and checks the recipe's image folders; a generated set needs neither. `say` gets a sentence for people about what
/// was left out or takes long.
pub(crate) fn look_at_data(
    recipe: &Recipe,
    threads: usize,
    say: &mut dyn FnMut(String),
) -> Result<Option<(ImageIndex, ImageIndex)>, WorkerError> {
    let DataKind::Folder = recipe.data.kind else {
        return Ok(None);
    };
    recipe.check_paths()?;
    let root = recipe.data.root.as_deref().unwrap_or(Path::new("."));
    let train = ImageIndex::scan(root, &recipe.data.train, None)?;
    let test = ImageIndex::scan(root, &recipe.data.test, Some(&train.classes))?;
    let train = without_unreadable(&train, threads, say)?;
    let test = without_unreadable(&test, threads, say)?;
    Ok(Some((train, test)))
}

fn without_unreadable(
    index: &ImageIndex,
    threads: usize,
    say: &mut dyn FnMut(String),
) -> Result<ImageIndex, WorkerError> {
    /// A check of this many images is worth telling of while it goes on.
    const TELL_EVERY: usize = 50_000;
    let depth = Depth::for_len(index.len());
    let mut told = 0;
    let report = data::check(index, depth, threads, &mut |done, total| {
        if done - told >= TELL_EVERY {
            told = done;
            say(format!("looked at {done} of {total} images in {}", index.split));
        }
    });
    let checked = report.apply(index)?;
    for bad in &report.bad {
        say(format!("left out, cannot be read: {}: {}", bad.path, bad.reason));
    }
    if !report.bad.is_empty() {
        let split = &index.split;
        say(format!(
            "{} of {} images in {split} are left out because they cannot be read",
            report.bad.len(),
            index.len()
        ));
    }
    Ok(checked)
}

/// Everything of a run that does not need the other ranks.
pub(crate) struct Setup {
    pub(crate) task: Classify,
    pub(crate) registry: Registry,
    pub(crate) arena: Arena,
    pub(crate) buffers: Buffers,
    pub(crate) optimizer: Box<dyn Optimizer>,
    pub(crate) plan: RunPlan,
    pub(crate) train_set: Arc<dyn Dataset>,
    pub(crate) test_set: Arc<dyn Dataset>,
    /// Steps taken before, by the checkpoint.
    pub(crate) done: u64,
    /// The figures of the evaluation that the checkpoint was written after.
    pub(crate) earlier_metrics: BTreeMap<String, f64>,
    /// A sentence for people: what was loaded besides the recipe's plain meaning.
    pub(crate) notes: Vec<String>,
}

impl Setup {
    pub(crate) fn build(
        recipe: &Recipe,
        opening: &Opening,
        ranks: usize,
        device: Device,
    ) -> Result<Self, WorkerError> {
        let mut notes = Vec::new();
        let (train_set, test_set) = datasets(recipe, opening);
        // Every rank draws the same weights; rank 0's are sent to the others all the same.
        tch::manual_seed(recipe.train.seed as i64);
        let mut registry = Registry::new(device);
        let classes = train_set.classes();
        let model = models::build(architecture(recipe.model.name), CHANNELS, classes, &mut registry)?;
        let task = Classify::new(model, recipe.data.image_size);
        let plan = RunPlan::new(recipe, ranks, train_set.len() as u64, task.min_micro_batch())?;
        if let (Some(weights), None) = (&recipe.model.weights, &opening.resume) {
            let report = models::load_state(&registry, weights, LoadMode::FineTune)?;
            notes.push(format!("weights from {}: {report}", weights.display()));
        }
        let parameters = registry.parameters().map(|entry| (entry.name(), entry.tensor()));
        let arena = Arena::new(parameters)?;
        let buffers = Buffers::new(registry.buffers().map(|entry| (entry.name(), entry.tensor())))?;
        let mut optimizer = optimizer(recipe, &arena)?;
        let (mut done, mut earlier_metrics) = (0, BTreeMap::new());
        if let Some(folder) = &opening.resume {
            let manifest = checkpoint::restore(folder, &registry, &arena, optimizer.as_mut())
                .map_err(WorkerError::Resume)?;
            done = manifest.step;
            earlier_metrics = manifest.metrics;
            notes.push(format!("resumed from {} after step {done}", folder.display()));
        }
        Ok(Self {
            task,
            registry,
            arena,
            buffers,
            optimizer,
            plan,
            train_set,
            test_set,
            done,
            earlier_metrics,
            notes,
        })
    }
}

/// Images are decoded to red, green and blue.
const CHANNELS: usize = 3;

fn architecture(name: ModelName) -> Architecture {
    match name {
        ModelName::Resnet18 => Architecture::ResNet18,
        ModelName::Resnet34 => Architecture::ResNet34,
    }
}

fn datasets(recipe: &Recipe, opening: &Opening) -> (Arc<dyn Dataset>, Arc<dyn Dataset>) {
    let data = &recipe.data;
    let normalize = Normalize::new(data.mean, data.std);
    match &opening.images {
        Some((train, test)) => {
            let folder =
                |index: &ImageIndex| ImageFolder::new(index.clone(), data.image_size, normalize.clone());
            (Arc::new(folder(train)), Arc::new(folder(test)))
        }
        None => {
            let generated = |samples, split| {
                Generated::new(data.classes, samples, data.image_size, recipe.train.seed, split)
                    .with_normalize(normalize.clone())
            };
            (
                Arc::new(generated(data.train_samples, Split::Train)),
                Arc::new(generated(data.test_samples, Split::Test)),
            )
        }
    }
}

fn optimizer(recipe: &Recipe, arena: &Arena) -> Result<Box<dyn Optimizer>, WorkerError> {
    // A loaded recipe has its defaults filled in; the values here are those of torch.
    let optim = &recipe.optim;
    Ok(match optim.name {
        OptimName::AdamW => {
            let [beta1, beta2] = optim.betas.unwrap_or([0.9, 0.999]);
            let options = AdamWOptions {
                betas: (beta1, beta2),
                eps: optim.eps.unwrap_or(1e-8),
                weight_decay: optim.weight_decay.unwrap_or(0.01),
            };
            Box::new(AdamW::new(arena, options)?)
        }
        OptimName::Sgd => {
            let options = SgdOptions {
                momentum: optim.momentum.unwrap_or(0.0),
                nesterov: optim.nesterov.unwrap_or(false),
                weight_decay: optim.weight_decay.unwrap_or(0.0),
            };
            Box::new(Sgd::new(arena, options)?)
        }
    })
}

/// How images are loaded: the recipe's number of threads, or the rank's share of the machine's cores.
pub(crate) fn loader_options(recipe: &Recipe, local_world_size: usize) -> LoaderOptions {
    /// Beyond this, more threads rarely help one rank.
    const MOST_THREADS: usize = 8;
    let own_share = (cores() / local_world_size.max(1)).clamp(1, MOST_THREADS);
    LoaderOptions {
        threads: recipe.data.workers.count().unwrap_or(own_share),
        prefetch_batches: 4,
        seed: recipe.train.seed,
        augment: recipe.data.augment != Augment::None,
    }
}

/// The machine's cores that this process may use.
pub(crate) fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}
