#![allow(clippy::unwrap_used)]
use super::*;

fn key(samples: usize, first: bool) -> GraphKey {
    GraphKey { samples, weight: samples as f64, first }
}

/// Returns graphs as on a GPU, on any machine.
fn on() -> Graphs {
    Graphs { addresses_final: true, ..Graphs::new(Device::Cuda(0)) }
}

/// Checks that the next micro-steps of this kind run kernel by kernel.
fn expect_eager(graphs: &mut Graphs, key: GraphKey, micro_steps: usize) {
    for _ in 0..micro_steps {
        assert_eq!(graphs.choose_mode(key), ExecutionMode::Eager, "{key:?}");
    }
}

#[test]
fn graphs_are_disabled_on_a_cpu_with_a_reason() {
    let mut on_cpu = Graphs::new(Device::Cpu);
    expect_eager(&mut on_cpu, key(4, true), 2 * WARM_UP);
    assert_eq!(on_cpu.take_disabled_reason().unwrap(), "the training is on the CPU");
    assert_eq!(on_cpu.replays(), Some(0));
}

#[test]
fn graphs_disabled_in_a_phase_are_enabled_in_the_next() {
    let mut graphs = on();
    graphs.disable("recompute");
    assert_eq!(graphs.take_disabled_reason().unwrap(), "recompute");
    expect_eager(&mut graphs, key(4, true), 2 * WARM_UP);
    graphs.begin_phase();
    graphs.set_addresses_final();
    let modes: Vec<ExecutionMode> = (0..=WARM_UP).map(|_| graphs.choose_mode(key(4, true))).collect();
    assert_eq!(modes.last(), Some(&ExecutionMode::Capture));
}

#[test]
fn a_key_is_captured_after_its_warm_up() {
    let mut graphs = on();
    expect_eager(&mut graphs, key(4, true), WARM_UP);
    graphs.addresses_final = false;
    assert_eq!(graphs.choose_mode(key(4, true)), ExecutionMode::Eager, "its addresses will change");
    graphs.set_addresses_final();
    assert_eq!(graphs.choose_mode(key(4, true)), ExecutionMode::Capture);
    // Other kinds have separate graphs.
    assert_eq!(graphs.choose_mode(key(4, false)), ExecutionMode::Eager);
    assert_eq!(graphs.choose_mode(key(3, true)), ExecutionMode::Eager);
    let fewer = GraphKey { weight: 3.0, ..key(4, true) };
    assert_eq!(graphs.choose_mode(fewer), ExecutionMode::Eager);
    // Dropping graphs keeps the counts; another stage resets them.
    graphs.drop_graphs();
    assert_eq!(graphs.choose_mode(key(4, true)), ExecutionMode::Capture);
    graphs.begin_phase();
    assert_eq!(graphs.choose_mode(key(4, true)), ExecutionMode::Eager);
}

#[test]
fn no_micro_step_is_captured_before_the_first_of_a_step() {
    let mut graphs = on();
    expect_eager(&mut graphs, key(4, false), 2 * WARM_UP);
    expect_eager(&mut graphs, key(4, true), WARM_UP);
    assert_eq!(graphs.choose_mode(key(4, true)), ExecutionMode::Capture);
}

#[test]
fn a_failed_capture_is_reported_once_and_disables_captures() {
    let mut graphs = on();
    let batch = Batch::blank(&[], 2, Device::Cpu).unwrap();
    // The capture fails without a GPU, or in the work.
    let captured = graphs.capture(key(2, true), &batch, |_, _| Err(StepError::LoaderEnded));
    assert!(!captured);
    let reason = graphs.take_disabled_reason().unwrap();
    assert!(reason.starts_with("the capture of a step failed: "), "{reason}");
    assert_eq!(graphs.take_disabled_reason(), None);
    expect_eager(&mut graphs, key(2, true), 2 * WARM_UP);
    let replayed: Result<_, StepError> = graphs.replay(key(2, true), &batch, 1.0);
    assert!(replayed.unwrap().is_none());
    assert_eq!(graphs.replays(), Some(0));
    // The next stage would fail too.
    graphs.begin_phase();
    assert_eq!(graphs.choose_mode(key(2, true)), ExecutionMode::Eager);
}
