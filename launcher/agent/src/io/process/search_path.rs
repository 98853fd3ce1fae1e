//! Finds an executable as a shell does, or explains the failure.

use rustix::fs::Access;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};

/// The reasons why a program cannot be run.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum ProgramError {
    /// The name and a hint.
    #[error("program `{0}` is not in PATH{1}")]
    NotInPath(String, String),
    #[error("program `{0}` does not exist")]
    Missing(PathBuf),
    #[error("program `{0}` is not a file")]
    NotAFile(PathBuf),
    /// The path and a remedy.
    #[error("program `{0}` is not executable; {1}")]
    NotExecutable(PathBuf, String),
}

/// Returns the file that running `name` executes: `name` itself if it has a slash, else the first executable
/// of that name in the folders of `path` (the PATH variable; if unset, the system's default).
pub fn find(name: &OsStr, path: Option<&OsStr>) -> Result<PathBuf, ProgramError> {
    if name.as_encoded_bytes().contains(&b'/') {
        return check(Path::new(name)).map(|()| PathBuf::from(name));
    }
    let mut found_but_unusable = None;
    for folder in std::env::split_paths(path.unwrap_or(OsStr::new("/bin:/usr/bin"))) {
        let candidate = folder.join(name);
        match check(&candidate) {
            Ok(()) => return Ok(candidate),
            Err(error @ ProgramError::NotExecutable(..)) => found_but_unusable = Some(error),
            Err(_) => {}
        }
    }
    Err(found_but_unusable.unwrap_or_else(|| {
        let shown = name.to_string_lossy().into_owned();
        let hint = match (name.is_empty(), Path::new(name).is_file()) {
            (true, _) => "; its name is empty".to_owned(),
            (false, true) if is_python(Path::new(name)) => format!("; run it as `python3 {shown}`"),
            (false, true) => format!("; to run the file in this folder, write `./{shown}`"),
            (false, false) => String::new(),
        };
        ProgramError::NotInPath(shown, hint)
    }))
}

fn check(path: &Path) -> Result<(), ProgramError> {
    let (path, shown) = (path.to_owned(), path.display());
    match std::fs::metadata(&path) {
        Err(_) => Err(ProgramError::Missing(path)),
        Ok(meta) if !meta.is_file() => Err(ProgramError::NotAFile(path)),
        Ok(_) if rustix::fs::access(&path, Access::EXEC_OK).is_err() => {
            let remedy = match is_python(&path) {
                true => format!("run it as `python3 {shown}`"),
                false => format!("run `chmod +x {shown}`"),
            };
            Err(ProgramError::NotExecutable(path, remedy))
        }
        Ok(_) => Ok(()),
    }
}

/// Returns whether the file is a Python script by its name.
pub fn is_python(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension == "py")
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;
    use std::os::unix::fs::PermissionsExt;

    fn file(folder: &Path, name: &str, mode: u32) -> PathBuf {
        let path = folder.join(name);
        std::fs::write(&path, "#!/bin/sh\n").unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
        path
    }

    #[test]
    fn the_first_executable_in_path_is_taken_and_others_are_passed_over() {
        let folder = tempfile::tempdir().unwrap();
        let (one, two) = (folder.path().join("one"), folder.path().join("two"));
        std::fs::create_dir_all(one.join("folder")).unwrap();
        std::fs::create_dir_all(&two).unwrap();
        file(&one, "tool", 0o644);
        let expected = file(&two, "tool", 0o755);
        file(&one, "data", 0o644);
        let path = std::env::join_paths([&one, &two]).unwrap();
        assert_eq!(find(OsStr::new("tool"), Some(&path)), Ok(expected));
        let error = find(OsStr::new("data"), Some(&path)).unwrap_err();
        assert!(matches!(error, ProgramError::NotExecutable(..)), "{error}");
        for name in ["folder", "absent", ""] {
            let error = find(OsStr::new(name), Some(&path)).unwrap_err();
            assert!(matches!(error, ProgramError::NotInPath(..)), "{error}");
        }
    }

    #[test]
    fn a_name_with_a_slash_is_a_path() {
        let folder = tempfile::tempdir().unwrap();
        let good = file(folder.path(), "good", 0o755);
        let plain = file(folder.path(), "train.py", 0o644);
        assert_eq!(find(good.as_os_str(), None), Ok(good.clone()));
        let message = find(plain.as_os_str(), None).unwrap_err().to_string();
        assert!(message.contains("not executable; run it as `python3 "), "{message}");
        let message = find(folder.path().as_os_str(), None).unwrap_err().to_string();
        assert!(message.ends_with("is not a file"), "{message}");
        let message = find(folder.path().join("absent").as_os_str(), None).unwrap_err().to_string();
        assert!(message.ends_with("does not exist"), "{message}");
    }
}
