//! Programs that a launch starts without `--`, as a shell would: files that the system executes, and names in PATH.

use dtrain_agent::io::process::search_path;
use dtrain_common::recipe::Source;
use rustix::io::Errno;
use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::io::{self, Read};
use std::path::Path;

/// The first bytes of files that the system executes: a script that names its interpreter, and a binary.
const BEGINNINGS: [&[u8]; 2] = [b"#!", b"\x7fELF"];

/// A larger file is no recipe.
const LONGEST_RECIPE: u64 = 1 << 20;

/// How a word names a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Named {
    /// The path of a file, also of this folder.
    File,
    /// An executable in PATH.
    InPath,
}

/// Returns how the word names a program; `None` if it may only be a recipe. A file counts before a program in PATH.
pub(crate) fn named(name: &OsStr, path_variable: Option<&OsStr>) -> Option<Named> {
    let path = Path::new(name);
    if is_toml(path) {
        return None;
    }
    if path.is_file() {
        return executes(path).unwrap_or(false).then_some(Named::File);
    }
    let is_bare = !name.as_encoded_bytes().contains(&b'/') && !is_built_in(path);
    (is_bare && search_path::find(name, path_variable).is_ok()).then_some(Named::InPath)
}

fn executes(path: &Path) -> io::Result<bool> {
    let mut head = Vec::new();
    File::open(path)?.take(4).read_to_end(&mut head)?;
    Ok(BEGINNINGS.iter().any(|beginning| head.starts_with(beginning)))
}

/// Returns whether the word is a built-in recipe, or a file of TOML by its name or content.
pub(crate) fn is_recipe(name: &OsStr) -> bool {
    let path = Path::new(name);
    let reads = || {
        let mut text = String::new();
        File::open(path).ok()?.take(LONGEST_RECIPE).read_to_string(&mut text).ok()?;
        text.trim_start_matches('\u{feff}').parse::<toml::Table>().ok()
    };
    is_toml(path)
        || is_built_in(path)
        || match fs::metadata(path) {
            Ok(meta) if meta.is_file() => reads().is_some(),
            // A pipe of the shell can be read once, by the plan.
            Ok(meta) => !meta.is_dir(),
            Err(_) => false,
        }
}

/// Returns whether a built-in recipe has this name.
pub(crate) fn is_built_in(path: &Path) -> bool {
    Source::embedded().iter().any(|(known, _)| path == Path::new(known))
}

/// Returns whether the name says that the file is a recipe.
pub(crate) fn is_toml(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension == "toml")
}

/// Returns the path by which the system executes the file: a bare name would be searched in PATH.
pub(crate) fn as_path(name: &OsStr) -> OsString {
    match name.as_encoded_bytes().contains(&b'/') {
        true => name.to_owned(),
        false => Path::new(".").join(name).into(),
    }
}

/// Explains why the system did not execute an existing, executable program.
pub(crate) fn why_not_started(error: &io::Error) -> String {
    match error.kind() {
        _ if is_temporary(error) => format!(
            "{error}: the system cannot start another process; end others, or raise a limit: `ulimit -u`, `ulimit -n`, \
             a container's --pids-limit (pids.max of the control group), memory"
        ),
        io::ErrorKind::NotFound => "the interpreter named in its first line does not exist".to_owned(),
        _ if error.raw_os_error() == Some(rustix::io::Errno::NOEXEC.raw_os_error()) => {
            "it is not a program for this machine, and has no interpreter in its first line (`#!/bin/sh`)"
                .to_owned()
        }
        _ => error.to_string(),
    }
}

/// Returns whether the error is temporary.
pub(crate) fn is_temporary(error: &io::Error) -> bool {
    let errno = error.raw_os_error().map(Errno::from_raw_os_error);
    let temporary = [Errno::AGAIN, Errno::NOMEM, Errno::NFILE, Errno::MFILE];
    temporary.map(Some).contains(&errno)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn a_file_is_a_program_by_its_first_bytes_and_a_bare_name_by_path() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name).into_os_string();
        for (name, content, is_program) in [
            ("run.sh", &b"#!/bin/sh\n"[..], true),
            ("train", b"\x7fELF\x02", true),
            ("tool.toml", b"#!/bin/sh\n", false),
            ("recipe", b"task = 'x'\n", false),
            ("plain.sh", b"echo a\n", false),
            ("empty", b"", false),
        ] {
            fs::write(at(name), content).unwrap();
            fs::set_permissions(at(name), fs::Permissions::from_mode(0o755)).unwrap();
            assert_eq!(named(&at(name), None).is_some(), is_program, "{name}");
        }
        let path = Some(folder.path().as_os_str());
        fs::write(at("demo"), "#!/bin/sh\n").unwrap();
        fs::set_permissions(at("demo"), fs::Permissions::from_mode(0o755)).unwrap();
        for (name, expected) in
            [("train", Some(Named::InPath)), ("demo", None), ("absent", None), ("./train", None), ("", None)]
        {
            assert_eq!(named(OsStr::new(name), path), expected, "{name}");
        }
    }

    #[test]
    fn only_toml_and_built_in_names_are_recipes() {
        let folder = tempfile::tempdir().unwrap();
        for (name, content, expected) in [
            ("a", "\u{feff}task = 'x'\n", true),
            ("b", "import sys\n", false),
            ("c.toml", "import sys", true),
        ] {
            let path = folder.path().join(name);
            fs::write(&path, content).unwrap();
            assert_eq!(is_recipe(path.as_os_str()), expected, "{name}");
        }
        assert!(is_recipe(OsStr::new("demo")) && is_recipe(OsStr::new("no/such.toml")));
        assert!(!is_recipe(OsStr::new("no/such")));
    }
}
