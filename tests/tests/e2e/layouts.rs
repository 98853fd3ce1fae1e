//! Data sets in the layouts of CUB-200-2011, ImageNet and few-shot lists train as class folders of the same images.

use std::fs;

use dtrain_test_kit::thorough;
use dtrain_tests::process::expect_exit_code;
use dtrain_tests::runs::{Run, Sandbox};

use crate::bad_input::{folder_recipe, image_folder};
use crate::checkpoints::assert_same;

const SETS: [(&str, usize); 2] = [("train", 12), ("test", 5)];
const CLASSES: [&str; 2] = ["dark", "light"];

/// Returns the paths of [`image_folder`]'s images below `data`, with their set and class, in the order of the paths.
fn images() -> Vec<(&'static str, &'static str, String)> {
    let of_class = |(set, count): (&'static str, usize)| {
        CLASSES.into_iter().flat_map(move |class| {
            (0..count).map(move |at| (set, class, format!("{set}/{class}/{at:03}.png")))
        })
    };
    SETS.into_iter().flat_map(of_class).collect()
}

fn sandbox() -> (Sandbox, Run) {
    let sandbox = Sandbox::new(&folder_recipe());
    image_folder(&sandbox, SETS[0].1, SETS[1].1);
    let folders = sandbox.train(1, "folders", &[]);
    (sandbox, folders)
}

fn assert_equal(run: &Run, folders: &Run) {
    assert_eq!(run.per_step("loss"), folders.per_step("loss"));
    assert_eq!(run.result().final_metrics["accuracy"], folders.result().final_metrics["accuracy"]);
    assert_same(&run.0.checkpoint(2), &folders.0.checkpoint(2), &["model.safetensors"]);
}

fn lines(all: impl Iterator<Item = String>) -> String {
    all.map(|line| line + "\n").collect()
}

#[test]
fn the_lists_of_cub_train_as_folders() {
    let (sandbox, folders) = sandbox();
    let all = images();
    fs::create_dir(sandbox.path("cub")).unwrap();
    std::os::unix::fs::symlink(sandbox.path("data"), sandbox.path("cub/images")).unwrap();
    let of_images = |text: &dyn Fn(&(&str, &str, String)) -> String| {
        lines((1..).zip(&all).map(|(number, image)| format!("{number} {}", text(image))))
    };
    let class = |class: &str| 1 + CLASSES.iter().position(|known| *known == class).unwrap();
    for (file, text) in [
        ("images.txt", of_images(&|(_, _, path)| path.clone())),
        ("image_class_labels.txt", of_images(&|(_, of_image, _)| class(of_image).to_string())),
        ("train_test_split.txt", of_images(&|(set, _, _)| usize::from(*set == "train").to_string())),
        ("classes.txt", "1 dark\n2 light\n".to_owned()),
    ] {
        fs::write(sandbox.path("cub").join(file), text).unwrap();
    }
    let cub = ["data.kind=cub", "data.root=cub"];
    assert_equal(&sandbox.train(1, "cub-1", &cub), &folders);
    for &ranks in thorough::cases(&[3, 2], 1) {
        let folders = sandbox.train(ranks, &format!("folders-{ranks}"), &[]);
        assert_equal(&sandbox.train(ranks, &format!("cub-{ranks}"), &cub), &folders);
    }
    // Two files of different downloads.
    let split = sandbox.path("cub/train_test_split.txt");
    let text = fs::read_to_string(&split).unwrap();
    fs::write(&split, text.replacen("1 1\n", "", 1)).unwrap();
    let text = expect_exit_code(&sandbox.launch(1, "refused", &cub), 2);
    assert!(text.contains("disagree: 1 number in the first alone: `1`"), "{text}");
}

#[test]
fn a_flat_test_set_with_a_list_is_as_its_folders() {
    let (sandbox, folders) = sandbox();
    fs::create_dir(sandbox.path("data/val")).unwrap();
    let mut list = String::new();
    for (_, class, path) in images().iter().filter(|(set, ..)| *set == "test") {
        let flat = path.replace('/', "_");
        fs::rename(sandbox.path("data").join(path), sandbox.path("data/val").join(&flat)).unwrap();
        list += &format!("{flat} {}\n", CLASSES.iter().position(|known| known == class).unwrap());
    }
    fs::write(sandbox.path("data/val.txt"), list).unwrap();
    let val = ["data.test=val", "data.lists={ val = \"val.txt\" }"];
    assert_equal(&sandbox.train(1, "val", &val), &folders);
}

#[test]
fn json_lists_train_as_folders() {
    let (sandbox, folders) = sandbox();
    for (set, file) in [("train", "base.json"), ("test", "novel.json")] {
        let of_set: Vec<_> = images().into_iter().filter(|image| image.0 == set).collect();
        let names: Vec<_> = of_set.iter().map(|(_, _, path)| sandbox.path("data").join(path)).collect();
        let labels: Vec<_> = of_set.iter().map(|(_, class, _)| usize::from(*class == "dark")).collect();
        let text = serde_json::json!({ "label_names": ["light", "dark"], "image_names": names, "image_labels": labels });
        fs::write(sandbox.path("data").join(file), text.to_string()).unwrap();
    }
    let sets = ["data.kind=json-list", "data.train=base.json", "data.test=novel.json"];
    assert_equal(&sandbox.train(1, "lists", &sets), &folders);
}
