//! Output of commands, and the form of errors.

use dtrain_agent::io::output::Stream;
use std::io::{self, ErrorKind, Write};

/// Writes to standard output. Returns whether the reader still exists.
pub(crate) fn print(text: &str) -> io::Result<bool> {
    let mut out = io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(false),
        other => other.map(|()| true),
    }
}

/// As [`print()`], for text with colours: without them unless standard output shows colours.
pub(crate) fn print_coloured(text: &str) -> io::Result<bool> {
    match Stream::Stdout.has_colours() {
        true => print(text),
        false => print(&anstream::adapter::strip_str(text).to_string()),
    }
}

/// Joins the error and its causes, without repeats: errors of `dtrain_common` name their cause themselves.
pub(crate) fn join_causes(error: &anyhow::Error) -> String {
    error.chain().fold(String::new(), |mut said, cause| {
        let cause = cause.to_string();
        if said.is_empty() {
            said = cause;
        } else if !said.contains(&cause) {
            said = format!("{said}: {cause}");
        }
        said
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use anyhow::Context;

    #[test]
    fn a_cause_is_said_once() {
        let said = |error: anyhow::Result<()>| error.err().map(|error| join_causes(&error));
        let plain = || Err(anyhow::anyhow!("no such file"));
        let context = said(plain().context("cannot read a.toml"));
        assert_eq!(context.as_deref(), Some("cannot read a.toml: no such file"));
        let named = said(plain().context("cannot read a.toml: no such file").context("cannot resume"));
        assert_eq!(named.as_deref(), Some("cannot resume: cannot read a.toml: no such file"));
    }
}
