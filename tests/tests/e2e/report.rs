//! `dtrain report` of real runs.

use std::fs;

use dtrain_test_kit::thorough;
use dtrain_tests::process::expect_exit_code;
use dtrain_tests::runs::{Sandbox, TINY};
use serde_json::{Value, json};

/// Returns the data of a page.
fn data(sandbox: &Sandbox, page: &str) -> Value {
    let page = fs::read_to_string(sandbox.path(page)).unwrap();
    let (_, rest) = page.split_once("<script type=\"application/json\" id=\"data\">").unwrap();
    serde_json::from_str(rest.split_once("</script>").unwrap().0).unwrap()
}

/// Returns a list of the object in a list whose field has this value.
fn find<'a>(list: &'a Value, field: &str, value: &str) -> &'a Value {
    let found = list.as_array().unwrap().iter().find(|one| one[field] == value);
    found.unwrap_or_else(|| panic!("no {field} {value:?} in {list}"))
}

fn is_close(a: &Value, b: &Value) -> bool {
    let (a, b) = (a.as_f64().unwrap(), b.as_f64().unwrap());
    (a - b).abs() <= 1e-5 * b.abs()
}

#[test]
fn a_page_has_the_values_of_a_run_that_was_resumed() {
    let figures = "[model]\nfigures = [{ name = \"recall\" }, { name = \"confusion\" }]\n";
    let sandbox = Sandbox::new(&TINY.replace("[model]\n", figures));
    sandbox.train(thorough::ranks(), "run", &["checkpoint.every=3 steps", "train.steps=4"]);
    let run = sandbox.train(thorough::ranks(), "run", &["checkpoint.every=3 steps"]);
    let other = sandbox.train(1, "other", &["optim.lr=0.002"]);
    expect_exit_code(&sandbox.dtrain(&["report", "run"]).output().unwrap(), 0);
    let page = data(&sandbox, "run/report.html");
    let seen = &page["runs"][0];
    assert_eq!((&seen["state"], &seen["problems"]), (&json!("succeeded"), &json!([])));

    let charts = &seen["charts"];
    for (key, field) in
        [("loss", "loss"), ("lr", "lr"), ("grad_norm", "grad_norm"), ("speed", "samples_per_s")]
    {
        let line = &find(charts, "key", key)["lines"][0];
        let values: Vec<_> = run.metrics().into_iter().filter(|line| line.get("loss").is_some()).collect();
        assert_eq!(line["x"], json!([1, 2, 3, 4, 5, 6]));
        for (shown, value) in line["y"].as_array().unwrap().iter().zip(&values) {
            assert!(is_close(shown, &value[field]), "{key}: {shown} of {value}");
        }
    }
    let evaluations = run.evaluations();
    let accuracy = &find(charts, "key", "figure accuracy")["lines"][0];
    assert_eq!(accuracy["y"].as_array().unwrap().len(), evaluations.len());
    let last = evaluations.last().unwrap();
    assert!(is_close(accuracy["y"].as_array().unwrap().last().unwrap(), &last["accuracy"]));
    assert!(is_close(&seen["results"][0]["figures"]["loss"], &last["loss"]));
    assert_eq!(seen["marks"][0]["kind"], "resume");
    assert!(
        seen["marks"][0]["text"].as_str().unwrap().starts_with("resumed as attempt 1 on "),
        "{}",
        seen["marks"]
    );

    let confusion = &seen["classes"][0]["confusions"][0]["counts"];
    let samples: f64 = confusion
        .as_array()
        .unwrap()
        .iter()
        .flat_map(|row| row.as_array().unwrap())
        .map(|n| n.as_f64().unwrap())
        .sum();
    assert_eq!(samples, 37.0);
    let parameters = find(&seen["memory"][0]["rows"], "owner", "parameters");
    assert!(
        parameters["planned"].as_f64().unwrap() > 0.0 && parameters["planned"] == parameters["measured"],
        "{parameters}"
    );
    let time = &seen["time"];
    assert_eq!((&time["steps"], &time["first"]), (&json!(6), &json!(2)));
    assert!(time["conclusion"].as_str().unwrap().starts_with("The last steps: bound by "));

    expect_exit_code(&sandbox.dtrain(&["report", "run", "other", "-o", "both.html"]).output().unwrap(), 0);
    let both = data(&sandbox, "both.html");
    assert_eq!(both["runs"].as_array().unwrap().len(), 2);
    let rate = find(&both["differences"], "key", "optim.lr");
    assert_eq!(rate["values"], json!(["0.001", "0.002"]));
    assert_eq!(other.result().exit_code, Some(0));
}
