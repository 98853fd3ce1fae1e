//! What is known of a run, as short texts.

use super::super::super::run::Run;
use super::super::super::table::{best, plain};
use super::super::source::{Detail, Look};
use crate::cli::RunState;
use dtrain_common::gpu::GpuStatus;
use dtrain_common::host;
use dtrain_common::text::{grouped, size};

/// Returns the most important facts first, each with its label.
pub(super) fn facts(look: &Look, run: &Run, detail: &Detail) -> Vec<(String, String)> {
    let fact = |label: &str, parts: Vec<Option<String>>| {
        let text = parts.into_iter().flatten().collect::<Vec<_>>().join(", ");
        (!text.is_empty()).then(|| (label.to_owned(), text))
    };
    let mut facts =
        vec![fact("loss", losses(run, detail)), fact("speed", speed(detail)), fact("memory", memory(detail))];
    facts.extend(
        gpus(look, run, detail).iter().map(|gpu| fact(&format!("GPU {}", gpu.index), gpu_parts(gpu))),
    );
    facts.push(fact("rate", rate(detail)));
    facts.into_iter().flatten().collect()
}

fn losses(run: &Run, detail: &Detail) -> Vec<Option<String>> {
    let train = detail.history.last.as_ref().and_then(|step| step.loss).or(run.loss);
    let mut parts = vec![train.map(|loss| format!("{} train", number(loss)))];
    let of_sets = detail.history.figures.iter().filter(|figure| figure.name == "loss");
    parts.extend(of_sets.map(|figure| Some(format!("{} {}", number(figure.last), plain(&figure.set)))));
    parts.push(best(run).map(|best| format!("best {best}")));
    parts
}

fn speed(detail: &Detail) -> Vec<Option<String>> {
    let Some(step) = &detail.history.last else { return Vec::new() };
    let waits = [("data", step.wait_ms.data), ("exchange", step.wait_ms.comm)];
    let waits = waits.map(|(what, ms)| ms.map(|ms| format!("{what} {ms:.1}")));
    let waits = waits.into_iter().flatten().collect::<Vec<_>>().join(", ");
    vec![
        step.samples_per_s.map(|speed| format!("{} samples/s", number(speed))),
        step.step_ms.map(|ms| format!("{} ms a step", number(ms))),
        (!waits.is_empty()).then(|| format!("waits: {waits} ms")),
    ]
}

fn rate(detail: &Detail) -> Vec<Option<String>> {
    let Some(step) = &detail.history.last else { return Vec::new() };
    vec![
        step.lr.map(|rate| format!("learning rate {}", number(rate))),
        step.grad_norm.map(|norm| format!("gradient norm {}", number(norm))),
    ]
}

fn memory(detail: &Detail) -> Vec<Option<String>> {
    let (plan, last) = (&detail.plan, detail.history.last.as_ref());
    let stage = last.and_then(|step| step.stage.as_deref());
    vec![
        last.and_then(|step| step.memory.peak).map(|peak| format!("peak {}", size(peak as u64))),
        plan.predicted(stage).map(|peak| format!("predicted {}", size(peak))),
        plan.budget_bytes.map(|budget| format!("budget {}", size(budget))),
    ]
}

/// Returns the GPUs of this machine, if the run may use them.
fn gpus<'a>(look: &'a Look, run: &Run, detail: &Detail) -> &'a [GpuStatus] {
    let is_on_cpu =
        detail.plan.device.as_deref().is_some_and(|device| device.to_lowercase().starts_with("cpu"));
    let is_here = run.state == RunState::Running && run.record.host == host::name();
    if is_here && !is_on_cpu { &look.gpus } else { &[] }
}

fn gpu_parts(gpu: &GpuStatus) -> Vec<Option<String>> {
    vec![
        gpu.busy_percent.map(|percent| format!("busy {percent}%")),
        Some(format!("{} of {}", size(gpu.used_bytes()), size(gpu.total_bytes))),
        gpu.temperature_c.map(|heat| format!("{heat} C")),
        gpu.power_mw.map(|power| format!("{} W", power / 1000)),
        Some(plain(&gpu.name)),
    ]
}

/// Returns why a run has failed, or what is wrong with it.
pub(super) fn troubles(run: &Run, detail: &Detail) -> Vec<String> {
    let mut troubles = Vec::new();
    if let Some(failure) = &run.result.failure {
        let how = match (&failure.signal, failure.exit_code) {
            (Some(signal), _) => signal.clone(),
            (None, Some(code)) => format!("exit code {code}"),
            (None, None) => "failed".to_owned(),
        };
        let text = failure.cause.as_ref().map(|cause| cause.text.as_str()).or(failure.message.as_deref());
        let text = text.map_or_else(String::new, |text| format!(": {text}"));
        troubles.push(format!("rank {} on {}: {how}{text}", failure.rank, failure.host));
        let message = failure.message.as_deref().filter(|_| failure.cause.is_some());
        // The last line of a traceback names the error.
        let message = message.map(|text| match text.starts_with("Traceback") {
            true => text.trim_end().lines().last().unwrap_or_default(),
            false => text,
        });
        troubles.extend(message.map(|message| format!("its message: {message}")));
    }
    troubles.extend(run.problems.iter().cloned());
    troubles.extend(detail.problems.iter().filter(|problem| !run.problems.contains(problem)).cloned());
    troubles.iter().map(|text| plain(text)).collect()
}

/// Writes a number with about four digits.
pub(super) fn number(value: f64) -> String {
    match value.abs() {
        0.0 => "0".to_owned(),
        size if !size.is_finite() => "-".to_owned(),
        size if size >= 1e15 => format!("{value:.3e}"),
        size if size >= 1000.0 => {
            let sign = if value < 0.0 { "-" } else { "" };
            format!("{sign}{}", grouped(size.round() as u64))
        }
        size if size >= 100.0 => format!("{value:.1}"),
        size if size >= 10.0 => format!("{value:.2}"),
        size if size >= 1.0 => format!("{value:.3}"),
        size if size >= 0.001 => format!("{value:.4}"),
        _ => format!("{value:.2e}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_four_digits() {
        for (value, text) in [
            (0.0, "0"),
            (12_345.6, "12,346"),
            (-1234.0, "-1,234"),
            (123.45, "123.5"),
            (1.23456, "1.235"),
            (0.012_345, "0.0123"),
            (0.000_123_4, "1.23e-4"),
            (f64::NAN, "-"),
            (1e20, "1.000e20"),
        ] {
            assert_eq!(number(value), text);
        }
    }
}
