#![allow(clippy::unwrap_used)]

use super::*;
use crate::changes::Changes;
use crate::check::check;
use crate::dataset::{Column, Dataset, load_one};
use crate::file_set::{FileSet, ImageOptions};
use crate::needs::{Depth, Needs};
use crate::normalize::Normalize;
use crate::rng::{Domain, keyed};
use crate::samples::ListValues;
use crate::tests::READING;
use crate::tests::images::{encoded, gray, paths, png, put};
use dtrain_recipe::changes::{Flip, ResizedCrop};
use dtrain_recipe::{Change, Orientation, Resize};
use image::{ImageFormat, Rgb, RgbImage};

fn fields(all: &[(&str, &str)]) -> Vec<FieldColumns> {
    all.iter().map(|(field, text)| FieldColumns::parse(field, text).unwrap()).collect()
}

fn written(table: &str) -> (tempfile::TempDir, std::path::PathBuf) {
    let root = tempfile::tempdir().unwrap();
    let path = root.path().join("table.csv");
    put(&path, table.as_bytes());
    (root, path)
}

fn said(table: &str, all: &[(&str, &str)]) -> String {
    let (_root, path) = written(table);
    scan(&path, "train", &fields(all), READING).unwrap_err().to_string()
}

#[test]
fn a_sample_has_a_field_for_each_of_any_number_of_columns() {
    let table = "\u{feff}sep=,\r\nleft,right,seen,split,age,size,tags,mask,depth\r\n\
                 a/1.png,b/1.png,cat,train,3,1.5,red|big,m.png,d.png\r\n\
                 a/2.png,b/1.png,dog,train,4,-2,,m.png,d.png\n\
                 \n\"a/1.png\", b/2.png ,cat,test,5,6,big,m.png,d.png\n";
    let (root, path) = written(table);
    let red = |value| encoded(RgbImage::from_pixel(4, 4, Rgb([value, 0, 0])), ImageFormat::Png);
    for (name, value) in [("a/1.png", 10), ("a/2.png", 20), ("b/1.png", 30), ("b/2.png", 40)] {
        put(root.path().join(name), &red(value));
    }
    put(root.path().join("m.png"), &gray(4, 4, |x, _| x as u8 % 3));
    put(root.path().join("d.png"), &gray(4, 4, |_, y| y as u8));
    let all = fields(&[
        ("image", "image:left"),
        ("views", "image:right,left"),
        ("label", "class:seen"),
        ("mask", "mask"),
        ("depth", "map"),
        ("targets", "numbers:age,size"),
        ("tags", "classes"),
    ]);
    let train = scan(&path, "train", &all, READING).unwrap();
    assert_eq!((train.count(), paths(&train)), (2, vec!["a/1.png".to_owned(), "a/2.png".to_owned()]));
    assert_eq!(train.classes(), (&["cat".to_owned(), "dog".to_owned()][..], &[0, 1][..]));
    assert_eq!(train.numbers().1, [3.0, 1.5, 4.0, -2.0]);
    assert_eq!(train.table.as_ref().unwrap().lines[..], [3, 4]);
    let told = serde_json::to_vec(&train).unwrap();
    assert_eq!(serde_json::from_slice::<Samples>(&told).unwrap(), train);
    let last = train.kept(&|at| at == 1).unwrap();
    assert_eq!((last.count(), &last.table.as_ref().unwrap().lines[..]), (1, &[4][..]));
    assert!(last.describe(0).ends_with("a/2.png (table.csv:4)"));
    let ListValues::ClassSets { sets, .. } = &last.lists[6].values else { panic!("sets of classes") };
    assert_eq!((sets.of(0), last.numbers().1), (&[][..], &[4.0, -2.0][..]));
    let test = scan(&path, "test", &all, Reading { train: Some(&train), ..READING }).unwrap();
    assert_eq!((test.count(), test.classes().1), (1, &[0][..]));
    let options =
        ImageOptions { normalize: Normalize::new(&[0.0; 3], &[1.0 / 255.0; 3]), ..ImageOptions::square(4) };
    let set = FileSet::new(train, options);
    let shapes: Vec<_> = set.fields().iter().map(|field| (&*field.name, field.shape.as_slice())).collect();
    assert_eq!(
        shapes,
        [
            ("image", &[3, 4, 4][..]),
            ("views", &[2, 3, 4, 4]),
            ("label", &[]),
            ("mask", &[4, 4]),
            ("depth", &[4, 4]),
            ("targets", &[2]),
            ("tags", &[2]),
        ]
    );
    let columns = load_one(&set, 1, None).unwrap();
    let first = |column: &Column, at: usize| column.as_f32().unwrap()[at].round();
    assert_eq!((first(&columns[0], 0), first(&columns[1], 0), first(&columns[1], 48)), (20.0, 30.0, 20.0));
    assert_eq!(columns[2], Column::I64(vec![1]));
    assert_eq!(columns[3].as_i64().unwrap()[..4], [0, 1, 2, 0]);
    assert_eq!(columns[4].as_f32().unwrap()[12].round(), 3.0);
    assert_eq!(*columns[5].as_f32().unwrap(), [4.0, -2.0]);
    assert_eq!(*columns[6].as_f32().unwrap(), [0.0, 0.0]);
    // The classes of a sample, sorted: big, red.
    assert_eq!(*load_one(&set, 0, None).unwrap()[6].as_f32().unwrap(), [1.0, 1.0]);
}

#[test]
fn errors_name_the_line_and_the_remedy() {
    let image = [("image", "image:path"), ("label", "class:kind")];
    for (table, part) in [
        ("", "table.csv:1: the table is empty"),
        (
            "path,kind\na.png,x\n",
            "table.csv:1: the table has no column `split`, but `path`, `kind`; add it with the set",
        ),
        (
            "path,split\na.png,train\n",
            "the table has no column `kind`, but `path`, `split`; name one of them in data.fields.label",
        ),
        (
            "path,kind,split\na.png,x,trian\n",
            "no line has `train` in the column `split`, which has `trian`; set data.train",
        ),
        ("path,kind,split\n,,\n", "no line has `train` in the column `split`; write a line for each sample"),
        ("sep=,\npath,split\n", "table.csv:2: the table has no column `kind`"),
        ("path,kind,split\n../a.png,x,train\n", "table.csv:2: \"../a.png\" is not a path below the folder"),
        ("path,kind,split\n/a.png,x,train\n", "table.csv:2: \"/a.png\" is not a path below the folder"),
        ("path,kind,split\na.png,,train\n", "table.csv:2: kind is empty; write the name of a class"),
        (
            "path,kind,split\na.png,x,train\nb.png,x,train\na.png,x,train\n",
            "table.csv:4: the line is equal to line 2",
        ),
        ("path,kind,split\na.png,train\n", "table.csv:2: the line has 2 fields, and the first line 3"),
        ("path,kind,split\r\n\r\na.png,\"x,train\r\nb.png,x,train\r\n", "table.csv:3: a quote does not end"),
        (
            "path;a,split;kind\n",
            "the first line has ',' and ';', and none of them gives the names of columns",
        ),
        (
            "path,kind,split\na.png,x,train\n/b.png,x,train\n../c.png,y,train\n",
            "table.csv:3: \"/b.png\" is not a path below the folder of the table; write one such as a/0001.png; 1 more line has \
             this problem",
        ),
        ("path,kind,split,kind\n", "the name \"kind\" occurs twice"),
        ("<!DOCTYPE html>\n<html>", "the table is a web page"),
    ] {
        let found = said(table, &image);
        assert!(found.contains(part), "{table:?}: {found}");
    }
    let long = format!("path,kind,split\n{}.png,x,train\n", "x".repeat(70_000));
    assert!(said(&long, &image).contains("is not a path below the folder"));
    let tags = [("image", "image:path"), ("tags", "classes:kind")];
    // Equal rows of numbers are two samples, and `./` is the table's folder.
    let (_root, path) = written("a,split\n1.5,train\n1.5,train\n");
    assert_eq!(scan(&path, "train", &fields(&[("targets", "numbers:a")]), READING).unwrap().count(), 2);
    let (_root, path) = written("path,kind,split\n./a/1.png,x,train\nb/2.png,x,train\na/3.png,x,train\n");
    assert_eq!(
        paths(&scan(&path, "train", &fields(&image), READING).unwrap()),
        ["a/1.png", "b/2.png", "a/3.png"]
    );
    let found = said("path,kind,split\na.png, | ,train\n", &tags);
    assert!(found.contains("no training line has a class in the column `kind`"), "{found}");
    let found = said(
        "path,a,split\nx.png,1.5,train\ny.png,\"1,5\",train\n",
        &[("image", "image:path"), ("targets", "numbers:a")],
    );
    assert!(found.contains("table.csv:3: a is \"1,5\", which is not a finite number"), "{found}");
}

#[test]
fn a_class_of_the_test_set_alone_is_an_error() {
    let (_root, path) = written("image,label,split\na.png,x,train\nb.png,y,test\n");
    let all = fields(&[("image", "image"), ("label", "class")]);
    let train = scan(&path, "train", &all, READING).unwrap();
    let found =
        scan(&path, "test", &all, Reading { train: Some(&train), ..READING }).unwrap_err().to_string();
    assert!(found.contains("table.csv:3: label is \"y\", a class that no training line has"), "{found}");
}

/// As Excel writes them in German: by "CSV", with a byte order mark, and by "Unicode text".
#[test]
fn tables_of_excel_read() {
    let text = "path;kind;size;split\r\na.png;\"x; the first\";-1,5;train\r\nb.png;y;2;train\r\n";
    let utf16 =
        |text: &str, bytes: fn(u16) -> [u8; 2]| text.encode_utf16().flat_map(bytes).collect::<Vec<u8>>();
    let marked = format!("\u{feff}{}", text.replace(';', "\t").replace("x\t", "x;"));
    let all = fields(&[("image", "image:path"), ("label", "class:kind"), ("targets", "numbers:size")]);
    for bytes in [
        text.as_bytes().to_vec(),
        format!("\u{feff}sep=;\r\n{text}").into_bytes(),
        utf16(&marked, u16::to_le_bytes),
        utf16(&marked, u16::to_be_bytes),
    ] {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("table.csv");
        put(&path, &bytes);
        let found = scan(&path, "train", &all, READING).unwrap();
        assert_eq!(
            (found.classes().0, found.numbers().1),
            (&["x; the first".to_owned(), "y".to_owned()][..], &[-1.5, 2.0][..])
        );
    }
    let found = said("path;size;split\na.png;1,5;train\nb.png;1.5;train\n", &[("t", "numbers:size")]);
    assert!(
        found.contains(
            "table.csv:3: size is \"1.5\", with another decimal mark than the numbers since line 2"
        ),
        "{found}"
    );
    // The column `a;b` is of a table with commas.
    let (_root, path) = written("a;b,split\n1,train\n");
    assert_eq!(scan(&path, "train", &fields(&[("t", "numbers:a;b")]), READING).unwrap().numbers().1, [1.0]);
    let stated = Reading { separator: Separator::Bar, ..READING };
    let (_root, path) = written("a,b|split\n1,5|train\n");
    let found = scan(&path, "train", &fields(&[("t", "numbers:a")]), stated).unwrap_err().to_string();
    assert!(found.contains("the table has no column `a`, but `a,b`, `split`"), "{found}");
}

#[test]
fn utf16_without_a_mark_is_converted_by_the_command_that_the_error_names() {
    let root = tempfile::tempdir().unwrap();
    let path = root.path().join("table.csv");
    let text = "path;kind;split\r\na.png;x;train\r\n";
    put(&path, &text.encode_utf16().flat_map(u16::to_le_bytes).collect::<Vec<_>>());
    let all = fields(&[("image", "image:path"), ("label", "class:kind")]);
    let found = scan(&path, "train", &all, READING).unwrap_err().to_string();
    assert!(found.contains("is a text in UTF-16 without a byte order mark"), "{found}");
    let command = found.split('`').nth(1).unwrap();
    assert!(std::process::Command::new("/bin/sh").args(["-c", command]).status().unwrap().success());
    assert_eq!(scan(&path, "train", &all, READING).unwrap().count(), 1);
}

#[test]
fn texts_are_kept_and_joined() {
    let (_root, path) = written("split,caption\ntrain,\"a cat\"\ntrain,dog\n");
    let train = scan(&path, "train", &fields(&[("words", "text:caption")]), READING).unwrap();
    let last = train.kept(&|at| at == 1).unwrap();
    let joined = Samples::join(vec![(last, None), (train, None)]).unwrap();
    let ListValues::Texts(texts, _) = &joined.lists[0].values else { panic!("texts") };
    assert_eq!(texts[0].iter().collect::<Vec<_>>(), ["dog", "a cat", "dog"]);
}

#[test]
fn images_of_other_shapes_share_the_flip_and_the_brightness() {
    let (root, path) = written("image,split,other\na.png,train,b.png\n");
    let wide = |width, height| {
        let pixel = |x, _| Rgb([if x < width / 2 { 40 } else { 200 }, 0, 0]);
        encoded(RgbImage::from_fn(width, height, pixel), ImageFormat::Png)
    };
    put(root.path().join("a.png"), &wide(30, 30));
    put(root.path().join("b.png"), &wide(120, 12));
    let all = fields(&[("image", "image:image,other")]);
    let list = [
        Change::ResizedCrop(ResizedCrop { area: [0.9, 1.0], ratio: [0.9, 1.1] }),
        Change::Flip(Flip::default()),
    ];
    let options = ImageOptions { changes: Changes::new(&list), ..ImageOptions::square(8) };
    let set = FileSet::new(scan(&path, "train", &all, READING).unwrap(), options);
    let mut flipped = 0;
    for sample in 0..40 {
        let mut rng = keyed(Domain::Augment, 1, 0, sample);
        let images = load_one(&set, 0, Some(&mut rng)).unwrap();
        let values = images[0].as_f32().unwrap();
        // The first row of red: dark to bright, or mirrored.
        let is_flipped = [0, 3 * 64].map(|first| values[first] > values[first + 7]);
        assert_eq!(is_flipped[0], is_flipped[1], "sample {sample}");
        flipped += usize::from(is_flipped[0]);
    }
    assert!((8..32).contains(&flipped), "{flipped}");
}

#[test]
fn a_bad_file_is_named_with_its_line() {
    let (root, path) = written("image,other,split\na.png,b.png,test\n\na.png,c.png,train\n");
    put(root.path().join("a.png"), &png(8, 6));
    let all = fields(&[("image", "image:image,other")]);
    let train = scan(&path, "train", &all, READING).unwrap();
    let needs = Needs {
        channels: 3,
        resize: Resize::Crop,
        orientation: Orientation::Stored,
        nodata: None,
        fill: None,
    };
    let [bad] = &check(&train, needs, Depth::Full, 1, &mut |_, _| ()).bad[..] else { panic!("one is bad") };
    let text = bad.to_string();
    assert!(
        text.contains("a.png (table.csv:4): its image ") && text.contains("c.png: the file cannot be read"),
        "{text}"
    );
    let loaded = load_one(&FileSet::new(train, ImageOptions::square(5)), 0, None).unwrap_err().to_string();
    assert!(loaded.starts_with("its image ") && loaded.contains("correct the path in a table"), "{loaded}");
}

#[test]
fn samples_without_images_have_their_lines_for_a_name() {
    let (_root, path) = written("a,b,split\n1,x|y,train\n2,,train\n");
    let all = fields(&[("targets", "numbers:a"), ("b", "classes")]);
    let set = FileSet::new(scan(&path, "train", &all, READING).unwrap(), ImageOptions::square(1));
    assert_eq!((set.len(), set.describe(1)), (2, format!("{}:3", path.display())));
    assert_eq!(load_one(&set, 1, None).unwrap(), [Column::F32(vec![2.0]), Column::F32(vec![0.0, 0.0])]);
}

#[test]
fn images_of_a_list_may_have_different_sizes_and_depths() {
    let (root, path) = written("image,split,other\na.png,train,b.png\n");
    put(root.path().join("a.png"), &png(8, 6));
    put(root.path().join("b.png"), &png(31, 20));
    let all = fields(&[("image", "image:image,other")]);
    let set = FileSet::new(scan(&path, "train", &all, READING).unwrap(), ImageOptions::square(5));
    assert_eq!(load_one(&set, 0, None).unwrap()[0].len(), 2 * 3 * 25);
}
