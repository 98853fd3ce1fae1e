//! Decoding parts of images, or several times, changes no number.

use std::fs;
use std::time::Duration;

use dtrain_test_kit::thorough;
use dtrain_tests::process::{expect_exit_code, finish};
use dtrain_tests::runs::{Sandbox, assert_close};

use crate::bad_input::folder_recipe;
use crate::checkpoints::assert_same;

/// Images of a class in a set.
const TRAIN: usize = 24;
const TEST: usize = 5;

/// Writes `data/{train,test}` with two classes of JPEG files, larger than the network's input.
fn photographs(sandbox: &Sandbox) {
    for (split, count) in [("train", TRAIN), ("test", TEST)] {
        for (class, shade) in [("dark", 40u32), ("light", 160)] {
            let folder = sandbox.path(&format!("data/{split}/{class}"));
            fs::create_dir_all(&folder).unwrap();
            for index in 0..count {
                let value = |x: u32, y: u32| (shade + (x * 5 + y * 3 + index as u32 * 11) % 90) as u8;
                let pixel = |x, y| image::Rgb([value(x, y), value(y, x), value(x, x)]);
                let image = image::RgbImage::from_fn(90 + index as u32, 110, pixel);
                image.save(folder.join(format!("{index:03}.jpg"))).unwrap();
            }
        }
    }
}

#[test]
fn scaled_files_and_shared_caches_train_alike_on_any_ranks() {
    let sandbox = Sandbox::new(&folder_recipe());
    photographs(&sandbox);
    let parts = "data.changes=[{ name = \"resized-crop\" }, { name = \"flip\" }]";
    let train = |ranks: usize, name: &str, decode: &str, cache: &str| {
        let decode = format!("data.decode={decode}");
        let cache = format!("data.cache={cache}");
        sandbox.train(ranks, name, &[parts, &decode, &cache, "train.epochs=2"])
    };
    let alone = train(1, "alone", "scaled", "off");
    // Of 60 kB for each rank, some images have no room.
    let runs = [(2, "60 KiB"), (3, "off"), (2, "64 MiB"), (1, "64 MiB"), (3, "60 KiB")];
    for (number, &(ranks, cache)) in thorough::cases(&runs, 2).iter().enumerate() {
        let run = train(ranks, &format!("scaled-{number}"), "scaled", cache);
        assert_close(&alone.per_step("loss"), &run.per_step("loss"), 1e-5);
        if ranks == 1 {
            let folders = [&alone, &run].map(|run| run.0.checkpoint(6));
            assert_same(&folders[0], &folders[1], &["model.safetensors"]);
        }
    }
    let exact = train(1, "exact", "exact", "off");
    assert_ne!(exact.per_step("loss"), alone.per_step("loss"), "smaller sizes have other values");
}

/// Each image is decoded once on a machine, whichever ranks load it.
#[test]
fn ranks_of_a_machine_share_decoded_images() {
    const LIMIT: Duration = Duration::from_secs(120);
    let sandbox = Sandbox::new(&folder_recipe());
    photographs(&sandbox);
    for &ranks in thorough::cases(&[3, 2, 1], 1) {
        let sets = ["data.cache=64 MiB", "train.epochs=4"];
        let mut command = sandbox.command(ranks, &format!("run-{ranks}"), &sets, &[]);
        let text = expect_exit_code(&finish(command.env("RUST_LOG", "debug"), LIMIT), 0);
        let decoded: usize = text
            .lines()
            .filter_map(|line| line.split_once("samples were found in it, ")?.1.split_once(" were decoded"))
            .map(|(number, _)| number.parse::<usize>().unwrap())
            .sum();
        let images = 2 * (TRAIN + TEST);
        // A rank may load an image at the moment in which another one decodes it.
        assert!((images..images + images / 4).contains(&decoded), "{decoded} of {images} on {ranks}: {text}");
    }
}
