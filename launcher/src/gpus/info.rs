//! `dtrain gpu info`, and the tables that `monitor` also shows.

use super::owner::{Owner, owner};
use crate::cli::InfoArgs;
use crate::stdout::print;
use dtrain_common::exit::ExitStatus;
use dtrain_common::gpu::{Driver, GpuStatus, Status};
use dtrain_common::text::{Align::Left, Align::Right, columns, size};
use serde::Serialize;
use std::process::ExitCode;

pub(super) fn run(driver: &mut impl Driver, args: &InfoArgs) -> anyhow::Result<ExitCode> {
    let status = driver.status()?;
    let text = if args.json { serde_json::to_string(&status)? + "\n" } else { text(&status, owner) };
    print(&text)?;
    Ok(ExitStatus::Success.into())
}

/// Returns the tables of driver, GPUs and processes. `owner` describes a process.
pub(super) fn text(status: &Status, owner: impl Fn(u32) -> Option<Owner>) -> String {
    let mut out = format!("NVIDIA driver {}", status.driver);
    if let Some(cuda) = &status.cuda {
        out.push_str(&format!(", CUDA up to {cuda}"));
    }
    out.push_str("\n\n");
    if status.gpus.is_empty() {
        out.push_str("The driver finds no GPU.\n");
        return out;
    }
    let title = ["GPU", "name", "used", "free", "memory", "busy", "heat", "power"];
    let mut table = vec![title.map(str::to_owned).to_vec()];
    table.extend(status.gpus.iter().map(row));
    let align = [Right, Left, Right, Right, Right, Right, Right, Right];
    columns(&mut out, 0, &align, &table);
    out.push('\n');
    let mut table = vec![["GPU", "pid", "user", "memory", "command"].map(str::to_owned).to_vec()];
    for gpu in &status.gpus {
        for process in &gpu.processes {
            let (user, command) = match owner(process.pid) {
                Some(owner) => (owner.user, owner.command),
                None => ("?".into(), "(not visible from here)".into()),
            };
            let memory = process.used_bytes.map(size);
            table.push(vec![gpu.index.to_string(), process.pid.to_string(), user, or_dash(memory), command]);
        }
    }
    if table.len() == 1 {
        out.push_str("No process uses a GPU.\n");
    } else {
        columns(&mut out, 0, &[Right, Right, Left, Right, Left], &table);
    }
    out
}

fn row(gpu: &GpuStatus) -> Vec<String> {
    vec![
        gpu.index.to_string(),
        gpu.name.clone(),
        size(gpu.used_bytes()),
        size(gpu.free_bytes),
        size(gpu.total_bytes),
        or_dash(gpu.busy_percent.map(|percent| format!("{percent}%"))),
        or_dash(gpu.temperature_c.map(|degrees| format!("{degrees} C"))),
        or_dash(gpu.power_mw.map(|milliwatts| format!("{} W", milliwatts / 1000))),
    ]
}

/// Returns the value, or a dash if the driver does not report it.
pub(super) fn or_dash(figure: Option<String>) -> String {
    figure.unwrap_or_else(|| "-".into())
}

/// A line of `monitor --json`.
#[derive(Debug, Serialize)]
pub(super) struct MonitorLine<'a> {
    /// The time by RFC 3339.
    pub(super) time: &'a str,
    #[serde(flatten)]
    pub(super) gpu: &'a GpuStatus,
}

#[cfg(test)]
mod tests {
    use super::super::fake::{machine, process};
    use super::*;

    #[test]
    fn the_tables_are_exact() {
        let owners = |pid| {
            (pid < 100).then(|| Owner { uid: 1000, user: "ann".into(), command: "python train.py".into() })
        };
        let expected = "\
NVIDIA driver 580.65, CUDA up to 13.0

GPU  name             used       free     memory  busy  heat  power
  0  NVIDIA H200  4.00 GiB  12.00 GiB  16.00 GiB   87%  61 C  250 W
  1  Tesla T4     4.00 GiB  12.00 GiB  16.00 GiB     -     -      -

GPU  pid  user    memory  command
  0   77  ann   1.00 GiB  python train.py
  0  123  ?     1.00 GiB  (not visible from here)
";
        assert_eq!(text(&machine(vec![process(77), process(123)]), owners), expected);
        assert!(text(&machine(vec![]), owners).ends_with("\nNo process uses a GPU.\n"));
        let nothing = Status { driver: "580.65".into(), ..Status::default() };
        assert_eq!(text(&nothing, owners), "NVIDIA driver 580.65\n\nThe driver finds no GPU.\n");
    }

    #[test]
    fn a_monitor_line_is_one_object() {
        let status = machine(vec![process(77)]);
        let line = MonitorLine { time: "2026-11-21T13:00:00Z", gpu: &status.gpus[0] };
        assert_eq!(
            serde_json::to_string(&line).ok().as_deref(),
            Some(
                "{\"time\":\"2026-11-21T13:00:00Z\",\"index\":0,\"name\":\"NVIDIA H200\",\"uuid\":\"GPU-aa0-0001\",\
                 \"total_bytes\":17179869184,\"free_bytes\":12884901888,\"busy_percent\":87,\"temperature_c\":61,\
                 \"power_mw\":250400,\"processes\":[{\"pid\":77,\"used_bytes\":1073741824}]}"
            )
        );
    }
}
