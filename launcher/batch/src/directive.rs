//! Options of the batch system itself, in its own words.

use std::str::FromStr;

/// Why a text is not an option of a batch system.
#[derive(Debug, thiserror::Error, Clone, PartialEq, Eq)]
#[error("{text:?} is not one line of an option; write it as in a script, such as `--exclude=node7`")]
pub struct DirectiveError {
    text: String,
}

/// An option of the batch system, as in a line of a script: `--exclude=node7`, `-m ea`. For Kubernetes a field and its
/// value: `serviceAccountName=trainer`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Directive(String);

impl Directive {
    pub(crate) fn as_str(&self) -> &str {
        &self.0
    }

    /// Returns the text before the first blank or `=`, such as `--exclude`.
    pub(crate) fn name(&self) -> &str {
        self.0.split([' ', '\t', '=']).next().unwrap_or_default()
    }

    /// Returns field and value of Kubernetes.
    pub(crate) fn field(&self) -> Option<(&str, &str)> {
        let (field, value) = self.0.split_once('=')?;
        let known = |c: char| c.is_ascii_alphanumeric() || c == '.';
        let is_field = field.chars().all(known) && field.split('.').all(|part| !part.is_empty());
        is_field.then_some((field, value))
    }
}

impl FromStr for Directive {
    type Err = DirectiveError;

    fn from_str(text: &str) -> Result<Self, DirectiveError> {
        match text.trim() {
            line if !line.is_empty() && !line.contains(char::is_control) => Ok(Self(line.to_owned())),
            _ => Err(DirectiveError { text: text.to_owned() }),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn an_option_is_one_line() {
        for text in ["", "  ", "--a\n#SBATCH --wrap=x", "--a\u{7}"] {
            assert!(text.parse::<Directive>().is_err(), "{text:?}");
        }
        let name = |text: &str| text.parse::<Directive>().unwrap().name().to_owned();
        assert_eq!(
            [name("--exclude=n7"), name(" -m ea"), name("--exclusive")],
            ["--exclude", "-m", "--exclusive"]
        );
    }

    #[test]
    fn a_field_has_a_path_and_a_value() {
        let field = |text: &str| {
            let directive = text.parse::<Directive>().unwrap();
            directive.field().map(|(field, value)| (field.to_owned(), value.to_owned()))
        };
        assert_eq!(field("job.suspend=true"), Some(("job.suspend".into(), "true".into())));
        assert_eq!(field("a=[{\"b\":\"c=d\"}]"), Some(("a".into(), "[{\"b\":\"c=d\"}]".into())));
        for wrong in ["a", "a..b=1", ".a=1", "a-b=1", "=1"] {
            assert_eq!(field(wrong), None, "{wrong}");
        }
    }
}
