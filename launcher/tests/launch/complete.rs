//! Completion of words by bash, and the pages of the manual.

use crate::harness::Scene;
use dtrain_test_kit::programs::build_folder;
use std::fs;
use std::process::Command;

/// Returns what bash offers for a line, whose last word is the begun one.
fn offered(scene: &Scene, line: &[&str]) -> Vec<String> {
    const SCRIPT: &str = r#"
        source <(dtrain completions bash) || exit 1
        COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); COMP_LINE="$*"; COMP_POINT=${#COMP_LINE}
        COMP_TYPE=9 COMP_KEY=9
        complete -p dtrain > /dev/null || exit 1
        function=$(complete -p dtrain | sed -E 's/.* -F ([^ ]+).*/\1/')
        "$function" dtrain "${COMP_WORDS[COMP_CWORD]}" "${COMP_WORDS[COMP_CWORD-1]}"
        printf '%s\n' "${COMPREPLY[@]}"
    "#;
    let mut command = Command::new("bash");
    command.args(["--norc", "--noprofile", "-c", SCRIPT, "bash"]).args(line);
    let path = std::env::var("PATH").unwrap_or_default();
    command.env("PATH", format!("{}:{path}", build_folder().display())).current_dir(scene.path(""));
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap().lines().map(|word| word.trim().to_owned()).collect()
}

#[test]
fn bash_completes_commands_flags_recipes_and_gpus() {
    let scene = Scene::new();
    fs::write(scene.path(".own.toml"), "task = \"classify\"\n").unwrap();
    fs::create_dir(scene.path(".recipes")).unwrap();
    assert_eq!(offered(&scene, &["dtrain", "la"]), ["launch"]);
    assert_eq!(offered(&scene, &["dtrain", "launch", "--run-d"]), ["--run-dir"]);
    assert_eq!(offered(&scene, &["dtrain", "new", "seg"]), ["segment"]);
    let recipes = offered(&scene, &["dtrain", "plan", ""]);
    assert!(recipes.iter().any(|word| word == "demo"), "{recipes:?}");
    let own = offered(&scene, &["dtrain", "plan", ".o"]);
    assert!(own.iter().any(|word| word == ".own.toml"), "{own:?}");
    let gpus = offered(&scene, &["dtrain", "plan", "demo", "--gpu", "t4,l40"]);
    assert_eq!(gpus, ["t4,l40", "t4,l40s"]);
}

#[test]
fn the_pages_of_the_manual_are_drawn_without_warnings() {
    let scene = Scene::new();
    let mut command = Command::new(env!("CARGO_BIN_EXE_dtrain"));
    assert!(command.args(["man", "-o"]).arg(scene.path(".man")).status().unwrap().success());
    let pages: Vec<_> = fs::read_dir(scene.path(".man")).unwrap().map(|page| page.unwrap().path()).collect();
    assert!(pages.len() > 20, "{} pages", pages.len());
    for page in &pages {
        let text = fs::read_to_string(page).unwrap();
        assert!(text.contains(".SH SYNOPSIS") && !text.contains('\u{1b}'), "{}", page.display());
    }
    // Not every machine has it.
    let Ok(groff) = Command::new("groff").arg("--version").output() else { return };
    assert!(groff.status.success());
    let mut groff = Command::new("groff");
    let drawn =
        groff.args(["-man", "-ww", "-Tutf8", "-K", "utf8", "-rLL=100n", "-b"]).args(&pages).output().unwrap();
    let said = String::from_utf8_lossy(&drawn.stderr);
    assert!(drawn.status.success() && said.is_empty(), "{said}");
    let text = String::from_utf8_lossy(&drawn.stdout);
    // Columns that are laid out by hand stay.
    assert!(text.contains("dtrain launch [FLAGS] SCRIPT.py [ARGS]..."), "{text}");
}
