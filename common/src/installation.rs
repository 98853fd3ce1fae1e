//! How dtrain was installed: built in its repository, or by pip.

use std::path::Path;

/// Returns whether pip has installed the trainer: it is then a file of the Python package `dtrain`.
pub fn is_packaged(trainer: &Path) -> bool {
    trainer.with_file_name("__init__.py").is_file()
}

/// Returns the command that installs libtorch's CUDA libraries for a trainer, for the remedy of an error.
pub fn cuda_command(trainer: &Path) -> &'static str {
    match is_packaged(trainer) {
        // A CPU build of the same version would satisfy pip.
        true => "`python3 -m pip install --force-reinstall 'torch==2.11.*'`",
        false => "`cargo xtask setup --cuda`",
    }
}

/// As [`cuda_command`], for this process, which is the trainer.
pub fn own_cuda_command() -> &'static str {
    cuda_command(&std::env::current_exe().unwrap_or_default())
}
