//! A plan as text of at most 100 columns, but for long settings.

use std::fmt::Write;

use super::answer::{Advice, Plan, Row};
use super::solve::Choice;
use super::{Cut, Prediction, Way};
use dtrain_common::batch::effective_batch;
use dtrain_common::recipe::Amp;
use dtrain_common::text::{Align::Left, Align::Right, columns, counted, grouped, paragraph, size};

/// GPUs whose bytes stand side by side.
const COLUMNS: usize = 5;
/// Letters of a GPU's name that are shown.
const NAME: usize = 16;

/// The whole of `dtrain plan`.
pub(super) fn full(plan: &Plan, out: &mut String) {
    header(plan, out);
    rows(plan, out);
    bytes(plan, out);
    advice(
        out,
        "What saves memory, each alone, against the plain cut:",
        &plan.advice,
    );
    advice(
        out,
        "What helps where it does not fit, each alone, against the smallest cut:",
        &plan.helps,
    );
    for warning in &plan.warnings {
        out.push('\n');
        paragraph(out, 2, &format!("warning: {warning}"));
    }
}

/// One sentence for each GPU.
pub(super) fn brief(plan: &Plan, out: &mut String) {
    let way = plan.way.label();
    for row in &plan.rows {
        let prediction = row.choice.prediction();
        let (name, memory, peak) = (shown(&row.gpu.name), size(row.gpu.bytes), size(prediction.peak));
        let text = match &row.choice {
            Choice::Fit(fit) => format!(
                "{name}, {memory}: micro-batch {}; {}; {}; recompute {}; {peak} {way}",
                prediction.cut.micro_batch,
                fit.partition,
                precision(prediction.cut.amp),
                segments(plan, &prediction.cut),
            ),
            Choice::NoFit(no_fit) => format!(
                "{name}, {memory}: does not fit; the smallest cut, {}, takes {peak} {way}, and tensors may take {}; \
                 `dtrain plan` says what helps",
                no_fit.partition,
                size(row.budget),
            ),
        };
        paragraph(out, 2, &text);
    }
}

fn header(plan: &Plan, out: &mut String) {
    let subject = &plan.subject;
    let trained = if subject.trained == subject.parameters {
        "all trained".to_owned()
    } else {
        format!("{} trained", grouped(subject.trained))
    };
    let stage = plan
        .stage
        .as_ref()
        .map_or_else(String::new, |stage| format!("stage {stage}, "));
    let text = format!(
        "{stage}{}: {} parameters, {trained}; effective batch {}, learning rate {}, {}",
        subject.model,
        grouped(subject.parameters),
        subject.effective_batch,
        subject.learning_rate,
        counted(plan.nproc, "rank"),
    );
    paragraph(out, 2, &text);
    let how = match plan.way {
        Way::Symbolic => "the step was run on tensors without storage",
        Way::Measured => "steps were run at two micro-batches, and the rest follows by a straight line",
    };
    let text = format!("Memory and time are {}: {how}.", plan.way.label());
    paragraph(out, 2, &text);
}

fn rows(plan: &Plan, out: &mut String) {
    let header = "GPU|memory|micro x accum x ranks|amp|recompute|shard|peak|time|fits";
    let mut table = vec![header.split('|').map(str::to_owned).collect()];
    for row in &plan.rows {
        let prediction = row.choice.prediction();
        let (time, fits) = match &row.choice {
            Choice::Fit(fit) => (format!("{:.2}", fit.relative_time), "yes"),
            Choice::NoFit(_) => ("-".into(), "no"),
        };
        let shard = if prediction.cut.shard_optimizer {
            "yes"
        } else {
            "no"
        };
        table.push(vec![
            shown(&row.gpu.name),
            size(row.gpu.bytes),
            batch(plan, row),
            precision(prediction.cut.amp).into(),
            segments(plan, &prediction.cut),
            shard.into(),
            size(prediction.peak),
            time,
            fits.into(),
        ]);
    }
    out.push('\n');
    let align = [Left, Right, Left, Left, Right, Left, Right, Right, Left];
    columns(out, 0, &align, &table);
    out.push_str("Time is that of a step against the plain cut.\n");
    let margin = format!(
        "Tensors may take a GPU's memory less {} and {}% of the rest.",
        size(plan.margin.context_bytes),
        plan.margin.fragmentation_percent
    );
    paragraph(out, 2, &margin);
    if let Some(budget) = plan.budget {
        let text = format!("memory.budget allows {} at most, on every GPU.", size(budget));
        paragraph(out, 2, &text);
    }
}

/// `8 x 2 x 1 = 16`; `<=6 x 3 x 1 = 16` where the pieces differ.
fn batch(plan: &Plan, row: &Row) -> String {
    let micro_batch = row.choice.prediction().cut.micro_batch;
    let (steps, ranks) = (row.choice.grad_accum_steps(), plan.nproc);
    let total = plan.subject.effective_batch;
    let even = effective_batch(micro_batch, steps, ranks) == total;
    let at_most = if even { "" } else { "<=" };
    format!("{at_most}{micro_batch} x {steps} x {ranks} = {total}")
}

fn bytes(plan: &Plan, out: &mut String) {
    let mut cuts: Vec<(String, &Prediction)> = vec![("plain".into(), &plan.plain)];
    for row in &plan.rows {
        let prediction = row.choice.prediction();
        // bf16 and fp16 take the same.
        let same = |known: &Prediction| {
            let (one, other) = (known.cut, prediction.cut);
            (one.micro_batch, one.recompute) == (other.micro_batch, other.recompute)
                && known.owners == prediction.owners
        };
        if !cuts.iter().any(|(_, known)| same(known)) {
            cuts.push((shown(&row.gpu.name), prediction));
        }
    }
    let _ = writeln!(out, "\nWhere the bytes are at the peak, {}:", plan.way.label());
    for (index, some) in cuts.chunks(COLUMNS).enumerate() {
        if index > 0 {
            out.push('\n');
        }
        let names = plan.plain.owners.rows().map(|(name, _)| name);
        let names = ["", "micro-batch", "recompute"]
            .into_iter()
            .chain(names)
            .chain(["together"]);
        let mut table: Vec<_> = names.map(|name| vec![name.to_owned()]).collect();
        for (name, prediction) in some {
            let (cut, owners) = (&prediction.cut, prediction.owners.rows());
            let head = [name.clone(), cut.micro_batch.to_string(), segments(plan, cut)];
            let sizes = owners
                .into_iter()
                .map(|(_, bytes)| bytes)
                .chain([prediction.peak]);
            for (line, cell) in table.iter_mut().zip(head.into_iter().chain(sizes.map(size))) {
                line.push(cell);
            }
        }
        let align: Vec<_> = std::iter::once(Left).chain(some.iter().map(|_| Right)).collect();
        columns(out, 2, &align, &table);
    }
}

fn advice(out: &mut String, title: &str, advice: &[Advice]) {
    if advice.is_empty() {
        return;
    }
    let _ = writeln!(out, "\n{title}");
    let mut table = vec![["saves", "peak", "time", ""].map(str::to_owned).to_vec()];
    for one in advice {
        table.push(vec![
            size(one.saves),
            size(one.peak),
            format!("{:.2}", one.relative_time),
            one.what.clone(),
        ]);
        if let Some(setting) = &one.setting {
            let mut line = vec![String::new(); 3];
            line.push(format!("  --set {}", quoted(setting)));
            table.push(line);
        }
    }
    columns(out, 2, &[Right, Right, Right, Left], &table);
}

/// For a shell.
fn quoted(setting: &str) -> String {
    let plain = |letter: char| letter.is_ascii_alphanumeric() || "._=-".contains(letter);
    if setting.chars().all(plain) {
        setting.to_owned()
    } else {
        format!("'{setting}'")
    }
}

fn segments(plan: &Plan, cut: &Cut) -> String {
    format!("{}/{}", cut.recompute, plan.subject.segments)
}

fn precision(amp: Amp) -> &'static str {
    match amp {
        Amp::Off => "fp32",
        other => other.as_str(),
    }
}

/// A GPU's name without its maker, and at most so long.
fn shown(name: &str) -> String {
    let short = ["NVIDIA ", "Tesla ", "GeForce "]
        .iter()
        .fold(name, |name, maker| name.strip_prefix(maker).unwrap_or(name));
    if short.chars().count() <= NAME {
        short.to_owned()
    } else {
        let begin: String = short.chars().take(NAME - 2).collect();
        format!("{begin}..")
    }
}
