//! `dtrain predict` of texts, and of images with texts: the values of PyTorch at any number of ranks, and bad input.

use std::fs;
use std::path::Path;

use dtrain_test_kit::forks;
use dtrain_tests::process::output_text;
use dtrain_tests::runs::Sandbox;
use serde_json::Value;

use crate::exported::import;
use crate::predict::{images, numbers, of_pytorch, predict, predicted};

/// Imports a model of `trained.py` with a recipe for a table of this task and these fields.
pub(crate) fn imported(python: &Path, function: &str, task: &str, fields: &str) -> Sandbox {
    let size = if fields.contains("image:") { "image_size = 16\n" } else { "" };
    let sandbox = Sandbox::new(&format!(
        "task = {task:?}\n[data]\nkind = \"table\"\nroot = \"table.csv\"\nfields = {{ {fields} }}\ntokenizer = \"bytes\"\n\
         {size}[model]\nfile = \"model.pt2\"\n[train]\neffective_batch = 6\nsteps = 4\n[optim]\nname = \"sgd\"\n\
         lr = 0.5\n"
    ));
    import(python, &sandbox, function, &[]);
    sandbox
}

fn rows(sandbox: &Sandbox, out: &str) -> Vec<Value> {
    let lines = fs::read_to_string(sandbox.path(out)).unwrap();
    lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// Writes the files that PyTorch reads.
fn files(sandbox: &Sandbox, contents: &[Vec<u8>]) -> Vec<std::path::PathBuf> {
    let write = |(at, content): (usize, &Vec<u8>)| {
        let path = sandbox.path(&format!("{at}.raw"));
        fs::write(&path, content).unwrap();
        path
    };
    contents.iter().enumerate().map(write).collect()
}

#[test]
fn classes_of_texts_are_those_of_pytorch() {
    let Ok(python) = forks::pytorch() else { return };
    let fields = "tokens = \"text:words\", label = \"class:topic\"";
    let sandbox = imported(&python, "topics", "classify", fields);
    let line = |number: usize| {
        let split = if number.is_multiple_of(4) { "test" } else { "train" };
        format!("{split},{},{}\n", "words ".repeat(number % 5 + 1), ["king", "river", "sword"][number % 3])
    };
    let table = (0..24).map(line).collect::<String>();
    fs::write(sandbox.path("table.csv"), format!("split,words,topic\n{table}")).unwrap();
    sandbox.train(2, "run", &[]);
    let texts = ["a king", "the river, and it is longer than its 24 bytes", "", "sword"];
    let line = |(at, text): (usize, &&str)| format!("{at},\"{text}\"\n");
    let lines: String = texts.iter().enumerate().map(line).collect();
    fs::write(sandbox.path("in.csv"), format!("id,words\n{lines}")).unwrap();
    fs::write(sandbox.path("in.txt"), texts.join("\n")).unwrap();
    let read = [0, 1, 3].map(|at| texts[at].as_bytes().to_vec());
    let expected = of_pytorch(&python, &sandbox, "topics", &files(&sandbox, &read));
    for (input, ranks) in [("in.csv", "1"), ("in.csv", "2"), ("in.txt", "2")] {
        let out = format!("{input}-{ranks}.jsonl");
        let text = predicted(&sandbox, &["run", input, "-o", &out, "--nproc", ranks]);
        assert!(
            text.contains("1 text of `tokens` is longer than the model's 24 tokens, and is cut"),
            "{text}"
        );
        assert!(text.contains("4 texts, 1 of them unreadable"), "{text}");
        let rows = rows(&sandbox, &out);
        assert_eq!(rows.len(), 4);
        assert!(rows[2]["error"].as_str().unwrap().contains("the text is empty"), "{}", rows[2]);
        for (at, line) in [0, 1, 3].into_iter().enumerate() {
            assert_eq!(rows[line]["text"], texts[line]);
            let classes = rows[line]["probabilities"].as_object().unwrap();
            assert_eq!(classes.keys().collect::<Vec<_>>(), ["king", "river", "sword"]);
            for (value, wanted) in classes.values().zip(numbers(&expected[at.to_string()])) {
                assert!((value.as_f64().unwrap() - wanted).abs() < 1e-4, "{}: {wanted}", rows[line]);
            }
        }
    }
    predicted(&sandbox, &["run", "--prompt", "sword", "-o", "one.csv", "--top", "1"]);
    assert!(
        fs::read_to_string(sandbox.path("one.csv"))
            .unwrap()
            .starts_with("text,class,probability,error\nsword,")
    );
    fs::write(sandbox.path("other.csv"), "text\na\n").unwrap();
    fs::create_dir(sandbox.path("folder")).unwrap();
    for (words, part) in [
        (&["run", "other.csv", "-o", "x.csv"][..], "no column `words`"),
        (&["run", "folder", "-o", "x.csv"], "name a table (.csv, .jsonl), or a file of texts"),
        (&["run", "none.csv", "-o", "x.csv"], "none.csv does not exist"),
        (&["run", "in.csv", "-o", "x.csv", "--windows"], "--windows has no effect here"),
    ] {
        refused(&sandbox, words, part);
    }
}

fn refused(sandbox: &Sandbox, words: &[&str], part: &str) {
    let output = predict(sandbox, words);
    let text = output_text(&output);
    assert_eq!(output.status.code(), Some(2), "{words:?}: {text}");
    assert!(text.contains(part), "{words:?}: {part} in {text}");
}

#[test]
fn texts_about_images_are_those_of_pytorch() {
    let Ok(python) = forks::pytorch() else { return };
    let fields = "image = \"image:picture\", tokens = \"text:question,answer\"";
    let sandbox = imported(&python, "seeing", "lm", fields);
    let raw = images(&sandbox, 9);
    let line = |number: usize| {
        let split = if number.is_multiple_of(4) { "test" } else { "train" };
        format!("{split},images/{}.png,what {number}?,{}\n", number % 9, number * 7)
    };
    let table = (0..24).map(line).collect::<String>();
    fs::write(sandbox.path("table.csv"), format!("split,picture,question,answer\n{table}")).unwrap();
    sandbox.train(1, "run", &[]);
    let questions = ["what 3?", "a", "", "a question longer than 24 bytes", "until the context"];
    let asked: String =
        questions.iter().enumerate().map(|(at, question)| format!("images/{at}.png,{question}\n")).collect();
    fs::write(sandbox.path("bad.png"), "no image").unwrap();
    fs::write(sandbox.path("in.csv"), format!("picture,question\n{asked}bad.png,a\nimages/1.png,what 3?\n"))
        .unwrap();
    let with = |image: usize, question: &str| [fs::read(&raw[image]).unwrap(), question.into()].concat();
    // With 17 bytes there is room for 8 tokens, the last of which the network does not read.
    let contents = [with(0, "what 3?"), with(1, "a"), with(4, "until the context"), with(1, "what 3?")];
    let expected = of_pytorch(&python, &sandbox, "seeing", &files(&sandbox, &contents));
    for (ranks, batch) in [("1", "8"), ("2", "2")] {
        let out = format!("out-{ranks}.jsonl");
        let words = ["run", "in.csv", "-o", &out, "--tokens", "12", "--nproc", ranks, "--batch", batch];
        let text = predicted(&sandbox, &words);
        assert!(text.contains("7 images, 3 of them unreadable"), "{text}");
        let rows = rows(&sandbox, &out);
        for (line, part) in
            [(2, "the prompt is empty"), (3, "31 tokens, and the model takes 24"), (5, "image")]
        {
            assert!(rows[line]["error"].as_str().unwrap().contains(part), "{}", rows[line]);
        }
        for (at, line) in [0, 1, 4, 6].into_iter().enumerate() {
            let bytes: Vec<u8> = numbers(&expected[at.to_string()]).iter().map(|byte| *byte as u8).collect();
            assert_eq!(rows[line]["text"], String::from_utf8_lossy(&bytes).into_owned(), "{ranks}: {line}");
        }
        assert_eq!((&rows[6]["image"], &rows[6]["prompt"]), (&"images/1.png".into(), &"what 3?".into()));
    }
    let needs = "name a table (.csv, .jsonl) with the columns \"picture\" and \"question\"";
    refused(&sandbox, &["run", "--prompt", "a", "-o", "x.csv"], needs);
    fs::write(sandbox.path("no.csv"), "picture\nimages/1.png\n").unwrap();
    refused(&sandbox, &["run", "no.csv", "-o", "x.csv"], "no column `question`");
}
