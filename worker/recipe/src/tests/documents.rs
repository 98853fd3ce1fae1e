//! Documents of a text, packed or by length.

use super::samples::{LM, LM_GENERATED, PROGRAM};
use super::*;
use crate::{Augment, Documents, Sampler};

/// The lines of a text, by length.
pub(super) const DOCUMENTS: &str = r#"
task = "lm"
[data]
root = "/data/lines.txt"
documents = "lines"
sampler = "buckets"
[train]
steps = 50
"#;

#[test]
fn documents_have_no_shift() {
    let recipe = parse(DOCUMENTS, &[]).unwrap();
    assert_eq!((recipe.data.documents, recipe.data.augment), (Documents::Lines, Augment::None));
    assert_eq!(
        (recipe.data.sampler, recipe.data.pack, recipe.has_documents()),
        (Sampler::Buckets, false, true)
    );
    expect_set_error(DOCUMENTS, "data.augment=shift", "documents are no windows; remove the setting");
    let windows = parse(LM, &[]).unwrap();
    assert_eq!((windows.data.documents, windows.data.augment), (Documents::None, Augment::Shift));
    assert!(!windows.has_documents());
    assert!(parse(PROGRAM, &["data.documents=files", "data.pack=true"]).unwrap().has_documents());
}

#[test]
fn documents_are_the_experiment_s() {
    let still = parse(LM, &["data.augment=none"]).unwrap();
    let lines = parse(LM, &["data.documents=lines"]).unwrap();
    let packed = parse(LM, &["data.documents=lines", "data.pack=true"]).unwrap();
    let difference =
        |key: &str, here: &str, there: &str| [(key.to_owned(), here.to_owned(), there.to_owned())];
    assert_eq!(still.differences(&lines), difference("data.documents", "\"none\"", "\"lines\""));
    assert_eq!(lines.differences(&packed), difference("data.pack", "false", "true"));
    round_trip(&packed);
}

#[test]
fn settings_of_documents_need_them() {
    let without = "it applies to documents, and data.documents is \"none\"";
    expect_set_error(LM, "data.pack=true", without);
    expect_set_error(LM, "data.sampler=buckets", "to documents, and data.documents is \"none\"");
    expect_set_error(LM_GENERATED, "data.documents=lines", "a generated text has no documents");
    expect_set_error(LM_GENERATED, "data.pack=true", "a generated text has no documents");
    expect_set_error(SMALL, "data.documents=lines", "it applies to texts, and the task is \"classify\"");
    expect_set_error(SMALL, "data.sampler=buckets", "use \"shuffled\" or \"balanced\"");
    expect_set_error(
        DOCUMENTS,
        "data.sampler=balanced",
        "no classes to balance; use \"shuffled\" or \"buckets\"",
    );
    expect_error(
        DOCUMENTS,
        &["data.pack=true"],
        "data.sampler",
        "set data.pack = false, or use \"shuffled\"",
    );
}

#[test]
fn documents_of_many_lengths_are_no_graph() {
    expect_set_error(DOCUMENTS, "model.compile=graph", "this setting has no effect: batches of documents");
    parse(DOCUMENTS, &["data.sampler=shuffled", "data.pack=true", "model.compile=graph"]).unwrap();
    parse(PROGRAM, &["data.documents=lines", "model.compile=graph"]).unwrap();
}

#[test]
fn buckets_fill_steps_of_one_size() {
    let staged = |batch: usize| {
        let text = DOCUMENTS.replace("[train]\nsteps = 50\n", "[train]\neffective_batch = 8\n");
        format!("{text}[[stage]]\nname = \"a\"\nsteps = 5\neffective_batch = {batch}\n")
    };
    parse(&staged(8), &[]).unwrap();
    let part = "fills steps of train.effective_batch = 8; remove the setting";
    expect_error(&staged(4), &[], "stage[0].effective_batch", part);
    parse(&staged(4), &["data.sampler=shuffled"]).unwrap();
}
