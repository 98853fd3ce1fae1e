//! Pages of made run directories.

#![allow(clippy::unwrap_used)]

use std::fmt::Write as _;

use serde_json::{Value, json};

use super::*;

struct Made(tempfile::TempDir);

impl Made {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// Makes the run directory of an ended training with these metrics.
    fn run(&self, name: &str, task: &str, metrics: &str) -> PathBuf {
        let path = self.path(name);
        fs::create_dir_all(path.join("logs/attempt_0/rank_0")).unwrap();
        fs::write(path.join(".lock"), "").unwrap();
        let recipe = format!(
            "task = \"{task}\"\n[train]\neffective_batch = 8\nepochs = 1\n[optim]\nlr = 0.{}\n",
            name.len()
        );
        fs::write(path.join("recipe.toml"), recipe).unwrap();
        fs::write(path.join("metrics.jsonl"), metrics).unwrap();
        fs::write(
            path.join("result.json"),
            json!({"exit_code": 0, "wall_s": 61.5, "samples_per_s": 250.0}).to_string(),
        )
        .unwrap();
        path
    }
}

fn args(runs: &[PathBuf], output: Option<PathBuf>) -> ReportArgs {
    ReportArgs { runs: runs.to_vec(), output, live: false, port: 0 }
}

fn error(runs: &[PathBuf], output: Option<PathBuf>) -> String {
    join_causes(&run(&args(runs, output)).unwrap_err())
}

/// Returns the object of the page in a file.
fn object(path: &Path) -> Value {
    page::tests::parts(&fs::read_to_string(path).unwrap()).0
}

fn steps(count: u64) -> String {
    let mut text = String::new();
    for step in 1..=count {
        let loss = 2.0 / (step as f64).sqrt() + 0.1 * ((step * 7919) % 1009) as f64 / 1009.0;
        writeln!(
            text,
            "{{\"step\":{step},\"epoch\":{},\"samples\":{},\"loss\":{loss},\"lr\":{},\"grad_norm\":{},\"loss_scale\":1.0,\
             \"samples_per_s\":{},\"step_ms\":{},\"elapsed_s\":{},\"wait_ms\":{{\"data\":{},\"comm\":{}}},\
             \"memory\":{{\"allocated\":1,\"reserved\":1,\"peak\":{},\"owners\":{{\"parameters\":400,\"activations\":{step}}}}}}}",
            1 + step / 1000, step * 64, 1e-3 * (1.0 - step as f64 / count as f64), loss * 3.1, 64e3 / (50.0 + loss), 50.0 + loss,
            step as f64 * 0.06, 1.0 + loss, 2.0 * loss, 1_000_000_000 + step * 13,
        )
        .unwrap();
        if step % 500 == 0 {
            writeln!(text, "{{\"eval\":{{\"step\":{step},\"epoch\":1,\"loss\":{loss},\"accuracy\":0.5,\"samples\":10,\"eval_ms\":9.0}}}}").unwrap();
        }
    }
    text
}

#[test]
fn a_page_of_100_000_steps_has_less_than_5_mb() {
    let made = Made::new();
    let path = made.run("long", "classify", &steps(100_000));
    run(&args(std::slice::from_ref(&path), None)).unwrap();
    let out = path.join("report.html");
    let length = fs::metadata(&out).unwrap().len();
    assert!(length < 5_000_000, "{length}");
    let found = object(&out);
    let loss = &found["runs"][0]["charts"][0]["lines"][0];
    assert_eq!(loss["reduced_from"], 100_000);
    assert!(loss["x"].as_array().unwrap().len() > 2000);
    assert_eq!(found["runs"][0]["problems"], json!([]));
}

#[test]
fn damaged_and_empty_metrics_give_a_page_with_a_sentence() {
    let made = Made::new();
    let problems = |path: PathBuf| {
        let out = made.path("out.html");
        run(&args(&[path], Some(out.clone()))).unwrap();
        object(&out)["runs"][0]["problems"].clone()
    };
    let cut = steps(3) + "nonsense\n{\"step\":4,\"lo";
    let expected = [
        "The last line of metrics.jsonl is cut off, and left out.",
        "metrics.jsonl has 1 line that cannot be read; left out.",
    ];
    assert_eq!(problems(made.run("cut", "classify", &cut)), json!(expected));
    let empty = made.run("empty", "classify", "");
    assert_eq!(problems(empty.clone()), json!(["metrics.jsonl has no step and no evaluation."]));
    fs::remove_file(empty.join("metrics.jsonl")).unwrap();
    assert_eq!(problems(empty.clone()), json!(["The run has no metrics.jsonl: it has made no step."]));
    fs::remove_file(empty.join("recipe.toml")).unwrap();
    let program = "The run has no metrics: dtrain writes metrics.jsonl for recipes, not for programs.";
    assert_eq!(problems(empty), json!([program]));
    // A copy of the metrics alone has curves.
    fs::create_dir(made.path("copy")).unwrap();
    fs::write(made.path("copy/metrics.jsonl"), steps(3)).unwrap();
    assert_eq!(problems(made.path("copy")), json!([]));
}

#[test]
fn hostile_files_stay_text() {
    let made = Made::new();
    let hostile = "</script><img src=x onerror=alert(1)>";
    let text = steps(2)
        + &json!({"eval": {"step": 2, "set": hostile, "loss": 1.0, hostile: 0.5}}).to_string()
        + "\n";
    let path = made.run("</title><script>alert(1)", "classify", &text);
    fs::write(path.join("plan.json"), json!({"device": hostile, "warnings": [hostile]}).to_string()).unwrap();
    let failure =
        json!({"rank": 0, "host": hostile, "message": hostile, "cause": {"kind": hostile, "text": hostile}});
    fs::write(path.join("result.json"), json!({"exit_code": 4, "failure": failure}).to_string()).unwrap();
    let error = json!({"message": {"message": hostile}});
    fs::write(path.join("logs/attempt_0/rank_0/error.json"), error.to_string()).unwrap();
    let class = json!({"step": 2, "figures": [{"figure": "recall", "classes": [hostile], "values": [1.0]}]});
    fs::create_dir(path.join("evaluations")).unwrap();
    fs::write(path.join("evaluations/step-00000002-val.json"), class.to_string()).unwrap();
    run(&args(std::slice::from_ref(&path), None)).unwrap();
    let page = fs::read_to_string(path.join("report.html")).unwrap();
    let (found, rest) = page::tests::parts(&page);
    assert!(!rest.contains("onerror") && !rest.contains("alert(1)"));
    let seen = &found["runs"][0];
    assert_eq!(seen["failure"]["message"], hostile);
    assert_eq!(seen["attempts"][0]["errors"][0]["text"], hostile);
    assert_eq!(seen["classes"][0]["tables"][0]["classes"][0], hostile);
    assert_eq!(seen["results"][0]["set"], hostile);
    assert!(seen["name"].as_str().unwrap().ends_with("</title><script>alert(1)"));
}

#[test]
fn several_runs_are_compared_and_folders_that_are_none_are_left_out() {
    let made = Made::new();
    let runs =
        [made.run("a", "classify", &steps(5)), made.run("bb", "segment", &steps(4)), made.path("absent")];
    assert!(error(&runs[..2], None).ends_with("needs a file; name it with -o FILE.html"));
    let out = made.path("both.html");
    run(&args(&[&runs[..], &runs[..1]].concat(), Some(out.clone()))).unwrap();
    let found = object(&out);
    assert_eq!(found["runs"].as_array().unwrap().len(), 2);
    let problems = found["problems"].as_array().unwrap();
    assert!(problems[0].as_str().unwrap().contains("absent; name a run directory"), "{problems:?}");
    assert!(problems[1].as_str().unwrap().starts_with("The runs have different tasks (classify, segment)"));
    let rows: Vec<_> =
        found["differences"].as_array().unwrap().iter().map(|row| row["key"].as_str().unwrap()).collect();
    assert_eq!(rows, ["task", "optim.lr"]);
    assert_eq!(found["differences"][1]["values"], json!(["0.1", "0.2"]));
}

#[test]
fn folders_that_are_no_runs_and_files_that_are_no_reports_are_errors() {
    let made = Made::new();
    let run_dir = made.run("runs/a", "classify", &steps(1));
    assert!(error(&[made.path("absent")], None).contains("absent; name a run directory: No such file"));
    assert!(
        error(&[run_dir.join("recipe.toml")], None)
            .ends_with("is a file; name the run directory that holds it")
    );
    let below = error(&[made.path("runs")], None);
    assert!(below.contains("but holds some; name one, such as ") && below.ends_with("runs/a"), "{below}");
    fs::create_dir(made.path("empty")).unwrap();
    assert!(error(&[made.path("empty")], None).contains("`dtrain runs DIR` lists those below a folder"));
    let both = error(&[made.path("empty"), made.path("absent")], Some(made.path("x.html")));
    assert!(both.starts_with("no run to report: "), "{both}");
    let recipe = run_dir.join("recipe.toml");
    let kept = fs::read_to_string(&recipe).unwrap();
    let taken = error(std::slice::from_ref(&run_dir), Some(recipe.clone()));
    assert!(taken.ends_with("exists and is not a report; name another file with -o"), "{taken}");
    assert_eq!(fs::read_to_string(&recipe).unwrap(), kept);
    assert!(
        error(std::slice::from_ref(&run_dir), Some(made.path("empty"))).contains("is a folder; name a file")
    );
    // A report is replaced.
    run(&args(std::slice::from_ref(&run_dir), None)).unwrap();
    run(&args(std::slice::from_ref(&run_dir), None)).unwrap();
    let pipe = made.path("pipe");
    let mkfifo = std::process::Command::new("mkfifo").arg(&pipe).status();
    assert!(mkfifo.unwrap().success());
    assert!(error(&[run_dir], Some(pipe)).contains("exists and is not a report"));
}
