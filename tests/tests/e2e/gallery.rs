//! The entries of docs/examples/README.md, at tiny sizes: the recipes of their folders and pages, on small pictures and texts.
//! `examples` has the five systems, and `tutorials` the pages whose blocks are run.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use dtrain_test_kit::forks;
use dtrain_tests::process::{expect_exit_code, finish};
use dtrain_tests::runs::{Run, Sandbox, assert_close};
use image::{GrayImage, Luma, Rgb, RgbImage};

use crate::import::{LIMIT, run};
use crate::import_sources::python_with;
use crate::tutorials::blocks;

/// A few steps, whatever the recipe's schedule.
const SHORT: [&str; 3] = ["data.workers=1", "log.every_steps=1", "optim.schedule={ name = \"constant\" }"];

fn docs() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs")
}

/// Writes a recipe below docs as that of the sandbox.
fn take(sandbox: &Sandbox, recipe: &str) {
    fs::copy(docs().join(recipe), sandbox.path("recipe.toml")).unwrap();
}

/// Writes `count` pictures of each class for both sets.
fn pictures(sandbox: &Sandbox, root: &str, classes: usize, count: usize) {
    for (class, set) in (0..classes).flat_map(|class| ["train", "test"].map(|set| (class, set))) {
        let folder = sandbox.path(&format!("{root}/{set}/class_{class}"));
        fs::create_dir_all(&folder).unwrap();
        for number in 0..count {
            let pixel =
                |x: u32, y: u32| Rgb([40 * class as u8, (x * 7) as u8, (y as usize * 5 + number) as u8]);
            RgbImage::from_fn(32, 32, pixel).save(folder.join(format!("{number}.png"))).unwrap();
        }
    }
}

fn import(sandbox: &Sandbox, interpreter: &Path, source: &str, file: &str, flags: &[&str]) {
    let mut command = sandbox.dtrain(&["import", source, "-o"]);
    command.arg(sandbox.path(file)).args(flags);
    expect_exit_code(&run(command, interpreter), 0);
}

fn python(interpreter: &Path, script: &Path, args: &[PathBuf]) -> String {
    let mut command = Command::new(interpreter);
    command.arg(script).args(args);
    expect_exit_code(&run(command, interpreter), 0)
}

/// Trains with these settings in two cuts, which have equal losses. Returns the run of one rank.
fn trains_in_two_cuts(sandbox: &Sandbox, name: &str, sets: &[&str], micro_batch: usize) -> Run {
    let sets = [&SHORT[..], sets].concat();
    let micro_batch = format!("memory.micro_batch={micro_batch}");
    let whole = sandbox.train(1, name, &sets);
    let parts = sandbox.train(2, &format!("{name}-2"), &[&sets[..], &[&micro_batch]].concat());
    assert!(whole.per_step("loss").len() >= 2, "{:?}", whole.per_step("loss"));
    assert_close(&whole.per_step("loss")[..2], &parts.per_step("loss")[..2], 1e-5);
    whole
}

fn export(sandbox: &Sandbox, run: &str, more: &[&str]) {
    let mut command = sandbox.dtrain(&["ckpt", "export", run]);
    command.args(more);
    expect_exit_code(&finish(&mut command, LIMIT), 0);
}

#[test]
fn a_resnet_is_fine_tuned() {
    let sandbox = Sandbox::new("");
    take(&sandbox, "examples/resnet/pretrain.toml");
    pictures(&sandbox, "data/first", 3, 4);
    pictures(&sandbox, "data/second", 2, 4);
    let sets = ["train.epochs=1", "train.effective_batch=4", "model.batchnorm=group:2"];
    sandbox.train(1, "pretrained", &[&SHORT[..], &sets].concat());
    export(&sandbox, "pretrained", &["resnet18.safetensors"]);
    take(&sandbox, "examples/resnet/recipe.toml");
    let run = trains_in_two_cuts(&sandbox, "tuned", &sets, 2);
    assert!(run.log(0).contains("resnet18.safetensors"), "{}", run.log(0));
    assert!(run.result().final_metrics.contains_key("accuracy"));
}

#[test]
fn vessels_are_segmented() {
    let Ok(interpreter) = forks::pytorch() else { return };
    let sandbox = Sandbox::new("");
    take(&sandbox, "examples/vessels/recipe.toml");
    fs::create_dir(sandbox.path("chase")).unwrap();
    // Lines on a bright disc; the second grader's are thinner. Image 21 is the first of the test set.
    for number in 1..=21 {
        let path = |end: &str| sandbox.path(&format!("chase/Image_{number:02}L{end}"));
        let line = |x: u32, y: u32, width: u32| (x + y + number) % 40 < width;
        let eye = |x, y| Rgb([if line(x, y, 6) { 90 } else { 180 }, 60, 20]);
        RgbImage::from_fn(270, 260, eye).save(path(".jpg")).unwrap();
        for (grader, width) in [("_1stHO.png", 6), ("_2ndHO.png", 5)] {
            let mask = |x, y| Luma([if line(x, y, width) { 255u8 } else { 0 }]);
            GrayImage::from_fn(270, 260, mask).save(path(grader)).unwrap();
        }
    }
    let prepare = docs().join("examples/vessels/prepare.py");
    let text = python(&interpreter, &prepare, &[sandbox.path("chase"), sandbox.path("data/vessels")]);
    assert!(text.contains("the second grader: Dice 0.9"), "{text}");
    // Four tiles of the one test image; three of them reach over its edge.
    assert_eq!(fs::read_dir(sandbox.path("data/vessels/test")).unwrap().count(), 8);
    let sets = ["train.steps=2", "model.width=4", "data.image_size=64"];
    let run = trains_in_two_cuts(&sandbox, "run", &sets, 2);
    let figures = run.result().final_metrics;
    for figure in ["dice", "iou", "auc_binned"] {
        assert!(figures.contains_key(figure), "{figure} in {figures:?}");
    }
}

#[test]
fn a_vit_is_fine_tuned_by_adapters() {
    let Ok(interpreter) = forks::pytorch() else { return };
    let sandbox = Sandbox::new("");
    let source = docs().join("results/finetune-cifar100/vit.py");
    import(&sandbox, &interpreter, &format!("{}:vit", source.display()), "vit.pt2", &[]);
    pictures(&sandbox, "first", 3, 4);
    pictures(&sandbox, "second", 2, 4);
    take(&sandbox, "results/finetune-cifar100/pretrain.toml");
    let sets = ["train.epochs=1", "train.effective_batch=4"];
    sandbox.train(1, "pretrained", &[&SHORT[..], &sets].concat());
    let headless = docs().join("results/finetune-cifar100/headless.py");
    python(&interpreter, &headless, &[sandbox.path("pretrained"), sandbox.path("pretrained.safetensors")]);
    take(&sandbox, "examples/lora/recipe.toml");
    trains_in_two_cuts(&sandbox, "lora", &sets, 1);
    export(&sandbox, "lora", &["merged.safetensors"]);
    export(&sandbox, "lora", &["adapters", "--adapters"]);
    assert!(sandbox.path("adapters/adapter_config.json").is_file());
    let [whole, adapters] = ["merged.safetensors", "adapters/adapter_model.safetensors"]
        .map(|file| fs::metadata(sandbox.path(file)).unwrap().len());
    assert!(adapters * 3 < whole, "{adapters} and {whole} bytes");
}

#[test]
fn images_and_captions_are_trained_together() {
    let Ok(interpreter) = forks::pytorch() else { return };
    let sandbox = Sandbox::new("");
    take(&sandbox, "examples/clip/recipe.toml");
    pictures(&sandbox, "data/cifar100", 6, 2);
    let folder = docs().join("examples/clip");
    let table = [sandbox.path("data/cifar100"), sandbox.path("data/captions.csv")];
    python(&interpreter, &folder.join("captions.py"), &table);
    assert!(
        fs::read_to_string(&table[1])
            .unwrap()
            .contains("cifar100/test/class_5/1.png,class_5,a photo of a class 5")
    );
    let folders = format!("folders={}", sandbox.path("data/cifar100/train").display());
    let source = format!("{}:make_model", folder.join("model.py").display());
    import(&sandbox, &interpreter, &source, "clip.pt2", &["--arg", &folders]);
    let run = trains_in_two_cuts(&sandbox, "run", &["train.steps=3", "train.effective_batch=6"], 2);
    let figures = run.result().final_metrics;
    assert!(figures.contains_key("accuracy") && figures.contains_key("top5_accuracy"), "{figures:?}");
}

/// Writes the files that a page shows.
fn write_files(sandbox: &Sandbox, page: &str) {
    for block in blocks(page) {
        if let Some(name) = block.file() {
            fs::write(sandbox.path(name), &block.text).unwrap();
        }
    }
}

/// Runs a script of the page in the sandbox.
fn page_python(sandbox: &Sandbox, interpreter: &Path, script: &str) {
    let mut command = Command::new(interpreter);
    command.arg(script).env("OMP_NUM_THREADS", "1").current_dir(sandbox.path(""));
    expect_exit_code(&finish(&mut command, LIMIT), 0);
}

#[test]
fn a_gpt2_is_trained_on_a_text() {
    let Ok(interpreter) = python_with("transformers") else { return };
    let sandbox = Sandbox::new("");
    write_files(&sandbox, "docs/train-gpt2.md");
    fs::rename(sandbox.path("gpt2.toml"), sandbox.path("recipe.toml")).unwrap();
    page_python(&sandbox, &interpreter, "config.py");
    import(&sandbox, &interpreter, &format!("hf:{}", sandbox.path("small-gpt2").display()), "gpt2.pt2", &[]);
    fs::create_dir_all(sandbox.path("data/shakespeare")).unwrap();
    fs::write(sandbox.path("data/shakespeare/input.txt"), "To be, or not to be.\n".repeat(200)).unwrap();
    let sets = [&SHORT[..], &["train.steps=2", "train.effective_batch=4"]].concat();
    let run = sandbox.train(1, "run", &sets);
    assert!(run.result().final_metrics.contains_key("perplexity"));
}

#[test]
fn a_vision_language_model_is_trained() {
    let Ok(interpreter) = python_with("transformers, tokenizers, PIL") else { return };
    let sandbox = Sandbox::new("");
    write_files(&sandbox, "docs/train-vlm.md");
    fs::rename(sandbox.path("vlm.toml"), sandbox.path("recipe.toml")).unwrap();
    pictures(&sandbox, "data/cifar100", 3, 4);
    page_python(&sandbox, &interpreter, "prepare.py");
    import(&sandbox, &interpreter, &format!("hf:{}", sandbox.path("small-vlm").display()), "vlm.pt2", &[]);
    let run = trains_in_two_cuts(&sandbox, "run", &["train.steps=2", "train.effective_batch=4"], 1);
    assert!(run.result().final_metrics.contains_key("perplexity"));
}

#[test]
fn a_sweep_is_a_job_array_and_a_table_of_runs() {
    let sandbox = Sandbox::new("");
    take(&sandbox, "examples/sweep/recipe.toml");
    let rates = ["1e-4", "1e-3"];
    let array = format!("optim.lr={}", rates.join(","));
    let words =
        ["batch", "slurm", "recipe.toml", "--gpus-per-node", "1", "--array", &array, "-o", "sweep.sh"];
    expect_exit_code(&finish(&mut sandbox.dtrain(&words), LIMIT), 0);
    let script = fs::read_to_string(sandbox.path("sweep.sh")).unwrap();
    for line in ["#SBATCH --array=0-1", "    1e-3 # 1", "--set \"optim.lr=$value\""] {
        assert!(script.contains(line), "no {line} in {script}");
    }
    pictures(&sandbox, "data/cifar100", 2, 4);
    for (number, rate) in rates.iter().enumerate() {
        let rate = format!("optim.lr={rate}");
        let sets = [&SHORT[..], &["train.epochs=1", "train.effective_batch=4", &rate]].concat();
        sandbox.train(1, &format!("runs/sweep/{number}"), &sets);
    }
    let table = expect_exit_code(&finish(&mut sandbox.dtrain(&["runs", "runs/sweep"]), LIMIT), 0);
    assert!(table.contains("2 runs: 2 succeeded"), "{table}");
    assert_eq!(table.matches("accuracy").count(), 2, "{table}");
}
