//! `book`: builds the pages of `docs` with mdBook and those of the public items with rustdoc, and checks the links in the book and in
//! all Markdown files.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Component, Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use crate::files;
use crate::process::Signals;
use crate::setup::Ready;
use crate::workspace::Workspace;

/// Cargo's arguments. Cargo does nothing if this version is installed.
const INSTALL: &str =
    "install mdbook --version =0.5.4 --locked --no-default-features --features search --debug --quiet";

/// The folder of rustdoc's pages in the book, which only exist there. rustdoc checks their links.
const API: &str = "api";

/// What own trainers use: the trainer, and the crates that it passes on.
const CRATES: [&str; 5] =
    ["dtrain_worker", "dtrain_models", "dtrain_data", "dtrain_common", "dtrain_collectives"];

/// Installs mdBook in `target/tools` if it is absent, builds the book and checks links. Returns the exit code.
pub fn run(workspace: &Workspace, signals: &Signals, ready: &Ready) -> Result<u8> {
    let mut rustdoc = ready.cargo(workspace);
    // As the check of the documentation, so that one build serves both.
    rustdoc.args(["doc", "--quiet", "--workspace", "--no-deps"]).env("RUSTDOCFLAGS", "-Dwarnings");
    let code = signals.run(&mut rustdoc)?.code;
    if code != 0 {
        return Ok(code);
    }
    let tools = workspace.target().join("tools");
    let mut install = workspace.cargo();
    install.args(INSTALL.split(' ')).arg("--root").arg(&tools);
    // Programs for one run of a second need neither speed nor debug information.
    install.env("CARGO_PROFILE_DEV_DEBUG", "0").env("CARGO_INCREMENTAL", "0");
    let code = signals.run(&mut install)?.code;
    if code != 0 {
        return Ok(code);
    }
    let book = workspace.target().join("book");
    let mut build = Command::new(tools.join("bin/mdbook"));
    build.arg("build").arg(workspace.root().join("docs")).env("MDBOOK_LOG", "warn");
    let built = signals.run_capturing_stderr(&mut build)?;
    if !built.success() || !built.stderr.is_empty() {
        eprintln!("book failed: mdBook reports errors or warnings");
        return Ok(built.code.max(1));
    }
    let (from, to) = (ready.build_folder(workspace)?.join("doc"), book.join(API));
    for name in CRATES.into_iter().chain(["static.files", "search.index", "crates.js", "src-files.js", "src"])
    {
        copy_all(&from.join(name), &to.join(name))?;
    }
    let pages = check_pages(workspace)?;
    let code = report("book", &check(&book, "html", links_of_html, anchors_of_html)?).max(pages);
    if code == 0 {
        eprintln!("book: open {}", workspace.show(&book.join("index.html")));
    }
    Ok(code)
}

/// Checks the links in all Markdown files, and that the book has all pages. Returns the exit code.
pub fn check_pages(workspace: &Workspace) -> Result<u8> {
    let (count, mut dead) = check(workspace.root(), "md", links_of_markdown, anchors_of_markdown)?;
    let docs = workspace.root().join("docs");
    if let Ok(summary) = fs::read_to_string(docs.join("SUMMARY.md")) {
        let mut pages = BTreeMap::new();
        read_all(&docs, "md", &mut pages)?;
        for page in pages.keys().filter_map(|page| page.strip_prefix(&docs).ok()) {
            let is_page = page != Path::new("SUMMARY.md") && !page.starts_with("examples");
            if is_page && !summary.contains(&format!("({})", page.display())) {
                dead.push(format!("docs/SUMMARY.md: no link to {}", page.display()));
            }
        }
    }
    Ok(report("pages", &(count, dead)))
}

/// Prints the number of links and the dead ones, and returns the exit code.
fn report(of: &str, (links, dead): &(usize, Vec<String>)) -> u8 {
    for link in dead {
        eprintln!("{link}");
    }
    eprintln!("{of}: {links} links checked, {} dead", dead.len());
    u8::from(!dead.is_empty())
}

/// Copies a file or a folder; what is absent is not missed, since rustdoc's versions differ in their files.
fn copy_all(from: &Path, to: &Path) -> Result<()> {
    if from.is_dir() {
        files::create(to)?;
        for entry in fs::read_dir(from).with_context(|| format!("cannot read {}", from.display()))? {
            let entry = entry?;
            copy_all(&entry.path(), &to.join(entry.file_name()))?;
        }
    } else if from.is_file() {
        files::copy(from, to)?;
    }
    Ok(())
}

/// Checks all files below `root` with this extension. Returns the number of links, and a line for each dead link.
fn check(
    root: &Path,
    extension: &str,
    links_of: fn(&str) -> Vec<(usize, &str)>,
    anchors_of: fn(&str) -> BTreeSet<String>,
) -> Result<(usize, Vec<String>)> {
    let mut texts = BTreeMap::new();
    read_all(root, extension, &mut texts)?;
    let anchors: BTreeMap<&PathBuf, BTreeSet<String>> =
        texts.iter().map(|(path, text)| (path, anchors_of(text))).collect();
    let (mut count, mut dead) = (0, Vec::new());
    for (path, text) in &texts {
        for (line, link) in links_of(text).into_iter().filter(|(_, link)| !is_url(link)) {
            count += 1;
            let (file, anchor) = link.split_once('#').unwrap_or((link, ""));
            let target = if file.is_empty() { path.clone() } else { normal(&path.with_file_name(file)) };
            let found = anchor.is_empty() || anchors.get(&target).is_some_and(|known| known.contains(anchor));
            if !target.exists() || !found {
                dead.push(format!("{}:{line}: dead link: {link}", path.display()));
            }
        }
    }
    Ok((count, dead))
}

/// Reads the files below `folder`, except hidden folders, builds, runs, and mdBook's two pages with changed links.
fn read_all(folder: &Path, extension: &str, texts: &mut BTreeMap<PathBuf, String>) -> Result<()> {
    let unreadable = || format!("cannot read {}", folder.display());
    for entry in fs::read_dir(folder).with_context(unreadable)? {
        let (path, kind) =
            entry.and_then(|entry| Ok((entry.path(), entry.file_type()?))).with_context(unreadable)?;
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        if name.starts_with('.') || ["target", "runs", API, "404.html", "print.html"].contains(&&*name) {
            continue;
        } else if kind.is_dir() {
            read_all(&path, extension, texts)?;
        } else if kind.is_file() && path.extension().is_some_and(|found| found == extension) {
            let text =
                fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
            texts.insert(path, text);
        }
    }
    Ok(())
}

/// Returns the path without `.` and `..`.
fn normal(path: &Path) -> PathBuf {
    let mut normal = PathBuf::new();
    for part in path.components() {
        match part {
            Component::CurDir => {}
            Component::ParentDir => drop(normal.pop()),
            part => normal.push(part),
        }
    }
    normal
}

fn is_url(link: &str) -> bool {
    ["http:", "https:", "mailto:"].iter().any(|scheme| link.starts_with(scheme))
}

/// Returns whether a link of a page of `docs` is to rustdoc's pages.
fn is_api(link: &str) -> bool {
    link.split('/').find(|part| *part != "..") == Some(API)
}

/// Returns the parts of a text between `open` and `close`.
fn between<'a>(text: &'a str, open: &'a str, close: char) -> impl Iterator<Item = &'a str> {
    text.split(open).skip(1).filter_map(move |rest| Some(rest.split_once(close)?.0))
}

/// Returns the lines outside of code blocks, with their numbers from 1.
fn prose(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let mut code = false;
    (1..).zip(text.lines()).filter(move |(_, line)| {
        let fence = line.trim_start().starts_with("```");
        code ^= fence;
        !fence && !code
    })
}

fn links_of_markdown(text: &str) -> Vec<(usize, &str)> {
    prose(text)
        .flat_map(|(number, line)| between(line, "](", ')').map(move |link| (number, link)))
        .filter(|(_, link)| !is_api(link))
        .collect()
}

/// Returns the anchors that GitHub gives to headings.
fn anchors_of_markdown(text: &str) -> BTreeSet<String> {
    let mut anchors = BTreeSet::new();
    for (_, line) in prose(text).filter(|(_, line)| line.starts_with('#')) {
        let words = line.trim_start_matches('#').trim().to_lowercase();
        let kept = words.chars().filter(|c| c.is_alphanumeric() || "-_ ".contains(*c));
        let anchor: String = kept.map(|c| if c == ' ' { '-' } else { c }).collect();
        let free = (1..).map(|n| format!("{anchor}-{n}")).find(|anchor| !anchors.contains(anchor));
        anchors.insert(if anchors.contains(&anchor) { free.unwrap_or_default() } else { anchor });
    }
    anchors
}

fn links_of_html(text: &str) -> Vec<(usize, &str)> {
    let of_line = |line| between(line, " href=\"", '"').chain(between(line, " src=\"", '"'));
    (1..).zip(text.lines()).flat_map(|(number, line)| of_line(line).map(move |link| (number, link))).collect()
}

fn anchors_of_html(text: &str) -> BTreeSet<String> {
    between(text, " id=\"", '"').map(str::to_owned).collect()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn dead_links_are_named_with_their_line() {
        let folder = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| fs::write(folder.path().join(name), text).unwrap();
        fs::create_dir(folder.path().join("sub")).unwrap();
        write("sub/a.md", "# The `a.b` key, again\n\n# Two\n# Two\n");
        let links = "[1](sub/a.md#the-ab-key-again) [2](sub/a.md#two-1) [3](sub) [4](https://no.where/)\n```\n[5](no)\n```\n";
        write("b.md", &format!("{links}[6](sub/a.md#two-2)\n[7](c.md) [8](#here)\n# Here\n"));
        let (count, dead) = check(folder.path(), "md", links_of_markdown, anchors_of_markdown).unwrap();
        let path = folder.path().join("b.md");
        let expected = ["5: dead link: sub/a.md#two-2", "6: dead link: c.md"];
        assert_eq!((count, dead), (6, expected.map(|line| format!("{}:{line}", path.display())).to_vec()));

        write(
            "c.html",
            "<h1 id=\"x\"><a href=\"#x\">\n<a href=\"sub/a.md\"><img src=\"no.png\"><a href=\"#y\">\n",
        );
        let (count, dead) = check(folder.path(), "html", links_of_html, anchors_of_html).unwrap();
        let path = folder.path().join("c.html");
        let expected = ["2: dead link: #y", "2: dead link: no.png"];
        assert_eq!((count, dead), (4, expected.map(|line| format!("{}:{line}", path.display())).to_vec()));
    }
}
