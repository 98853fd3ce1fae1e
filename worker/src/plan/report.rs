//! `dtrain plan`: a cut for every GPU, and what helps.

use super::advice::advise;
use super::answer::{Margin, Outcome, Plan, Row};
use super::budget::{CONTEXT_BYTES, FRAGMENTATION_PERCENT, usable};
use super::solve::{Asked, Choice, Solver};
use super::{Gpu, PlanError, PlanJob, Predictor, Subject, table};
use dtrain_common::recipe::{Amp, Recipe};

/// Plans `recipe` for the GPUs of `job` and appends the answer to `out`, as text or as a line of JSON. `subject` is the
/// predictor's own. The worker calls it once, or once for each stage.
///
/// # Errors
/// [`PlanError::Batch`] where there are more ranks than samples; the predictor's.
pub(crate) fn report<P: Predictor + ?Sized>(
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
    Ok(match plan.rows.iter().any(fits) {
        true => Outcome::Fits,
        false => Outcome::NothingFits,
    })
}

fn plan<P: Predictor + ?Sized>(
    recipe: &Recipe,
    subject: &Subject,
    predictor: &mut P,
    job: &PlanJob,
) -> Result<Plan, PlanError<P::Error>> {
    let most = recipe.memory.budget.size();
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
    let depends = match rows.iter().any(cut_up) {
        true => &subject.depends[..],
        false => &[],
    };
    let warning = |words| format!("the result depends on the micro-batch: {words}");
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
        warnings: depends.iter().map(warning).collect(),
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
