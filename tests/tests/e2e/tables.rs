//! Trainings on the samples of a table.

use dtrain_test_kit::{forks, programs, thorough};
use dtrain_tests::process::expect_exit_code;
use dtrain_tests::runs::{Sandbox, assert_close};

use crate::bad_input::{folder_recipe, image_folder};
use crate::checkpoints::assert_same;
use crate::exported::imported;

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

/// As Excel writes a table in German: semicolons, decimal commas, UTF-16 and Windows' line ends.
#[test]
fn a_table_of_excel_trains_as_one_with_commas() {
    let sandbox = Sandbox::new(&folder_recipe());
    image_folder(&sandbox, 12, 5);
    table(&sandbox, 12, 5);
    let text = std::fs::read_to_string(sandbox.path("data/table.csv")).unwrap();
    let excel = format!("\u{feff}{}", text.replace(',', ";").replace('\n', "\r\n"));
    let bytes: Vec<u8> = excel.encode_utf16().flat_map(u16::to_le_bytes).collect();
    std::fs::write(sandbox.path("data/excel.csv"), bytes).unwrap();
    let fields = ["data.kind=table", "data.fields.image=image:photo", "data.fields.label=class:kind"];
    let of = |run: &str, table: &str| {
        let root = format!("data.root=data/{table}");
        sandbox.train(1, run, &[&fields[..], &[&root]].concat())
    };
    let (commas, excel) = (of("commas", "table.csv"), of("excel", "excel.csv"));
    assert_eq!(commas.per_step("loss"), excel.per_step("loss"));
    assert_same(&commas.0.checkpoint(2), &excel.0.checkpoint(2), &["model.safetensors"]);
}

/// Writes `data/set/classes.csv` beside flat images: all have the class `even` or none, and those of light ones `light`.
fn classes_of_images(sandbox: &Sandbox, train: usize, test: usize) {
    image_folder(sandbox, train, test);
    for (set, count) in [("train", train), ("test", test)] {
        let mut text = "file;classes\n".to_owned();
        for (class, index) in
            ["dark", "light"].into_iter().flat_map(|class| (0..count).map(move |at| (class, at)))
        {
            let names = [(class == "light").then_some("light"), (index % 2 == 0).then_some("even")];
            let names: Vec<_> = names.into_iter().flatten().collect();
            text += &format!("{class}/{index:03}.png;{}\n", names.join("|"));
        }
        std::fs::write(sandbox.path(&format!("data/{set}/classes.csv")), text).unwrap();
    }
}

#[test]
fn images_with_several_classes_are_the_same_on_any_ranks() {
    let figures = "[model]\nfigures = [{ name = \"auc\", label = \"auc_light\" }]\n";
    let recipe = folder_recipe().replace("root = \"data\"\n", "root = \"data\"\ntarget = \"classes\"\n");
    let recipe = recipe.replace("[model]\n", figures).replace("lr = 0.001", "lr = 0.05");
    let sandbox = Sandbox::new(&recipe);
    classes_of_images(&sandbox, 24, 6);
    let one = sandbox.train(1, "one", &["train.epochs=4", "checkpoint.best=max auc_light"]);
    // The logits of a network that begins near 0 have the loss log 2.
    let losses = one.per_step("loss");
    assert!((losses[0] - std::f64::consts::LN_2).abs() < 0.3 && losses.last() < losses.first(), "{losses:?}");
    let figures = &one.result().final_metrics;
    let [exact, each, auc] = ["accuracy", "label_accuracy", "auc_light"].map(|name| figures[name]);
    assert!(auc > 0.9 && exact <= each && (0.5..1.0).contains(&each), "{figures:?}");
    let manifest = std::fs::read_to_string(one.0.checkpoint(12).join("manifest.json")).unwrap();
    let manifest: serde_json::Value = serde_json::from_str(&manifest).unwrap();
    assert_eq!(manifest["class_names"], serde_json::json!(["even", "light"]));
    let sets = ["train.epochs=4", "checkpoint.best=max auc_light", "memory.micro_batch=3"];
    for &ranks in thorough::cases(&[3, 2], 1) {
        let other = sandbox.train(ranks, &format!("ranks-{ranks}"), &sets);
        assert_close(&losses, &other.per_step("loss"), 1e-5);
        for (name, value) in &other.result().final_metrics {
            assert!((value - figures[name]).abs() < 1e-5, "{name}: {value} {figures:?}");
        }
    }
    // The columns of a table.
    let mut lines = String::new();
    for set in ["train", "test"] {
        let text = std::fs::read_to_string(sandbox.path(&format!("data/{set}/classes.csv"))).unwrap();
        for line in text.lines().skip(1) {
            let (file, names) = line.split_once(';').unwrap();
            let names: Vec<_> = names.split('|').filter(|name| !name.is_empty()).collect();
            let line =
                serde_json::json!({ "photo": format!("{set}/{file}"), "is": { "of": names }, "split": set });
            lines += &format!("{line}\n");
        }
    }
    std::fs::write(sandbox.path("data/lines.jsonl"), lines).unwrap();
    let lines = [
        "train.epochs=4",
        "checkpoint.best=max auc_light",
        "data.kind=table",
        "data.root=data/lines.jsonl",
        "data.fields.image=image:photo",
        "data.fields.label=classes:is.of",
    ];
    assert_eq!(losses, sandbox.train(1, "lines", &lines).per_step("loss"));
}

#[test]
fn a_program_takes_texts_and_images_of_json_lines() {
    let Ok(python) = forks::pytorch() else { return };
    let sandbox = imported(&python, "captioned", "program", "", "context = 12");
    image_folder(&sandbox, 12, 3);
    let mut lines = String::new();
    for (set, count) in [("train", 12), ("test", 3)] {
        for (class, index) in
            ["dark", "light"].into_iter().flat_map(|class| (0..count).map(move |at| (class, at)))
        {
            let (photo, caption) =
                (format!("{set}/{class}/{index:03}.png"), format!("{class} image {index}"));
            let line =
                serde_json::json!({ "photo": photo, "caption": caption, "tags": [class], "split": set });
            lines += &format!("{line}\n");
        }
    }
    std::fs::write(sandbox.path("data/captions.jsonl"), lines).unwrap();
    let recipe = std::fs::read_to_string(sandbox.path("recipe.toml")).unwrap();
    let data = "kind = \"table\"\nroot = \"data/captions.jsonl\"\ntokenizer = \"bytes\"\nimage_size = 32\n\
                fields = { image = \"image:photo\", caption = \"text\", tags = \"classes\" }\n";
    std::fs::write(sandbox.path("recipe.toml"), recipe.replace("kind = \"generated\"\n", data)).unwrap();
    let one = sandbox.launch(1, "one", &[]);
    let text = expect_exit_code(&one, 0);
    // "light image 0" has 13 bytes.
    assert!(
        text.contains(
            "fields image, caption, caption_mask, tags, 14 longer texts of caption cut to 12 tokens"
        ),
        "{text}"
    );
    let losses = sandbox.run("one").per_step("loss");
    assert!(losses.last() < losses.first(), "{losses:?}");
    let other = sandbox.train(2, "two", &["memory.micro_batch=3"]);
    assert_close(&losses, &other.per_step("loss"), 1e-5);
}

/// The files of real heights do not pair by name, so a table names them. On three ranks the losses are the same.
#[test]
fn a_table_pairs_images_and_maps_of_other_names() {
    let (Ok(python), Ok(data)) = (forks::pytorch(), programs::test_data("heights")) else { return };
    let sandbox = imported(&python, "heights", "regress", "", "loss = \"huber\"");
    for folder in ["img", "lab"] {
        std::os::unix::fs::symlink(data.join(folder), sandbox.path(folder)).unwrap();
    }
    let mut names: Vec<_> =
        std::fs::read_dir(data.join("img")).unwrap().map(|it| it.unwrap().file_name()).collect();
    names.sort();
    let lines = (0..).zip(&names).map(|(at, name)| {
        let name = name.to_str().unwrap();
        let set = if at < 5 { "train" } else { "test" };
        format!("img/{name};{};{set}\n", name.replace("img_", "lab/lab_"))
    });
    let text = format!("image;depth;split\n{}", lines.collect::<String>());
    std::fs::write(sandbox.path("heights.csv"), text).unwrap();
    let recipe = std::fs::read_to_string(sandbox.path("recipe.toml")).unwrap();
    let data = "kind = \"table\"\nroot = \"heights.csv\"\ntarget = \"map\"\nchannels = 4\nresize = \"none\"\n\
                std = [0.01, 0.01, 0.01, 0.01]\nnormalize_targets = true\nfields = { image = \"image\", map = \"map:depth\" }\n";
    let recipe =
        recipe.replace("kind = \"generated\"\n", data).replace("effective_batch = 8", "effective_batch = 3");
    std::fs::write(sandbox.path("recipe.toml"), recipe.replace("steps = 12", "steps = 6")).unwrap();
    let one = sandbox.train(1, "one", &[]);
    let losses = one.per_step("loss");
    assert!(losses.len() == 6 && losses.iter().all(|loss| loss.is_finite()), "{losses:?}");
    let rmse = one.result().final_metrics["rmse"];
    // Metres: the heights go up to 84.
    assert!((1.0..40.0).contains(&rmse), "{rmse}");
    assert_close(&losses, &sandbox.train(3, "three", &[]).per_step("loss"), 1e-5);
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
