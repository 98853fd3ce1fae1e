//! Trainings on the samples of a table.

use dtrain_test_kit::thorough;
use dtrain_tests::runs::{Sandbox, assert_close};

use crate::bad_input::{folder_recipe, image_folder};
use crate::checkpoints::assert_same;

/// Writes `data/table.csv` with the samples of [`image_folder`]'s folders, the test samples first.
fn table(sandbox: &Sandbox, train: usize, test: usize) {
    let mut lines = "split,photo,kind\n".to_owned();
    for (split, count) in [("test", test), ("train", train)] {
        for class in ["dark", "light"] {
            for index in 0..count {
                lines += &format!("{split},{split}/{class}/{index:03}.png,{class}\n");
            }
        }
    }
    std::fs::write(sandbox.path("data/table.csv"), lines).unwrap();
}

#[test]
fn a_table_trains_as_the_folders_of_its_files() {
    let sandbox = Sandbox::new(&folder_recipe());
    image_folder(&sandbox, 24, 5);
    table(&sandbox, 24, 5);
    let of_table = [
        "data.kind=table",
        "data.root=data/table.csv",
        "data.fields.image=image:photo",
        "data.fields.label=class:kind",
        "data.changes=[{ name = \"resized-crop\" }, { name = \"flip\" }]",
    ];
    for &ranks in thorough::cases(&[2, 1, 3], 1) {
        let folders = sandbox.train(ranks, &format!("folders-{ranks}"), &["data.augment=resized-crop-flip"]);
        let table = sandbox.train(ranks, &format!("table-{ranks}"), &of_table);
        assert_eq!(folders.per_step("loss"), table.per_step("loss"));
        let [folders, table] = [folders, table].map(|run| run.0.checkpoint(3));
        assert_same(&folders, &table, &["model.safetensors"]);
    }
}

/// Folders, and a table of half of the files that names one class otherwise.
#[test]
fn a_mixture_is_the_same_on_any_ranks_and_takes_sources_by_weight() {
    let sandbox = Sandbox::new("");
    image_folder(&sandbox, 24, 5);
    table(&sandbox, 12, 3);
    let path = sandbox.path("data/table.csv");
    let text = std::fs::read_to_string(&path).unwrap().replace(",light\n", ",bright\n");
    std::fs::write(path, text).unwrap();
    let weigh = |weight: &str| {
        let sources = format!(
            "[[data.source]]\nroot = \"data\"\nweight = 1\n[[data.source]]\nkind = \"table\"\nroot = \"data/table.csv\"\n\
             fields = {{ image = \"image:photo\", label = \"class:kind\" }}\nweight = {weight}\n"
        );
        let recipe = folder_recipe().replace("root = \"data\"\n", "") + &sources;
        std::fs::write(sandbox.path("recipe.toml"), recipe).unwrap();
    };
    weigh("3");
    let sets = ["train.epochs=2", "data.augment=flip", "memory.micro_batch=3"];
    let one = sandbox.train(1, "one", &sets[..2]);
    let step = one.metrics().iter().filter_map(|line| line["step"].as_u64()).max().unwrap();
    let manifest = std::fs::read_to_string(one.0.checkpoint(step).join("manifest.json")).unwrap();
    let manifest: serde_json::Value = serde_json::from_str(&manifest).unwrap();
    assert_eq!(manifest["class_names"], serde_json::json!(["bright", "dark", "light"]));
    assert_eq!(manifest["data"]["train_samples"], 72);
    for &ranks in thorough::cases(&[3, 2], 1) {
        let other = sandbox.train(ranks, &format!("ranks-{ranks}"), &sets);
        assert_close(&one.per_step("loss"), &other.per_step("loss"), 1e-6);
        assert_eq!(one.result().final_metrics["accuracy"], other.result().final_metrics["accuracy"]);
    }
    weigh("1");
    let even = sandbox.train(1, "even", &sets[..2]);
    assert_ne!(even.per_step("loss"), one.per_step("loss"));
}
