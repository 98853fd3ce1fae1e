//! The Python that runs scripts and modules, and the checks of these before the start.

use crate::executable::is_built_in;
use crate::trainer;
use anyhow::{Context, bail};
use dtrain_agent::io::process::search_path;
use dtrain_common::env::{CONDA_PREFIX, PYTHON_EXEC, VIRTUAL_ENV};
use rustix::fs::Access;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

/// The names of the interpreter, best first.
const NAMES: [&str; 2] = ["python3", "python"];

/// The file that Python runs in a folder.
const MAIN: &str = "__main__.py";
/// The longest beginning that can name an interpreter: pip's wrappers have its path in their second line.
const LONGEST_BEGINNING: u64 = 4200;
/// The second line of a wrapper by pip or uv begins so. It is a command for the shell and a text for Python; the tools write it
/// where a first line cannot hold the interpreter's path.
const WRAPPER: &str = "'''exec' ";

/// Finds the interpreter: by PYTHON_EXEC, else that of the script if it is an installed command, else beside a dtrain
/// that pip installed, else in the active environment, else in PATH. `get` reads the launcher's environment. If a variable is wrong, the search ends: another Python
/// has other packages.
pub(crate) fn find(script: Option<&Path>, get: impl Fn(&str) -> Option<OsString>) -> anyhow::Result<PathBuf> {
    let set = |variable| get(variable).filter(|value| !value.is_empty());
    let path = get("PATH");
    if let Some(named) = set(PYTHON_EXEC) {
        let found = search_path::find(&named, path.as_deref());
        return found.with_context(|| format!("{PYTHON_EXEC} is set wrongly"));
    }
    if let Some(own) = script.and_then(own_interpreter) {
        return Ok(own);
    }
    if let Some(bin) = trainer::bin_of_pip() {
        let mut files = NAMES.iter().map(|name| bin.join(name));
        if let Some(found) = files.find(|file| search_path::find(file.as_os_str(), None).is_ok()) {
            return Ok(found);
        }
    }
    for variable in [VIRTUAL_ENV, CONDA_PREFIX] {
        if let Some(folder) = set(variable).map(PathBuf::from) {
            let mut files = NAMES.iter().map(|name| folder.join("bin").join(name));
            let found = files.find(|file| search_path::find(file.as_os_str(), None).is_ok());
            return found.with_context(|| {
                format!(
                    "{variable} is `{}`, which has no executable bin/python3; activate an environment that has one, or unset \
                     {variable}",
                    folder.display()
                )
            });
        }
    }
    let mut found = NAMES.iter().filter_map(|name| search_path::find(OsStr::new(name), path.as_deref()).ok());
    found.next().with_context(|| {
        format!("neither python3 nor python is in PATH; install Python, or name it in {PYTHON_EXEC}")
    })
}

/// Returns whether the program is Python, by its name, or a script that names Python.
pub(crate) fn is_python(program: &Path) -> bool {
    let name = program.file_name().unwrap_or_default().as_encoded_bytes();
    name.starts_with(b"python") || names_python(program).unwrap_or(false)
}

/// Returns whether Python runs it: a script by name or first line, a folder with `__main__.py`, a zip.
pub(crate) fn runs(path: &Path) -> bool {
    let extension = path.extension().and_then(OsStr::to_str).unwrap_or_default();
    if extension == "py" {
        return true;
    }
    let Ok(meta) = std::fs::metadata(path) else {
        return false;
    };
    if meta.is_dir() {
        // A folder does not hide the recipe of its name.
        return path.join(MAIN).is_file() && !is_built_in(path);
    }
    meta.is_file() && (["pyz", "zip"].contains(&extension) || names_python(path).unwrap_or(false))
}

/// Returns whether the file names Python as its interpreter.
fn names_python(path: &Path) -> io::Result<bool> {
    Ok(interpreter(path)?.is_some())
}

/// Returns the Python interpreter that the file names, as it is written there.
fn interpreter(path: &Path) -> io::Result<Option<PathBuf>> {
    let mut head = Vec::new();
    File::open(path)?.take(LONGEST_BEGINNING).read_to_end(&mut head)?;
    let head = String::from_utf8_lossy(&head);
    let mut lines = head.lines();
    let first = lines.next().and_then(|line| line.strip_prefix("#!")).unwrap_or_default();
    let wrapper = lines.next().and_then(|line| line.strip_prefix(WRAPPER));
    // Accepts `/usr/bin/env -S python3 -u` and `/opt/bin/python3.12`.
    let words = match wrapper.filter(|_| first.trim() == "/bin/sh") {
        Some(command) => shlex::split(command).unwrap_or_default(),
        None => first.split_whitespace().map(str::to_owned).collect(),
    };
    let is_python = |word: &String| word.rsplit('/').next().is_some_and(|name| name.starts_with("python"));
    let Some(named) = words.into_iter().find(is_python) else { return Ok(None) };
    Ok(match named.rsplit_once('/') {
        // A relocatable environment: `"$(dirname -- "$(realpath -- "$0")")"/'python'`.
        Some((folder, name)) if folder.contains("$0") => {
            path.canonicalize()?.parent().map(|own| own.join(name))
        }
        _ => Some(PathBuf::from(named)),
    })
}

/// Returns the interpreter of an installed command, such as pip writes: it is in the same folder. Another Python does not
/// have the command's packages.
fn own_interpreter(script: &Path) -> Option<PathBuf> {
    let named = interpreter(script).ok()??;
    let folder = script.canonicalize().ok()?.parent()?.to_owned();
    let is_beside = named.is_absolute() && named.parent()?.canonicalize().ok()? == folder;
    (is_beside && search_path::find(named.as_os_str(), None).is_ok()).then_some(named)
}

pub(crate) fn check_script(name: &OsStr) -> anyhow::Result<()> {
    let (path, shown) = (Path::new(name), name.display());
    let unreadable = || format!("the script `{shown}` cannot be read");
    let about = match std::fs::metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            bail!("the script `{shown}` does not exist; give the path of a Python script")
        }
        about => about.with_context(unreadable)?,
    };
    if about.is_dir() && !path.join(MAIN).is_file() {
        bail!(
            "the script `{shown}` is a folder without a __main__.py; give a Python script, or start a module by -m"
        );
    }
    rustix::fs::access(path, Access::READ_OK).with_context(unreadable)
}

/// Checks that this can be a module's name. Only Python can tell whether the module exists.
pub(crate) fn check_module(name: &OsStr) -> anyhow::Result<()> {
    let path = Path::new(name);
    let script = path.extension().is_some_and(|extension| extension == "py") && path.is_file();
    if script || name.is_empty() || name.as_encoded_bytes().contains(&b'/') {
        bail!(
            "-m needs the name of a module, such as `package.train`, but `{}` is a path; leave -m out for a script",
            name.display()
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;
    use std::collections::BTreeMap;
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    fn executable(path: &Path) -> PathBuf {
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, "#!/bin/sh\n").unwrap();
        fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
        path.to_owned()
    }

    fn found(variables: &[(&str, &Path)]) -> Result<PathBuf, String> {
        let map: BTreeMap<_, _> = variables.iter().copied().collect();
        find(None, |name| map.get(name).map(|path| path.as_os_str().to_owned()))
            .map_err(|error| error.to_string())
    }

    #[test]
    fn the_environment_in_use_comes_before_path_and_the_named_one_before_all() {
        let folder = tempfile::tempdir().unwrap();
        let at = |path: &str| folder.path().join(path);
        let in_path = executable(&at("path/python3"));
        let in_venv = executable(&at("venv/bin/python3"));
        let in_conda = executable(&at("conda/bin/python"));
        let own = executable(&at("own"));
        let (path, venv, conda) = (at("path"), at("venv"), at("conda"));
        let path = ("PATH", path.as_path());
        assert_eq!(found(&[path]), Ok(in_path.clone()));
        assert_eq!(found(&[path, (CONDA_PREFIX, &conda)]), Ok(in_conda));
        let both = [path, (CONDA_PREFIX, conda.as_path()), (VIRTUAL_ENV, &venv)];
        assert_eq!(found(&both), Ok(in_venv));
        assert_eq!(found(&[&both[..], &[(PYTHON_EXEC, &own)]].concat()), Ok(own));
        assert_eq!(found(&[path, (VIRTUAL_ENV, Path::new(""))]), Ok(in_path));
    }

    #[test]
    fn python_is_used_if_python3_is_missing() {
        let folder = tempfile::tempdir().unwrap();
        let python = executable(&folder.path().join("python"));
        assert_eq!(found(&[("PATH", folder.path())]), Ok(python));
    }

    #[test]
    fn a_missing_interpreter_is_told_with_where_it_was_looked_for() {
        let folder = tempfile::tempdir().unwrap();
        let path = ("PATH", folder.path());
        assert!(found(&[path]).unwrap_err().contains("neither python3 nor python is in PATH"));
        for variable in [VIRTUAL_ENV, CONDA_PREFIX] {
            let error = found(&[path, (variable, folder.path())]).unwrap_err();
            assert!(error.contains(&format!("unset {variable}")), "{error}");
        }
        let error = found(&[path, (PYTHON_EXEC, Path::new("/no/such"))]).unwrap_err();
        assert!(error.starts_with("PYTHON_EXEC is set wrongly"), "{error}");
    }

    #[test]
    fn scripts_are_files_that_can_be_read() {
        let folder = tempfile::tempdir().unwrap();
        let script = folder.path().join("t.py");
        let check = |path: &Path| check_script(path.as_os_str());
        let refused = |path: &Path| check(path).unwrap_err().to_string();
        assert!(refused(&script).contains("t.py` does not exist"));
        fs::write(&script, "").unwrap();
        check(&script).unwrap();
        let within = script.join("t.py");
        assert!(refused(&within).contains("cannot be read"));
        let package = folder.path().join("p.py");
        fs::create_dir(&package).unwrap();
        assert!(refused(&package).contains("is a folder without a __main__.py"));
    }

    #[test]
    fn python_runs_scripts_folders_and_archives_by_what_they_are() {
        let folder = tempfile::tempdir().unwrap();
        let file = |name: &str, content: &str| {
            let path = folder.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(&path, content).unwrap();
            path
        };
        for (name, content) in [
            ("t.py", ""),
            ("env", "#!/usr/bin/env python3\nimport x\n"),
            ("split", "#!/usr/bin/env -S python3 -u\n"),
            ("version", "#! /opt/py/bin/python3.12\r\n"),
            ("app.pyz", "PK"),
            ("app.zip", "PK"),
        ] {
            assert!(runs(&file(name, content)), "{name}");
        }
        for name in ["/usr/bin/python3.11", "python"]
            .map(PathBuf::from)
            .into_iter()
            .chain([folder.path().join("split")])
        {
            assert!(is_python(&name), "{}", name.display());
        }
        file("app/__main__.py", "");
        assert!(
            runs(&folder.path().join("app")) && check_script(folder.path().join("app").as_os_str()).is_ok()
        );
        assert!(runs(Path::new("no/such.py")), "by its name");
        for (name, content) in
            [("recipe", "task = 'x' # python"), ("sh", "#!/bin/sh\npython\n"), ("r.toml", "")]
        {
            assert!(!runs(&file(name, content)), "{name}");
            assert!(!is_python(&folder.path().join(name)), "{name}");
        }
        for name in ["", "no/such", "no/such.pyz", "."] {
            assert!(!runs(&folder.path().join(name)), "{name:?}");
        }
    }

    #[test]
    fn modules_are_no_paths() {
        for name in ["train", "package.train", "a.py"] {
            check_module(OsStr::new(name)).unwrap();
        }
        for name in ["", "package/train", "./train"] {
            assert!(check_module(OsStr::new(name)).is_err(), "{name:?}");
        }
    }
}
