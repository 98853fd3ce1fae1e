//! Tells the version's text the commit of the sources, if this is a clone.

use std::process::Command;

fn git(words: &[&str]) -> Option<String> {
    let output = Command::new("git").args(words).output().ok().filter(|output| output.status.success())?;
    Some(String::from_utf8(output.stdout).ok()?.trim().to_owned())
}

fn main() {
    // Sources without a clone, such as an archive: the build states their commit.
    println!("cargo:rerun-if-env-changed=DTRAIN_COMMIT");
    let stated = std::env::var("DTRAIN_COMMIT").ok();
    // The log of HEAD grows with each commit and checkout. Without it, nothing is watched: cargo would build each time.
    let log = git(&["rev-parse", "--git-path", "logs/HEAD"]);
    if let Some(log) = log.filter(|log| std::path::Path::new(log).is_file()) {
        println!("cargo:rerun-if-changed={log}");
    }
    let commit =
        stated.or_else(|| git(&["rev-parse", "--short=8", "HEAD"])).unwrap_or_else(|| "unknown".into());
    println!("cargo:rustc-env=DTRAIN_COMMIT={commit}");
}
