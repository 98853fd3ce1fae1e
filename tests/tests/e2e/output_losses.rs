//! `model.loss` of several outputs and targets, and of classes with an order.

use std::fs;

use dtrain_test_kit::{forks, thorough};
use dtrain_tests::process::expect_exit_code;
use dtrain_tests::runs::{Sandbox, assert_close};
use dtrain_tests::trainings::{distance, tensors};

use crate::exported::{IMAGES, import, imported};
use crate::predict::{images, predicted, table};

const MODEL: &str = "model.safetensors";

/// What fixtures/import/outputs.py computes in `WithLosses`.
const LOSSES: &str = r#"loss = [
    { name = "cross-entropy", output = "kind", target = "label" },
    { name = "ordinal", output = "rank", target = "label", weight = 0.5 },
    { name = "mse", output = "size", target = "size", weight = 0.25 },
]
"#;

/// Ranks, and samples of a micro-batch.
const CUTS: [(usize, usize); 3] = [(3, 1), (2, 3), (1, 4)];

/// Returns a table of images with a class of four and two numbers.
fn sandbox(model: &str) -> Sandbox {
    let sandbox = Sandbox::new("");
    images(&sandbox, 14);
    let line = |at: u32| {
        let (split, kind) = (if at < 10 { "train" } else { "test" }, ["a", "b", "c", "d"][at as usize % 4]);
        format!("images/{at}.png,{kind},{},{},{split}\n", f64::from(at) / 8.0, 1.0 - f64::from(at) / 4.0)
    };
    let rows: String = (0..14).map(line).collect();
    fs::write(sandbox.path("table.csv"), format!("path,kind,width,height,split\n{rows}")).unwrap();
    let file = sandbox.path("model.pt2");
    let recipe = format!(
        "task = \"program\"\n[data]\nkind = \"table\"\nroot = {:?}\nfields = {{ image = \"image:path\", label = \"class:kind\", \
         size = \"numbers:width,height\" }}\nimage_size = 16\n[model]\nfile = {file:?}\n{model}[train]\neffective_batch = 7\n\
         steps = 6\nseed = 3\n[optim]\nname = \"sgd\"\nlr = 0.05\n[log]\nevery_steps = 1\n",
        sandbox.path("table.csv")
    );
    fs::write(sandbox.path("recipe.toml"), recipe).unwrap();
    sandbox
}

/// Weights and losses are those of PyTorch's own losses in the program, in every cut.
#[test]
fn each_output_has_its_loss_and_target() {
    let Ok(python) = forks::pytorch() else { return };
    let whole = sandbox("");
    import(&python, &whole, "outputs.py:with_losses", &[]);
    let expected = whole.train(1, "whole", &[]);
    let named = sandbox(LOSSES);
    import(&python, &named, "outputs.py:outputs", &[]);
    for &(ranks, micro_batch) in thorough::cases(&CUTS, 2) {
        let name = format!("{ranks}-{micro_batch}");
        let found = named.train(ranks, &name, &[&format!("memory.micro_batch={micro_batch}")]);
        let distance = distance(&tensors(&found, MODEL), &tensors(&expected, MODEL));
        assert!(distance < 1e-6, "{name}: {distance}");
        assert_eq!(found.per_step("loss").len(), 6);
        for (one, other) in found.per_step("loss").iter().zip(expected.per_step("loss")) {
            assert!((one - other).abs() < 1e-5, "{name}: {one} {other}");
        }
        let [one, other] = [&found, &expected].map(|run| run.evaluations()[0]["loss"].as_f64().unwrap());
        assert!((one - other).abs() < 1e-5, "{name}: {one} {other}");
    }
    for (number, (loss, words)) in [
        ("{ mse = { output = \"siz\", target = \"size\" } }", "names \"siz\", which the program lacks; did you mean `size`?"),
        ("{ mse = { output = \"size\", target = \"sizes\" } }", "names the target \"sizes\", but the fields with targets are `label`, `size`"),
        ("{ mse = { output = \"kind\", target = \"size\" } }", "the output `kind` has the shape N x 4 for N samples, but the loss \"mse\" of the field `size` takes N x 2"),
        ("{ focal = { output = \"rank\", target = \"label\" } }", "takes logits, N x K with K at least its 4 classes"),
        ("{ mse = { output = \"size\", target = \"label\" } }", "`mse` does not fit the field `label`, whose losses are `cross-entropy`"),
        ("{ ordinal = { output = \"kind\", target = \"label\" } }", "takes N x 3, one less than its 4 classes"),
        ("{ focal = { output = \"kind\", target = \"label\", class_weights = [1] } }", "model.loss.focal.class_weights: expected a weight for each of the 4 classes"),
        ("{ mse = { output = \"size\", target = \"size\", weight = 0 } }", "expected a number above 0"),
        ("mse", "losses of outputs and fields by name"),
    ]
    .into_iter()
    .enumerate()
    {
        let text = expect_exit_code(&named.launch(1, &number.to_string(), &[&format!("model.loss={loss}")]), 2);
        assert!(text.contains(words), "{text}");
    }
}

/// An auxiliary output and a loss that names it are the same, for masks, maps and sets of classes.
#[test]
fn a_named_output_counts_as_an_auxiliary_one() {
    let Ok(python) = forks::pytorch() else { return };
    for (task, data, outputs, loss) in [
        ("segment", "image_size = 16\nclasses = 3\ntrain_samples = 16\ntest_samples = 5", "3", "dice"),
        ("regress", "target = \"map\"\nimage_size = 16\ntrain_samples = 16\ntest_samples = 5", "1", "l1"),
    ] {
        let sandbox = crate::exported::sandbox(task, data, "output = \"out\"");
        import(&python, &sandbox, "outputs.py:two_maps", &["--classes", outputs]);
        let auxiliary = [&*format!("model.loss={loss}"), "model.auxiliary={ aux = 0.4 }"];
        let expected = sandbox.train(1, "auxiliary", &auxiliary);
        let named = format!(
            "model.loss=[{{ name = {loss:?} }}, {{ name = {loss:?}, output = \"aux\", weight = 0.4 }}]"
        );
        let found = sandbox.train(2, "named", &[&named, "memory.micro_batch=3"]);
        let distance = distance(&tensors(&found, MODEL), &tensors(&expected, MODEL));
        assert!(distance < 1e-5, "{task}: {distance}");
        assert_close(&found.per_step("loss"), &expected.per_step("loss"), 1e-5);
        let without = sandbox.train(1, "without", &auxiliary[..1]);
        let added = expected.per_step("loss")[0] - without.per_step("loss")[0];
        assert!(added.abs() > 1e-3, "{task}: the other output adds {added}");
    }
}

/// A network with one output less than classes has figures and predictions of all classes.
#[test]
fn an_ordinal_loss_predicts_all_classes() {
    let Ok(python) = forks::pytorch() else { return };
    let model =
        "loss = { ordinal = { order = [\"1\", \"0\", \"3\", \"2\"] } }\nfigures = [{ name = \"auc\" }]";
    let sandbox = imported(&python, "outputs.py:ranks", "classify", IMAGES, "loss = \"ordinal\"");
    let run = sandbox.train(2, "run", &["memory.micro_batch=3"]);
    assert!(run.evaluations()[0]["accuracy"].as_f64().is_some());
    images(&sandbox, 3);
    predicted(&sandbox, &["run", "images", "-o", "out.csv"]);
    let found = table(&sandbox.path("out.csv"));
    assert_eq!(found.len(), 4, "the line of names and three images");
    for (name, cells) in found.iter().filter(|(name, _)| *name != "image") {
        let probabilities: Vec<f64> =
            cells.iter().filter_map(|cell| cell.parse().ok()).filter(|it| *it <= 1.0).collect();
        let sum: f64 = probabilities.iter().rev().take(4).sum();
        assert!((sum - 1.0).abs() < 1e-3, "{name}: {cells:?}");
    }
    let text = expect_exit_code(
        &sandbox.launch(
            1,
            "order",
            &[&format!("model.{}", model.lines().next().unwrap().replacen(" = ", "=", 1))],
        ),
        2,
    );
    assert!(
        text.contains("model.loss.ordinal.order: no class is named \"1\", because the classes have no names"),
        "{text}"
    );
    let text = expect_exit_code(&sandbox.launch(1, "logits", &["model.loss=cross-entropy"]), 2);
    assert!(text.contains("needs logits, N x K with K at least the 4 classes"), "{text}");
}

/// The file of a model has the settings of its images, and a recipe that states them wins.
#[test]
fn images_are_prepared_as_the_file_of_the_model_states() {
    let Ok(python) = forks::pytorch() else { return };
    let sandbox = Sandbox::new("");
    images(&sandbox, 6);
    let rows: String = (0..6)
        .map(|at| format!("images/{at}.png,{},{}\n", at % 4, if at < 4 { "train" } else { "test" }))
        .collect();
    fs::write(sandbox.path("table.csv"), format!("path,kind,split\n{rows}")).unwrap();
    let recipe = |data: &str| {
        format!(
            "task = \"classify\"\n[data]\nkind = \"table\"\nroot = {:?}\nfields = {{ image = \"image:path\", label = \"class:kind\" }}\n\
             {data}[model]\nfile = {:?}\n[train]\neffective_batch = 4\nsteps = 1\n[optim]\nname = \"sgd\"\nlr = 0.0\n",
            sandbox.path("table.csv"),
            sandbox.path("model.pt2")
        )
    };
    import(&python, &sandbox, "outputs.py:configured", &[]);
    let settings = "image_size = 16\ncrop_fraction = 0.8\ninterpolation = \"bicubic\"\nmean = [0.5, 0.4, 0.3]\nstd = [0.2, 0.25, 0.5]\n";
    let values = |name: &str, data: &str, sets: &[&str]| {
        fs::write(sandbox.path("recipe.toml"), recipe(data)).unwrap();
        let text = expect_exit_code(&sandbox.launch(1, name, sets), 0);
        let out = format!("{name}.csv");
        predicted(&sandbox, &[name, "images", "-o", &out]);
        (text, table(&sandbox.path(&out)))
    };
    let (text, of_file) = values("file", "", &[]);
    let keys =
        "data.image_size, data.crop_fraction, data.interpolation, data.mean, data.std: from model.file";
    assert!(text.contains(keys), "{text}");
    let saved = fs::read_to_string(sandbox.path("file/recipe.toml")).unwrap();
    for line in settings.lines() {
        assert!(saved.contains(line), "{line}: {saved}");
    }
    let (text, stated) = values("stated", settings, &[]);
    assert!(!text.contains("from model.file"), "{text}");
    assert_eq!(of_file, stated);
    let (_, other) = values("other", "", &["data.crop_fraction=1.0"]);
    assert_ne!(of_file, other);
}
