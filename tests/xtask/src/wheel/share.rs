//! The pages of the manual, and the scripts with which shells complete words, as dtrain itself writes them.

use std::path::Path;
use std::process::Command;

use anyhow::Result;

use super::tools::answer;
use crate::files::{create, write};

/// Where shells look for the scripts of programs below `share`.
const SHELLS: [(&str, &str); 3] = [
    ("bash", "bash-completion/completions/dtrain"),
    ("zsh", "zsh/site-functions/_dtrain"),
    ("fish", "fish/vendor_completions.d/dtrain.fish"),
];

/// Writes the files of `dtrain` into a folder `share`.
pub(super) fn write_share(dtrain: &Path, share: &Path) -> Result<()> {
    answer(Command::new(dtrain).args(["man", "-o"]).arg(share.join("man/man1")))?;
    for (shell, file) in SHELLS {
        let script = answer(Command::new(dtrain).args(["completions", shell]))?;
        let to = share.join(file);
        create(to.parent().unwrap_or(share))?;
        write(&to, script)?;
    }
    Ok(())
}
