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
    format!("`{} 'torch=={PYTORCH}.*'`", Environment::of(trainer).pip("install"))
}

/// Returns the command that installs libtorch's CUDA libraries for a trainer, for the remedy of an error.
pub fn install_cuda(trainer: &Path) -> String {
    match is_packaged(trainer) {
        // A CPU build of the same version would satisfy pip.
        true => {
            format!("`{} torch` and {}", Environment::of(trainer).pip("uninstall"), install_pytorch(trainer))
        }
        false => "`cargo xtask setup --cuda`".to_owned(),
    }
}

/// As [`install_cuda`], for this process, which is the trainer.
pub fn install_own_cuda() -> String {
    install_cuda(&std::env::current_exe().unwrap_or_default())
}

/// The environment `E` of a trainer in `E/lib/python3.11/site-packages/dtrain`, which need not be active.
struct Environment {
    /// Its Python, in quotes where a shell needs them.
    python: String,
    /// Environments of uv have no pip.
    is_of_uv: bool,
}

impl Environment {
    fn of(trainer: &Path) -> Self {
        let root = trainer.ancestors().nth(5).unwrap_or(Path::new(""));
        let python = Some(root.join("bin/python3")).filter(|python| python.is_file());
        let python = python.as_deref().unwrap_or(Path::new("python3")).display().to_string();
        let about = std::fs::read_to_string(root.join("pyvenv.cfg")).unwrap_or_default();
        Self {
            python: if python.contains(char::is_whitespace) { format!("'{python}'") } else { python },
            is_of_uv: about.lines().any(|line| line.starts_with("uv =")),
        }
    }

    /// Returns the start of a command that installs or uninstalls packages.
    fn pip(&self, action: &str) -> String {
        match (self.is_of_uv, action) {
            (true, _) => format!("uv pip {action} --python {}", self.python),
            (false, "uninstall") => format!("{} -m pip uninstall -y", self.python),
            (false, _) => format!("{} -m pip {action}", self.python),
        }
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
        fs::write(folder.path().join("pyvenv.cfg"), "home = /usr/bin\nuv = 0.13.9\n").unwrap();
        let python = python.display();
        let commands = format!(
            "`uv pip uninstall --python {python} torch` and `uv pip install --python {python} 'torch==2.11.*'`"
        );
        assert_eq!(install_cuda(&trainer), commands);
    }
}
