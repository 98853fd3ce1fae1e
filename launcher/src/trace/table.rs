//! The table of `dtrain trace`: a step's time by its parts, for each rank.

use super::read::Traces;
use super::times::Times;
use dtrain_common::text::{Align, columns, counted, grouped};
use dtrain_common::trace::Kind;
use std::collections::BTreeMap;

/// The columns of parts; what belongs to none is `other`.
const PARTS: [(&str, &[Kind]); 6] = [
    ("load", &[Kind::Load]),
    ("forward", &[Kind::Forward]),
    ("backward", &[Kind::Backward]),
    ("recompute", &[Kind::Recompute]),
    ("communication", &[Kind::Communication, Kind::Bucket]),
    ("update", &[Kind::Update]),
];

/// Appends the heading, the table, and lines about clocks and missing ranks.
pub(super) fn append(out: &mut String, traces: &Traces, clocks: &BTreeMap<usize, i64>) {
    let all: Vec<Times> = traces.ranks.iter().filter_map(Times::of).collect();
    let Some(first) = traces.ranks.first() else { return };
    let steps = match first.meta.steps {
        [first, last] if first == last => format!("step {first}"),
        [first, last] => format!("steps {first} to {last}"),
    };
    out.push_str(&format!(
        "{steps} on {}, milliseconds of a mean step\n\n",
        counted(first.meta.world_size, "rank")
    ));
    let has_gpu = all.iter().any(|times| times.gpu.is_some());
    let used: Vec<_> = PARTS
        .into_iter()
        .filter(|(_, kinds)| kinds.iter().any(|kind| all.iter().any(|times| times.part(*kind) > 0.0)))
        .collect();
    let mut title = vec!["rank", "step"];
    title.extend(used.iter().map(|(name, _)| *name));
    title.extend(["other", "operations"]);
    if has_gpu {
        title.extend(["kernels", "GPU busy"]);
    }
    let mut rows = vec![title.iter().map(|&word| word.to_owned()).collect::<Vec<_>>()];
    rows.extend(all.iter().map(|times| row(times, &used, has_gpu)));
    columns(out, 0, &vec![Align::Right; title.len()], &rows);
    for trace in &traces.ranks {
        let offset = clocks.get(&trace.meta.rank).copied().unwrap_or(0);
        if offset != 0 {
            let (rank, host, ms) = (trace.meta.rank, &trace.meta.host, offset as f64 / 1e6);
            out.push_str(&format!("rank {rank}: the clock of {host} is shifted by {ms:.3} ms\n"));
        }
    }
    if !traces.missing.is_empty() {
        let missing: Vec<_> = traces.missing.iter().map(usize::to_string).collect();
        let folder = "trace/rank_R.json.gz";
        let missing = missing.join(", ");
        out.push_str(&format!("without rank {missing}: copy {folder} from the node of that rank\n"));
    }
}

fn row(times: &Times, used: &[(&str, &[Kind])], has_gpu: bool) -> Vec<String> {
    let ms = |value: f64| format!("{value:.2}");
    let parts: Vec<f64> =
        used.iter().map(|(_, kinds)| kinds.iter().map(|kind| times.part(*kind)).sum()).collect();
    let other = times.step_ms - parts.iter().sum::<f64>();
    let mut row = vec![times.rank.to_string(), ms(times.step_ms)];
    row.extend(parts.into_iter().map(ms));
    row.extend([ms(other.max(0.0)), grouped(times.operations as u64)]);
    if has_gpu {
        let gpu = times.gpu.unwrap_or_default();
        let busy = (gpu.computing_ms + gpu.reducing_ms) / times.step_ms;
        row.extend([grouped(gpu.kernels as u64), format!("{:.0}%", 100.0 * busy)]);
    }
    row
}
