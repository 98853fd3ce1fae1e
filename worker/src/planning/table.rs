//! A plan as text of at most 100 columns, except long settings.

use std::fmt::Write;

use super::advice::Advice;
use super::report::{MemoryPlan, Row};
use super::solve::Choice;
use super::{Cut, Mode, PlanQuestion, Prediction};
use crate::memory::budget::HOST_PERCENT;
use dtrain_common::question::UNSUPPORTED;
use dtrain_common::text::{Align::Left, Align::Right, columns, counted, grouped, paragraph, size};
use dtrain_recipe::Amp;

/// GPUs side by side in a table of bytes.
const COLUMNS: usize = 5;
/// Characters of a GPU's name that are shown.
const NAME: usize = 16;

impl MemoryPlan {
    /// Returns the answer as text, as one sentence for each GPU if brief, or as a line of JSON.
    pub(crate) fn render(&self, question: &PlanQuestion) -> serde_json::Result<String> {
        if question.json {
            return serde_json::to_string(self).map(|line| line + "\n");
        }
        let mut out = String::new();
        if question.brief {
            self.rows.iter().for_each(|row| write_brief(self, row, &mut out));
            return Ok(out);
        }
        write_header(self, &mut out);
        write_rows(self, &mut out);
        write_bytes(self, &mut out);
        let plain = "Ways to save memory, each alone, compared with the plain cut:";
        let smallest = "Ways to save memory where no cut fits, each alone, compared with the smallest cut:";
        write_advice(&mut out, plain, &self.advice);
        write_advice(&mut out, smallest, &self.advice_if_too_large);
        for warning in &self.warnings {
            out.push('\n');
            paragraph(&mut out, 2, &format!("warning: {warning}"));
        }
        Ok(out)
    }
}

fn write_brief(plan: &MemoryPlan, row: &Row, out: &mut String) {
    let Prediction { cut, peak, mode, .. } = row.choice.prediction();
    let gpu = format!("{}, {}", shown(&row.gpu.name), size(row.gpu.bytes));
    let takes = format!("{} {}", size(*peak), mode.label());
    let mut text = match &row.choice {
        Choice::Fit { partition, .. } => format!(
            "{gpu}: micro-batch {}; {partition}; {}; recompute {}; {takes}",
            cut.micro_batch,
            precision(cut.amp),
            segments(plan, cut),
        ),
        Choice::NoFit { partition, .. } => format!(
            "{gpu}: does not fit: the smallest cut, {partition}, needs {takes}, above the limit of {}; \
             see `dtrain plan` for advice",
            size(row.budget),
        ),
    };
    if !row.gpu.supported {
        text += "; ";
        text += UNSUPPORTED;
    }
    paragraph(out, 2, &text);
}

fn write_header(plan: &MemoryPlan, out: &mut String) {
    let subject = &plan.subject;
    let trained = match subject.trained == subject.parameters {
        true => "all".to_owned(),
        false => grouped(subject.trained),
    };
    let stage = plan.stage.as_ref().map(|stage| format!("stage {stage}, "));
    let text = format!(
        "{}{}: {} parameters, {trained} trained; effective batch {}, learning rate {}, {}",
        stage.unwrap_or_default(),
        subject.model,
        grouped(subject.parameters),
        subject.effective_batch,
        subject.learning_rate,
        counted(plan.nproc, "rank"),
    );
    paragraph(out, 2, &text);
    let how = match plan.mode {
        Mode::Symbolic => "the step was run on tensors without storage",
        Mode::Measured => {
            "two micro-batches were measured, and the others are on a straight line through them"
        }
    };
    paragraph(out, 2, &format!("Memory and time are {}: {how}.", plan.mode.label()));
}

fn write_rows(plan: &MemoryPlan, out: &mut String) {
    let what = if plan.rows.iter().any(|row| row.gpu.cpu) { "device" } else { "GPU" };
    let header = "|memory|micro x accum x ranks|amp|recompute|shard|peak|time|fits";
    let mut table: Vec<Vec<String>> = vec![format!("{what}{header}").split('|').map(str::to_owned).collect()];
    for row in &plan.rows {
        let Prediction { cut, peak, .. } = row.choice.prediction();
        let (time, fits, steps) = match &row.choice {
            Choice::Fit { relative_time, grad_accum_steps, .. } => {
                (format!("{relative_time:.2}"), "yes", grad_accum_steps)
            }
            Choice::NoFit { grad_accum_steps, .. } => ("-".into(), "no", grad_accum_steps),
        };
        let (micro_batch, ranks, total) = (cut.micro_batch, plan.nproc, plan.subject.effective_batch);
        // Micro-batches may differ in size.
        let at_most = if micro_batch * steps * ranks == total { "" } else { "<=" };
        table.push(vec![
            shown(&row.gpu.name),
            size(row.gpu.bytes),
            format!("{at_most}{micro_batch} x {steps} x {ranks} = {total}"),
            precision(cut.amp).into(),
            segments(plan, cut),
            if cut.shard_optimizer { "yes" } else { "no" }.into(),
            size(*peak),
            time,
            fits.into(),
        ]);
    }
    out.push('\n');
    let align = [Left, Right, Left, Left, Right, Left, Right, Right, Left];
    columns(out, 0, &align, &table);
    out.push_str("Time: one step, relative to the plain cut.\n");
    if plan.rows.iter().any(|row| !row.gpu.cpu) {
        let margin = format!(
            "Limit for tensors: a GPU's memory less {}, less {}% of the rest.",
            size(plan.margin.context_bytes),
            plan.margin.fragmentation_percent
        );
        paragraph(out, 2, &margin);
    }
    if let Some(row) = plan.rows.iter().find(|row| row.gpu.cpu && plan.budget.is_none()) {
        let limit = format!(
            "Limit for tensors of a rank on the CPU: {HOST_PERCENT}% of the memory, divided by the ranks: {} of {}.",
            size(row.budget),
            size(row.gpu.bytes)
        );
        paragraph(out, 2, &limit);
    }
    if let Some(budget) = plan.budget {
        paragraph(out, 2, &format!("memory.budget limits tensors to {} on every device.", size(budget)));
    }
}

fn write_bytes(plan: &MemoryPlan, out: &mut String) {
    let mut cuts: Vec<(String, &Prediction)> = vec![("plain".into(), &plan.plain)];
    for row in &plan.rows {
        let prediction = row.choice.prediction();
        // bf16 and fp16 take the same memory.
        let same = |it: &Prediction| (it.cut.micro_batch, it.cut.recompute, it.owners);
        if !cuts.iter().any(|(_, known)| same(known) == same(prediction)) {
            cuts.push((shown(&row.gpu.name), prediction));
        }
    }
    let _ = writeln!(out, "\nMemory at the peak, {}:", plan.mode.label());
    for (index, some) in cuts.chunks(COLUMNS).enumerate() {
        if index > 0 {
            out.push('\n');
        }
        let row = |name: &str, cell: &dyn Fn(&(String, &Prediction)) -> String| {
            let cells = some.iter().map(cell);
            std::iter::once(name.to_owned()).chain(cells).collect::<Vec<_>>()
        };
        let mut table = vec![
            row("", &|(name, _)| name.clone()),
            row("micro-batch", &|(_, it)| it.cut.micro_batch.to_string()),
            row("recompute", &|(_, it)| segments(plan, &it.cut)),
        ];
        let owners = plan.plain.owners.rows().into_iter().enumerate();
        table.extend(owners.map(|(at, (name, _))| row(name, &|(_, it)| size(it.owners.rows()[at].1))));
        table.push(row("total", &|(_, it)| size(it.peak)));
        let align: Vec<_> = std::iter::once(Left).chain(some.iter().map(|_| Right)).collect();
        columns(out, 2, &align, &table);
    }
}

fn write_advice(out: &mut String, title: &str, advice: &[Advice]) {
    if advice.is_empty() {
        return;
    }
    let _ = writeln!(out, "\n{title}");
    let mut table = vec![["saves", "peak", "time", ""].map(str::to_owned).to_vec()];
    for one in advice {
        let time = format!("{:.2}", one.relative_time);
        table.push(vec![size(one.saves), size(one.peak), time, one.what.clone()]);
        if let Some(setting) = &one.setting {
            let mut line = vec![String::new(); 3];
            line.push(format!("  --set {}", quoted(setting)));
            table.push(line);
        }
    }
    columns(out, 2, &[Right, Right, Right, Left], &table);
}

/// Quotes a setting for a shell.
fn quoted(setting: &str) -> String {
    let plain = |letter: char| letter.is_ascii_alphanumeric() || "._=-".contains(letter);
    if setting.chars().all(plain) { setting.to_owned() } else { format!("'{setting}'") }
}

fn segments(plan: &MemoryPlan, cut: &Cut) -> String {
    format!("{}/{}", cut.recompute, plan.subject.segments)
}

fn precision(amp: Amp) -> &'static str {
    match amp {
        Amp::Off => "fp32",
        other => other.as_str(),
    }
}

/// Returns a GPU's name without its maker, and shortened to [`NAME`] characters.
fn shown(name: &str) -> String {
    let short = ["NVIDIA ", "Tesla ", "GeForce "]
        .iter()
        .fold(name, |name, maker| name.strip_prefix(maker).unwrap_or(name));
    if short.chars().count() <= NAME {
        return short.to_owned();
    }
    let begin: String = short.chars().take(NAME - 2).collect();
    format!("{begin}..")
}
