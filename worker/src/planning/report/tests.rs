#![allow(clippy::unwrap_used)]

use super::*;
use crate::planning::Mode;
use crate::planning::tests::{GIB, MIB, Machine};

const RECIPE: &str = "task = \"classify\"\n[data]\nkind = \"generated\"\nimage_size = 224\n[model]\nname = \"resnet50\"\n\
                      [train]\neffective_batch = 16\nepochs = 1\n[ema]\ndecay = 0.99\n";

/// Returns a question for GPUs by their names in the launcher's table, with sizes in hundredths of a GiB.
fn question(list: &str) -> PlanQuestion {
    let gpu = |name: &str| {
        let (hundredths, bf16) = match name {
            "t4" => (1474, false),
            "v100-16gb" => (1577, false),
            "a100-40gb" => (3939, true),
            "h200" => (13972, true),
            gib => (gib.trim_end_matches("GiB").parse::<u64>().unwrap() * 100, true),
        };
        Gpu {
            name: name.into(),
            bytes: hundredths * GIB / 100,
            bf16,
            supported: name != "v100-16gb",
            cpu: false,
            properties: None,
        }
    };
    PlanQuestion {
        gpus: list.split(',').map(gpu).collect(),
        nproc: 1,
        mode: Mode::Symbolic,
        stage: None,
        brief: false,
        json: false,
    }
}

fn machine() -> Machine {
    Machine { overridden: vec![("image_size=192", 75), ("model.freeze", 40)], ..Machine::default() }
}

/// Returns the answer, and whether a cut fits.
fn render(sets: &[&str], question: &PlanQuestion) -> (String, bool) {
    let sets: Vec<_> = sets.iter().map(|set| (*set).to_owned()).collect();
    let recipe = Recipe::parse("test", RECIPE, &sets).unwrap();
    let mut subject = machine().about();
    subject.depends = vec!["BatchNorm normalises over each micro-batch".into()];
    let plan = report(&recipe, &subject, &mut machine(), question).unwrap();
    (plan.render(question).unwrap(), plan.fits())
}

#[test]
fn the_table_is_printed_exactly() {
    let (text, fits) = render(&[], &question("1GiB,2GiB,t4,a100-40gb"));
    assert!(fits);
    let expected = "\
made-up: 26,214,400 parameters, all trained; effective batch 16, learning rate 0.001, 1 rank
Memory and time are predicted (symbolic): the step was run on tensors without storage.

GPU           memory  micro x accum x ranks  amp   recompute  shard        peak  time  fits
1GiB        1.00 GiB  1 x 16 x 1 = 16        bf16        4/4  no     638.00 MiB     -  no
2GiB        2.00 GiB  2 x 8 x 1 = 16         bf16        1/4  no       1.31 GiB  1.31  yes
t4         14.74 GiB  16 x 1 x 1 = 16        fp16        0/4  no       8.50 GiB  1.00  yes
a100-40gb  39.39 GiB  16 x 1 x 1 = 16        bf16        0/4  no       8.50 GiB  1.00  yes
Time: one step, relative to the plain cut.
Limit for tensors: a GPU's memory less 614.00 MiB, less 5% of the rest.

Memory at the peak, predicted (symbolic):
                    plain        1GiB        2GiB
  micro-batch          16           1           2
  recompute           0/4         4/4         1/4
  parameters   100.00 MiB  100.00 MiB  100.00 MiB
  gradients    100.00 MiB  100.00 MiB  100.00 MiB
  optimizer    200.00 MiB  200.00 MiB  200.00 MiB
  ema          100.00 MiB  100.00 MiB  100.00 MiB
  buffers             0 B         0 B         0 B
  activations    8.00 GiB  128.00 MiB  832.00 MiB
  workspace     10.00 MiB   10.00 MiB   10.00 MiB
  total          8.50 GiB  638.00 MiB    1.31 GiB

Ways to save memory, each alone, compared with the plain cut:
       saves      peak  time
    6.00 GiB  2.50 GiB  1.33  recompute all 4 segments in backward
                                --set memory.recompute=on
    4.80 GiB  3.70 GiB  0.40  progressive unfreezing: first train only layer4 and fc
                                --set 'model.freeze=[\"conv1.*\",\"bn1.*\",\"layer[1-3].*\"]'
    4.00 GiB  4.50 GiB  1.03  half the micro-batch: 8 instead of 16
                                --set memory.micro_batch=8
    2.00 GiB  6.50 GiB  0.75  images of 192 instead of 224 pixels; another experiment
                                --set data.image_size=192
  100.00 MiB  8.40 GiB  1.00  no moving average: remove [ema]

Ways to save memory where no cut fits, each alone, compared with the smallest cut:
       saves        peak  time
  100.00 MiB  538.00 MiB  1.00  no moving average: remove [ema]
   76.80 MiB  561.20 MiB  0.40  progressive unfreezing: first train only layer4 and fc
                                  --set 'model.freeze=[\"conv1.*\",\"bn1.*\",\"layer[1-3].*\"]'
   32.00 MiB  606.00 MiB  0.75  images of 192 instead of 224 pixels; another experiment
                                  --set data.image_size=192

warning: the result depends on the micro-batch: BatchNorm normalises over each micro-batch
";
    assert_eq!(text, expected);
    assert!(text.lines().all(|line| line.chars().count() <= 100));
}

#[test]
fn a_brief_plan_has_one_sentence_per_gpu() {
    let brief = PlanQuestion { brief: true, ..question("1GiB,t4") };
    let (text, fits) = render(&[], &brief);
    assert!(fits);
    let expected = "\
1GiB, 1.00 GiB: does not fit: the smallest cut, 16 = 1 rank x 1 x 16 accumulation, needs 638.00 MiB
  predicted (symbolic), above the limit of 350.00 MiB; see `dtrain plan` for advice
t4, 14.74 GiB: micro-batch 16; 16 = 1 rank x 16 x 1 accumulation; fp16; recompute 0/4; 8.50 GiB
  predicted (symbolic)
";
    assert_eq!(text, expected);
}

#[test]
fn a_gpu_that_libtorch_does_not_support_is_planned_with_a_warning() {
    let sentence = "libtorch 2.11 for CUDA 13 does not run on it: needs compute capability 7.5 or newer";
    let (text, fits) = render(&[], &question("t4,v100-16gb"));
    assert!(fits && text.contains("\nv100-16gb  15.77 GiB  16 x 1 x 1 = 16"), "{text}");
    assert!(text.replace("\n  ", " ").ends_with(&format!("\nwarning: v100-16gb: {sentence}\n")), "{text}");
    let (text, _) = render(&[], &PlanQuestion { json: true, ..question("t4,v100-16gb") });
    let plan: serde_json::Value = serde_json::from_str(&text).unwrap();
    let supported = [0, 1].map(|row: usize| plan["rows"][row]["gpu"]["supported"].as_bool().unwrap());
    assert_eq!(supported, [true, false]);
    assert_eq!(plan["warnings"], serde_json::json!([format!("v100-16gb: {sentence}")]));
    let (text, _) = render(&[], &PlanQuestion { brief: true, ..question("v100-16gb") });
    assert!(text.replace("\n  ", " ").trim_end().ends_with(sentence), "{text}");
}

#[test]
fn the_budget_of_the_recipe_limits_every_gpu() {
    let (text, fits) = render(&["memory.budget=100 MiB"], &question("t4,h200"));
    assert!(!fits);
    assert!(text.contains("memory.budget limits tensors to 100.00 MiB"), "{text}");
    assert!(text.contains("Ways to save memory where no cut fits"), "{text}");
}

#[test]
fn json_has_the_figures_of_the_table() {
    let json = PlanQuestion { json: true, stage: Some("full".into()), ..question("1GiB,t4") };
    let (line, _) = render(&[], &json);
    assert_eq!(line.matches('\n').count(), 1);
    let plan: MemoryPlan = serde_json::from_str(&line).unwrap();
    assert_eq!(serde_json::to_string(&plan).unwrap() + "\n", line);
    assert_eq!(plan.stage.as_deref(), Some("full"));
    assert_eq!(plan.rows[1].budget, usable_bytes(plan.rows[1].gpu.bytes));
    let value: serde_json::Value = serde_json::from_str(&line).unwrap();
    let fit = &value["rows"][1]["fit"];
    assert_eq!(fit["prediction"]["cut"]["micro_batch"], 16);
    assert_eq!(fit["prediction"]["cut"]["amp"], "fp16");
    assert!(value["rows"][0]["no-fit"]["smallest"]["peak"].as_u64().unwrap() > 300 * MIB);
    assert_eq!(value["margin"]["fragmentation_percent"], 5);
}

#[test]
fn the_margin_is_the_context_and_a_percentage() {
    let usable_gib = |gib: f64| usable_bytes((gib * GIB as f64) as u64) as f64 / GIB as f64;
    assert!((usable_gib(14.74) - (14.74 - 0.5996) * 0.95).abs() < 0.001);
    assert_eq!((usable_bytes(0), usable_bytes(CONTEXT_BYTES)), (0, 0));
}

#[test]
fn a_given_precision_and_ample_memory_give_no_warning() {
    let (text, _) = render(&["precision.amp=off"], &question("h200"));
    assert!(text.contains("16 x 1 x 1 = 16        fp32"), "{text}");
    assert!(!text.contains("warning"), "{text}");
}
