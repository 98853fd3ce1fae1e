//! `dtrain gpu monitor`: tables that are redrawn on a terminal, lines for other outputs.

use super::info::{MonitorLine, or_dash, text};
use super::owner::owner;
use crate::cli::MonitorArgs;
use crate::screen::{Frames, size_of_terminal, stop_requests, wait};
use crate::stdout::print;
use crossbeam_channel::Receiver;
use dtrain_agent::io::output::{Stream, can_draw_frames};
use dtrain_common::exit::ExitStatus;
use dtrain_common::gpu::{Driver, GpuStatus, Status};
use dtrain_common::text::size;
use std::io;
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// Repeats until Ctrl-C, the usual end, or for the given number of times.
pub(super) fn run(driver: &mut impl Driver, args: &MonitorArgs) -> anyhow::Result<ExitCode> {
    let stopped = stop_requests()?;
    let form = match args.json {
        true => Form::Json,
        false if can_draw_frames(Stream::Stdout) => Form::Screen,
        false => Form::Lines,
    };
    let (interval, count) = (Duration::from_secs_f64(args.interval), args.count);
    let schedule = Schedule { interval, count };
    watch(driver, form, schedule, &stopped, print, size_of_terminal)
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Form {
    /// Tables, each drawn over the previous.
    Screen,
    /// A line for each GPU.
    Lines,
    /// An object for each GPU.
    Json,
}

#[derive(Clone, Copy, Debug)]
struct Schedule {
    interval: Duration,
    count: Option<u64>,
}

/// Shows the state repeatedly. `show` returns whether a reader exists; `size` is the terminal's at that time.
fn watch(
    driver: &mut impl Driver,
    form: Form,
    schedule: Schedule,
    stopped: &Receiver<i32>,
    mut show: impl FnMut(&str) -> io::Result<bool>,
    size: impl Fn() -> (usize, usize),
) -> anyhow::Result<ExitCode> {
    let mut next = Instant::now();
    let mut frames = Frames::default();
    let mut looks = 0;
    loop {
        let status = driver.status()?;
        let time = jiff::Timestamp::now();
        let shown = match form {
            Form::Screen => show(&frames.next(&text(&status, owner), size()))?,
            Form::Lines => show(&lines(&status, &format!("{time:.0}")))?,
            Form::Json => show(&objects(&status, &format!("{time:.3}"))?)?,
        };
        looks += 1;
        if !shown || schedule.count.is_some_and(|count| looks >= count) {
            return Ok(ExitStatus::Success.into());
        }
        // A look that took longer than the interval is not made up for.
        next = (next + schedule.interval).max(Instant::now());
        if let Some(end) = wait(stopped, next) {
            return Ok(end.into());
        }
    }
}

fn lines(status: &Status, time: &str) -> String {
    let line = |gpu: &GpuStatus| {
        let (used, total) = (size(gpu.used_bytes()), size(gpu.total_bytes));
        let busy = or_dash(gpu.busy_percent.map(|percent| format!("{percent}%")));
        let (index, name, processes) = (gpu.index, &gpu.name, gpu.processes.len());
        let es = if processes == 1 { "" } else { "es" };
        format!("{time} GPU {index} ({name}): {used} of {total} used, busy {busy}, {processes} process{es}\n")
    };
    status.gpus.iter().map(line).collect()
}

fn objects(status: &Status, time: &str) -> serde_json::Result<String> {
    let object = |gpu| serde_json::to_string(&MonitorLine { time, gpu }).map(|object| object + "\n");
    status.gpus.iter().map(object).collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::super::fake::{FakeDriver, machine, process};
    use super::*;
    use crossbeam_channel::bounded;
    use dtrain_agent::signals;

    fn shown(form: Form, looks: u64) -> Vec<String> {
        let (_sender, stopped) = bounded(1);
        let schedule = Schedule { interval: Duration::from_millis(1), count: Some(looks) };
        let mut all = Vec::new();
        let mut driver = FakeDriver([machine(vec![process(1)]), machine(vec![])].into());
        let show = |text: &str| {
            all.push(text.to_owned());
            Ok(true)
        };
        watch(&mut driver, form, schedule, &stopped, show, || (60, 6)).unwrap();
        all
    }

    #[test]
    fn lines_for_logs() {
        let all = shown(Form::Lines, 2);
        assert_eq!(all.len(), 2);
        let first: Vec<_> = all[0].lines().collect();
        assert!(
            first[0].ends_with("Z GPU 0 (NVIDIA H200): 4.00 GiB of 16.00 GiB used, busy 87%, 1 process"),
            "{all:?}"
        );
        assert!(
            first[1].ends_with("Z GPU 1 (Tesla T4): 4.00 GiB of 16.00 GiB used, busy -, 0 processes"),
            "{all:?}"
        );
        assert!(all[1].contains("87%, 0 processes"), "{all:?}");
    }

    #[test]
    fn a_screen_is_painted_over() {
        let all = shown(Form::Screen, 2);
        let height = all[0].lines().count();
        assert!(all[0].starts_with("NVIDIA driver"));
        // On a terminal of 60 columns and 6 rows, no line wraps.
        assert_eq!(height, 5);
        assert!(all[0].lines().all(|line| line.chars().count() <= 60), "{all:?}");
        assert!(all[1].starts_with(&format!("\x1b[{height}A\r\x1b[JNVIDIA driver")), "{all:?}");
    }

    #[test]
    fn json_is_a_line_for_each_gpu_and_look() {
        let all = shown(Form::Json, 3).concat();
        let lines: Vec<serde_json::Value> =
            all.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        assert_eq!(lines.len(), 6);
        assert_eq!(lines[5]["index"], 1);
        assert!(lines[5]["time"].as_str().unwrap().ends_with('Z'));
    }

    #[test]
    fn a_signal_or_a_reader_that_has_gone_ends_it() {
        let schedule = Schedule { interval: Duration::from_secs(3600), count: None };
        let ended = |signal: Option<i32>, reads: bool| {
            let (sender, stopped) = bounded(1);
            signal.into_iter().for_each(|signal| sender.send(signal).unwrap());
            let code = watch(
                &mut FakeDriver::new(machine(vec![])),
                Form::Lines,
                schedule,
                &stopped,
                |_| Ok(reads),
                || (80, 24),
            );
            format!("{:?}", code.unwrap())
        };
        let code = |code: u8| format!("{:?}", ExitCode::from(code));
        assert_eq!(ended(Some(signals::INT), true), code(0));
        assert_eq!(ended(Some(signals::TERM), true), code(143));
        assert_eq!(ended(None, false), code(0));
    }
}
