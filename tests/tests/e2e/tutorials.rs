//! Runs the shell blocks of the pages and compares their output with the pages. docs/contributing.md has the rules.

use std::fs;
use std::iter::zip;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use dtrain_test_kit::need::{self, Need};
use dtrain_test_kit::process::{expect_exit_code, finish};
use dtrain_test_kit::programs::{self, without_outer_run};
use dtrain_test_kit::scene::Scene;
use dtrain_test_kit::thorough;
use regex_lite::{Captures, Regex};

/// All pages with shell blocks, and the number of their blocks that are marked `no-run`.
const PAGES: [(&str, usize); 8] = [
    ("README.md", 2),
    ("docs/nodes.md", 0),
    ("docs/out-of-memory.md", 0),
    ("docs/own-trainer.md", 1),
    ("docs/precedence.md", 0),
    ("docs/predict.md", 0),
    ("docs/pytorch-model.md", 1),
    ("docs/quickstart.md", 1),
];

/// What a normal check changes in the blocks of a page, in commands and in their output: a text, and what replaces it. A block with
/// a text that nothing replaces is not run.
type Changes = &'static [(&'static str, Option<&'static str>)];

/// A tiny transformer in place of the ResNets.
const QUICKSTART: Changes = &[
    (
        "stripes -o stripes.toml",
        Some(
            "stripes -o stripes.toml && sed -i 's/^name = \"resnet18\".*/name = \"vit\"\\nwidth = 16\\ndepth = 1\\nheads = 2\\npatch = 8/' stripes.toml",
        ),
    ),
    (" 0/9 ", Some(" 0/1 ")),
];

/// Fewer steps and tests.
const OUT_OF_MEMORY: Changes = &[
    ("kind = \"generated\"\n\n", Some("kind = \"generated\"\ntest_samples = 4\n\n")),
    ("steps = 8\n", Some("steps = 2\n")),
    (" 8 in all", Some(" 2 in all")),
    ("step 1/8 ", Some("step 1/2 ")),
    ("step 8/8 ", Some("step 2/2 ")),
];

/// One epoch, and one step.
const OWN_TRAINER: Changes = &[
    ("--run-dir runs/surface", Some("--run-dir runs/surface --set train.steps=16")),
    ("after step 400 (epoch 25)", Some("after step 16 (epoch 1)")),
    ("launch --nproc 2 docs/examples", Some("launch --nproc 2 --set train.steps=1 docs/examples")),
];

/// A fenced block of a page.
#[derive(Debug)]
pub(crate) struct Block {
    page: String,
    /// The line of the first fence.
    line: usize,
    /// The words after the first fence: the language and perhaps `no-run: REASON`.
    info: String,
    pub(crate) text: String,
}

impl Block {
    /// Returns the file's name if the first line is a comment of one word with a dot, and perhaps a colon and more words.
    pub(crate) fn file(&self) -> Option<&str> {
        let name = self.text.lines().next()?.strip_prefix("# ")?.split(": ").next()?;
        (name.contains('.') && !name.contains(' ')).then_some(name)
    }
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

pub(crate) fn blocks(page: &str) -> Vec<Block> {
    let text = fs::read_to_string(root().join(page)).unwrap();
    let (mut blocks, mut open) = (Vec::new(), None::<Block>);
    for (number, line) in zip(1.., text.lines()) {
        match (&mut open, line.trim_start().strip_prefix("```")) {
            (None, Some(info)) => {
                open = Some(Block {
                    page: page.to_owned(),
                    line: number,
                    info: info.to_owned(),
                    text: String::new(),
                });
            }
            (None, None) => {}
            (Some(_), Some(_)) => blocks.extend(open.take()),
            (Some(block), None) => block.text += &format!("{line}\n"),
        }
    }
    blocks
}

/// Returns the blocks of a page with the changes of a normal check.
fn shorter(page: &str, changes: Changes) -> Vec<Block> {
    let mut blocks = blocks(page);
    for &(from, to) in changes {
        let with: Vec<&mut Block> = blocks.iter_mut().filter(|block| block.text.contains(from)).collect();
        assert!(!with.is_empty(), "{page}: no block has {from:?}");
        for block in with {
            match to {
                Some(to) => block.text = block.text.replace(from, to),
                None => block.info += " left out",
            }
        }
    }
    blocks
}

/// A folder like the repository's root after a build.
fn scene() -> Scene {
    let scene = Scene::new();
    fs::create_dir(scene.path("target")).unwrap();
    for profile in ["release", "debug"] {
        symlink(programs::build_folder(), scene.path("target").join(profile)).unwrap();
    }
    symlink(root().join("docs").canonicalize().unwrap(), scene.path("docs")).unwrap();
    scene
}

/// Runs a shell block, and compares its output with `shown`.
fn run(scene: &Scene, block: &Block, shown: Option<&Block>, python: Option<&Path>) {
    let mut bash = Command::new("bash");
    bash.args(["-euo", "pipefail", "-c", &format!("exec 2>&1\n{}", block.text)])
        .env("CUDA_VISIBLE_DEVICES", "")
        .env("OMP_NUM_THREADS", "1");
    for name in ["DTRAIN_WORKER", "PYTHON_EXEC", "VIRTUAL_ENV", "CONDA_PREFIX"] {
        bash.env_remove(name);
    }
    if let Some(python) = python {
        let path = std::env::var("PATH").unwrap();
        bash.env("PYTHON_EXEC", python);
        bash.env("PATH", format!("{}:{path}", python.parent().unwrap().display()));
    }
    without_outer_run(&mut bash);
    eprintln!("{}:{}", block.page, block.line);
    let output = expect_exit_code(&finish(scene.mark(&mut bash), Duration::from_secs(600)), 0);
    // A busy machine shows the progress of what usually takes no time.
    let is_progress = |line: &&str| line.starts_with("predicting memory: ") && line.ends_with(" s");
    let output: String =
        output.split_inclusive('\n').skip(1).filter(|line| !is_progress(&line.trim_end())).collect();
    if let Some(shown) = shown
        && let Some(line) = find_difference(&shown.text, &output)
    {
        let words = shown.text.lines().nth(line).unwrap_or_default();
        panic!("{}:{}: the output differs from {words:?}:\n{output}", shown.page, shown.line + 1 + line);
    }
}

/// Replaces figures that differ between machines and runs.
fn mask(text: &str) -> String {
    let times = r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d";
    let pattern =
        format!(r"{times}|\d+(\s+(samples/s|ms)\b)|[+-]?\d[\d,]*\.\d+(e-?\d+)?(\s+[KMG]iB)?|\d+\s+B\b");
    let hidden = |found: &Captures| format!("N{}", found.get(1).map_or("", |unit| unit.as_str()));
    Regex::new(&pattern).unwrap().replace_all(text, hidden).into_owned()
}

/// Returns the first line of the page whose words differ from those of the output. `...` stands for any words.
fn find_difference(page: &str, output: &str) -> Option<usize> {
    // Marks of both ends: no other word equals them.
    const ENDS: &str = "\0";
    let output = mask(output);
    let output: Vec<&str> = [ENDS].into_iter().chain(output.split_whitespace()).chain([ENDS]).collect();
    let lines: Vec<String> = page.lines().map(mask).collect();
    let words =
        zip(0.., &lines).flat_map(|(line, text)| text.split_whitespace().map(move |word| (line, word)));
    let words: Vec<(usize, &str)> =
        [(0, ENDS)].into_iter().chain(words).chain([(lines.len() - 1, ENDS)]).collect();
    let mut from = 0;
    for part in words.split(|(_, word)| *word == "...") {
        let equal =
            |at: &usize| zip(part, &output[*at..]).take_while(|(shown, word)| shown.1 == **word).count();
        let at = (from..output.len()).rev().max_by_key(equal).unwrap_or(from);
        from = at + equal(&at);
        if let Some((line, _)) = part.get(equal(&at)) {
            return Some(*line);
        }
    }
    None
}

/// Runs all shell blocks of a page in order, and writes the files that the page shows.
fn try_page(scene: &Scene, page: &str, changes: Changes, python: Option<&Path>) {
    let blocks = shorter(page, if thorough::is_wanted() { &[] } else { changes });
    for (index, block) in blocks.iter().enumerate() {
        if let Some(name) = block.file() {
            fs::write(scene.path(name), &block.text).unwrap();
        } else if block.info == "sh" {
            let shown = blocks.get(index + 1).filter(|next| next.info == "text");
            run(scene, block, shown, python);
        }
    }
}

#[test]
fn the_readme_works() {
    try_page(&scene(), "README.md", &[], None);
}

#[test]
fn the_quickstart_works() {
    let Ok(_) = need::output(Need::Python, Command::new("python3").arg("--version")) else { return };
    try_page(&scene(), "docs/quickstart.md", QUICKSTART, None);
}

#[test]
fn the_page_about_memory_works() {
    try_page(&scene(), "docs/out-of-memory.md", OUT_OF_MEMORY, None);
}

#[test]
fn the_page_about_own_trainers_works() {
    try_page(&scene(), "docs/own-trainer.md", OWN_TRAINER, None);
}

#[test]
fn the_page_about_precedence_works() {
    try_page(&scene(), "docs/precedence.md", &[], None);
}

#[test]
fn the_page_about_several_nodes_works() {
    try_page(&scene(), "docs/nodes.md", &[], None);
}

/// Returns whether a block of the quickstart draws its images or writes its recipe.
fn is_of_stripes(block: &Block) -> bool {
    block.text.starts_with("cat > stripes") || block.text.contains("new classify stripes")
}

#[test]
fn the_page_about_predictions_works() {
    let Ok(_) = need::output(Need::Python, Command::new("python3").arg("--version")) else { return };
    let scene = scene();
    // The page uses the run of the quickstart.
    let quickstart = shorter("docs/quickstart.md", QUICKSTART);
    let is_of_run =
        |block: &&Block| is_of_stripes(block) || block.text.contains("launch --nproc 2 stripes.toml");
    for block in quickstart.iter().filter(|block| block.info == "sh").filter(is_of_run) {
        run(&scene, block, None, None);
    }
    try_page(&scene, "docs/predict.md", &[], None);
}

#[test]
fn the_page_about_pytorch_works() {
    let Ok(python) = need::pytorch() else { return };
    let scene = scene();
    // The page uses images and recipe of the quickstart.
    let quickstart = blocks("docs/quickstart.md");
    for block in quickstart.iter().filter(|block| is_of_stripes(block)) {
        run(&scene, block, None, None);
    }
    try_page(&scene, "docs/pytorch-model.md", &[], Some(&python));
}

#[test]
fn few_shell_blocks_are_not_run() {
    let mut pages = vec![root().join("README.md")];
    let mut folders = vec![root().join("docs")];
    while let Some(folder) = folders.pop() {
        let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
        let (more, files): (Vec<_>, Vec<_>) = entries.partition(|path| path.is_dir());
        folders.extend(more);
        pages.extend(files.into_iter().filter(|path| path.extension().is_some_and(|end| end == "md")));
    }
    let mut found = Vec::new();
    for page in &pages {
        let page = page.strip_prefix(root()).unwrap().to_str().unwrap();
        let shell: Vec<Block> =
            blocks(page).into_iter().filter(|block| block.info.starts_with("sh")).collect();
        let marked: Vec<&Block> = shell.iter().filter(|block| block.info != "sh").collect();
        let wrong =
            marked.iter().find(|block| block.info.strip_prefix("sh no-run: ").is_none_or(str::is_empty));
        assert!(wrong.is_none(), "{wrong:?}: write `sh` or `sh no-run: REASON`");
        if !shell.is_empty() {
            found.push((page.to_owned(), marked.len()));
        }
    }
    found.sort();
    assert_eq!(
        found,
        PAGES.map(|(page, marked)| (page.to_owned(), marked)),
        "pages and their blocks that are not run"
    );
}

#[test]
fn other_words_and_counts_are_differences() {
    let output = "a warning\nstep 10/64  loss 2.2413  lr 3.1e-5  188 samples/s  202.71 MiB\nended at 2026-11-23 09:13:12";
    let page = "...\nstep 10/64 loss 1.0 lr 1.000e-3 7 samples/s\n  9.5 MiB\nended at 2025-01-01 00:00:00";
    assert_eq!(find_difference(page, output), None);
    assert_eq!(find_difference("a warning ...", output), None);
    assert_eq!(find_difference("...\nstep 11/64 loss 1.0\n...", output), Some(1));
    assert_eq!(find_difference("warning ...", output), Some(0), "nothing stands for the first word");
    assert_eq!(find_difference("a warning", output), Some(0), "nothing stands for the end");
    assert_eq!(find_difference("...\nstep 10/64 loss", output), Some(1));
}
