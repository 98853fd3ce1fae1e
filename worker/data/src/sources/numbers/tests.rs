#![allow(clippy::unwrap_used)]

use dtrain_recipe::{Orientation, Resize};

use super::*;
use crate::Ignored;
use crate::check::check;
use crate::dataset::{Dataset, Field, load_one};
use crate::file_set::{FileSet, ImageOptions};
use crate::needs::{Depth, Needs};
use crate::tests::images::{paths, png, put};

fn folder(table: &str, images: &[&str]) -> tempfile::TempDir {
    let root = tempfile::tempdir().unwrap();
    for name in images {
        put(root.path().join("train").join(name), &png(8, 6));
    }
    put(root.path().join("train").join(TARGETS), table.as_bytes());
    root
}

fn scan(root: &tempfile::TempDir, names: Option<&[String]>) -> Result<Samples, DataError> {
    super::scan(root.path(), "train", Separator::Auto, names)
}

#[test]
fn images_and_lines_pair_by_path() {
    let root = folder("file,age,size\nb.png,1,2\ndeep/a.png,-3,0.5\n", &["b.png", "deep/a.png", "notes.txt"]);
    let index = scan(&root, None).unwrap();
    assert_eq!(index.numbers(), (&["age".to_owned(), "size".to_owned()][..], &[1.0, 2.0, -3.0, 0.5][..]));
    assert_eq!(paths(&index), ["b.png", "deep/a.png"]);
    assert_eq!(index.ignored.to_string(), "1 .txt", "the table is not ignored");
    let moments = index.moments();
    assert_eq!((moments[0].mean, moments[0].deviation(), moments[1].max), (-1.0, 2.0, 2.0));
    let sent = Samples { ignored: Ignored::default(), ..index.clone() };
    let bytes = serde_json::to_vec(&sent).unwrap();
    assert_eq!(serde_json::from_slice::<Samples>(&bytes).unwrap(), sent);
    let set = FileSet::new(index, ImageOptions::square(4));
    assert_eq!(set.fields()[1], Field::f32("targets", [2]));
    assert_eq!(*load_one(&set, 1, None).unwrap()[1].as_f32().unwrap(), [-3.0, 0.5]);
}

#[test]
fn lines_and_images_without_a_partner_are_errors() {
    let said = |table, images| scan(&folder(table, images), None).unwrap_err().to_string();
    let text = said("file,a\nx.png,1\ny.png,2\nz.png,2\n", &["x.png"]);
    assert!(
        text.contains("targets.csv:3: there is no image \"y.png\"")
            && text.ends_with("1 more line has this problem"),
        "{text}"
    );
    let text = said("file,a\nx.png,1\n", &["x.png", "v.png", "w.png"]);
    assert!(
        text.contains("2 images in") && text.contains("without a line in targets.csv: `v.png`, `w.png`"),
        "{text}"
    );
    let text = said("file,a\nx.png,one\n", &["x.png"]);
    assert!(text.contains("targets.csv:2: a is \"one\""), "{text}");
    let text = said("file,a\n", &[]);
    assert!(text.contains("has no images"), "{text}");
    let root = folder("file,a\nx.png,1\n", &["x.png"]);
    let text = scan(&root, Some(&["b".to_owned()])).unwrap_err().to_string();
    assert!(text.contains("has the targets `a`, but the training split has `b`"), "{text}");
    let text = super::scan(root.path(), "trian", Separator::Auto, None).unwrap_err().to_string();
    assert!(text.contains("has the folders `train`; set data.root, data.train and data.test"), "{text}");
}

#[test]
fn an_unreadable_table_is_an_error_that_names_it() {
    let root = folder("", &["x.png"]);
    let table = root.path().join("train").join(TARGETS);
    let said = || scan(&root, None).unwrap_err().to_string();
    std::fs::write(&table, b"file,a\nx.png,\xff\n").unwrap();
    assert!(said().contains("targets.csv:2: the table is not UTF-8; convert it with `iconv "), "{}", said());
    std::fs::remove_file(&table).unwrap();
    assert!(said().contains("targets.csv: No such file"), "{}", said());
}

#[test]
fn a_conversion_that_fails_leaves_the_table() {
    let root = folder("", &["x.png"]);
    let table = root.path().join("train").join(TARGETS);
    let written = b"file,caf\xe9\nx.png,1\n";
    std::fs::write(&table, written).unwrap();
    let run = |path: &str| {
        let said = scan(&root, None).unwrap_err().to_string();
        let (_, command) = said.split_once('`').unwrap();
        let command = command.strip_suffix('`').unwrap();
        std::process::Command::new("/bin/sh").args(["-c", command]).env("PATH", path).output().unwrap();
        std::fs::read(&table).unwrap()
    };
    assert_eq!(run("/nowhere"), written);
    if run(&std::env::var("PATH").unwrap()) != written {
        assert_eq!(scan(&root, None).unwrap().numbers().0, ["caf\u{e9}"]);
    }
}

#[test]
fn commas_between_tabs_may_group_digits() {
    let said = scan(&folder("file\ta\nx.png\t1,234\n", &["x.png"]), None).unwrap_err().to_string();
    assert!(said.contains("a is \"1,234\"") && said.contains("write 1234, or 1.234 if the comma"), "{said}");
}

#[test]
fn an_unreadable_image_is_left_out() {
    let names: Vec<String> = (0..200).map(|number| format!("{number:03}.png")).collect();
    let table: String = names.iter().enumerate().map(|(at, name)| format!("{name},{at}\n")).collect();
    let root = folder(&format!("file,a\n{table}"), &names.iter().map(String::as_str).collect::<Vec<_>>());
    put(root.path().join("train/007.png"), b"not an image");
    let index = scan(&root, None).unwrap();
    let needs = Needs {
        channels: 3,
        resize: Resize::None,
        orientation: Orientation::Stored,
        nodata: None,
        fill: None,
    };
    let report = check(&index, needs, Depth::Full, 2, &mut |_, _| ());
    let good = index.without_bad(&report).unwrap();
    assert_eq!((good.count(), good.size, good.numbers().1[7]), (199, Some((8, 6)), 8.0));
}
