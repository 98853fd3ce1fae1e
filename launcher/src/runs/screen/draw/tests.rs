//! Pictures of the screen as plain text.

#![allow(clippy::unwrap_used)]

use super::super::samples::{look, run};
use super::super::view::{Page, View};
use super::*;
use crate::cli::RunState::{Failed, Lost, Running, Succeeded};
use dtrain_common::gpu::GpuStatus;
use dtrain_common::host;
use proptest::prelude::*;
use ratatui::Terminal;
use ratatui::backend::TestBackend;

/// Returns the rows of the screen, without the time and without spaces at their ends.
fn rows(look: &Look, view: &mut View, theme: Theme, (columns, rows): (u16, u16)) -> Vec<String> {
    let mut terminal = Terminal::new(TestBackend::new(columns, rows)).unwrap();
    view.follow(look);
    terminal.draw(|frame| draw(frame, look, view, theme)).unwrap();
    let buffer = terminal.backend().buffer();
    let cells: Vec<&str> = buffer.content().iter().map(|cell| cell.symbol()).collect();
    let text = |row: &[&str]| row.concat().replace(&local_time(look.time), "TIME").trim_end().to_owned();
    cells.chunks(usize::from(columns).max(1)).map(text).collect()
}

fn picture(look: &Look, page: Page, size: (u16, u16)) -> String {
    rows(look, &mut View { page, ..View::default() }, Theme::plain(), size).join("\n")
}

/// Returns a running, an ended and a failed run.
fn three() -> Look {
    look(vec![run("flowers", Running), run("small", Succeeded), run("sweep/lr-3", Failed)])
}

#[track_caller]
fn assert_picture(shown: &str, expected: &str) {
    assert_eq!(shown, expected.trim_matches('\n'), "the screen:\n{shown}\n");
}

#[test]
fn eighty_columns_and_24_rows_show_curves_and_a_log() {
    assert_picture(
        &picture(&three(), Page::Runs, (80, 24)),
        "
runs: 3 runs: 1 running, 1 succeeded, 1 failed               TIME
run         state      epoch   step  done    loss  best  left  about
flowers     running      3/4  30/40   75%  0.1000  -     10 s  on n1
small       succeeded    3/4  30/40   75%  0.1000  -        -  exit code 3
sweep/lr-3  failed       3/4  30/40   75%  0.1000  -        -  exit code 3
─ runs/flowers: running, on n1 ────────────────────────────────────────────────
step    30/40 75%  ██████████████████████░░░░░░░░  epoch 3/4, 10 s left
loss    0.1000 train, 0.7000 val
speed   1,230 samples/s, 12.50 ms a step, waits: data 0.2, exchange 2.0 ms
memory  peak 2.79 GiB, predicted 3.00 GiB, budget 4.00 GiB
rate    learning rate 0.0300, gradient norm 0.5000
loss  ─ train 0.1000  • val 0.7000      accuracy  • val 0.3000
 3.000 ⡇                                0.3000                             ⢀⡠⠤⠒•
       ⢸                                                              ⢀⣀⠤⠒⠉⠁
       ⠸⡀                                                        ⢀⣀⠤⠒⠊⠁
        ⡇                                                    ⣀⠤•⠊⠁
        ⠘⡄      •                                       ⣀⡠⠔⠊⠉
         ⠈⠒⠤⣀⡀             •         •             ⢀⡠⠔⠒⠉
0.1000       ⠈⠉⠑⠒⠒⠢⠤⠤⠤⠤⠤⠤⠤⠤⣀⣀⣀⣀⣀⣀⣀⣀⣀⣀⣀  0.1000 •⠤⠒⠉⠁
       1                            30         10                             30
─ standard error of rank 0 ────────────────────────────────────────────────────
step 29 of 40
step 30 of 40
? help  q quit  j/k run  enter alone  l log  tab chart
",
    );
}

#[test]
fn a_stage_is_marked_below_its_first_step() {
    let mut look = three();
    look.detail.as_mut().unwrap().history.stages = vec![16];
    let shown = picture(&look, Page::Runs, (80, 24));
    // Step 16 is in the middle of 1 to 30, and 0.3 of the way from 10 to 30.
    assert!(
        shown
            .contains("\n       1               ▴            30         10        ▴                    30\n"),
        "{shown}"
    );
}

#[test]
fn a_small_terminal_shows_the_most_important_lines() {
    assert_picture(
        &picture(&three(), Page::Runs, (40, 10)),
        "
runs: 3 runs: 1 running, 1 succeeded, 1…
run         state       step  done  left
flowers     running    30/40   75%  10 s
small       succeeded  30/40   75%     -
sweep/lr-3  failed     30/40   75%     -
─ runs/flowers: running, on n1 ────────
step    30/40 75%  epoch 3/4, 10 s left
loss    0.1000 train, 0.7000 val
speed   1,230 samples/s, 12.50 ms a ste…
? help  q quit  j/k run  enter alone  l
",
    );
    assert_picture(
        &picture(&three(), Page::Run, (40, 10)),
        "
runs: 3 runs: 1 running, 1 succeeded, 1…
─ runs/flowers: running, on n1 ────────
step    30/40 75%  epoch 3/4, 10 s left
loss    0.1000 train, 0.7000 val
speed   1,230 samples/s, 12.50 ms a ste…
memory  peak 2.79 GiB, predicted 3.00 G…
rate    learning rate 0.0300, gradient …
─ standard error of rank 0 ────────────
step 30 of 40
? help  q quit  esc back  j/k run  l log
",
    );
}

#[test]
fn a_failure_has_its_cause_and_remedy() {
    let failed = look(vec![run("sweep/lr-3", Failed)]);
    let shown = picture(&failed, Page::Runs, (80, 24));
    for text in [
        "runs/sweep/lr-3: failed, exit code 3",
        "rank 1 on n1: exit code 3: the GPU has no memory left; set a smaller",
        "  train.micro_batch or memory.budget",
        "its message: out of memory in step 31",
    ] {
        assert!(shown.contains(text), "{shown}");
    }
}

#[test]
fn a_large_terminal_has_more_charts_and_tab_turns_them() {
    let look = three();
    let shown = picture(&look, Page::Runs, (120, 40));
    for title in [
        "loss  ─ train 0.1000  • val 0.7",
        "accuracy  • val 0.3",
        "samples/s  ─ 1,230",
        "memory  ─ 2.79 GiB",
        "learning rate  ─ 0.03",
        "gradient norm",
    ] {
        assert!(shown.contains(title), "{title:?} in\n{shown}");
    }
    let mut view = View { chart: 2, page: Page::Run, ..View::default() };
    let turned = rows(&look, &mut view, Theme::plain(), (60, 20)).join("\n");
    assert!(turned.contains("samples/s  ─ 1,230") && !turned.contains("accuracy  •"), "{turned}");
}

#[test]
fn a_log_is_scrolled_and_long_lines_are_broken() {
    let mut look = three();
    let mut view = View { page: Page::Log, log_end: Some(12), ..View::default() };
    view.follow(&look);
    view.log_end = Some(12);
    let shown = rows(&look, &mut view, Theme::plain(), (60, 8));
    assert!(shown[1].contains("flowers: standard error of rank 0 of 2, line 12 of 30"), "{shown:#?}");
    assert_eq!(
        shown[2..7],
        ["step 8 of 40", "step 9 of 40", "step 10 of 40", "step 11 of 40", "step 12 of 40"]
    );
    view.log_end = None;
    look.detail.as_mut().unwrap().log.lines.push_back("x".repeat(70));
    let shown = rows(&look, &mut view, Theme::plain(), (60, 8));
    assert_eq!(shown[4..7], ["step 30 of 40".to_owned(), "x".repeat(60), "x".repeat(10)]);
    assert!(shown[1].contains("following"), "{shown:#?}");
}

#[test]
fn gpus_are_shown_for_a_run_of_this_machine() {
    let gpu = GpuStatus {
        index: 0,
        name: "NVIDIA H200".into(),
        uuid: None,
        total_bytes: 16 << 30,
        free_bytes: 12 << 30,
        busy_percent: Some(87),
        temperature_c: Some(61),
        power_mw: Some(250_400),
        processes: Vec::new(),
    };
    let line = "GPU 0   busy 87%, 4.00 GiB of 16.00 GiB, 61 C, 250 W, NVIDIA H200";
    let mut here = run("a", Running);
    here.record.host = host::name();
    let mut look = look(vec![here, run("on another machine", Running)]);
    look.gpus = vec![gpu];
    assert!(!picture(&look, Page::Runs, (80, 30)).contains("GPU 0"), "its plan is for a CPU");
    look.detail.as_mut().unwrap().plan.device = Some("cuda:0".into());
    assert!(picture(&look, Page::Runs, (80, 30)).contains(line), "{}", picture(&look, Page::Runs, (80, 30)));
    std::sync::Arc::get_mut(&mut look.list).unwrap().runs.remove(0);
    assert!(!picture(&look, Page::Runs, (80, 30)).contains("GPU 0"));
}

#[test]
fn no_runs_and_lost_folders_are_sentences() {
    let mut none = look(vec![]);
    assert!(picture(&none, Page::Runs, (80, 24)).contains("runs: no runs"));
    assert!(picture(&none, Page::Log, (80, 24)).contains("No runs yet. A run appears here when it begins."));
    none.error = Some("cannot list runs: stale\nhandle".into());
    assert!(picture(&none, Page::Runs, (80, 24)).contains("not read again: cannot list runs: stale handle"));
    // The details of the chosen run are on their way.
    let mut other = look(vec![run("a", Lost)]);
    other.detail = None;
    assert!(picture(&other, Page::Runs, (80, 24)).contains("runs/a: lost, exit code 3"));
}

#[test]
fn colors_are_only_those_of_the_theme() {
    let colors = |theme: Theme| {
        let mut terminal = Terminal::new(TestBackend::new(80, 24)).unwrap();
        let (look, mut view) = (three(), View::default());
        view.follow(&look);
        terminal.draw(|frame| draw(frame, &look, &mut view, theme)).unwrap();
        let cells = terminal.backend().buffer().content();
        cells.iter().filter(|cell| cell.fg != ratatui::style::Color::Reset).count()
    };
    assert_eq!(colors(Theme::plain()), 0);
    assert!(colors(Theme::colored()) > 100);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]
    #[test]
    fn every_size_has_a_picture(
        width in 0u16..150, height in 0u16..60, small in any::<bool>(), page in 0usize..3, has_help in any::<bool>(),
        state in prop::sample::select(vec![Running, Failed, Lost]), count in 0usize..9, end in prop::option::of(0usize..40),
    ) {
        let size = if small { (width % 20, height % 12) } else { (width, height) };
        let look = look((0..count).map(|number| run(&format!("表{number}"), state)).collect());
        let page = [Page::Runs, Page::Run, Page::Log][page];
        let mut view = View { page, has_help, log_end: end, chart: count, ..View::default() };
        let shown = rows(&look, &mut view, Theme::colored(), size);
        prop_assert_eq!(shown.len(), if size.0 == 0 { 0 } else { usize::from(size.1) });
    }
}
