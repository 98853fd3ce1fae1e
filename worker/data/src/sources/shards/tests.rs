#![allow(clippy::unwrap_used)]

use std::fs;
use std::path::Path;

use proptest::prelude::*;
use tar::{Builder, EntryType, Header};

use super::*;
use crate::check::check;
use crate::dataset::load_one;
use crate::needs::{Depth, Needs};
use crate::sources::{Reading, classes};
use crate::tests::READING;
use crate::tests::images::{encoded, gradient, gray, png, put};
use crate::{FileSet, ImageOptions, MapRule};
use dtrain_recipe::{Orientation, Resize};
use image::ImageFormat;

/// An archive of members, in this order.
pub(crate) fn archive(members: &[(&str, &[u8])]) -> Vec<u8> {
    let mut builder = Builder::new(Vec::new());
    for (name, content) in members {
        let mut header = Header::new_gnu();
        header.set_size(content.len() as u64);
        header.set_mode(0o644);
        builder.append_data(&mut header, name, *content).unwrap();
    }
    builder.into_inner().unwrap()
}

fn scan<'a>(
    root: &Path,
    set: &str,
    all: &[(&str, &str)],
    train: Option<&'a Samples>,
) -> Result<Samples, DataError> {
    let fields: Vec<_> = all.iter().map(|(field, text)| FieldColumns::parse(field, text).unwrap()).collect();
    let reading: Reading<'a> =
        Reading { map: MapRule { scale: 1.0, ignore: None, ..MapRule::PLAIN }, train, ..READING };
    list(&Request { root, set, targets: "", target: None, fields: &fields, list: None, pair: None, reading })
}

const CLASSES: [(&str, &str); 2] = [("image", "image:jpg;png"), ("label", "class:cls")];

fn said(members: &[(&str, &[u8])], all: &[(&str, &str)]) -> String {
    let root = tempfile::tempdir().unwrap();
    put(root.path().join("train.tar"), &archive(members));
    scan(root.path(), "train", all, None)
        .unwrap_err()
        .to_string()
        .replace(root.path().to_str().unwrap(), "ROOT")
}

#[test]
fn samples_are_the_members_with_one_key_in_order() {
    let root = tempfile::tempdir().unwrap();
    let (small, large, mask) = (png(4, 4), png(5, 4), gray(4, 4, |x, _| x as u8 % 3));
    let json = br#"{"size": {"age": 7}, "tags": ["red", "big"], "ok": true}"#;
    // Keys need not be together, and members may be in any order.
    let first = archive(&[
        ("./b/2.PNG", &small),
        ("b/2.seg.png", &mask),
        ("a/1.json", json),
        ("a/1.cls", b"10\n"),
        ("a/1.png", &large),
        ("a/1.seg.png", &mask),
        ("__worker__/x.png", &small),
        (".hidden.png", &small),
        ("README", b"no ending"),
        ("b/2.cls", b"9"),
        ("b/2.json", json),
    ]);
    put(root.path().join("t-0.tar"), &first);
    put(
        root.path().join("t-1.tar"),
        &archive(&[("c.png", &small), ("c.seg.png", &mask), ("c.cls", b"10"), ("c.json", json)]),
    );
    let all = [
        ("image", "image:jpg;png"),
        ("mask", "mask:seg.png"),
        ("label", "class:cls"),
        ("targets", "numbers:json.size.age,json.ok"),
        ("tags", "classes:json.tags"),
    ];
    let samples = scan(root.path(), "t-{0..1}.tar", &all, None).unwrap();
    let place = |name: &str| format!("{}/{name}", root.path().display());
    let described: Vec<_> = (0..3).map(|sample| samples.describe(sample)).collect();
    assert_eq!(described, [place("t-0.tar: b/2.PNG"), place("t-0.tar: a/1.png"), place("t-1.tar: c.png")]);
    // Numbers are in the order of numbers, not of texts.
    assert_eq!(samples.classes(), (&["9".to_owned(), "10".to_owned()][..], &[0, 1, 1][..]));
    assert_eq!(samples.numbers().1, [7.0, 1.0, 7.0, 1.0, 7.0, 1.0]);
    assert_eq!(samples.class_names()["tags"], ["big", "red"]);
    let needs = Needs {
        channels: 3,
        resize: Resize::Crop,
        orientation: Orientation::Stored,
        nodata: None,
        fill: None,
    };
    let report = check(&samples, needs, Depth::Full, 2, &mut |_, _| {});
    assert_eq!(report.bad.len(), 1);
    assert!(
        report.bad[0].to_string().starts_with(&place("t-0.tar: a/1.png: its mask ")),
        "{}",
        report.bad[0]
    );
    assert_eq!(report.class_counts.classes(), 3);
    // As JSON the lists are references to memory that another process maps.
    let told: Samples = serde_json::from_str(&serde_json::to_string(&samples).unwrap()).unwrap();
    assert_eq!(told, samples);
    let joined = Samples::join(vec![(samples.clone(), None), (told, None)]).unwrap();
    assert_eq!(joined.describe(5), place("t-1.tar: c.png"));
    let kept = joined.kept(&|sample| sample != 1).unwrap();
    assert_eq!((kept.count(), kept.describe(4)), (5, place("t-1.tar: c.png")));
    // An index is beside the archive, and used as long as the archive is the same.
    let index = root.path().join(".t-0.tar.dtrain-index");
    let text = fs::read_to_string(&index).unwrap().replace("b/2.PNG", "b/2.jpg");
    fs::write(&index, text).unwrap();
    assert_eq!(scan(root.path(), "t-0.tar", &all, None).unwrap().describe(0), place("t-0.tar: b/2.jpg"));
    put(root.path().join("t-0.tar"), &archive(&[("z.png", &small), ("z.cls", b"3")]));
    assert_eq!(scan(root.path(), "t-0.tar", &CLASSES, None).unwrap().describe(0), place("t-0.tar: z.png"));
}

#[test]
fn an_archive_gives_the_samples_of_its_folder() {
    let root = tempfile::tempdir().unwrap();
    let mut members = Vec::new();
    for (class, name) in [("cat", "cat/2"), ("cat", "cat/3"), ("dog", "dog/1")] {
        let image = gradient(name.len() as u32 + 3, 6);
        for (ending, format) in [("png", ImageFormat::Png), ("jpg", ImageFormat::Jpeg)] {
            if (name == "cat/3") == (ending == "jpg") {
                let bytes = encoded(image.clone(), format);
                put(root.path().join(format!("train/{name}.{ending}")), &bytes);
                members.push((format!("{name}.{ending}"), bytes));
                members.push((format!("{name}.cls"), class.as_bytes().to_vec()));
            }
        }
    }
    let members: Vec<_> = members.iter().map(|(name, content)| (name.as_str(), content.as_slice())).collect();
    put(root.path().join("train.tar"), &archive(&members));
    let folder = classes::scan(root.path(), "train", None).unwrap();
    let shard = scan(root.path(), "train.tar", &CLASSES, None).unwrap();
    assert_eq!(shard.classes(), folder.classes());
    let [folder, shard] = [folder, shard].map(|samples| FileSet::new(samples, ImageOptions::square(4)));
    for sample in 0..3 {
        assert_eq!(load_one(&folder, sample, None).unwrap(), load_one(&shard, sample, None).unwrap());
    }
    let test = scan(root.path(), "train.tar", &[CLASSES[0], ("label", "class:png")], None).unwrap_err();
    assert!(test.to_string().contains("without `png`: `cat/3`"), "{test}");
}

#[test]
fn wrong_members_are_named_with_the_remedy() {
    let image = png(4, 4);
    type Case<'a> = (&'a [(&'a str, &'a [u8])], &'a [(&'a str, &'a str)], &'a str);
    let cases: [Case<'_>; 14] = [
        (
            &[("a.jpg", &image), ("a.cls", b"1"), ("b.jpg", &image), ("c.jpg", &image)],
            &CLASSES,
            "ROOT/train.tar: 2 samples without `cls`: `b`, `c`; add the members, or remove the other members of these keys",
        ),
        (
            &[("a.jpg", &image), ("a.cls", b"1"), ("a.JPG", &image)],
            &CLASSES,
            "ROOT/train.tar: the sample `a` has two members `jpg`; a key names one sample of a file: rename one of the two",
        ),
        (
            &[("a.jpg", &image), ("a.png", &image), ("a.cls", b"1")],
            &CLASSES,
            "ROOT/train.tar: the sample `a` has several of `jpg;png`: `jpg`, `png`; name one of them in data.fields",
        ),
        (
            &[("a.jpeg", &image), ("a.cls", b"1")],
            &CLASSES,
            "ROOT/train: no sample has `jpg;png`, but `cls`, `jpeg`; name one of them in data.fields.image, as in \"image:cls\"",
        ),
        (
            &[],
            &CLASSES,
            "ROOT/train.tar: it has no samples; leave it out of the files of the set, or write it again",
        ),
        (
            &[("a.jpg", &image), ("a.cls", b"")],
            &CLASSES,
            "ROOT/train.tar: a: cls is empty; write the name of a class, or remove the sample",
        ),
        (
            &[("a.jpg", &image), ("a.cls", b"\xff")],
            &CLASSES,
            "ROOT/train.tar: `a.cls` is not a text in UTF-8; name the members of the field in data.fields",
        ),
        (
            &[("a.txt", b"1,5")],
            &[("x", "numbers:txt")],
            "ROOT/train.tar: a: txt is \"1,5\", which is not a finite number; correct it, or remove the sample",
        ),
        (
            &[("a.json", b"{\"b\": {}}")],
            &[("x", "numbers:json.b.c")],
            "ROOT/train.tar: `a.json` has no text or number `b.c`, but `b`; correct the key in data.fields",
        ),
        (
            &[("a.json", b"{\"b\": [\"x\", \"y\"]}")],
            &[("x", "class:json.b")],
            "ROOT/train.tar: `a.json` has 2 values in `b`, and a field of the kind class takes one; write one value, or name a field of the kind classes",
        ),
        (
            // A bar in one text is no border.
            &[("a.json", b"{\"b\": [\"x|z\"]}")],
            &[("x", "numbers:json.b")],
            "ROOT/train.tar: a: json.b is \"x|z\", which is not a finite number; correct it, or remove the sample",
        ),
        (
            &[("a.json", b"{\"b\": [\"x|z\", \"y\"]}")],
            &[("x", "classes:json.b")],
            "ROOT/train.tar: `a.json` has the class \"x|z\" in `b`, but `|` stands between names; rename the class",
        ),
        (
            &[("a.json", b"{")],
            &[("x", "numbers:json.b")],
            "ROOT/train.tar: `a.json` is not JSON: EOF while parsing an object at line 1 column 1; write it again",
        ),
        (
            &[("a.txt", &[b'a'; 2 << 20])],
            &[("x", "class:txt")],
            "ROOT/train.tar: `a.txt` is 2097152 bytes long, too long for a class or a number; name the members of the field in data.fields",
        ),
    ];
    for (members, all, expected) in cases {
        assert_eq!(said(members, all), expected);
    }
}

#[test]
fn classes_of_a_test_set_are_those_of_the_training_samples() {
    let root = tempfile::tempdir().unwrap();
    let image = png(4, 4);
    put(
        root.path().join("train.tar"),
        &archive(&[("a.png", &image), ("a.cls", b"x"), ("b.png", &image), ("b.cls", b"y")]),
    );
    put(root.path().join("test.tar"), &archive(&[("a.png", &image), ("a.cls", b"y")]));
    let train = scan(root.path(), "train", &CLASSES, None).unwrap();
    assert_eq!(scan(root.path(), "test", &CLASSES, Some(&train)).unwrap().classes().1, [1]);
    // Numbers of classes are in their order, not in that of texts.
    let members: Vec<(String, Vec<u8>)> = (0..12)
        .flat_map(|class| {
            [(format!("{class}.png"), image.clone()), (format!("{class}.cls"), class.to_string().into())]
        })
        .collect();
    let members: Vec<(&str, &[u8])> = members.iter().map(|(name, bytes)| (name.as_str(), &**bytes)).collect();
    put(root.path().join("numbers.tar"), &archive(&members));
    let numbers = scan(root.path(), "numbers", &CLASSES, None).unwrap();
    let tested = scan(root.path(), "numbers", &CLASSES, Some(&numbers)).unwrap();
    assert_eq!(numbers.classes().0[2..4], ["2", "3"]);
    assert_eq!(tested.classes(), numbers.classes());
    put(root.path().join("test.tar"), &archive(&[("a.png", &image), ("a.cls", b"zz")]));
    let error = scan(root.path(), "test", &CLASSES, Some(&train)).unwrap_err().to_string();
    assert!(error.ends_with("a: cls is \"zz\", a class that no training sample has; correct it, or add training samples of this class"), "{error}");
}

#[test]
fn the_files_of_a_set_are_a_pattern_a_folder_or_numbered() {
    let root = tempfile::tempdir().unwrap();
    let files = |set: &str| {
        let found = packs::files(root.path(), set, "tar");
        found.map_err(|error| error.to_string().replace(root.path().to_str().unwrap(), "ROOT"))
    };
    let none = files("train").unwrap_err();
    assert!(
        none.contains("no file is named so: expected train, train.tar, files train-00000.tar or a folder"),
        "{none}"
    );
    for name in [
        "train-1-of-3.tar",
        "train-0-of-3.tar",
        "x/b.tar",
        "x/a.tar",
        "x/.a.tar",
        "x/c.txt",
        "one.tar",
        "n-10.tar",
        "n-02.tar",
        "n-a.tar",
    ] {
        put(root.path().join(name), b"");
    }
    assert_eq!(files("x").unwrap(), ["x/a.tar", "x/b.tar"]);
    assert_eq!(files("x/{b,a}.tar").unwrap(), ["x/b.tar", "x/a.tar"]);
    assert_eq!(
        (files("one").unwrap(), files("one.tar").unwrap()),
        (vec!["one.tar".to_owned()], vec!["one.tar".to_owned()])
    );
    assert_eq!(files("n").unwrap(), ["n-02.tar", "n-10.tar"]);
    assert_eq!(
        files("train").unwrap_err(),
        "ROOT: of its 3 files one is missing: `train-2-of-3.tar`; copy or download them"
    );
    put(root.path().join("train-2-of-3.tar"), b"");
    assert_eq!(files("train").unwrap().len(), 3);
    for name in ["train-0-of-2.tar", "train-1-of-2.tar", "train-3-of-3.tar"] {
        put(root.path().join(name), b"");
        let mixed = "ROOT: `train-0-of-2.tar` and `train-0-of-3.tar` are parts of two copies of the set; remove the files of the older copy";
        assert_eq!(files("train").unwrap_err(), mixed, "{name}");
    }
    assert_eq!(
        files("n-{02..03}.tar").unwrap_err(),
        "ROOT/n-{02..03}.tar: of its 2 files one is missing: `n-03.tar`; copy or download them"
    );
    let all = files("m-{0..1}.tar").unwrap_err();
    assert!(all.starts_with("ROOT/m-0.tar: the file does not exist; ROOT has `n-02.tar`"), "{all}");
    let open = files("n-{02").unwrap_err();
    assert_eq!(open, "ROOT/n-{02: \"n-{02\" is not a pattern of names: a brace is not closed; add `}`");
}

#[test]
fn a_link_and_an_escaping_name_are_errors() {
    let root = tempfile::tempdir().unwrap();
    let raw = |name: &[u8], kind: EntryType| {
        let mut header = Header::new_gnu();
        header.as_old_mut().name[..name.len()].copy_from_slice(name);
        header.set_entry_type(kind);
        header.set_size(0);
        header.set_link_name("b.jpg").unwrap();
        header.set_cksum();
        let mut builder = Builder::new(Vec::new());
        builder.append(&header, &b""[..]).unwrap();
        put(root.path().join("train.tar"), &builder.into_inner().unwrap());
        scan(root.path(), "train", &CLASSES, None).unwrap_err().to_string()
    };
    for (name, kind, expected) in [
        (&b"a.jpg"[..], EntryType::Symlink, "`a.jpg` is a symbolic link, and has no content of its own"),
        (b"a.jpg", EntryType::Link, "`a.jpg` is a link to another member"),
        (
            b"../a.jpg",
            EntryType::Regular,
            "`../a.jpg` is not a path below the archive; write the archive again with relative paths",
        ),
        (b"/a.jpg", EntryType::Regular, "`/a.jpg` is not a path below"),
        (b"\xff.jpg", EntryType::Regular, "the name of a member is not UTF-8: \"\u{fffd}.jpg\""),
        (b"a", EntryType::Directory, "it has no samples"),
    ] {
        let said = raw(name, kind);
        assert!(said.contains(expected), "{said}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn any_bytes_are_samples_or_an_error(place in 0usize..3000, byte: u8, cut in 0usize..3600) {
        let root = tempfile::tempdir().unwrap();
        let mut bytes = archive(&[("a.png", &png(2, 2)), ("a.cls", b"1")]);
        bytes[place] = byte;
        bytes.truncate(cut);
        put(root.path().join("train.tar"), &bytes);
        if let Err(error) = scan(root.path(), "train", &CLASSES, None) {
            prop_assert!(error.to_string().contains("train"), "{}", error);
        }
    }
}
