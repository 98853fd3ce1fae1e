//! Texts by a tokenizer's file, token files, and tables of texts.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use dtrain_common::manifest::Manifest;
use dtrain_test_kit::thorough;
use dtrain_tests::process::{expect_exit_code, finish};
use dtrain_tests::programs::dtrain;
use dtrain_tests::runs::{Sandbox, assert_close};
use dtrain_worker::data::TextTokenizer;
use serde_json::Value;

use crate::import_sources::python_with;

const MODEL: &str = r#"
[model]
name = "gpt"
width = 16
depth = 2
heads = 2
context = 24
dropout = 0.1
[train]
effective_batch = 6
steps = 7
[optim]
name = "sgd"
lr = 0.1
[log]
every_steps = 1
"#;

fn sandbox(data: &str) -> Sandbox {
    Sandbox::new(&format!("task = \"lm\"\n[data]\n{data}{MODEL}"))
}

/// A tokenizer of 420 tokens with the end token `<|endoftext|>`.
fn tokenizer() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("parity/reference/tokens/bytes")
}

fn copy_tokenizer(to: &Path) {
    fs::create_dir_all(to).unwrap();
    for name in ["tokenizer.json", "tokenizer_config.json"] {
        fs::copy(tokenizer().join(name), to.join(name)).unwrap();
    }
}

fn text() -> String {
    (0..300).map(|line| format!("The king {line} follows the river, and it's late.\n")).collect()
}

/// Trains on one rank, and in other cuts. Returns what the first run printed.
fn same_in_every_cut(sandbox: &Sandbox) -> String {
    let text = expect_exit_code(&sandbox.launch(1, "whole", &[]), 0);
    let whole = sandbox.run("whole");
    for &(ranks, micro_batch) in thorough::cases(&[(3, 1), (2, 3)], 1) {
        let set = format!("memory.micro_batch={micro_batch}");
        let cut = sandbox.train(ranks, &format!("ranks-{ranks}"), &[&set]);
        assert_close(&whole.per_step("loss"), &cut.per_step("loss"), 1e-6);
        let [one, other] = [&whole, &cut].map(|run| run.result().final_metrics["loss"]);
        assert_close(&[one], &[other], 1e-6);
    }
    text
}

/// Returns the rows of eight tokens after three prompts, of which one is empty.
fn predicted(sandbox: &Sandbox, run: &str, ranks: usize) -> Vec<Value> {
    let out = format!("{run}-{ranks}.jsonl");
    fs::write(sandbox.path("prompts.txt"), "The king\nthe river\n\n").unwrap();
    let words = ["prompts.txt", "-o", &out, "--tokens", "8", "--nproc", &ranks.to_string()];
    let predict = sandbox.dtrain(&["predict", run]).args(words).output().unwrap();
    expect_exit_code(&predict, 0);
    let rows = fs::read_to_string(sandbox.path(&out)).unwrap();
    rows.lines().map(|row| serde_json::from_str(row).unwrap()).collect()
}

/// Returns what an impossible run prints.
fn refused(sandbox: &Sandbox, sets: &[&str], words: &[&str]) {
    let text = expect_exit_code(&sandbox.launch(1, "refused", sets), 2);
    for word in words {
        assert!(text.contains(word), "no {word:?} in\n{text}");
    }
}

#[test]
fn a_tokenizer_s_text_is_the_same_in_every_cut_and_the_checkpoint_has_the_tokenizer() {
    let sandbox = sandbox("root = \"text.txt\"\ntokenizer = \"own/tokenizer.json\"\n");
    copy_tokenizer(&sandbox.path("own"));
    fs::write(sandbox.path("text.txt"), text()).unwrap();
    let printed = same_in_every_cut(&sandbox);
    assert!(printed.contains("vocabulary of 420") && printed.contains("bits per token"), "{printed}");
    let checkpoint = sandbox.path("whole/checkpoints/latest");
    let kept = fs::read(checkpoint.join("tokenizer.json")).unwrap();
    assert_eq!(kept, fs::read(tokenizer().join("tokenizer.json")).unwrap());
    let manifest = Manifest::read(&checkpoint.canonicalize().unwrap()).unwrap();
    assert_eq!(manifest.extra["vocabulary"]["tokenizer"]["size"], 420);
    manifest.verify(&checkpoint).unwrap();
    // A prediction needs the checkpoint alone.
    fs::rename(sandbox.path("own"), sandbox.path("elsewhere")).unwrap();
    let [one, two] = [1, 2].map(|ranks| predicted(&sandbox, "whole", ranks));
    assert_eq!(one, two);
    assert_eq!((one.len(), &one[2]["error"]), (3, &"the prompt is empty; write at least one token".into()));
    let tokens = TextTokenizer::read(&tokenizer().join("tokenizer.json")).unwrap();
    for row in &one[..2] {
        let text = row["text"].as_str().unwrap();
        assert!((4..40).contains(&tokens.encode(text, false).unwrap().len()), "{row}");
    }
    fs::rename(sandbox.path("elsewhere"), sandbox.path("own")).unwrap();
    // Another tokenizer of the same name may give the numbers another meaning.
    fs::write(sandbox.path("own/tokenizer.json"), [&kept[..], b" "].concat()).unwrap();
    let text = expect_exit_code(&sandbox.launch(1, "whole", &["train.steps=9"]), 2);
    assert!(text.contains("vocabulary") && text.contains("--run-dir"), "{text}");
    refused(&sandbox, &["data.tokenizer=\"none/tokenizer.json\""], &["data.tokenizer", "does not exist"]);
    fs::write(sandbox.path("own/tokenizer.json"), "{}").unwrap();
    refused(&sandbox, &[], &["own/tokenizer.json", "name a tokenizer.json"]);
}

/// A model that has learnt where texts end writes no more.
#[test]
fn a_predicted_text_ends_with_the_end_token() {
    let data = "kind = \"table\"\nroot = \"lines.csv\"\nfields = { tokens = \"text:line\" }\ntokenizer = \"own/tokenizer.json\"\n";
    let sandbox = sandbox(data);
    copy_tokenizer(&sandbox.path("own"));
    let line = |number: usize| {
        let words = if number.is_multiple_of(2) { "The king follows." } else { "the river" };
        format!("{},{words}\n", if number % 8 < 2 { "test" } else { "train" })
    };
    fs::write(sandbox.path("lines.csv"), format!("split,line\n{}", (0..64).map(line).collect::<String>()))
        .unwrap();
    let sets = ["optim.name=\"adamw\"", "optim.lr=0.01", "train.steps=60", "model.dropout=0"];
    sandbox.train(1, "run", &sets);
    let rows = predicted(&sandbox, "run", 1);
    assert_eq!((&rows[0]["text"], &rows[1]["text"]), (&" follows.".into(), &"".into()));
}

#[test]
fn token_files_are_the_same_in_every_cut_and_other_vocabularies_are_named() {
    let sandbox = sandbox("kind = \"tokens\"\nroot = \"tokens\"\ntest = \"val\"\nvocabulary = 50\n");
    fs::create_dir(sandbox.path("tokens")).unwrap();
    let write = |name: &str, tokens: &[u16]| {
        let bytes: Vec<u8> = tokens.iter().flat_map(|token| token.to_le_bytes()).collect();
        fs::write(sandbox.path("tokens").join(name), bytes).unwrap();
    };
    let tokens: Vec<u16> = (0..3000u32).map(|at| (at * at % 50) as u16).collect();
    write("train.bin", &tokens);
    write("val.bin", &tokens[..500]);
    let printed = same_in_every_cut(&sandbox);
    assert!(printed.contains("3500 tokens of text, vocabulary of 50"), "{printed}");
    refused(
        &sandbox,
        &["data.vocabulary=49"],
        &["train.bin", "the token 49 at place 7 (byte 14)", "data.vocabulary"],
    );
    refused(&sandbox, &["data.test=\"test\""], &["neither test nor test.bin", "`train.bin`, `val.bin`"]);
    refused(&sandbox, &["data.dtype=\"uint32\""], &["set data.dtype = \"uint16\""]);
    refused(&sandbox, &["data.documents=\"index\""], &["train.idx, which is missing"]);
    fs::write(sandbox.path("tokens/val.bin"), [1, 2, 3]).unwrap();
    refused(&sandbox, &[], &["val.bin", "3 bytes"]);
}

/// Questions with answers, of which the last few are wrong.
fn questions(wrong: usize) -> String {
    let mut table = "split,prompt,answer\n".to_owned();
    for number in 0..120usize {
        let split = if number.is_multiple_of(5) { "test" } else { "train" };
        let answer = if number >= 120 - wrong {
            String::new()
        } else {
            (number % 9).to_string().repeat(number % 7 + 1)
        };
        table += &format!("{split},\"What is {number}?\",{answer}\n");
    }
    table
}

#[test]
fn answers_are_the_same_in_every_cut_and_empty_ones_are_counted() {
    let data = "kind = \"table\"\nroot = \"questions.csv\"\nfields = { tokens = \"text:prompt,answer\" }\ntokenizer = \"bytes\"\n";
    let sandbox = sandbox(data);
    fs::write(sandbox.path("questions.csv"), questions(0)).unwrap();
    let printed = same_in_every_cut(&sandbox);
    assert!(printed.contains("in samples of 24, vocabulary of 256"), "{printed}");
    refused(
        &sandbox,
        &["model.context=4"],
        &["none of the 96 train samples has a target", "raise model.context"],
    );
    fs::write(sandbox.path("questions.csv"), questions(4)).unwrap();
    refused(&sandbox, &[], &["4 of 96 texts cannot be used", "questions.csv:118", "the answer is empty"]);
    refused(&sandbox, &["data.fields.tokens=\"chat:answer\""], &["needs the template of a tokenizer"]);
}

#[test]
fn chats_take_the_template_of_the_tokenizer() {
    let data = "kind = \"table\"\nroot = \"chats.csv\"\nfields = { tokens = \"chat:messages\" }\ntokenizer = \"own/tokenizer.json\"\n";
    let sandbox = sandbox(data);
    copy_tokenizer(&sandbox.path("own"));
    let chat = |number: usize| {
        format!(
            "[{{\"\"role\"\": \"\"user\"\", \"\"content\"\": \"\"{number}\"\"}}, {{\"\"role\"\": \"\"assistant\"\", \"\"content\"\": \"\"The king\"\"}}]"
        )
    };
    let line = |number: usize| {
        format!("{},\"{}\"\n", if number.is_multiple_of(4) { "test" } else { "train" }, chat(number))
    };
    fs::write(
        sandbox.path("chats.csv"),
        format!("split,messages\n{}", (0..40).map(line).collect::<String>()),
    )
    .unwrap();
    expect_exit_code(&sandbox.launch(2, "run", &["model.context=48"]), 0);
    assert!(sandbox.path("run/checkpoints/latest/tokenizer_config.json").is_file());
    // A line is what the user says, a table has the whole chat.
    fs::write(sandbox.path("in.txt"), "7\n").unwrap();
    fs::write(sandbox.path("in.csv"), format!("messages\n\"{}\"\n\"[]\"\n", chat(7))).unwrap();
    let of = |input: &str, ranks: &str| {
        let out = format!("{input}-{ranks}.csv");
        let words = ["run", input, "-o", &out, "--tokens", "4", "--nproc", ranks];
        let output = sandbox.dtrain(&["predict"]).args(words).output().unwrap();
        let text = expect_exit_code(&output, 0);
        (text, fs::read_to_string(sandbox.path(&out)).unwrap())
    };
    let (text, of_table) = of("in.csv", "2");
    assert!(text.contains("the chat has no message before the answer"), "{text}");
    let written = |table: &str| table.lines().nth(1).unwrap().rsplit(',').nth(1).unwrap().to_owned();
    assert_eq!(written(&of("in.txt", "1").1), written(&of_table));
    fs::write(
        sandbox.path("own/tokenizer_config.json"),
        r#"{"chat_template": "{{ messages[1].content }}{{ nobody }}"}"#,
    )
    .unwrap();
    refused(&sandbox, &["model.context=48"], &["30 of 30 texts", "`nobody`", "{% set NAME"]);
}

/// Models of transformers that read texts, from their configurations: with images, and with padding that must not count.
#[test]
fn models_of_transformers_that_read_texts_are_the_same_in_every_cut() {
    let Ok(python) = python_with("transformers") else { return };
    let fields = |fields: &str| {
        format!(
            "kind = \"table\"\nroot = \"questions.csv\"\nfields = {{ {fields} }}\ntokenizer = \"own/tokenizer.json\"\n"
        )
    };
    let vlm = |patches: usize| {
        let data = fields("image = \"image:image\", tokens = \"text:prompt,answer\"");
        ("lm", format!("{data}repeat = {{ \"<image>\" = {patches} }}\nimage_size = 16\n"))
    };
    let topics = ("classify", fields("label = \"class:topic\", tokens = \"text:answer\""));
    for (model, (task, data)) in [("smolvlm", vlm(4)), ("llava", vlm(16)), ("bert", topics)] {
        let train = "[train]\neffective_batch = 6\nsteps = 4\n[optim]\nname = \"sgd\"\nlr = 0.1\n[log]\nevery_steps = 1\n";
        let sandbox =
            Sandbox::new(&format!("task = \"{task}\"\n[data]\n{data}[model]\nfile = \"model.pt2\"\n{train}"));
        copy_tokenizer(&sandbox.path("own"));
        write_questions(&sandbox);
        let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/import/image_text.py");
        let run =
            |command: &mut Command| finish(command.env("PYTHON_EXEC", &python), Duration::from_secs(300));
        let mut write = Command::new(&python);
        write.arg(fixtures).arg(sandbox.path("")).arg(sandbox.path("own/tokenizer.json"));
        expect_exit_code(&run(&mut write), 0);
        let mut import = Command::new(dtrain());
        let source = format!("hf:{}", sandbox.path(model).display());
        import.args(["import", &source, "-o"]).arg(sandbox.path("model.pt2"));
        let printed = expect_exit_code(&run(&mut import), 0);
        assert!(
            printed.contains(&format!("task = \"{task}\"")) && printed.contains("tokens = \"text:"),
            "{printed}"
        );
        same_in_every_cut(&sandbox);
        let rows = [1, 2].map(|ranks| {
            let out = format!("{model}-{ranks}.jsonl");
            let words = ["predict", "whole", "questions.csv", "-o", &out, "--tokens", "5", "--nproc"];
            let mut predict = sandbox.dtrain(&words);
            expect_exit_code(&finish(predict.arg(ranks.to_string()), Duration::from_secs(300)), 0);
            fs::read_to_string(sandbox.path(&out)).unwrap()
        });
        assert_eq!(rows[0].lines().count(), 24);
        assert_eq!(rows[0].contains("\"prompt\":\"<image>What is it?\",\"text\""), task == "lm");
        assert!(!rows[0].contains("error"), "{}", rows[0]);
        if task == "lm" {
            assert_eq!(rows[0], rows[1]);
        }
    }
}

/// Writes a table of questions about images, and the images.
fn write_questions(sandbox: &Sandbox) {
    let mut table = "split,image,topic,prompt,answer\n".to_owned();
    for number in 0..24u8 {
        let split = if number.is_multiple_of(4) { "test" } else { "train" };
        let image =
            image::RgbImage::from_fn(16, 16, |x, y| image::Rgb([number * 9, x as u8 * 15, y as u8 * 15]));
        image.save(sandbox.path(&format!("{number}.png"))).unwrap();
        let topic = ["king", "river", "sword"][usize::from(number % 3)];
        table += &format!(
            "{split},{number}.png,{topic},<image>What is it?,The {topic}{}.\n",
            " again".repeat(usize::from(number % 5))
        );
    }
    fs::write(sandbox.path("questions.csv"), table).unwrap();
}
