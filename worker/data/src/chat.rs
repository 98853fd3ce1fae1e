//! Chat templates of Hugging Face: from a list of messages to one text, with the parts that the assistant writes.

use std::collections::BTreeMap;
use std::ops::Range;

use jiff::civil::{Date, date};
use minijinja::value::{Kwargs, Rest, Value};
use minijinja::{AutoEscape, Environment, Error, ErrorKind, UndefinedBehavior};
use serde_json::ser::{Formatter, PrettyFormatter, Serializer};

use super::error::DataError;
use super::names::listed;
use super::tokenizer::{CONFIG, TEMPLATE, TextTokenizer, text_of};

/// The date of templates that write one. It is fixed, so that a run is the same on every day.
const TODAY: Date = date(2024, 7, 26);
/// Marks around what the assistant writes, in templates with generation blocks: no text has these code points.
const MARKS: [char; 2] = ['\u{fdd0}', '\u{fdd1}'];
const NAME: &str = "chat";

/// The chat template of a tokenizer.
pub(super) struct ChatTemplate {
    environment: Environment<'static>,
    /// The special tokens by their names, such as `bos_token`.
    special: BTreeMap<String, String>,
    /// Whether the template itself marks what the assistant writes.
    has_marks: bool,
}

/// A chat as one text.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Rendered {
    pub(super) text: String,
    /// The bytes that the assistant has written.
    pub(super) answers: Vec<Range<usize>>,
}

impl ChatTemplate {
    /// Returns the template of a tokenizer: `chat_template.jinja`, else that of its `tokenizer_config.json`.
    pub(super) fn of(tokenizer: &TextTokenizer) -> Result<Self, DataError> {
        let config = tokenizer.config();
        let stated = match &config["chat_template"] {
            serde_json::Value::Array(named) => {
                named.iter().find(|one| one["name"] == "default").and_then(|one| one["template"].as_str())
            }
            one => one.as_str(),
        };
        let own = tokenizer.files().get(TEMPLATE).map(String::from_utf8_lossy);
        let wrong = |reason: String| DataError::BadTokenizer(tokenizer.path().to_owned(), reason);
        let source = own.or(stated.map(Into::into)).ok_or_else(|| {
            wrong(format!(
                "it has no chat template beside it; add {TEMPLATE}, or `chat_template` to {CONFIG}"
            ))
        })?;
        let names = config.as_object().into_iter().flatten();
        let special = names.filter(|(name, _)| name.ends_with("_token"));
        let special = special.filter_map(|(name, token)| Some((name.clone(), text_of(token)?))).collect();
        Self::new(&source, special)
            .map_err(|error| wrong(format!("its chat template is wrong: {}; correct it", reason(&error))))
    }

    fn new(source: &str, special: BTreeMap<String, String>) -> Result<Self, Error> {
        let mut environment = Environment::new();
        // As transformers does.
        environment.set_trim_blocks(true);
        environment.set_lstrip_blocks(true);
        environment.set_auto_escape_callback(|_| AutoEscape::None);
        environment.set_undefined_behavior(UndefinedBehavior::SemiStrict);
        environment.set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
        environment.add_function("raise_exception", |message: String| -> Result<Value, Error> {
            Err(Error::new(ErrorKind::InvalidOperation, message))
        });
        environment.add_function("strftime_now", |format: String| -> Result<String, Error> {
            jiff::fmt::strtime::format(&format, TODAY)
                .map_err(|error| Error::new(ErrorKind::InvalidOperation, error.to_string()))
        });
        environment.add_filter("tojson", to_json);
        let (source, has_marks) = marked(source);
        environment.add_template_owned(NAME, source)?;
        Ok(Self { environment, special, has_marks })
    }

    /// Renders messages, a list of objects with `role` and `content`.
    pub(super) fn render(&self, messages: &Value) -> Result<Rendered, String> {
        let whole = self.render_some(messages.clone(), false)?;
        if self.has_marks {
            return Ok(unmarked(&whole));
        }
        let mut answers = Vec::new();
        let all = list(messages)?;
        for (number, message) in all.iter().enumerate() {
            if !is_answer(message) {
                continue;
            }
            let before = self.render_some(Value::from(all[..number].to_vec()), true);
            let before = before.map_err(|reason| match number {
                0 => format!("the chat begins with the assistant, and without a message before it {reason}; begin with the user"),
                _ => reason,
            })?;
            let with = match number + 1 == all.len() {
                true => whole.clone(),
                false => self.render_some(Value::from(all[..=number].to_vec()), false)?,
            };
            if !with.starts_with(&before) || !whole.starts_with(&with) {
                return Err("the chat template writes earlier messages in another way when later ones follow, so the answers cannot be \
                            found; put {% generation %} and {% endgeneration %} around what the assistant writes"
                    .to_owned());
            }
            answers.push(before.len()..with.len());
        }
        Ok(Rendered { text: whole, answers })
    }

    /// Renders messages up to what the assistant writes next. An answer at the end is left out.
    pub(super) fn prompt(&self, messages: &Value) -> Result<String, String> {
        let mut all = list(messages)?;
        if all.last().is_some_and(is_answer) {
            all.pop();
        }
        if all.is_empty() {
            return Err("the chat has no message before the answer; write one of the user".to_owned());
        }
        Ok(unmarked(&self.render_some(Value::from(all), true)?).text)
    }

    fn render_some(&self, messages: Value, add_generation_prompt: bool) -> Result<String, String> {
        let template = self.environment.get_template(NAME).map_err(|error| reason(&error))?;
        let mut context: BTreeMap<&str, Value> =
            self.special.iter().map(|(name, token)| (name.as_str(), Value::from(token.as_str()))).collect();
        context.insert("messages", messages);
        context.insert("add_generation_prompt", add_generation_prompt.into());
        context.insert("tools", ().into());
        context.insert("documents", ().into());
        let render = |context: &BTreeMap<&str, Value>| {
            template.render(Value::from_iter(context.iter().map(|(name, value)| (*name, value.clone()))))
        };
        let error = match render(&context) {
            Ok(text) => return Ok(text),
            Err(error) if error.kind() != ErrorKind::UndefinedError => {
                return Err(format!("the chat template refuses it: {}", reason(&error)));
            }
            Err(error) => error,
        };
        // Of variables that are not set some are only asked for. With a text in their place, the cause is found.
        let mut unknown: Vec<_> = template.undeclared_variables(false).into_iter().collect();
        unknown.retain(|name| {
            !context.contains_key(name.as_str())
                && self.environment.globals().all(|(global, _)| global != name)
        });
        unknown.sort();
        context.extend(unknown.iter().map(|name| (name.as_str(), Value::from(""))));
        match render(&context).map_err(|error| error.kind()) {
            Err(ErrorKind::UndefinedError) => {
                Err(format!("the chat template uses a value that the chat lacks: {}", reason(&error)))
            }
            _ => Err(format!(
                "the chat template uses a variable that dtrain does not set, without asking whether it is defined ({}); set it in the \
                 template, as by {{% set NAME = \"\" %}}, among {}",
                reason(&error),
                listed(&unknown),
            )),
        }
    }
}

fn list(messages: &Value) -> Result<Vec<Value>, String> {
    Ok(messages.try_iter().map_err(|_| "the messages are no list; give a list".to_owned())?.collect())
}

/// Returns whether the assistant has written a message.
fn is_answer(message: &Value) -> bool {
    message.get_attr("role").ok().as_ref().and_then(Value::as_str) == Some("assistant")
}

fn reason(error: &Error) -> String {
    let line = error.line().map_or_else(String::new, |line| format!(" (line {line})"));
    match error.detail() {
        Some(detail) => format!("{detail}{line}"),
        None => format!("{}{line}", error.kind()),
    }
}

/// Replaces generation blocks of transformers by marks around their content. Returns whether there are any.
fn marked(source: &str) -> (String, bool) {
    let (mut text, mut rest, mut found) = (String::new(), source, false);
    while let Some(start) = rest.find("{%") {
        let Some(length) = rest[start..].find("%}") else { break };
        let (before, tag) = (&rest[..start], &rest[start + 2..start + length]);
        text.push_str(before);
        let controls = |c: char| c == '-' || c == '+';
        let (left, right) = (
            &tag[..tag.len().min(usize::from(tag.starts_with(controls)))],
            if tag.ends_with(controls) && tag.len() > 1 { &tag[tag.len() - 1..] } else { "" },
        );
        let mark = match tag.trim_matches(controls).trim() {
            "generation" => Some(MARKS[0]),
            "endgeneration" => Some(MARKS[1]),
            _ => None,
        };
        match mark {
            // A block, since line breaks are cut after a block only.
            Some(mark) => text.push_str(&format!("{{%{left} if true %}}{mark}{{% endif {right}%}}")),
            None => text.push_str(&rest[start..start + length + 2]),
        }
        found |= mark.is_some();
        rest = &rest[start + length + 2..];
    }
    text.push_str(rest);
    (text, found)
}

/// Removes the marks of a text, and returns what stands between them.
fn unmarked(marked: &str) -> Rendered {
    let (mut text, mut answers, mut begun) = (String::new(), Vec::new(), None);
    for character in marked.chars() {
        match character {
            mark if mark == MARKS[0] => begun = Some(text.len()),
            mark if mark == MARKS[1] => answers.extend(begun.take().map(|start| start..text.len())),
            other => text.push(other),
        }
    }
    Rendered { text, answers }
}

/// JSON as Python writes it: spaces after `,` and `:`, nothing escaped for HTML.
fn to_json(value: Value, _: Rest<Value>, options: Kwargs) -> Result<String, Error> {
    let wrong = |error: serde_json::Error| Error::new(ErrorKind::InvalidOperation, error.to_string());
    let mut bytes = Vec::new();
    match options.get::<Option<usize>>("indent")? {
        None => serde::Serialize::serialize(&value, &mut Serializer::with_formatter(&mut bytes, Spaced)),
        Some(indent) => {
            let indent = " ".repeat(indent);
            let formatter = PrettyFormatter::with_indent(indent.as_bytes());
            serde::Serialize::serialize(&value, &mut Serializer::with_formatter(&mut bytes, formatter))
        }
    }
    .map_err(wrong)?;
    String::from_utf8(bytes).map_err(|error| Error::new(ErrorKind::InvalidOperation, error.to_string()))
}

/// The separators of Python's `json.dumps`.
struct Spaced;

impl Formatter for Spaced {
    fn begin_array_value<W: ?Sized + std::io::Write>(
        &mut self,
        out: &mut W,
        first: bool,
    ) -> std::io::Result<()> {
        out.write_all(if first { b"" } else { b", " })
    }

    fn begin_object_key<W: ?Sized + std::io::Write>(
        &mut self,
        out: &mut W,
        first: bool,
    ) -> std::io::Result<()> {
        out.write_all(if first { b"" } else { b", " })
    }

    fn begin_object_value<W: ?Sized + std::io::Write>(&mut self, out: &mut W) -> std::io::Result<()> {
        out.write_all(b": ")
    }
}

#[cfg(test)]
mod tests;
