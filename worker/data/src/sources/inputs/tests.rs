#![allow(clippy::unwrap_used)]

use std::fs;

use proptest::prelude::*;

use super::*;

fn fields(list: &[(&str, &str)]) -> Vec<FieldColumns> {
    list.iter().map(|(field, text)| FieldColumns::parse(field, text).unwrap()).collect()
}

fn image() -> Vec<FieldColumns> {
    fields(&[("image", "image"), ("label", "class")])
}

fn names(samples: &Samples) -> Vec<String> {
    let files = samples.images().next().unwrap();
    (0..samples.count()).map(|at| files.paths.get(at)).collect()
}

#[test]
fn a_folder_gives_all_its_images_by_path() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path();
    fs::create_dir_all(root.join("b/deep")).unwrap();
    for name in ["c.png", "b/2.jpg", "b/deep/1.PNG", "a.tif", "notes.txt", ".hidden.png"] {
        fs::write(root.join(name), "").unwrap();
    }
    let samples = list(root, &image()).unwrap();
    assert_eq!(names(&samples), ["a.tif", "b/2.jpg", "b/deep/1.PNG", "c.png"]);
    assert_eq!((samples.ignored.files(), samples.lists.len()), (1, 1));
    let one = list(&root.join("c.png"), &image()).unwrap();
    assert_eq!((names(&one), one.image_path(0)), (vec!["c.png".to_owned()], root.join("c.png")));
    fs::create_dir(root.join("empty")).unwrap();
    assert!(matches!(list(&root.join("empty"), &image()), Err(DataError::NoInputs(..))));
    let two = fields(&[("image", "image:left,right")]);
    let error = list(root, &two).unwrap_err().to_string();
    assert!(error.contains("name a table (.csv, .jsonl) with the columns left,right"), "{error}");
}

#[test]
fn a_table_needs_only_the_columns_of_inputs() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("t.csv");
    fs::write(&path, "image,age,other\na.png,3,x\na.png,3,x\n").unwrap();
    let wanted = fields(&[("image", "image"), ("label", "class"), ("age", "numbers"), ("height", "numbers")]);
    let samples = list(&path, &wanted).unwrap();
    let known: Vec<_> = samples.lists.iter().map(|list| list.field.as_str()).collect();
    // A line may be there twice.
    assert_eq!((known, samples.count()), (vec!["image", "age"], 2));
    assert_eq!(samples.numbers().1, [3.0, 3.0]);
    for (text, part) in [("file\na.png\n", "no column `image`"), ("image\n", "the table has no lines")] {
        fs::write(&path, text).unwrap();
        let error = list(&path, &wanted).unwrap_err().to_string();
        assert!(error.contains(part), "{error}");
    }
}

#[test]
fn a_table_of_texts_needs_one_of_its_columns_and_no_target() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("t.csv");
    fs::write(&path, "text\none\n\"\"\n").unwrap();
    let wanted = fields(&[("label", "class"), ("tokens", "text:text"), ("more", "text"), ("age", "numbers")]);
    let samples = list(&path, &wanted).unwrap();
    let known: Vec<_> = samples.lists.iter().map(|list| list.field.as_str()).collect();
    assert_eq!((known, samples.count()), (vec!["tokens"], 1), "spreadsheets write empty rows");
    assert_eq!(samples.texts_of("tokens").unwrap().iter().collect::<Vec<_>>(), ["one"]);
    fs::write(&path, "words\none\n").unwrap();
    let error = list(&path, &wanted).unwrap_err().to_string();
    assert!(error.contains("no column `age`"), "{error}");
    let error = list(folder.path(), &wanted).unwrap_err().to_string();
    assert!(error.contains("no images") || error.contains("columns text,more,age"), "{error}");
    let lines = of_lines(Path::new("a.txt"), "tokens", &["one".to_owned(), String::new()]).unwrap();
    assert_eq!((lines.count(), lines.describe(1)), (2, "a.txt:2".to_owned()));
}

#[test]
fn class_folders_that_are_no_class_are_found() {
    let folder = tempfile::tempdir().unwrap();
    for name in ["cat", "dog"] {
        fs::create_dir(folder.path().join(name)).unwrap();
    }
    let unknown = |classes: &[&str]| {
        let classes: Vec<_> = classes.iter().map(ToString::to_string).collect();
        unknown_classes(folder.path(), &classes).unwrap()
    };
    assert_eq!(unknown(&["cat"]), ["dog"]);
    assert!(unknown(&["cat", "dog", "cow"]).is_empty() && unknown(&[]).is_empty());
    fs::write(folder.path().join("loose.png"), "").unwrap();
    assert!(unknown(&["cat"]).is_empty(), "images beside folders are no class folders");
}

proptest! {
    #[test]
    fn any_table_reads_or_is_an_error(text in "(image|[ -~\n]{0,40}|,|\n|\"|é|a.png){0,12}") {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("t.csv");
        fs::write(&path, text).unwrap();
        if let Ok(samples) = list(&path, &image()) {
            prop_assert!(samples.count() > 0);
        }
    }
}
