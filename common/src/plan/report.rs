//! `dtrain plan`: a cut for every GPU, and what helps.

use serde::{Deserialize, Serialize};

use super::advice::{Advice, advise};
use super::budget::{CONTEXT_BYTES, FRAGMENTATION_PERCENT, usable};
use super::gpus::Gpu;
use super::solve::{Asked, Choice, Solver};
use super::{PlanError, PlanJob, Prediction, Predictor, Subject, Way, table};
use crate::exit::ExitStatus;
use crate::recipe::{Amp, Budget, Recipe};

/// The whole answer; `--json` writes it as one object on a line. Sizes are bytes.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Plan {
    /// The stage that it is about, where one was named.
    pub stage: Option<String>,
    /// What is planned for.
    pub subject: Subject,
    /// Ranks, each on a GPU of its own.
    pub nproc: usize,
    /// How the predictions came about.
    pub way: Way,
    /// What is not given to tensors of every GPU.
    pub margin: Margin,
    /// `memory.budget`, where it is a size: no row has more.
    pub budget: Option<u64>,
    /// A rank's whole share at once, and nothing computed again: what the times of rows and advice compare with.
    pub plain: Prediction,
    /// One row for each GPU, in the order asked for.
    pub rows: Vec<Row>,
    /// What saves memory against the plain cut, each alone; most first.
    pub advice: Vec<Advice>,
    /// What saves memory against the smallest cut, where that does not fit somewhere.
    pub helps: Vec<Advice>,
    /// What makes the result depend on the micro-batch.
    pub warnings: Vec<String>,
}

/// The margin of a GPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Margin {
    /// Taken off first.
    pub context_bytes: u64,
    /// Taken off the rest.
    pub fragmentation_percent: u64,
}

/// What was chosen for a GPU.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Row {
    /// The GPU.
    pub gpu: Gpu,
    /// What tensors may take of it, in bytes.
    pub budget: u64,
    /// The cut.
    #[serde(flatten)]
    pub choice: Choice,
}

/// Whether anything fits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// On one of the GPUs at least.
    Fits,
    /// On none.
    NothingFits,
}

impl Outcome {
    /// The exit code's meaning: 3 where nothing fits.
    pub fn exit_status(self) -> ExitStatus {
        match self {
            Self::Fits => ExitStatus::Success,
            Self::NothingFits => ExitStatus::OutOfMemory,
        }
    }
}

/// Plans `recipe` for the GPUs of `job` and appends the answer to `out`, as text or as a line of JSON. `subject` is the
/// predictor's own. The worker calls it once, or once for each stage.
///
/// # Errors
/// [`PlanError::Batch`] where there are more ranks than samples; the predictor's.
pub fn report<P: Predictor + ?Sized>(
    recipe: &Recipe,
    subject: &Subject,
    predictor: &mut P,
    job: &PlanJob,
    out: &mut String,
) -> Result<Outcome, PlanError<P::Error>> {
    let plan = plan(recipe, subject, predictor, job)?;
    if job.json {
        out.push_str(&serde_json::to_string(&plan)?);
        out.push('\n');
    } else if job.brief {
        table::brief(&plan, out);
    } else {
        table::full(&plan, out);
    }
    let fits = |row: &Row| matches!(row.choice, Choice::Fit(_));
    Ok(if plan.rows.iter().any(fits) {
        Outcome::Fits
    } else {
        Outcome::NothingFits
    })
}

fn plan<P: Predictor + ?Sized>(
    recipe: &Recipe,
    subject: &Subject,
    predictor: &mut P,
    job: &PlanJob,
) -> Result<Plan, PlanError<P::Error>> {
    let most = match recipe.memory.budget {
        Budget::Auto => None,
        Budget::Size(size) => Some(size.0),
    };
    let asked = |gpu: &Gpu| {
        let budget = usable(gpu.bytes).min(most.unwrap_or(u64::MAX));
        Asked::new(recipe, job.nproc, budget, precision(recipe.precision.amp, gpu))
    };
    let mut solver = Solver::new(subject, predictor);
    let mut rows = Vec::new();
    for gpu in &job.gpus {
        let asked = asked(gpu);
        rows.push(Row {
            gpu: gpu.clone(),
            budget: asked.budget,
            choice: solver.solve(&asked)?,
        });
    }
    let usual = Gpu::of_size(0);
    let first = job.gpus.first().unwrap_or(&usual);
    let plain = solver.plain(&asked(first))?;
    let half = precision(Amp::Auto, first);
    let (mut advice, mut helps) = (Vec::new(), Vec::new());
    if !job.brief {
        advice = advise(recipe, &mut solver, &plain, half);
        let smallest = rows.iter().find_map(|row| match &row.choice {
            Choice::NoFit(no_fit) => Some(no_fit.smallest),
            Choice::Fit(_) => None,
        });
        if let Some(smallest) = smallest {
            helps = advise(recipe, &mut solver, &smallest, half);
        }
    }
    let cut_up = |row: &Row| row.choice.prediction().cut.micro_batch < subject.effective_batch;
    let warnings = match rows.iter().any(cut_up) {
        true => subject.depends.iter().map(warning).collect(),
        false => Vec::new(),
    };
    Ok(Plan {
        stage: job.stage.clone(),
        subject: subject.clone(),
        nproc: job.nproc,
        way: plain.way,
        margin: Margin {
            context_bytes: CONTEXT_BYTES,
            fragmentation_percent: FRAGMENTATION_PERCENT,
        },
        budget: most,
        plain,
        rows,
        advice,
        helps,
        warnings,
    })
}

fn warning(words: &String) -> String {
    format!("the result depends on the micro-batch: {words}")
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
