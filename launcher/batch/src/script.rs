//! Building blocks of shell scripts.

use crate::directive::Directive;
use std::fmt::Display;

/// A bash script that grows line by line.
pub(crate) struct Script {
    text: String,
    /// Beginning of a line with an option, such as `#SBATCH `.
    directive: &'static str,
}

impl Script {
    pub(crate) fn new(directive: &'static str) -> Self {
        Self { text: "#!/bin/bash\n".to_owned(), directive }
    }

    pub(crate) fn line(&mut self, line: impl Display) {
        self.text.push_str(&format!("{line}\n"));
    }

    pub(crate) fn lines(&mut self, lines: impl IntoIterator<Item = impl Display>) {
        lines.into_iter().for_each(|line| self.line(line));
    }

    /// Adds an option of the batch system.
    pub(crate) fn option(&mut self, option: impl Display) {
        let directive = self.directive;
        self.line(format_args!("{directive}{option}"));
    }

    /// Adds an option if there is a value.
    pub(crate) fn option_if(&mut self, name: &str, value: Option<impl Display>) {
        if let Some(value) = value {
            self.option(format_args!("{name}{value}"));
        }
    }

    /// Adds the user's options of the batch system.
    pub(crate) fn options(&mut self, directives: &[Directive]) {
        if !directives.is_empty() {
            self.line("# The options of --directive.");
        }
        directives.iter().for_each(|directive| self.option(directive.as_str()));
    }

    /// Begins a part of the script, with a comment.
    pub(crate) fn part(&mut self, comment: &str) {
        self.text.push('\n');
        for line in comment.lines() {
            self.line(format_args!("# {line}"));
        }
    }

    /// Adds a command of several lines.
    pub(crate) fn command(&mut self, indent: &str, lines: &[String]) {
        self.line(format_args!("{indent}{}", lines.join(&format!(" \\\n{indent}    "))));
    }

    pub(crate) fn finish(self) -> String {
        self.text
    }
}
