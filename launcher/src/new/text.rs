//! The text of a recipe.

use super::draft::Draft;
use super::machine::Machine;
use dtrain_common::look::Setting;
use std::path::Path;

/// The column at which comments begin, if the setting is shorter.
const COMMENT: usize = 33;

/// A recipe, line by line.
#[derive(Debug, Default)]
pub(super) struct Text(String);

impl Text {
    /// Adds comments at the beginning.
    pub(super) fn head(&mut self, lines: &[String]) {
        for line in lines {
            let line = format!("# {line}");
            self.0 += line.trim_end();
            self.0.push('\n');
        }
        self.0.push('\n');
    }

    /// Adds a section with its settings; the first settings have no name. Nothing without settings.
    pub(super) fn section(&mut self, name: &str, settings: &[Setting]) {
        if settings.is_empty() {
            return;
        }
        if !name.is_empty() {
            self.0 += &format!("\n[{name}]\n");
        }
        for setting in settings {
            let stated = format!("{} = {}", setting.key, setting.value);
            match setting.about.as_str() {
                "" => self.0 += &stated,
                about => self.0 += &format!("{stated:<width$} # {about}", width = COMMENT - 1),
            }
            self.0.push('\n');
        }
    }

    pub(super) fn finish(self) -> String {
        self.0
    }
}

/// Returns a word for a shell.
pub(super) fn shell_word(word: &str) -> String {
    shlex::try_quote(word).map_or_else(|_| word.to_owned(), std::borrow::Cow::into_owned)
}

impl Draft {
    /// Returns the recipe. `about` says what the data is.
    pub(super) fn text(&self, about: &str, machine: &Machine, out: &Path) -> String {
        let word = shell_word(&out.to_string_lossy());
        let mut text = Text::default();
        text.head(&[
            format!("{about}."),
            format!("Written by `dtrain new` for {}.", machine.words()),
            String::new(),
            format!("  dtrain launch {word}"),
            format!("  dtrain plan {word}     # the memory that it needs"),
        ]);
        let setting = |key: &str, value: &str, about: &str| Setting {
            key: key.to_owned(),
            value: value.to_owned(),
            about: about.to_owned(),
        };
        text.section("", &[setting("task", &format!("{:?}", self.task.name), self.task.about)]);
        text.section("data", &self.data);
        text.section("model", &self.model);
        text.section("train", &self.train);
        text.section("optim", &self.optim);
        if machine.has_gpus() {
            let about = format!("{} on this machine; \"off\" is float32", machine.precision());
            text.section("precision", &[setting("amp", "\"auto\"", &about)]);
        }
        let every =
            if self.train.iter().any(|setting| setting.key == "steps") { "200 steps" } else { "1 epoch" };
        text.section(
            "checkpoint",
            &[
                setting("every", &format!("{every:?}"), "also an evaluation"),
                setting("best", &format!("{:?}", self.best()), "stays too, as checkpoints/best"),
            ],
        );
        text.finish()
    }

    /// Returns the figure by which checkpoints are compared.
    fn best(&self) -> &'static str {
        match self.task.name {
            "classify" if self.is("target", "classes") => "max label_accuracy",
            "classify" => "max accuracy",
            "segment" => "max mean_iou",
            "regress" => "min rmse",
            _ => "min loss",
        }
    }
}
