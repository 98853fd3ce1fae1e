//! Invariants 1 and 2: a recipe's result does not depend on ranks and micro-batch. Small networks
//! without BatchNorm, in real processes, are compared with one rank that takes every step at once.

use dtrain_common::batch::Partition;
use dtrain_test_kit::thorough;
use dtrain_tests::runs::Sandbox;
use dtrain_tests::trainings::{TrainingList, distance, sets, tensors, train};

/// The common recipe. With 40 samples, the last step is short: 8 samples or 1.
const RECIPE: &str = r#"
task = "custom"
[custom]
net = "conv"
samples = 40
[data]
workers = 1
[train]
effective_batch = 16
steps = 50
seed = 5
[optim]
name = "adamw"
lr = 5e-3
weight_decay = 0.05
[checkpoint]
every = "1000 steps"
[log]
every_steps = 1000
"#;

const SAMPLES: usize = 40;
const BATCHES: [usize; 2] = [16, 13];

/// Returns the numbers of ranks. The first one takes whole steps.
fn ranks() -> &'static [usize] {
    thorough::cases(&[1, 3, 2, 4], 2)
}

/// Returns the limits of a micro-batch.
fn micro_batches() -> &'static [Option<usize>] {
    thorough::cases(&[None, Some(1), Some(3), Some(2), Some(8)], 3)
}

const MODEL: &str = "model.safetensors";
const OPTIMIZER: &str = "optimizer-00000-of-00001.safetensors";
const EMA: &str = "ema.safetensors";

fn cut(micro_batch: Option<usize>) -> String {
    match micro_batch {
        Some(limit) => format!("memory.micro_batch={limit}"),
        None => "memory.micro_batch=\"auto\"".into(),
    }
}

/// Trains every partition of both batches, then calls `look` with each and the run of whole steps.
fn for_all_partitions(more: &[&str], mut look: impl FnMut(&Sandbox, &str, usize, usize, Option<usize>)) {
    let sandbox = Sandbox::new(RECIPE);
    for &ranks in ranks() {
        let mut list = TrainingList::new();
        for batch in BATCHES {
            for &micro_batch in micro_batches() {
                let name = name(ranks, batch, micro_batch);
                let mut sets = sets(more);
                sets.push(format!("train.effective_batch={batch}"));
                sets.push(cut(micro_batch));
                sets.push(format!("custom.ids={:?}", sandbox.path(&format!("{name}-ids"))));
                list.push((name, sets));
            }
        }
        train(&sandbox, ranks, &[], &list);
    }
    for batch in BATCHES {
        let whole = name(1, batch, None);
        for &ranks in ranks() {
            for &micro_batch in micro_batches() {
                look(&sandbox, &whole, ranks, batch, micro_batch);
            }
        }
    }
}

fn name(ranks: usize, batch: usize, micro_batch: Option<usize>) -> String {
    let limit = micro_batch.map_or("all".into(), |limit| limit.to_string());
    format!("{batch}-on-{ranks}-by-{limit}")
}

/// Returns the sample ids of every step, from its micro-batches. Checks that every micro-batch has the size
/// of the partition.
fn ids(
    sandbox: &Sandbox,
    name: &str,
    ranks: usize,
    batch: usize,
    micro_batch: Option<usize>,
) -> Vec<Vec<u32>> {
    let mut lines: Vec<_> = (0..ranks)
        .map(|rank| {
            let text = std::fs::read_to_string(sandbox.path(&format!("{name}-ids.{rank}"))).unwrap();
            let line =
                |line: &str| -> Vec<u32> { line.split_whitespace().map(|id| id.parse().unwrap()).collect() };
            text.lines().map(line).collect::<Vec<_>>().into_iter()
        })
        .collect();
    let partition = Partition::new(batch, ranks, micro_batch).unwrap();
    let steps_per_epoch = SAMPLES.div_ceil(batch);
    let mut steps = Vec::new();
    for step in 0..50 {
        let left = SAMPLES - step % steps_per_epoch * batch;
        let partition = partition.for_samples(left.min(batch));
        let mut ids = Vec::new();
        for (rank, lines) in lines.iter_mut().enumerate() {
            for range in partition.micro_ranges(rank) {
                let micro_batch = lines.next().unwrap();
                assert_eq!(micro_batch.len(), range.len(), "{name}, step {step}");
                ids.extend(micro_batch);
            }
        }
        steps.push(ids);
    }
    assert!(lines.iter_mut().all(|lines| lines.next().is_none()), "{name}: further micro-batches");
    steps
}

#[test]
fn a_step_has_the_same_gradient_under_any_partition() {
    // Without weights, the test of fifty steps would see the same.
    for &weighted in thorough::cases(&["custom.weighted=true", "custom.weighted=false"], 1) {
        // After SGD's first step, the momentum is the gradient.
        let more = [
            "train.steps=1",
            "optim.name=\"sgd\"",
            "optim.lr=0.1",
            "optim.momentum=0.9",
            "optim.weight_decay=0",
            weighted,
        ];
        let mut worst = 0f64;
        for_all_partitions(&more, |sandbox, whole, ranks, batch, micro_batch| {
            let name = name(ranks, batch, micro_batch);
            let gradient = |name: &str| {
                let mut state = tensors(&sandbox.run(name), OPTIMIZER);
                state.retain(|name, _| name.starts_with("momentum_buffer."));
                assert_eq!(state.len(), 6, "{state:?}");
                state
            };
            let difference = distance(&gradient(&name), &gradient(whole));
            assert!(difference < 1e-6, "{name}, {weighted}: {difference:e}");
            let loss = |name: &str| sandbox.run(name).per_step("loss")[0];
            assert!((loss(&name) / loss(whole) - 1.0).abs() < 1e-6, "{name}, {weighted}");
            worst = worst.max(difference);
        });
        println!("{weighted}: gradients in float32 differ by at most {worst:.1e}");
        assert!(worst > 0.0, "nothing was compared");
    }
}

/// A weighted mean does not depend on the scale of the weights. So the gradient must be divided by their sum.
#[test]
fn a_gradient_is_a_weighted_mean() {
    let sandbox = Sandbox::new(RECIPE);
    let list = |scales: &[&str]| -> TrainingList {
        let of = |weighted: bool, scale: &str| {
            let mut sets = sets(&[
                "train.steps=1",
                "custom.double=true",
                "optim.name=\"sgd\"",
                "optim.lr=0.1",
                "optim.momentum=0.9",
            ]);
            sets.extend([format!("custom.weighted={weighted}"), format!("custom.scale={scale}")]);
            (format!("{weighted}-{scale}"), sets)
        };
        let both = |scale: &&str| [of(false, scale), of(true, scale)];
        scales.iter().flat_map(both).collect()
    };
    train(&sandbox, 1, &[], &list(&["1.0"]));
    train(&sandbox, 2, &[], &list(&["3.0", "0.01"]));
    for weighted in [false, true] {
        let state = |scale: &str| tensors(&sandbox.run(&format!("{weighted}-{scale}")), OPTIMIZER);
        for scale in ["3.0", "0.01"] {
            let difference = distance(&state(scale), &state("1.0"));
            assert!(difference < 1e-12, "weighted {weighted}, times {scale}: {difference:e}");
        }
    }
    let norm = |name: &str| sandbox.run(name).per_step("grad_norm")[0];
    assert!((norm("false-3.0") / norm("false-1.0") - 1.0).abs() < 1e-12);
}

#[test]
fn fifty_steps_end_in_the_same_weights_under_any_partition() {
    let mut worst = 0f64;
    for_all_partitions(&["custom.double=true"], |sandbox, whole, ranks, batch, micro_batch| {
        let name = name(ranks, batch, micro_batch);
        let weights = |name: &str| tensors(&sandbox.run(name), MODEL);
        let difference = distance(&weights(&name), &weights(whole));
        assert!(difference < 1e-10, "{name}: {difference:e}");
        worst = worst.max(difference);
        let expected = ids(sandbox, whole, 1, batch, None);
        assert_eq!(ids(sandbox, &name, ranks, batch, micro_batch), expected, "{name}");
        let losses = sandbox.run(&name).per_step("loss");
        assert!(losses[49] < 0.9 * losses[0], "{losses:?}");
    });
    println!("weights in float64 after 50 steps differ by at most {worst:.1e}");
    assert!(worst > 0.0, "nothing was compared");
}

/// A flag that each step reverses, and counters: the next step depends on them. The second step runs out of memory after
/// it has changed them, and is repeated.
#[test]
fn buffers_of_every_dtype_change_once_per_step() {
    let sandbox = Sandbox::new(RECIPE);
    let more = ["custom.net=\"flags\"", "train.steps=5", "ema.decay=0.5"];
    let one = |name: &str, micro_batch| -> TrainingList {
        let mut sets = sets(&more);
        sets.push(cut(micro_batch));
        vec![(name.to_owned(), sets)]
    };
    train(&sandbox, 1, &[], &one("whole", None));
    let whole = sandbox.run("whole");
    let places = [(2, "gloo"), (3, "shared"), (1, "shared"), (2, "shared"), (1, "gloo"), (3, "gloo")];
    for &(ranks, transport) in thorough::cases(&places, 2) {
        let cut = format!("{ranks}-{transport}");
        let fault = format!("oom:rank={},step=2,phase=backward,after=2", ranks - 1);
        train(&sandbox, ranks, &[("DTRAIN_TRANSPORT", transport)], &one(&cut, Some(2)));
        let again = format!("{cut}-again");
        let vars = [("DTRAIN_TRANSPORT", transport), ("DTRAIN_FAULT", fault.as_str())];
        train(&sandbox, ranks, &vars, &one(&again, None));
        assert_eq!(sandbox.run(&again).shortages().len(), 1, "{again}");
        for name in [&cut, &again] {
            let run = sandbox.run(name);
            for file in [MODEL, EMA] {
                let (own, expected) = (tensors(&run, file), tensors(&whole, file));
                assert!(distance(&own, &expected) < 1e-6, "{name}, {file}");
                for dtype in ["uint8", "int8", "int16", "int32", "int64"] {
                    assert_eq!(own[dtype].double_value(&[0]), 5.0, "{name}, {file}, {dtype}");
                }
                assert_eq!(own["flag"].double_value(&[0]), 1.0, "{name}, {file}: five times reversed");
            }
        }
    }
}

const GROUPS: &str =
    r#"optim.group=[{ match = "conv*", lr_factor = 0.5 }, { match = "*.bias", weight_decay = 0.0 }]"#;

/// Additions to the recipe, with a name and the tolerance relative to the results' length.
struct Variant {
    name: &'static str,
    sets: &'static [&'static str],
    tolerance: f64,
}

const fn variant(name: &'static str, sets: &'static [&'static str]) -> Variant {
    Variant { name, sets, tolerance: 1e-10 }
}

const SGD: &[&str] = &["optim.name=\"sgd\"", "optim.lr=0.05", "optim.momentum=0.9", "optim.nesterov=true"];
/// A rule without a fused kernel, cut gradients and a group with its own settings.
const RMSPROP: &[&str] = &[
    "optim.name=\"rmsprop\"",
    "optim.lr=0.005",
    "optim.momentum=0.9",
    "optim.centered=true",
    "optim.clip_value=0.01",
    "optim.group=[{ match = \"conv*\", eps = 0.001 }]",
    "memory.shard_optimizer=true",
];
const LION: &[&str] = &[
    "optim.name=\"lion\"",
    "optim.lr=0.001",
    "optim.group=[{ match = \"conv*\", betas = [0.5, 0.9] }]",
    "memory.shard_optimizer=true",
];
/// Two rules in one network, whole rows as shards, and adaptive clipping. The output layer is of 2 dimensions.
const MUON: &[&str] = &[
    "optim.name=\"muon\"",
    "optim.lr=0.01",
    "optim.convolutions=true",
    "optim.newton_schulz=\"full\"",
    "optim.clip_adaptive=0.02",
    "optim.group=[{ match = \"head*\", clip_adaptive = false, lr_factor = 0.5 }]",
    "memory.shard_optimizer=true",
    BUCKETS[0],
    BUCKETS[1],
];
const BUCKETS: [&str; 2] = ["reduce.bucket=\"1 KiB\"", "reduce.first_bucket=\"1 KiB\""];

const VARIANTS: [Variant; 17] = [
    variant(
        "all",
        &[
            "custom.weighted=true",
            "memory.shard_optimizer=true",
            BUCKETS[0],
            BUCKETS[1],
            "ema.decay=0.9",
            GROUPS,
            "optim.clip=0.05",
            "optim.schedule={ name = \"cosine\", warmup = \"10 steps\" }",
        ],
    ),
    Variant {
        name: "bf16",
        sets: &["reduce.compress=\"bf16\"", "optim.name=\"sgd\"", "optim.lr=0.05", "optim.momentum=0.9"],
        tolerance: 1e-2,
    },
    // The last step of an epoch is one sample. In some epochs its weight is 0, and the step changes nothing.
    variant("weighted-13", &["custom.weighted=true", "train.effective_batch=13"]),
    variant("sgd", SGD),
    variant("rmsprop", RMSPROP),
    variant("muon", MUON),
    variant("no-overlap", &["reduce.overlap=false"]),
    variant("frozen", &["model.freeze=[\"conv1.*\"]"]),
    variant("clip", &["optim.clip=0.05"]),
    variant("groups", &[GROUPS, "optim.decay=\"weights\""]),
    variant("sharded", &["memory.shard_optimizer=true"]),
    variant("sharded-clip", &["memory.shard_optimizer=true", "optim.clip=0.05"]),
    variant("buckets", &BUCKETS),
    variant("ema", &["ema.decay=0.9"]),
    variant("weighted", &["custom.weighted=true"]),
    variant("lion", LION),
    variant("amsgrad", &["optim.amsgrad=true", "memory.shard_optimizer=true", "optim.clip_value=0.01"]),
];

#[test]
fn settings_do_not_change_the_invariance_on_any_transport() {
    let sandbox = Sandbox::new(RECIPE);
    let variants = thorough::cases(&VARIANTS, 9);
    let list = |name: &str, micro_batch| -> TrainingList {
        let of = |variant: &Variant| {
            let mut sets = sets(variant.sets);
            sets.extend(["custom.double=true".into(), cut(micro_batch)]);
            (format!("{}-{name}", variant.name), sets)
        };
        variants.iter().map(of).collect()
    };
    train(&sandbox, 1, &[], &list("whole", None));
    let places = thorough::cases(&[(3, "shared"), (2, "gloo"), (2, "shared"), (3, "gloo")], 2);
    for &(ranks, transport) in places {
        let name = format!("{ranks}-{transport}");
        train(&sandbox, ranks, &[("DTRAIN_TRANSPORT", transport)], &list(&name, Some(3)));
    }
    for Variant { name, sets, tolerance } in variants {
        let whole = sandbox.run(&format!("{name}-whole"));
        let mut files = vec![MODEL, OPTIMIZER];
        if sets.contains(&"ema.decay=0.9") {
            files.push(EMA);
        }
        for (ranks, transport) in places {
            let run = sandbox.run(&format!("{name}-{ranks}-{transport}"));
            for file in &files {
                let difference = distance(&tensors(&run, file), &tensors(&whole, file));
                assert!(
                    difference < *tolerance,
                    "{name} on {ranks} ranks by {transport}, {file}: {difference:e}"
                );
                // Compression has an effect.
                assert!(*tolerance < 1e-9 || difference > 1e-6, "{name}: {difference:e}");
            }
        }
    }
}
