//! How the images of a micro-batch reach a GPU.

use dtrain_tests::process::expect_exit_code;
use serde_json::Value;

use super::Machine;
use crate::bad_input::{folder_recipe, image_folder};

/// An operation on a stream of the timeline, in microseconds.
struct Operation<'a> {
    name: &'a str,
    stream: u64,
    start: f64,
    end: f64,
}

fn operations(counts: &Value) -> Vec<Operation<'_>> {
    let operation = |event: &'_ Value| -> Option<(u64, f64, f64)> {
        Some((event["tid"].as_u64()?, event["ts"].as_f64()?, event["dur"].as_f64()?))
    };
    let events = counts["traceEvents"].as_array().unwrap();
    let all = events.iter().map(|event| {
        let (stream, start, length) = operation(event).unwrap();
        Operation { name: event["name"].as_str().unwrap(), stream, start, end: start + length }
    });
    all.collect()
}

/// Images are normalised by a table, which only they use. The check of the fake GPU reports an access without a wait, and the
/// table of steps the one host wait of a step.
#[test]
fn the_next_images_are_copied_and_normalised_while_the_network_computes() {
    const STEPS: usize = 12;
    let Ok(machine) = Machine::new(1, &folder_recipe()) else { return };
    image_folder(&machine.sandbox, 48, 5);
    let steps = format!("train.steps={STEPS}");
    // The streams run behind the host, as those of a GPU do.
    let variables = [("FAKE_GPU_TIMELINE", "1"), ("FAKE_GPU_KERNEL_NS", "100000")];
    let text = expect_exit_code(&machine.launch("run", &["--nproc", "1", "--set", &steps], &variables), 0);
    let counts = machine.expect_own_gpus("run", &text);
    let all = operations(&counts[0]);
    let is_normalisation = |operation: &&Operation<'_>| operation.name.contains("scatter_gather");
    let number = |stream: u64| all.iter().filter(|operation| operation.stream == stream).count();
    let computing =
        all.iter().map(|operation| operation.stream).max_by_key(|&stream| number(stream)).unwrap();
    let beside: Vec<_> = all.iter().filter(is_normalisation).filter(|it| it.stream != computing).collect();
    // The first micro-batch, and those for which the loader was late, have nothing to overlap with: on a busy machine, most.
    assert!(beside.len() >= 3, "{} of {STEPS} beside the network", beside.len());
    let copies = beside[0].stream;
    assert!(beside.iter().all(|it| it.stream == copies), "one stream for all copies");
    let of_copies =
        |word: &str| all.iter().filter(|it| it.stream == copies && it.name.contains(word)).count();
    // Pixels, tables, classes and weights.
    assert!(of_copies("copy") >= 3 * beside.len(), "{} copies", of_copies("copy"));
    let overlaps = |one: &Operation<'_>| {
        all.iter().any(|other| other.stream == computing && other.start < one.end && one.start < other.end)
    };
    let together = beside.iter().filter(|it| overlaps(it)).count();
    assert!(2 * together > beside.len(), "{together} of {} at the same time as the network", beside.len());
}
