//! `dtrain plan`: a cut for every GPU, and what helps.

use dtrain_common::recipe::{Amp, Recipe};
use serde::{Deserialize, Serialize};

use super::advice::{Advice, advise};
use super::solve::{Asked, Choice, Solver};
use super::{Gpu, PlanJob, Prediction, Predictor, Subject, Way};

/// What a process takes of a GPU besides tensors: the CUDA context, the code of kernels, and the handles and workspaces of
/// cuBLAS, cuDNN and NCCL. 0.6 GiB: a context with libtorch's kernels is 0.3 to 0.5 GiB from the T4 to the H100.
const CONTEXT_BYTES: u64 = 614 << 20;

/// What is left unused of the rest, in percent: blocks of the caching allocator that fit no request. The guides saw 1.45 of
/// 14.74 GiB lost that way without expandable segments, which are on here and leave less; it also covers that drivers report
/// the same GPU with up to 0.2 GiB more or less.
pub(crate) const FRAGMENTATION_PERCENT: u64 = 5;

/// The bytes that tensors may take of a GPU with `total` bytes that nobody else uses; 0 for a GPU smaller than the margin.
fn usable(total: u64) -> u64 {
    let rest = total.saturating_sub(CONTEXT_BYTES);
    rest - rest / 100 * FRAGMENTATION_PERCENT
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Plan {
    /// The stage that it is about, where one was named.
    pub(crate) stage: Option<String>,
    pub(crate) subject: Subject,
    /// Ranks, each on a GPU of its own.
    pub(crate) nproc: usize,
    pub(crate) way: Way,
    pub(crate) margin: Margin,
    /// `memory.budget`, where it is a size: no row has more.
    pub(crate) budget: Option<u64>,
    /// A rank's whole share at once, and nothing computed again: what the times of rows and advice compare with.
    pub(crate) plain: Prediction,
    /// One row for each GPU, in the order asked for.
    pub(crate) rows: Vec<Row>,
    /// What saves memory against the plain cut, each alone; most first.
    pub(crate) advice: Vec<Advice>,
    /// What saves memory against the smallest cut, where that does not fit somewhere.
    pub(crate) helps: Vec<Advice>,
    /// What makes the result depend on the micro-batch.
    pub(crate) warnings: Vec<String>,
}

/// What is not given to tensors of every GPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Margin {
    pub(crate) context_bytes: u64,
    pub(crate) fragmentation_percent: u64,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Row {
    pub(crate) gpu: Gpu,
    /// What tensors may take of it, in bytes.
    pub(crate) budget: u64,
    #[serde(flatten)]
    pub(crate) choice: Choice,
}

impl Plan {
    /// Whether something fits on one of the GPUs at least.
    pub(crate) fn fits(&self) -> bool {
        let fits = |row: &Row| matches!(row.choice, Choice::Fit { .. });
        self.rows.iter().any(fits)
    }
}

/// Plans `recipe` for the GPUs of `job`. `subject` is the predictor's own.
pub(crate) fn report<P: Predictor>(
    recipe: &Recipe,
    subject: &Subject,
    predictor: &mut P,
    job: &PlanJob,
) -> Result<Plan, P::Error> {
    let most = recipe.memory.budget.stated().map(|size| size.0);
    let asked = |gpu: &Gpu| {
        let budget = usable(gpu.bytes).min(most.unwrap_or(u64::MAX));
        Asked::new(recipe, job.nproc, budget, precision(recipe.precision.amp, gpu))
    };
    let mut solver = Solver::new(subject, predictor);
    let mut rows = Vec::new();
    for gpu in &job.gpus {
        let asked = asked(gpu);
        rows.push(Row { gpu: gpu.clone(), budget: asked.budget, choice: solver.solve(&asked)? });
    }
    let usual = Gpu::of_size(0);
    let first = job.gpus.first().unwrap_or(&usual);
    let plain = solver.plain(&asked(first))?;
    let half = precision(Amp::Auto, first);
    let (mut advice, mut helps) = (Vec::new(), Vec::new());
    if !job.brief {
        advice = advise(recipe, &mut solver, &plain, half);
        if let Some(row) = rows.iter().find(|row| matches!(row.choice, Choice::NoFit { .. })) {
            helps = advise(recipe, &mut solver, row.choice.prediction(), half);
        }
    }
    let cut_up = |row: &Row| row.choice.prediction().cut.micro_batch < subject.effective_batch;
    let is_cut_up = rows.iter().any(cut_up);
    let depends = subject.depends.iter().filter(|_| is_cut_up);
    let warnings = depends.map(|words| format!("the result depends on the micro-batch: {words}"));
    Ok(Plan {
        stage: job.stage.clone(),
        subject: subject.clone(),
        nproc: job.nproc,
        way: plain.way,
        margin: Margin { context_bytes: CONTEXT_BYTES, fragmentation_percent: FRAGMENTATION_PERCENT },
        budget: most,
        plain,
        rows,
        advice,
        helps,
        warnings: warnings.collect(),
    })
}

/// The precision of a run on this GPU, as the worker would choose it there.
fn precision(asked: Amp, gpu: &Gpu) -> Amp {
    match asked {
        Amp::Auto if gpu.bf16 => Amp::Bf16,
        Amp::Auto => Amp::Fp16,
        given => given,
    }
}

#[cfg(test)]
mod tests;
