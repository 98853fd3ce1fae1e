//! The tasks for which `dtrain new` writes recipes.

/// A task.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Task {
    pub(crate) name: &'static str,
    /// The targets of its samples, the most usual first.
    pub(crate) targets: &'static [&'static str],
    /// Its meaning, for a comment.
    pub(crate) about: &'static str,
    /// Whether no built-in network fits it.
    pub(crate) needs_file: bool,
}

pub(crate) static TASKS: [Task; 5] = [
    Task {
        name: "classify",
        targets: &["class", "classes"],
        about: "one class for each image",
        needs_file: false,
    },
    Task { name: "segment", targets: &["mask"], about: "one class for each pixel", needs_file: false },
    Task {
        name: "regress",
        targets: &["vector", "map"],
        about: "numbers for each image or each pixel",
        needs_file: true,
    },
    Task { name: "lm", targets: &["tokens"], about: "the next token of a text", needs_file: false },
    Task { name: "program", targets: &[], about: "the loss that the model returns", needs_file: true },
];
