//! `dtrain man`: writes a page of the manual for each command, from its help.

use crate::cli;
use anyhow::Context;
use clap::Command;
use clap_mangen::Man;
use dtrain_common::exit::ExitStatus;
use dtrain_common::files::write_atomic;
use std::fs;
use std::path::Path;
use std::process::ExitCode;

/// Writes the pages into a folder.
pub(crate) fn run(folder: &Path) -> anyhow::Result<ExitCode> {
    fs::create_dir_all(folder).with_context(|| format!("cannot create {}", folder.display()))?;
    let mut command = cli::whole_command();
    command.build();
    write(&command, folder)?;
    Ok(ExitStatus::Success.into())
}

fn write(command: &Command, folder: &Path) -> anyhow::Result<()> {
    let name = name(command);
    let path = folder.join(format!("{name}.1"));
    let page = page(command).with_context(|| format!("cannot write the page {name}"))?;
    write_atomic(&path, &page).with_context(|| format!("cannot write {}", path.display()))?;
    subcommands(command).try_for_each(|command| write(command, folder))
}

fn subcommands(command: &Command) -> impl Iterator<Item = &Command> {
    command.get_subcommands().filter(|command| !command.is_hide_set() && command.get_name() != "help")
}

/// Returns the name of the page, such as `dtrain-ckpt-ls`.
fn name(command: &Command) -> String {
    command.get_display_name().unwrap_or_else(|| command.get_name()).to_owned()
}

/// Returns the text of a page. Usage and the words after the flags keep their lines: their columns are laid out by hand.
fn page(command: &Command) -> std::io::Result<Vec<u8>> {
    // Their lines are added below.
    let plain = command.clone().after_help("").after_long_help("");
    let man = Man::new(plain)
        .title(name(command))
        .manual("dtrain")
        .source(concat!("dtrain ", env!("CARGO_PKG_VERSION")));
    let mut page = Vec::new();
    man.render_title(&mut page)?;
    man.render_name_section(&mut page)?;
    let usage = command.clone().render_usage().to_string();
    let usage = usage.strip_prefix("Usage: ").unwrap_or(&usage);
    let usage: Vec<&str> = usage.lines().map(str::trim).collect();
    page.extend(as_written("SYNOPSIS", &usage.join("\n")).bytes());
    man.render_description_section(&mut page)?;
    if command.get_arguments().any(|arg| !arg.is_hide_set()) {
        man.render_options_section(&mut page)?;
    }
    if subcommands(command).next().is_some() {
        let lines = subcommands(command).map(|command| {
            let about = command.get_about().map(ToString::to_string).unwrap_or_default();
            format!(".TP\n\\fB{}\\fR(1)\n{}\n", escaped(&name(command)), escaped(&about))
        });
        page.extend(format!(".SH COMMANDS\n{}", lines.collect::<String>()).bytes());
    }
    let after = command.get_after_long_help().or(command.get_after_help());
    if let Some(after) = after {
        page.extend(as_written("NOTES", &after.to_string()).bytes());
    }
    Ok(page)
}

/// Returns a section whose lines stay as they are.
fn as_written(title: &str, text: &str) -> String {
    let lines = text.trim_end().lines().map(|line| escaped(line) + "\n");
    format!(".SH {title}\n.nf\n{}.fi\n", lines.collect::<String>())
}

/// Returns a line without meaning to roff.
fn escaped(line: &str) -> String {
    let line = line.replace('\\', "\\e").replace('-', "\\-").replace('`', "\\`");
    match line.starts_with(['.', '\'']) {
        true => format!("\\&{line}"),
        false => line,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_have_no_meaning_to_roff() {
        assert_eq!(escaped(".nf --x"), "\\&.nf \\-\\-x");
        assert_eq!(escaped("a\\b 'c'"), "a\\eb 'c'");
        assert_eq!(as_written("A", "one\n  two\n"), ".SH A\n.nf\none\n  two\n.fi\n");
    }

    #[test]
    fn every_command_has_a_page() {
        let folder = tempfile::tempdir().expect("a folder");
        run(folder.path()).expect("pages");
        let page = |name: &str| fs::read_to_string(folder.path().join(name)).expect(name);
        assert!(page("dtrain-launch.1").contains("dtrain launch [FLAGS] RECIPE [FLAGS]"));
        assert!(page("dtrain-ckpt-ls.1").contains(".SH OPTIONS"));
        assert!(page("dtrain.1").contains("dtrain\\-new"));
        assert!(!folder.path().join("dtrain-requeue.1").exists(), "a hidden command");
    }
}
