//! `dtrain predict` of programs that return their loss, which write what tasks write; and of the sets of a run's own data.

use std::fs;

use dtrain_test_kit::forks;
use dtrain_tests::process::output_text;
use dtrain_tests::runs::{Sandbox, TINY};
use serde_json::Value;

use crate::bad_input::{folder_recipe, image_folder};
use crate::exported::imported;
use crate::predict::{images, numbers, predict, predicted, table};

/// Writes two images that are not of the network's size.
fn wide_images(sandbox: &Sandbox) {
    fs::create_dir(sandbox.path("images")).unwrap();
    for (name, width, height) in [("a", 24, 18), ("b", 40, 16)] {
        let pixel = |x: u32, y: u32| image::Rgb([(x * 6) as u8, (y * 9) as u8, (x * y) as u8]);
        let image = image::RgbImage::from_fn(width, height, pixel);
        image.save(sandbox.path(&format!("images/{name}.png"))).unwrap();
    }
}

/// The network alone and the one with its loss have the same weights, and a rate of 0 keeps them.
#[test]
fn programs_write_the_masks_and_maps_of_tasks() {
    let Ok(python) = forks::pytorch() else { return };
    let size = "image_size = 16\ntrain_samples = 8\ntest_samples = 4\n";
    let mae = "figures = [{ name = \"mae\", output = \"height\", target = \"map\" }]";
    for (task, target, data, figures, folders) in [
        ("segment", "mask", format!("{size}classes = 3"), "", &["mask", "overlay"][..]),
        ("regress", "map", format!("{size}target = \"map\""), mae, &["png", "tiff", "colors"][..]),
    ] {
        let of_program = match task {
            "segment" => format!("{data}\ntarget = \"mask\""),
            _ => data.clone(),
        };
        let function = format!("predicted.py:{target}s");
        let plain = imported(&python, &function, task, &data, "");
        let program = imported(&python, &format!("{function}_with_loss"), "program", &of_program, figures);
        let flags: [(&str, &[&str]); 2] = [("whole", &[]), ("cut", &["--windows", "--flips", "both"])];
        for sandbox in [&plain, &program] {
            wide_images(sandbox);
            sandbox.train(1, "run", &["train.steps=1", "optim.lr=0"]);
            for (out, flags) in flags {
                let text = predicted(sandbox, &[&["run", "images", "-o", out][..], flags].concat());
                assert!(!text.contains("inputs do not have"), "{target}: {text}");
            }
        }
        for (out, _) in flags {
            for file in folders.iter().flat_map(|folder| ["a", "b"].map(|name| format!("{folder}/{name}"))) {
                let ending = if file.starts_with("tiff") { "tif" } else { "png" };
                let [one, other] = [&plain, &program]
                    .map(|sandbox| fs::read(sandbox.path(&format!("{out}/{file}.{ending}"))).unwrap());
                assert!(one == other, "{out}/{file}");
            }
            let rows =
                [&plain, &program].map(|sandbox| table(&sandbox.path(&format!("{out}/predictions.csv"))));
            assert_eq!(rows[0], rows[1], "{target}: {out}");
        }
        let text = predicted(&program, &["run", "images", "-o", "loss.csv", "--output", "loss"]);
        assert!(
            text.contains(&format!("the outputs depend on `{target}`, which inputs do not have")),
            "{text}"
        );
        if target == "map" {
            let words = ["run", "images", "-o", "none", "--set", "model.figures=[]"];
            let text = output_text(&predict(&program, &words));
            assert!(text.contains("no output of the program is known as a prediction"), "{text}");
            assert!(text.contains("write outputs as they are with --output, it has loss, height"), "{text}");
        }
    }
}

#[test]
fn questions_need_no_answers() {
    let Ok(python) = forks::pytorch() else { return };
    let sandbox = crate::predict_texts::imported(
        &python,
        "predicted.py:asked",
        "program",
        "tokens = \"text:question,answer\"",
    );
    let lines = |at: u32| format!("{},what {at}?,{at}\n", if at < 9 { "train" } else { "test" });
    let table = (0..12).map(lines).collect::<String>();
    fs::write(sandbox.path("table.csv"), format!("split,question,answer\n{table}")).unwrap();
    sandbox.train(1, "run", &[]);
    fs::write(sandbox.path("asked.csv"), "question\nab\nc\n").unwrap();
    fs::write(sandbox.path("both.csv"), "question,answer\nab,cd\n").unwrap();
    let counted = |words: &[&str], out: &str| {
        let text = predicted(&sandbox, &[&["run", "--output", "counted", "-o", out][..], words].concat());
        let lines = fs::read_to_string(sandbox.path(out)).unwrap();
        let row = |line: &str| numbers(&serde_json::from_str::<Value>(line).unwrap()["counted"]);
        (lines.lines().map(row).collect::<Vec<_>>(), text)
    };
    let (rows, text) = counted(&["asked.csv"], "asked.jsonl");
    assert_eq!(rows, [[195.0, 0.0], [99.0, 0.0]]);
    assert!(
        text.contains("the outputs depend on `labels`, which inputs do not have: it is -100, no target,"),
        "{text}"
    );
    let (rows, text) = counted(&["both.csv"], "both.jsonl");
    assert_eq!(rows, [[394.0, 2.0]]);
    assert!(!text.contains("inputs do not have"), "{text}");
    let (rows, _) = counted(&["--split", "test"], "test.jsonl");
    assert_eq!(rows.iter().map(|row| row[1]).collect::<Vec<_>>(), [1.0, 2.0, 2.0]);
}

/// Images of one shade are nearest to those of their class, whatever the weights are.
#[test]
fn labelled_images_sort_the_others() {
    let Ok(python) = forks::pytorch() else { return };
    let data = "image_size = 16\nclasses = 4\ntrain_samples = 40\ntest_samples = 24\n\
                episodes = { n_way = 2, k_shot = 2, n_query = 2, train = 4, test = 2 }";
    let sandbox = imported(&python, "predicted.py:nearest", "program", data, "");
    sandbox.train(1, "run", &["train.steps=1", "train.effective_batch=2"]);
    let write = |name: &str, shade: u8| {
        let path = sandbox.path(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        image::RgbImage::from_pixel(16, 16, image::Rgb([shade; 3])).save(path).unwrap();
    };
    for (class, shade) in [("dark", 30), ("light", 210)] {
        // The third image of a class is not used.
        for more in [1, 2, 12] {
            write(&format!("support/{class}/{more:03}.png"), shade + more);
        }
    }
    for at in 0..9 {
        write(&format!("in/{at}-{}.png", ["dark", "light"][at % 2]), [35, 205][at % 2] + at as u8);
    }
    fs::write(sandbox.path("in/4-dark.png"), "no image").unwrap();
    let words = ["run", "in", "--support", "support", "-o"];
    let tables = [("1", "1"), ("1", "8"), ("2", "2")].map(|(ranks, batch)| {
        let out = format!("{ranks}-{batch}.csv");
        let text = predicted(&sandbox, &[&words[..], &[&out, "--nproc", ranks, "--batch", batch]].concat());
        assert!(text.contains("9 images, 1 of them unreadable"), "{text}");
        table(&sandbox.path(&out))
    });
    for rows in &tables {
        assert_eq!(rows["image"][2..4], ["p:dark", "p:light"].map(String::from));
        let read = rows.iter().filter(|(name, _)| name.starts_with(|c: char| c != '4' && c != 'i'));
        assert_eq!(read.clone().count(), 8);
        for (name, row) in read {
            assert_eq!(name[2..].trim_end_matches(".png"), row[0], "{rows:?}");
        }
        assert!(rows["4-dark.png"].join(",").contains("not an image"), "{rows:?}");
    }
    for (words, part) in [
        (&["run", "in", "-o", "x.csv"][..], "name a folder of class folders with --support"),
        (
            &["run", "in", "-o", "x.csv", "--support", "in"],
            "give 2 folders, one for each class, with at least 2 images each",
        ),
        (
            &["run", "in", "-o", "x", "--support", "support", "--output", "logits"],
            "--output has no effect here",
        ),
    ] {
        let output = predict(&sandbox, words);
        let text = output_text(&output);
        assert_eq!(output.status.code(), Some(2), "{words:?}: {text}");
        assert!(text.contains(part), "{words:?}: {part} in {text}");
    }
}

#[test]
fn the_samples_of_a_set_are_predicted_as_their_files_are() {
    let sandbox = Sandbox::new(&folder_recipe());
    image_folder(&sandbox, 4, 3);
    sandbox.train(1, "run", &["train.steps=1"]);
    predicted(&sandbox, &["run", "data/test", "-o", "path.csv"]);
    predicted(&sandbox, &["run", "--split", "test", "-o", "set.csv"]);
    let [by_path, by_set] = ["path.csv", "set.csv"].map(|name| table(&sandbox.path(name)));
    assert_eq!((by_path.len(), &by_path), (7, &by_set));

    let sandbox = Sandbox::new(&TINY.replace(
        "kind = \"generated\"\nclasses = 4\ntrain_samples = 96\ntest_samples = 37\n",
        "kind = \"table\"\nroot = \"table.csv\"\nval = \"dev\"\n",
    ));
    images(&sandbox, 12);
    let sets = ["train", "dev", "test"];
    let of = |at: u32| (format!("images/{at}.png"), sets[at as usize % 3], ["a", "b"][at as usize / 3 % 2]);
    let lines: String =
        (0..12).map(of).map(|(image, set, class)| format!("{image},{class},{set}\n")).collect();
    fs::write(sandbox.path("table.csv"), format!("image,label,split\n{lines}")).unwrap();
    sandbox.train(1, "run", &["train.steps=1"]);
    for (name, set) in [("train", "train"), ("val", "dev"), ("dev", "dev"), ("test", "test")] {
        let own = (0..12).map(of).filter(|(_, of, _)| *of == set).map(|(image, ..)| image + "\n");
        fs::write(sandbox.path("some.csv"), format!("image\n{}", own.collect::<String>())).unwrap();
        let [by_path, by_set] = ["path", "set"].map(|from| format!("{name}-{from}.csv"));
        predicted(&sandbox, &["run", "some.csv", "-o", &by_path]);
        predicted(&sandbox, &["run", "--split", name, "-o", &by_set]);
        let [by_path, by_set] = [by_path, by_set].map(|out| table(&sandbox.path(&out)));
        assert_eq!((by_path.len(), &by_path), (5, &by_set), "{name}");
    }
    // By name, the first half of the test samples are 11 and 2.
    sandbox.train(1, "part", &["train.steps=1", "data.val=test:0.5"]);
    for (name, own) in
        [("val", "image\nimages/2.png\nimages/11.png\n"), ("test", "image\nimages/5.png\nimages/8.png\n")]
    {
        fs::write(sandbox.path("some.csv"), own).unwrap();
        let outs = ["path", "set"].map(|from| format!("part-{name}-{from}.csv"));
        predicted(&sandbox, &["part", "some.csv", "-o", &outs[0]]);
        predicted(&sandbox, &["part", "--split", name, "-o", &outs[1]]);
        let [by_path, by_set] = outs.map(|out| table(&sandbox.path(&out)));
        assert_eq!((by_path.len(), &by_path), (3, &by_set), "{name}");
    }
    for (words, part) in [
        (
            &["run", "--split", "valid", "-o", "x.csv"][..],
            "the data has no such set; name one of train, test, val",
        ),
        (&["run", "images", "--split", "test", "-o", "x.csv"], "cannot be used with"),
        (&["run", "-o", "x.csv"], "--split <SET>"),
        (&["run", "--split", "test", "-o", "x.csv", "--set", "data.root=gone.csv"], "gone.csv"),
    ] {
        let output = predict(&sandbox, words);
        let text = output_text(&output);
        assert_eq!(output.status.code(), Some(2), "{words:?}: {text}");
        assert!(text.contains(part), "{words:?}: {part} in {text}");
    }
}
