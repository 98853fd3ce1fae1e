//! A stage that trains less than the one before: moving average, sharded state, changes on resume.

use super::*;

#[test]
fn the_average_of_newly_frozen_parameters_still_moves() {
    let sandbox = Sandbox::new(GPT);
    let run = sandbox.train(1, "one", &[]);
    let steps = 9;

    // One cycle over 9 steps turns at 0.5 x 9 - 1 = 3.5; the last stage's cycle over 4 turns at 1.
    let rates = run.per_step("lr");
    let cosine =
        |from: f64, to: f64, part: f64| to + (from - to) * (1.0 + (std::f64::consts::PI * part).cos()) / 2.0;
    let run_wide = |step: f64| match step <= 3.5 {
        true => cosine(0.001, 0.01, step / 3.5),
        false => cosine(0.01, 0.0001, (step - 3.5) / 4.5),
    };
    let mut by_hand: Vec<f64> = (0..5).map(|step| run_wide(f64::from(step))).collect();
    by_hand.extend([0.001, 0.01, cosine(0.01, 0.0001, 0.5), 0.0001]);
    assert_close(&rates, &by_hand, 1e-12);

    let (wte, frozen) = ("transformer.wte.weight", "transformer.h.0.mlp.c_fc.weight");
    let of_steps =
        |file: &str| -> Vec<_> { (1..=steps).map(|step| tensors(&checkpoint(&run, step), file)).collect() };
    let (raw, averages) = (of_steps("model.safetensors"), of_steps("ema.safetensors"));
    assert!(raw[2][wte].equal(&raw[4][wte]), "frozen in the second stage");
    assert!(!raw[4][wte].equal(&raw[5][wte]), "trained again in the third");
    // A resting parameter's average moves towards it: the factor of update t is (1 + t) / (10 + t) at first.
    let distance = |step: usize| (&averages[step - 1][wte] - &raw[step - 1][wte]).norm().double_value(&[]);
    let left = |t: f64| (1.0 + t) / (10.0 + t);
    assert!((distance(4) / distance(3) - left(3.0)).abs() < 1e-3, "{} of {}", distance(4), distance(3));
    assert!((distance(5) / distance(4) - left(4.0)).abs() < 1e-3);
    // It starts again with the last stage; frozen parameters were not trained since then.
    assert!(!averages[5].contains_key(frozen) && averages[7].contains_key(frozen));
    assert!(averages[4].contains_key(frozen));

    let bytes: Vec<u64> =
        stage_lines(&run).iter().map(|line| line["optimizer_bytes"].as_u64().unwrap()).collect();
    assert!(bytes[1] < bytes[0] && bytes[2] < bytes[3] && bytes[3] == bytes[0], "{bytes:?}");

    let sharded = sandbox.train(2, "sharded", &["memory.shard_optimizer=true"]);
    assert_same_end(&run, &sharded, steps);
    let halves: Vec<u64> =
        stage_lines(&sharded).iter().map(|line| line["optimizer_bytes"].as_u64().unwrap()).collect();
    for (half, whole) in halves.iter().zip(&bytes) {
        assert!((*half as f64 / *whole as f64 - 0.5).abs() < 0.05, "{halves:?} of {bytes:?}");
    }
    let cases: [(usize, usize, &[&str]); 5] = [
        (4, 1, &[]),
        (7, 2, &["memory.shard_optimizer=true"]),
        (3, 2, &["memory.shard_optimizer=true"]),
        (5, 2, &[]),
        (8, 1, &[]),
    ];
    for &(step, nproc, sets) in thorough::cases(&cases, 2) {
        let name = format!("from-{step}");
        let resumed = resume(&sandbox, nproc, &name, &checkpoint(&sharded, step), sets);
        assert_same_end(&run, &resumed, steps);
    }

    // Partition and names may change on resume, and the last stage may grow if this does not move its parts.
    let sets = ["stage.2.micro_batch=2", "stage.2.name=end"];
    let resumed = resume(&sandbox, 1, "cut", &checkpoint(&run, 5), &sets);
    assert_close(&run.per_step("loss")[5..], &resumed.per_step("loss"), 1e-4);
    let from = checkpoint(&run, 5);
    let more = ["--resume", from.to_str().unwrap()];
    let text = expect_exit_code(&sandbox.launch_with(1, "other", &["stage.1.steps=3"], &more), 2);
    assert!(text.contains("stage[1].steps is ") && text.contains(" and 3 here"), "{text}");
}
