//! The plan of a program: a script, a module, or any executable.

use super::kinds::{Command, LaunchPlan, PlanKind, Program, Seat, StandardInput, headline};
use super::limit;
use super::placement::{measure, placement};
use super::routing::{Home, Routing};
use crate::cli::{Form, LaunchArgs, Target};
use crate::executable;
use crate::python;
use anyhow::{Context, anyhow, bail};
use dtrain_agent::clock::StartTime;
use dtrain_agent::cluster::ranks::Placement;
use dtrain_agent::io::process::search_path;
use dtrain_common::env::TORCHELASTIC_USE_AGENT_STORE;
use dtrain_common::run_dir::RunDir;
use dtrain_common::text::counted;
use std::ffi::OsString;
use std::fs;
use std::io::{ErrorKind, IsTerminal};
use std::path::Path;

pub(super) fn plan(
    target: &Target<'_>,
    args: &LaunchArgs,
    seat: Seat,
    start_time: StartTime,
) -> anyhow::Result<LaunchPlan> {
    let (command, is_python) = command(target, args)?;
    for (given, flag) in [
        (!args.set.is_empty(), "--set"),
        (args.resume.is_some(), "--resume"),
        (args.overfit.is_some(), "--overfit"),
    ] {
        if given {
            bail!(
                "{flag} is for recipes and has no effect on a program; put the program's own flags after its name"
            );
        }
    }
    let size = measure(args, false)?;
    let nproc = size.nproc;
    let most_workers = if seat == Seat::Alone { nproc } else { usize::MAX };
    if let Some(rank) = args.stdin_rank.filter(|rank| *rank >= nproc) {
        let last = nproc - 1;
        bail!("--stdin-rank {rank}: no such rank; give 0 to {last}");
    }
    let home = if args.run_dir.is_some() { Home::RunDir } else { Home::Nowhere };
    let mut routing = Routing::plan(&args.output, nproc, &args.contract.role, home)?;
    if args.is_question {
        routing = routing.of_trainer();
    }
    let (own_devices, core_binding) = placement(args, &size)?;
    let limited = limit::limit(&args.limits, false, start_time, |name| std::env::var(name).ok())?;
    let named = args.run_dir.as_deref();
    let run_dir = match seat {
        // The leader's workers may write there already.
        Seat::Member => named.map(RunDir::new),
        Seat::Alone | Seat::Leader => named.map(new_or_empty).transpose()?,
    };
    routing.make_folder()?;
    let (workers, name) = (counted(nproc, "worker"), target.name.display());
    let of = if args.is_question { String::new() } else { format!(" of {name}") };
    let mut summary = format!("{workers}{of}{}", size.place);
    if let Some(run_dir) = &run_dir {
        summary.push_str(&format!("; run directory {}", run_dir.root().display()));
    }
    let (notes, summary) = match size.note {
        // The note has the number of workers.
        Some(note) if args.is_question => (Vec::new(), note),
        note => (note.into_iter().collect(), summary),
    };
    Ok(LaunchPlan {
        nproc,
        placement: Placement::alone(nproc),
        devices: size.devices,
        own_devices,
        command,
        run_dir,
        limit: limited.as_ref().map(|limited| limited.limit),
        routing,
        headline: headline(notes, summary, &core_binding, limited.as_ref()),
        core_binding,
        kind: PlanKind::Program(Program {
            stdin: stdin(args.stdin_rank, nproc, std::io::stdin().is_terminal()),
            is_question: args.is_question,
            serves_store: is_python && is_for_python(most_workers, |name| std::env::var_os(name)),
        }),
    })
}

/// Selects the readers of standard input: several would compete for lines typed at a terminal.
fn stdin(asked: Option<usize>, nproc: usize, is_terminal: bool) -> StandardInput {
    match asked {
        Some(rank) => StandardInput::Rank(rank),
        None if is_terminal && nproc > 1 => StandardInput::None,
        None => StandardInput::All,
    }
}

/// Returns the command to execute, and whether it is Python.
fn command(target: &Target<'_>, launch: &LaunchArgs) -> anyhow::Result<(Command, bool)> {
    let Target { form, name, args } = *target;
    let as_script = || launch.line(std::iter::once(name).chain(args.iter().map(OsString::as_os_str)));
    if matches!(form, Form::Program | Form::File) {
        let arg0 = if form == Form::File { executable::as_path(name) } else { name.to_owned() };
        let found = search_path::find(&arg0, std::env::var_os("PATH").as_deref());
        let path = Path::new(name);
        if found.is_err() && search_path::is_python(path) && path.is_file() {
            let line = as_script();
            bail!(
                "`{}` is a Python script and not an executable program; start it with `{line}`",
                name.display()
            );
        }
        let program = found?;
        let is_python = python::is_python(&program);
        return Ok((Command { program, arg0, args: args.to_vec() }, is_python));
    }
    let script = (form == Form::Script).then_some(Path::new(name));
    let program = python::find(script, |variable| std::env::var_os(variable))?;
    let mut line = vec![OsString::from("-u")];
    if form == Form::Module {
        python::check_module(name).map_err(|error| match Path::new(name).is_file() {
            true => anyhow!("{error}: `{}`", as_script()),
            false => error,
        })?;
        line.push("-m".into());
    } else {
        python::check_script(name)?;
    }
    line.push(name.to_owned());
    line.extend_from_slice(args);
    // Python finds its environment by its own path (argv[0]).
    Ok((Command { arg0: program.clone().into(), program, args: line }, true))
}

/// Returns whether the launcher serves a store for Python programs. A single worker serves its own.
fn is_for_python(workers: usize, get: impl Fn(&str) -> Option<OsString>) -> bool {
    let is_refused =
        |value: OsString| !value.is_empty() && !value.eq_ignore_ascii_case("true") && value != "1";
    workers > 1 && !get(TORCHELASTIC_USE_AGENT_STORE).is_some_and(is_refused)
}

/// Returns the run directory, which must be new or empty.
fn new_or_empty(path: &Path) -> anyhow::Result<RunDir> {
    let shown = path.display();
    match fs::read_dir(path) {
        Ok(mut entries) => match entries.next() {
            None => Ok(RunDir::new(path)),
            Some(_) => bail!("{shown} is not empty; give a new or empty folder as --run-dir for a program"),
        },
        Err(error) if error.kind() == ErrorKind::NotFound && !path.is_symlink() => Ok(RunDir::new(path)),
        Err(error) if error.kind() == ErrorKind::NotADirectory => {
            bail!("{shown} is not a folder; choose another --run-dir")
        }
        Err(error) => {
            Err(error).with_context(|| format!("cannot list the folder {shown}; choose another --run-dir"))
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn python_programs_of_several_workers_have_the_store_unless_the_user_says_no() {
        let served = |workers, value: Option<&str>| is_for_python(workers, |_| value.map(Into::into));
        for value in [None, Some(""), Some("True"), Some("1")] {
            assert!(served(2, value) && !served(1, value), "{value:?}");
        }
        for value in ["False", "0", "no"] {
            assert!(!served(2, Some(value)), "{value}");
        }
    }

    #[test]
    fn a_programs_run_directory_is_new_or_empty() {
        let folder = tempfile::tempdir().unwrap();
        assert!(new_or_empty(folder.path()).is_ok());
        assert!(new_or_empty(&folder.path().join("a/b")).is_ok());
        let file = folder.path().join("file");
        fs::write(&file, "").unwrap();
        assert!(new_or_empty(folder.path()).unwrap_err().to_string().contains("is not empty"));
        assert!(new_or_empty(&file).unwrap_err().to_string().contains("is not a folder"));
        assert!(new_or_empty(&file.join("below")).is_err());
        let dangling = folder.path().join("dangling");
        std::os::unix::fs::symlink("nowhere", &dangling).unwrap();
        assert!(new_or_empty(&dangling).is_err());
    }
}
