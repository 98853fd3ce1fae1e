//! The last layer first, then all, unfrozen in parts.

use super::*;

/// The step after which training of each group of the U-Net's parameters begins.
const BEGINS: [(&str, usize); 4] = [("outc", 0), ("up", 4), ("down", 6), ("inc", 8)];
const STEPS: usize = 10;

#[test]
fn two_stages_with_progressive_unfreezing() {
    let sandbox = Sandbox::new(UNET);
    let text = expect_exit_code(&sandbox.launch(1, "one", &[]), 0);
    let run = sandbox.run("one");

    // Linear over 4 steps from 0.01, then over 6 from 0.005, each after a warm-up of one step.
    let rates = run.per_step("lr");
    let third = 0.01 / 3.0;
    let by_hand = [0.01, 0.01, 2.0 * third, third, 0.005, 0.005, 0.004, 0.003, 0.002, 0.001];
    assert_close(&rates, &by_hand, 1e-12);
    let names: Vec<Value> = steps_of(&run, "stage");
    assert_eq!(names[..4], ["head"; 4]);
    assert_eq!(names[4..], ["full"; 6]);
    assert_eq!(steps_of(&run, "samples")[9], 48 + 36);
    assert_eq!(steps_of(&run, "epoch")[4], 3, "epochs are counted over the run");

    // Frozen parameters do not change in any bit; unfrozen ones change.
    let weights: Vec<_> =
        (1..=STEPS).map(|step| tensors(&checkpoint(&run, step), "model.safetensors")).collect();
    for (group, begins) in BEGINS {
        let names = weights[0].keys().filter(|name| name.starts_with(group) && name.ends_with("weight"));
        let names: Vec<&String> = names.collect();
        assert!(!names.is_empty(), "no {group} in {:?}", weights[0].keys());
        for name in names {
            for step in 1..STEPS {
                let moved = !weights[step - 1][name].equal(&weights[step][name]);
                assert_eq!(moved, step >= begins, "{name} in step {}", step + 1);
            }
        }
    }

    // The state shrinks and grows with the trained parameters; their updates count from their first step.
    let lines = stage_lines(&run);
    let figures = |key: &str| -> Vec<u64> { lines.iter().map(|line| line[key].as_u64().unwrap()).collect() };
    assert_eq!(figures("step"), [1, 5, 7, 9]);
    assert_eq!((figures("number"), figures("phase")), (vec![1, 2, 2, 2], vec![1, 1, 2, 3]));
    assert_eq!(figures("effective_batch"), [12, 6, 6, 6]);
    let (trained, bytes) = (figures("trained"), figures("optimizer_bytes"));
    assert!(trained.windows(2).all(|pair| pair[0] < pair[1]), "{trained:?}");
    assert_eq!(trained[3], figures("parameters")[3]);
    for (trained, bytes) in trained.iter().zip(&bytes) {
        // Two moments in float32, with gaps for alignment.
        assert!((8 * trained..8 * trained + 8000).contains(bytes), "{bytes} for {trained}");
    }
    let updates = |step: usize, name: &str| {
        let state = tensors(&checkpoint(&run, step), "optimizer-00000-of-00001.safetensors");
        state.get(&format!("step.{name}")).map(|count| count.int64_value(&[]))
    };
    assert_eq!((updates(4, "outc.conv.weight"), updates(4, "inc.double_conv.0.weight")), (Some(4), None));
    assert_eq!(updates(5, "outc.conv.weight"), Some(1), "a new stage has a new optimizer");
    assert_eq!(updates(10, "outc.conv.weight"), Some(6), "the optimizer continues within a stage");
    assert_eq!(updates(10, "inc.double_conv.0.weight"), Some(2));

    for words in [
        "stage 1 of 2, \"head\": 2 epochs, ",
        "stage 2 of 2, \"full\": 6 steps, ",
        "effective batch 6 = 1 rank x 3 x 2 accumulation, learning rate 5e-3",
        "stage 2 of 2, \"full\" from step 7 on: ",
        "parameters trained",
    ] {
        assert!(text.contains(words), "no {words:?} in {text}");
    }
    let memory = text.lines().filter(|line| line.contains("memory: ") && line.contains(" reserved"));
    assert!(memory.count() >= 4, "at the start, before the stage and after each unfreezing: {text}");
    let plan = run.plan();
    assert_eq!(plan["stages"][1]["steps"], serde_json::json!([5, 10]), "{plan}");
    assert_eq!(plan["stages"][1]["phases"][2]["first_step"], 9, "{plan}");

    // Two ranks compute the same, and every checkpoint resumes with any number of ranks.
    let two = sandbox.train(2, "two", &[]);
    assert_same_end(&run, &two, STEPS);
    for &(step, nproc) in thorough::cases(&[(4, 2), (6, 1), (2, 1), (5, 1), (7, 2), (8, 2)], 2) {
        let name = format!("from-{step}");
        let resumed = resume(&sandbox, nproc, &name, &checkpoint(&run, step), &[]);
        assert_same_end(&run, &resumed, STEPS);
        let begun: Vec<u64> =
            stage_lines(&resumed).iter().map(|line| line["step"].as_u64().unwrap()).collect();
        let expected: Vec<u64> = [5, 7, 9].into_iter().filter(|&first| first > step as u64).collect();
        assert_eq!(begun, expected, "{name}");
    }
}
