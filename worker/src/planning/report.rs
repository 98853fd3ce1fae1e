//! `dtrain plan`: a cut for every GPU, and advice.

use dtrain_common::question::UNSUPPORTED;
use dtrain_recipe::{Amp, Recipe};
use serde::{Deserialize, Serialize};

use super::advice::{Advice, advise};
use super::solve::{Choice, CutRequest, Solver};
use super::{Gpu, Mode, PlanQuestion, Prediction, Predictor, Subject};
use crate::memory::budget::HOST_PERCENT;
use crate::memory::{FRAGMENTATION_PERCENT, without_gaps};

/// GPU memory of a process besides tensors: CUDA context, kernels, handles and workspaces of cuBLAS, cuDNN
/// and NCCL. 0.6 GiB: a context with libtorch's kernels takes 0.3 to 0.5 GiB from the T4 to the H100.
const CONTEXT_BYTES: u64 = 614 << 20;

/// Returns the bytes for tensors of an otherwise unused GPU with `total` bytes; 0 if below the margin.
fn usable_bytes(total: u64) -> u64 {
    without_gaps(total.saturating_sub(CONTEXT_BYTES))
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct MemoryPlan {
    /// The stage of the plan, if one was named.
    pub(crate) stage: Option<String>,
    pub(crate) subject: Subject,
    /// Ranks; each has its own GPU.
    pub(crate) nproc: usize,
    #[serde(rename = "way")]
    pub(crate) mode: Mode,
    pub(crate) margin: ReservedMemory,
    /// `memory.budget`, if it is a size: the limit of every row.
    pub(crate) budget: Option<u64>,
    /// A rank's whole share at once without recompute: the reference for times of rows and advice.
    pub(crate) plain: Prediction,
    /// One row for each GPU, in the order of the question.
    pub(crate) rows: Vec<Row>,
    /// Ways to save memory compared with the plain cut, each alone; largest saving first.
    pub(crate) advice: Vec<Advice>,
    /// Ways to save memory compared with the smallest cut, if that does not fit on some GPU.
    #[serde(rename = "helps")]
    pub(crate) advice_if_too_large: Vec<Advice>,
    /// Reasons why the result depends on the micro-batch, and GPUs on which libtorch does not run.
    pub(crate) warnings: Vec<String>,
}

/// The memory of each GPU that tensors may not use.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ReservedMemory {
    pub(crate) context_bytes: u64,
    pub(crate) fragmentation_percent: u64,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Row {
    pub(crate) gpu: Gpu,
    /// Bytes that tensors may take on the GPU.
    pub(crate) budget: u64,
    #[serde(flatten)]
    pub(crate) choice: Choice,
}

impl MemoryPlan {
    /// Returns whether a cut fits on at least one of the GPUs.
    pub(crate) fn fits(&self) -> bool {
        let fits = |row: &Row| matches!(row.choice, Choice::Fit { .. });
        self.rows.iter().any(fits)
    }
}

/// Plans `recipe` for the GPUs of `question`. `subject` is that of the predictor.
pub(crate) fn report<P: Predictor>(
    recipe: &Recipe,
    subject: &Subject,
    predictor: &mut P,
    question: &PlanQuestion,
) -> Result<MemoryPlan, P::Error> {
    let most = recipe.memory.budget.value().map(|size| size.0);
    let request = |gpu: &Gpu| {
        let budget = match gpu.cpu {
            // As a run on the CPU without memory.budget, or with it.
            true => most.unwrap_or(gpu.bytes / 100 * HOST_PERCENT / question.nproc.max(1) as u64),
            false => usable_bytes(gpu.bytes).min(most.map_or(u64::MAX, without_gaps)),
        };
        CutRequest::new(recipe, question.nproc, budget, precision(recipe.precision.amp, gpu))
    };
    let mut solver = Solver::new(subject, predictor);
    let mut rows = Vec::new();
    for gpu in &question.gpus {
        let request = request(gpu);
        solver.set_device(gpu);
        rows.push(Row { gpu: gpu.clone(), budget: request.budget, choice: solver.solve(&request)? });
    }
    let usual = Gpu::of_size(0);
    let first = question.gpus.first().unwrap_or(&usual);
    solver.set_device(first);
    let plain = solver.plain(&request(first))?;
    let half = precision(Amp::Auto, first);
    let (mut advice, mut advice_if_too_large) = (Vec::new(), Vec::new());
    if !question.brief {
        advice = advise(recipe, &mut solver, &plain, half);
        if let Some(row) = rows.iter().find(|row| matches!(row.choice, Choice::NoFit { .. })) {
            solver.set_device(&row.gpu);
            let half = precision(Amp::Auto, &row.gpu);
            advice_if_too_large = advise(recipe, &mut solver, row.choice.prediction(), half);
        }
    }
    let is_smaller = |row: &Row| row.choice.prediction().cut.micro_batch < subject.effective_batch;
    let is_divided = rows.iter().any(is_smaller);
    let depends = subject.depends.iter().filter(|_| is_divided);
    let depends = depends.map(|words| format!("the result depends on the micro-batch: {words}"));
    let unsupported = question.gpus.iter().filter(|gpu| !gpu.supported);
    let unsupported = unsupported.map(|gpu| format!("{}: {UNSUPPORTED}", gpu.name));
    Ok(MemoryPlan {
        stage: question.stage.clone(),
        subject: subject.clone(),
        nproc: question.nproc,
        mode: plain.mode,
        margin: ReservedMemory { context_bytes: CONTEXT_BYTES, fragmentation_percent: FRAGMENTATION_PERCENT },
        budget: most,
        plain,
        rows,
        advice,
        advice_if_too_large,
        warnings: depends.chain(subject.undivided.clone()).chain(unsupported).collect(),
    })
}

/// Returns the precision that a worker would choose on this GPU.
fn precision(amp: Amp, gpu: &Gpu) -> Amp {
    match amp {
        Amp::Auto if gpu.cpu => Amp::Off,
        Amp::Auto if gpu.bf16 => Amp::Bf16,
        Amp::Auto => Amp::Fp16,
        given => given,
    }
}

#[cfg(test)]
mod tests;
