//! Python and its PyTorch, for scripts and modules.

use super::row::Row;
use crate::python;
use crate::trainer::read_version;
use dtrain_agent::io::process::output;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

/// Prints the version and the file of PyTorch. Does not import it, which takes seconds.
const ASK: &str = "import sys, importlib.util as u; s = u.find_spec('torch'); \
                   print(sys.version.split()[0]); print(s.origin if s else '')";

pub(super) fn check(patience: Duration) -> Vec<Row> {
    let python = match python::find(None, |variable| std::env::var_os(variable)) {
        Ok(python) => python,
        Err(error) => return vec![absent(&error.to_string())],
    };
    let answer = output(Command::new(&python).args(["-c", ASK]), patience).unwrap_or_default();
    let mut lines = answer.lines();
    let (version, torch) = (lines.next().unwrap_or_default(), lines.next().unwrap_or_default());
    let torch = Path::new(torch).parent().map(|folder| folder.join("version.py"));
    let torch = torch.and_then(|file| read_version(&fs::read_to_string(file).ok()?));
    vec![judge(&python, version, torch)]
}

fn absent(error: &str) -> Row {
    // A wrong variable of the user is a mistake; no Python at all is not.
    match error.starts_with("neither") {
        true => Row::ok("Python", "none in PATH; only scripts need it"),
        false => Row::warn("Python", error, "correct the variable, or unset it"),
    }
}

fn judge(python: &Path, version: &str, torch: Option<(String, Option<String>)>) -> Row {
    let shown = python.display();
    let torch = match torch {
        _ if version.is_empty() => {
            return Row::warn("Python", format!("{shown} does not answer"), format!("try `{shown} -c 1`"));
        }
        Some((torch, Some(cuda))) => format!("PyTorch {torch} for CUDA {cuda}"),
        Some((torch, None)) => format!("PyTorch {torch} for the CPU"),
        None => "no PyTorch; only scripts that import it need it".to_owned(),
    };
    Row::ok("Python", format!("{version} ({shown}), {torch}"))
}

#[cfg(test)]
mod tests {
    use super::super::row::Level;
    use super::*;

    #[test]
    fn python_is_optional_and_a_wrong_one_is_not() {
        assert_eq!(absent("neither python3 nor python is in PATH; install Python").level, Level::Ok);
        assert_eq!(absent("VIRTUAL_ENV is `/x`, which has no executable").level, Level::Warn);
        let python = Path::new("/bin/python3");
        assert_eq!(judge(python, "", None).level, Level::Warn);
        let value = |torch| judge(python, "3.11.4", torch).value;
        assert_eq!(value(None), "3.11.4 (/bin/python3), no PyTorch; only scripts that import it need it");
        let torch = Some(("2.11.0".into(), Some("13.0".into())));
        assert_eq!(value(torch), "3.11.4 (/bin/python3), PyTorch 2.11.0 for CUDA 13.0");
        assert_eq!(value(Some(("2.11.0".into(), None))), "3.11.4 (/bin/python3), PyTorch 2.11.0 for the CPU");
    }
}
