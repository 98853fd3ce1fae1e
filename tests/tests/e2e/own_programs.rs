//! A user's own losses, figures and changes as imported programs, in every cut of a step. The functions are those of
//! fixtures/import/own.py.

use std::path::Path;
use std::process::Command;

use dtrain_test_kit::{forks, thorough};
use dtrain_tests::process::expect_exit_code;
use dtrain_tests::programs::dtrain;
use dtrain_tests::runs::{Run, Sandbox};
use dtrain_tests::trainings::{distance, tensors};

use crate::exported::{IMAGES, imported, sandbox};
use crate::import::{rejected, run};
use crate::predict::{images, predicted};
use crate::sample_losses::{CLASSIFY, SEGMENT};

/// Ranks, and samples of a micro-batch. The first has ranks with unequal numbers.
const CUTS: [(usize, usize); 3] = [(3, 2), (2, 3), (1, 1)];

const WEIGHTS: &str = "model.safetensors";

/// Imports a function of own.py as NAME.pt2.
fn import(python: &Path, sandbox: &Sandbox, function: &str, role: &str, inputs: &str) {
    let mut command = Command::new(dtrain());
    command.args(["import", &format!("own.py:{function}"), role, "--inputs", inputs, "-o"]);
    command.arg(sandbox.path(&format!("{function}.pt2")));
    expect_exit_code(&run(command, python), 0);
}

/// Trains in several cuts, and compares weights, losses and evaluations with those of one rank that takes each step at once.
fn same_in_every_cut(sandbox: &Sandbox, name: &str, sets: &[&str]) -> Run {
    let whole = sandbox.train(1, &format!("{name}-whole"), sets);
    for &(ranks, micro_batch) in thorough::cases(&CUTS, 1) {
        let micro_batch = format!("memory.micro_batch={micro_batch}");
        let found = sandbox.train(ranks, &format!("{name}-{ranks}"), &[sets, &[&micro_batch]].concat());
        assert_near(&found, &whole, name);
    }
    whole
}

fn assert_near(one: &Run, other: &Run, name: &str) {
    let distance = distance(&tensors(one, WEIGHTS), &tensors(other, WEIGHTS));
    assert!(distance < 1e-5, "{name}: {distance}");
    for (one, other) in one.per_step("loss").iter().zip(other.per_step("loss")) {
        assert!((one - other).abs() < 1e-5, "{name}: {one} {other}");
    }
    for (one, other) in one.evaluations().iter().zip(other.evaluations()) {
        for (key, one) in one.as_object().unwrap().iter().filter(|(key, _)| *key != "eval_ms") {
            let near = one.as_f64().zip(other[key].as_f64()).is_none_or(|(a, b)| (a - b).abs() < 1e-5);
            assert!(near, "{name} {key}: {one} {}", other[key]);
        }
    }
}

#[test]
fn an_own_loss_of_classes_is_the_one_of_its_formula_in_every_cut() {
    let Ok(python) = forks::pytorch() else { return };
    let sandbox = Sandbox::new(CLASSIFY);
    import(&python, &sandbox, "focal", "--loss", "logits=4,label=int64");
    let own = same_in_every_cut(&sandbox, "own", &["model.loss={ program = \"focal.pt2\" }"]);
    let known = sandbox.train(1, "known", &["model.loss={ focal = { gamma = 1.5 } }"]);
    assert_near(&own, &known, "alone");
    let [own, known] = [
        "{ cross-entropy = 0.5, program = { file = \"focal.pt2\", weight = 2, inputs = { logits = \"logits\" } } }",
        "{ cross-entropy = 0.5, focal = { gamma = 1.5, weight = 2 } }",
    ]
    .map(|loss| sandbox.train(2, &loss.len().to_string(), &[&format!("model.loss={loss}")]));
    assert_near(&own, &known, "beside another");
}

#[test]
fn an_own_loss_with_weights_is_divided_by_those_of_the_step() {
    let Ok(python) = forks::pytorch() else { return };
    let sandbox = Sandbox::new(SEGMENT);
    import(&python, &sandbox, "of_pixels", "--loss", "logits=3x16x16,mask=int64:16x16");
    let own = same_in_every_cut(&sandbox, "own", &["model.loss={ program = \"of_pixels.pt2\" }"]);
    assert_near(&own, &sandbox.train(1, "known", &[]), "cross-entropy");
}

/// A program without a loss gets one; the same model in `classify` has the same numbers.
#[test]
fn an_own_loss_makes_any_program_a_task() {
    let Ok(python) = forks::pytorch() else { return };
    let sandbox = imported(&python, "vit", "program", IMAGES, "");
    import(&python, &sandbox, "focal", "--loss", "logits=4,label=int64");
    let loss = "model.loss={ program = \"focal.pt2\" }";
    let own = same_in_every_cut(&sandbox, "own", &[loss]);
    let known = sandbox.train(1, "known", &["task=classify", "model.loss={ focal = { gamma = 1.5 } }"]);
    let distance = distance(&tensors(&own, WEIGHTS), &tensors(&known, WEIGHTS));
    assert!(distance < 1e-6, "{distance}");

    import(&python, &sandbox, "shade", "--change", "image=3x16x16,u=2");
    let changes = "data.changes=[{ name = \"program\", program = \"shade.pt2\" }]";
    let sets = [loss, changes, "train.steps=6"];
    let last = same_in_every_cut(&sandbox, "changed", &sets).0.latest().display().to_string();
    // A resume needs the same programs, and a prediction needs no program.
    std::fs::create_dir(sandbox.path("moved")).unwrap();
    std::fs::rename(sandbox.path("focal.pt2"), sandbox.path("moved/focal.pt2")).unwrap();
    let moved = "model.loss={ program = \"moved/focal.pt2\" }";
    let more = |name: &str, sets: &[&str]| sandbox.launch_with(1, name, sets, &["--resume", &last]);
    expect_exit_code(&more("more", &[moved, changes, "train.steps=8"]), 0);
    std::fs::remove_file(sandbox.path("shade.pt2")).unwrap();
    import(&python, &sandbox, "darker", "--change", "image=3x16x16");
    let other = changes.replace("shade", "darker");
    let text = expect_exit_code(&more("other", &[moved, &other, "train.steps=8"]), 2);
    assert!(text.contains("use the program of that run"), "{text}");
    std::fs::remove_file(sandbox.path("moved/focal.pt2")).unwrap();
    images(&sandbox, 2);
    predicted(&sandbox, &["more", "images", "-o", "out.csv"]);
}

/// Normalised targets, and a stage with its own loss.
#[test]
fn own_losses_and_figures_of_numbers_have_the_unit_of_those_of_dtrain() {
    let Ok(python) = forks::pytorch() else { return };
    let data = "target = \"vector\"\nnormalize_targets = true\nimage_size = 16\ntrain_samples = 16\ntest_samples = 9";
    let sandbox = sandbox("regress", data, "");
    crate::exported::import(&python, &sandbox, "vit", &["--classes", "2"]);
    let inputs = "output=2,targets=2";
    import(&python, &sandbox, "squared", "--loss", inputs);
    import(&python, &sandbox, "absolute", "--figure", inputs);
    let figures = "model.figures=[{ name = \"program\", program = \"absolute.pt2\" }]";
    let own = same_in_every_cut(&sandbox, "own", &["model.loss={ program = \"squared.pt2\" }", figures]);
    assert_near(&own, &sandbox.train(1, "known", &[figures]), "mse");
    // The weights of a loss are none of the figures.
    import(&python, &sandbox, "weighted", "--loss", inputs);
    let weighted = sandbox.train(2, "weighted", &["model.loss={ program = \"weighted.pt2\" }", figures]);
    for run in [own, weighted] {
        let last = run.evaluations().pop().unwrap();
        let [mine, known] = ["absolute", "mae"].map(|name| last[name].as_f64().unwrap());
        assert!((mine - known).abs() < 1e-5, "{last}");
    }
    let stages = |loss: &str| {
        format!("stage=[{{ name = \"a\", steps = 2 }}, {{ name = \"b\", steps = 2, loss = {loss} }}]")
    };
    let recipe = std::fs::read_to_string(sandbox.path("recipe.toml")).unwrap().replace("steps = 12\n", "");
    std::fs::write(sandbox.path("recipe.toml"), recipe).unwrap();
    let [own, known] = [("own-stage", "{ program = \"squared.pt2\" }"), ("stage", "\"mse\"")]
        .map(|(name, loss)| sandbox.train(2, name, &["model.loss=l1", &stages(loss)]));
    assert_near(&own, &known, "stage");
}

#[test]
fn an_own_figure_is_the_one_of_its_formula_in_every_cut() {
    let Ok(python) = forks::pytorch() else { return };
    let sandbox = Sandbox::new(CLASSIFY);
    for function in ["right", "recalls"] {
        import(&python, &sandbox, function, "--figure", "logits=4,label=int64");
    }
    let figures = "model.figures=[{ name = \"program\", program = \"right.pt2\" }, { name = \"balanced-accuracy\" }, \
                   { name = \"program\", program = \"recalls.pt2\", label = \"mine\", inputs = { logits = \"logits\" } }]";
    let run = same_in_every_cut(&sandbox, "own", &[figures, "checkpoint.best=max mine"]);
    let last = run.evaluations().pop().unwrap();
    assert!(last["accuracy"].as_f64().unwrap() > 0.0, "{last}");
    for (own, known) in [("right", "accuracy"), ("mine", "balanced_accuracy")] {
        assert_eq!(last[own], last[known], "{last}");
    }
    assert_eq!(run.result().best.unwrap().by.figure, "mine");
    for (figure, words) in [
        ("program = \"own.pt2\"", "own.pt2 does not exist"),
        ("label = \"x\"", "`program` needs the file of the figure"),
        (
            "program = \"right.pt2\", inputs = { logits = \"logit\" }",
            "right.pt2: model.figures (right): inputs feeds `logits` from \"logit\", which is no output",
        ),
    ] {
        let set = format!("model.figures=[{{ name = \"program\", {figure} }}]");
        let text = expect_exit_code(&sandbox.launch(1, "wrong", &[&set]), 2);
        assert!(text.contains(words), "{figure}: {text}");
    }
    rejected(
        &python,
        &["own.py:scalar", "--figure", "--inputs", "logits=4,label=int64"],
        &["a figure returns N numbers, whose mean it is, or N x 2"],
    );
}

#[test]
fn an_own_change_depends_on_the_sample_alone() {
    let Ok(python) = forks::pytorch() else { return };
    let sandbox = Sandbox::new(CLASSIFY);
    for (function, inputs) in [("shade", "image=3x16x16,u=2"), ("smaller", "image=3x16x16")] {
        import(&python, &sandbox, function, "--change", inputs);
    }
    let changes = |own: &str| format!("data.changes=[{{ name = \"flip\" }}{own}]");
    let own =
        same_in_every_cut(&sandbox, "own", &[&changes(", { name = \"program\", program = \"shade.pt2\" }")]);
    let without = sandbox.train(1, "without", &[&changes("")]);
    let weights = [&own, &without].map(|run| tensors(run, WEIGHTS));
    assert!(distance(&weights[0], &weights[1]) > 1e-3, "the change did nothing");
    for (own, words) in [
        (", { name = \"program\", program = \"shade.pt2\" }, { name = \"rot90\" }", "so put it last"),
        (", { name = \"program\" }", "`program` needs the file of the change"),
        (
            ", { name = \"program\", program = \"smaller.pt2\" }",
            "data.changes[1]: it returns `image` of another type or shape than the field",
        ),
    ] {
        let text = expect_exit_code(&sandbox.launch(1, "wrong", &[&changes(own)]), 2);
        assert!(text.contains(words), "{own}: {text}");
    }
    rejected(
        &python,
        &["own.py:noise", "--change", "--inputs", "image=3x16x16"],
        &["take them from an input `u`"],
    );
    let sandbox = Sandbox::new(SEGMENT);
    import(&python, &sandbox, "mirror", "--change", "image=3x16x16,mask=int64:16x16,u=1");
    import(&python, &sandbox, "overlaps", "--figure", "logits=3x16x16,mask=int64:16x16");
    let figures = "model.figures=[{ name = \"program\", program = \"overlaps.pt2\" }, { name = \"iou\", label = \"known\" }]";
    let changes = "data.changes=[{ name = \"program\", program = \"mirror.pt2\" }]";
    let run = same_in_every_cut(&sandbox, "own", &[changes, figures]);
    let last = run.evaluations().pop().unwrap();
    let [mine, known] = ["overlaps", "known"].map(|name| last[name].as_f64().unwrap());
    assert!((mine - known).abs() < 1e-9, "{last}");
}

#[test]
fn losses_that_depend_on_the_cut_are_refused() {
    let Ok(python) = forks::pytorch() else { return };
    for (function, words) in [
        ("scalar", "a loss returns one number for each sample"),
        ("mixing", "the samples of a batch change each other's values"),
        ("drawing", "draws random numbers, which depend on the cut of a step"),
        ("flat", "has no derivative by an input"),
        ("Learned", "nothing trains the parameter `scale` of a loss"),
    ] {
        let source = format!("own.py:{function}");
        rejected(&python, &[&source, "--loss", "--inputs", "logits=4,label=int64"], &[words]);
    }
    let sandbox = Sandbox::new(CLASSIFY);
    let mut command = Command::new(&python);
    command.arg("own.py").arg(sandbox.path("."));
    expect_exit_code(&run(command, &python), 0);
    import(&python, &sandbox, "focal", "--loss", "logits=5,label=int64");
    for (file, words) in [
        ("scalar", "model.loss.program: it returns `output`, which is one number for the whole batch"),
        ("mixing", "the samples of a batch change each other's values"),
        ("drawing", "aten::rand_like would draw random numbers in it"),
        ("flat", "the loss has no derivative by an output of the network"),
        ("learned", "nothing trains its parameter `scale`"),
        (
            "focal",
            "the output `logits` has the shape N x 4 for N samples, but the input `logits` takes N x 5",
        ),
        ("none", "none.pt2 does not exist"),
    ] {
        let set = format!("model.loss={{ program = \"{file}.pt2\" }}");
        let text = expect_exit_code(&sandbox.launch(1, file, &[&set]), 2);
        assert!(text.contains(words), "{file}: {text}");
    }
    std::fs::remove_file(sandbox.path("focal.pt2")).unwrap();
    import(&python, &sandbox, "focal", "--loss", "logits=4,label=int64");
    for (inputs, words) in [
        (
            "{ label = \"lable\" }",
            "inputs feeds `label` from \"lable\", which is no output of the network and no field",
        ),
        ("{ target = \"label\" }", "model.loss.program: inputs names \"target\", which the program lacks"),
        (
            "{ label = \"image\" }",
            "the input `label` takes int64, but the field `image` of the data is float32",
        ),
    ] {
        let set = format!("model.loss={{ program = {{ file = \"focal.pt2\", inputs = {inputs} }} }}");
        let text = expect_exit_code(&sandbox.launch(1, "inputs", &[&set]), 2);
        assert!(text.contains(words), "{inputs}: {text}");
    }
}
