//! Finds the programs that set-up and the build need: Python with pip, and a C++ compiler.

use std::env;
use std::ffi::{OsStr, OsString};
use std::io::{self, Write};
use std::process::{Command, Output, Stdio};

use super::Problem;

/// Finds a python3 with a working pip.
pub fn find_python() -> Result<OsString, Problem> {
    let python = OsString::from("python3");
    let output = match Command::new(&python).args(["-m", "pip", "--version"]).output() {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Err(Problem::NoPython),
        Err(error) => return Err(Problem::Python { reason: error.to_string() }),
        Ok(output) => output,
    };
    match String::from_utf8_lossy(&output.stderr) {
        _ if output.status.success() => Ok(python),
        words if words.contains("No module named pip") => Err(Problem::NoPip),
        words => Err(Problem::Python { reason: last_line(&words, &output) }),
    }
}

/// Finds the C++ compiler of the build scripts and checks that it compiles. Without CXX, they call `c++`; if
/// that is absent, returns the name of another compiler.
pub(crate) fn find_compiler() -> Result<Option<OsString>, Problem> {
    if let Some(named) = env::var_os("CXX").filter(|named| !named.is_empty()) {
        try_compiler(&named)?;
        return Ok(None);
    }
    for name in ["c++", "g++", "clang++"] {
        match try_compiler(OsStr::new(name)) {
            Err(Problem::CompilerNotFound { .. }) => {}
            Err(problem) => return Err(problem),
            Ok(()) if name == "c++" => return Ok(None),
            Ok(()) => {
                eprintln!("no c++ on PATH: using {name}; for your own cargo commands, set CXX={name}");
                return Ok(Some(name.into()));
            }
        }
    }
    Err(Problem::NoCompiler)
}

/// Compiles a program with one header: a compiler without its standard library cannot build dtrain.
fn try_compiler(name: &OsStr) -> Result<(), Problem> {
    let shown = name.to_string_lossy().into_owned();
    // CXX may contain a wrapper and options: "ccache g++".
    let mut parts = shown.split_whitespace();
    let mut command = Command::new(parts.next().unwrap_or_default());
    command.args(parts).args(["-x", "c++", "-std=c++17", "-fsyntax-only", "-"]);
    match feed(&mut command, b"#include <cstddef>\nint main() { return 0; }\n") {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            Err(Problem::CompilerNotFound { compiler: shown })
        }
        Err(error) => Err(Problem::Compiler { compiler: shown, reason: error.to_string() }),
        Ok(output) if output.status.success() => Ok(()),
        Ok(output) => {
            let reason = last_line(&String::from_utf8_lossy(&output.stderr), &output);
            Err(Problem::Compiler { compiler: shown, reason })
        }
    }
}

fn feed(command: &mut Command, input: &[u8]) -> io::Result<Output> {
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
    if let Some(mut stdin) = child.stdin.take() {
        // If the compiler ends without reading, its exit code decides.
        let _ = stdin.write_all(input);
    }
    child.wait_with_output()
}

fn last_line(words: &str, output: &Output) -> String {
    let line = words.lines().rev().map(str::trim).find(|line| !line.is_empty());
    line.map_or_else(|| output.status.to_string(), str::to_owned)
}
