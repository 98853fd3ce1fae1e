//! How dtrain was installed: built in its repository, or by pip.

use std::path::Path;

/// The versions of PyTorch whose libraries this build can load: libtorch keeps its binary interface within them.
pub const PYTORCH: &str = "2.11";

/// Returns whether pip has installed the trainer: it is then a file of the Python package `dtrain`.
pub fn is_packaged(trainer: &Path) -> bool {
    trainer.with_file_name("__init__.py").is_file()
}

/// Returns the command that installs PyTorch beside a trainer that pip installed, for the remedy of an error.
pub fn install_pytorch(trainer: &Path) -> String {
    format!("`{} install 'torch=={PYTORCH}.*'`", pip(trainer))
}

/// Returns the command that installs libtorch's CUDA libraries for a trainer, for the remedy of an error.
pub fn install_cuda(trainer: &Path) -> String {
    match is_packaged(trainer) {
        // A CPU build of the same version would satisfy pip.
        true => format!("`{} uninstall -y torch` and {}", pip(trainer), install_pytorch(trainer)),
        false => "`cargo xtask setup --cuda`".to_owned(),
    }
}

/// As [`install_cuda`], for this process, which is the trainer.
pub fn install_own_cuda() -> String {
    install_cuda(&std::env::current_exe().unwrap_or_default())
}

/// Returns pip of the environment `E` of a trainer in `E/lib/python3.11/site-packages/dtrain`, which need not be active.
fn pip(trainer: &Path) -> String {
    let python = trainer.ancestors().nth(5).map(|environment| environment.join("bin/python3"));
    let python = python.filter(|python| python.is_file());
    let python = python.as_deref().unwrap_or(Path::new("python3")).display().to_string();
    match python.contains(char::is_whitespace) {
        true => format!("'{python}' -m pip"),
        false => format!("{python} -m pip"),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use std::fs;

    #[test]
    fn remedies_name_the_python_of_the_trainers_environment() {
        let folder = tempfile::tempdir().unwrap();
        let package = folder.path().join("lib/python3.12/site-packages/dtrain");
        let trainer = package.join("dtrain-worker");
        fs::create_dir_all(&package).unwrap();
        assert_eq!(install_cuda(&trainer), "`cargo xtask setup --cuda`");
        fs::write(package.join("__init__.py"), "").unwrap();
        assert_eq!(install_pytorch(&trainer), "`python3 -m pip install 'torch==2.11.*'`");
        fs::create_dir(folder.path().join("bin")).unwrap();
        fs::write(folder.path().join("bin/python3"), "").unwrap();
        let python = folder.path().join("bin/python3");
        let uninstall = format!("`{} -m pip uninstall -y torch` and `", python.display());
        assert!(install_cuda(&trainer).starts_with(&uninstall), "{}", install_cuda(&trainer));
    }
}
