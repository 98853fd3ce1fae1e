//! Odd files: images, masks, texts, tables and weights as they are found. Each is read right, or refused with a remedy that makes
//! it right when it is followed, or, where nothing can restore it, with its cause. `make.py` writes the files and what they hold.

mod read;

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use dtrain_recipe::Recipe;
use dtrain_recipe::WeightsMode;
use dtrain_test_kit::forks;
use dtrain_tests::runs::contents;
use serde::Deserialize;

/// A file and what a reader must find.
#[derive(Debug, Clone, Deserialize)]
struct Case {
    kind: String,
    name: String,
    expect: Expect,
    /// The file that a recipe names, below the case's folder.
    file: String,
    /// Words of the error.
    words: Vec<String>,
    shape: Option<Vec<usize>>,
    /// Images: the value of `data.channels`.
    #[serde(default)]
    channels: usize,
    /// The largest difference of a value, for lossy pictures.
    #[serde(default)]
    tolerance: f32,
    /// Words of the report on loaded weights.
    #[serde(default)]
    said: String,
    /// The folder of texts that is read in the place of the file.
    folder: Option<String>,
    /// Weights: whether the values have those of a head.
    #[serde(default)]
    head: usize,
    /// The index that the remedy names without its folder.
    index: Option<String>,
    /// The file in an archive.
    inside: Option<String>,
    /// Whether the command of the error must fail and leave no file.
    #[serde(default)]
    fails: bool,
    /// What `make.py` does in the place of a remedy in words.
    apply: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Expect {
    Right,
    Remedy,
    Cause,
}

/// The settings of a recipe, changed by remedies.
struct Settings {
    path: PathBuf,
    channels: usize,
    mode: WeightsMode,
    renames: Vec<(String, String)>,
}

/// Starts of commands in remedies.
const COMMANDS: [&str; 7] = ["`python3 -c", "`mv ", "`iconv ", "`gzip ", "`xz ", "`bzip2 ", "`mkdir "];

#[test]
fn odd_files_are_read_right_or_have_a_remedy_that_works() {
    let Ok(python) = forks::pytorch() else { return };
    let folder = tempfile::tempdir().unwrap();
    write_python(&python, &folder.path().join("bin"));
    let make = Make { python, folder: folder.path().to_owned() };
    make.run(&[]);
    let cases: Vec<Case> =
        serde_json::from_slice(&fs::read(folder.path().join("cases.json")).unwrap()).unwrap();
    let mut counts: BTreeMap<String, usize> = BTreeMap::new();
    let mut failures = Vec::new();
    for case in &cases {
        match make.judge(case) {
            Ok(found) => *counts.entry(format!("{found:?}")).or_default() += 1,
            Err(why) => failures.push(format!("{} {}: {why}", case.kind, case.name)),
        }
    }
    eprintln!("{} odd files: {counts:?}", cases.len());
    assert!(failures.is_empty(), "{} of {} fail:\n{}", failures.len(), cases.len(), failures.join("\n"));
    // Nothing restores what is lost; for everything else there is a remedy. Decision 0121 has these numbers.
    assert_eq!((counts["Right"], counts["Remedy"], counts["Cause"]), (116, 72, 71));
}

/// Writes the program `python3`, which commands of remedies name, into a new folder: a fork of `python`.
fn write_python(python: &Path, bin: &Path) {
    fs::create_dir(bin).unwrap();
    // The Python that asks for the fork is that of the system.
    let path = std::env::var("PATH").unwrap();
    let program = format!("#!/bin/sh\nPATH='{path}' exec '{}' \"$@\"\n", python.display());
    fs::write(bin.join("python3"), program).unwrap();
    fs::set_permissions(bin.join("python3"), fs::Permissions::from_mode(0o755)).unwrap();
}

/// The program that makes files.
struct Make {
    python: PathBuf,
    folder: PathBuf,
}

impl Make {
    /// Runs `make.py` and returns the last line of its output.
    fn run(&self, args: &[&str]) -> String {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/e2e/odd_files/make.py");
        let mut command = Command::new(&self.python);
        command.arg(script).arg(&self.folder).args(args).env("PYTHONDONTWRITEBYTECODE", "1");
        forks::connect(&mut command);
        let output = command.output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap().lines().last().unwrap_or_default().to_owned()
    }

    /// Reads a file as a run would, and follows the remedies of its errors. Returns what it was.
    fn judge(&self, case: &Case) -> Result<Expect, String> {
        let folder = self.folder.join(format!("{}-{}", case.kind, case.name));
        let mut settings = Settings {
            path: folder.join(case.folder.as_ref().unwrap_or(&case.file)),
            channels: case.channels,
            mode: WeightsMode::FineTune,
            renames: Vec::new(),
        };
        let error = match read::values(case, &folder, &settings) {
            Ok(values) if case.expect == Expect::Right => {
                return self.compare(case, &folder, &values).map(|()| Expect::Right);
            }
            Ok(_) => return Err("it was read without an error".to_owned()),
            Err(error) if case.expect == Expect::Right => return Err(error),
            Err(error) => error,
        };
        if let Some(word) = case.words.iter().find(|word| !error.contains(*word)) {
            return Err(format!("no {word:?} in {error}"));
        }
        if case.expect == Expect::Cause {
            if case.fails {
                let before = contents(&folder);
                if self.follow(&error, case, &folder, &mut settings).is_ok() || contents(&folder) != before {
                    return Err(format!("the command ends well or leaves a file: {error}"));
                }
            }
            return Ok(Expect::Cause);
        }
        self.follow(&error, case, &folder, &mut settings)?;
        let values =
            read::values(case, &folder, &settings).map_err(|next| format!("{error}\n  then: {next}"))?;
        self.compare(case, &folder, &values)?;
        Ok(Expect::Remedy)
    }

    fn compare(&self, case: &Case, folder: &Path, values: &[f32]) -> Result<(), String> {
        let Some(shape) = &case.shape else { return Ok(()) };
        let bytes = fs::read(folder.join("values.bin")).unwrap();
        let wanted: Vec<f32> =
            bytes.chunks_exact(4).map(|it| f32::from_le_bytes(it.try_into().unwrap())).collect();
        assert_eq!(wanted.len(), shape.iter().product::<usize>());
        if wanted.len() != values.len() {
            return Err(format!("{} values, expected {}", values.len(), wanted.len()));
        }
        let is_near = |(at, value): &(usize, &f32)| (**value - wanted[*at]).abs() <= case.tolerance;
        match values.iter().enumerate().find(|it| !is_near(it)) {
            None => Ok(()),
            Some((at, value)) => Err(format!("value {at} is {value}, expected {}", wanted[at])),
        }
    }

    /// Does literally what an error says: runs its command, applies its settings, or saves the picture anew.
    fn follow(&self, error: &str, case: &Case, folder: &Path, settings: &mut Settings) -> Result<(), String> {
        if let Some(start) = COMMANDS.iter().find_map(|start| error.find(start)) {
            let command = &error[start + 1..error.rfind('`').unwrap()];
            let new = self.execute(command, folder)?;
            if case.kind == "weights" || case.kind == "text" {
                let [new] = new.as_slice() else { return Err(format!("new files {new:?} of {command}")) };
                settings.path = case.inside.as_ref().map_or(new.clone(), |inside| new.join(inside));
            }
            return Ok(());
        }
        if let Some((_, path)) = error.split_once("set model.weights to /") {
            settings.path = PathBuf::from(format!("/{path}"));
        } else if let Some(index) = &case.index {
            settings.path = folder.join(index);
        } else if let Some((_, channels)) = error.split_once("set data.channels = ") {
            settings.channels = channels[..1].parse().unwrap();
        } else if error.contains("model.weights_") {
            let part = |after: &str, end: &str| {
                let (_, rest) = error.split_once(after)?;
                Some(format!("{}{end}", rest.split_once(end)?.0))
            };
            let mut sets = vec![format!("model.weights={:?}", settings.path)];
            sets.extend(
                part("model.weights_rename = ", "]]").map(|pairs| format!("model.weights_rename={pairs}")),
            );
            sets.extend(
                error.contains("weights_mode = \"partial\"").then(|| "model.weights_mode=partial".to_owned()),
            );
            let model = Recipe::load("demo", &sets).map_err(|error| error.to_string())?.model;
            (settings.renames, settings.mode) = (model.weights_rename, model.weights_mode);
        } else if case.apply.is_some() {
            let name = format!("{}-{}", case.kind, case.name);
            settings.path = PathBuf::from(self.run(&["apply", &name]));
        } else {
            return Err(format!("no remedy in {error}"));
        }
        Ok(())
    }

    /// Runs a command of a remedy in another folder, and checks that it loses no file. Returns the new entries of the folder.
    fn execute(&self, command: &str, folder: &Path) -> Result<Vec<PathBuf>, String> {
        let before = contents(folder);
        let path = format!("{}:{}", self.folder.join("bin").display(), std::env::var("PATH").unwrap());
        let mut shell = Command::new("sh");
        shell.args(["-c", command]).current_dir("/").env("PATH", path);
        forks::connect(&mut shell);
        let output = shell.output().unwrap();
        if !output.status.success() {
            return Err(format!("{command}: {}", String::from_utf8_lossy(&output.stderr)));
        }
        let after = contents(folder);
        if let Some((lost, _)) = before.iter().find(|(_, content)| !after.values().any(|it| it == *content)) {
            return Err(format!("{} was overwritten by {command}", lost.display()));
        }
        let top =
            |path: &PathBuf| folder.join(path.strip_prefix(folder).unwrap().components().next().unwrap());
        let known: Vec<_> = before.keys().map(top).collect();
        let mut new: Vec<_> = after.keys().map(top).filter(|path| !known.contains(path)).collect();
        new.dedup();
        Ok(new)
    }
}
