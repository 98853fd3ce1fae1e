#![allow(clippy::unwrap_used)]

use std::fs;
use std::path::Path;
use std::sync::Arc;

use parquet::basic::Compression;
use parquet::data_type::{ByteArray, ByteArrayType, DoubleType, Int64Type};
use parquet::file::properties::WriterProperties;
use parquet::file::writer::SerializedFileWriter;
use parquet::schema::parser::parse_message_type;

use super::*;
use crate::check::check;
use crate::dataset::load_one;
use crate::needs::{Depth, Needs};
use crate::sources::{Reading, classes, shards};
use crate::tests::READING;
use crate::tests::images::{png, put, reference};
use crate::{FileSet, ImageOptions, MapRule};
use dtrain_recipe::{Orientation, Resize};

type Scan = fn(&Request<'_>) -> Result<Samples, DataError>;

fn scan(scan: Scan, root: &Path, set: &str, all: &[(&str, &str)]) -> Result<Samples, DataError> {
    let fields: Vec<_> = all.iter().map(|(field, text)| FieldColumns::parse(field, text).unwrap()).collect();
    let reading = Reading { map: MapRule { scale: 1.0, ignore: None, ..MapRule::PLAIN }, ..READING };
    scan(&Request { root, set, targets: "", target: None, fields: &fields, list: None, pair: None, reading })
}

/// Python's tarfile and pyarrow have written the files from the folder.
#[test]
fn packed_files_have_the_samples_of_the_folder() {
    let root = reference("packs");
    let folder = classes::scan(&root, "train", None).unwrap();
    let image = |samples: &Samples, sample| {
        let set = FileSet::new(samples.clone(), ImageOptions::square(8));
        load_one(&set, sample, None).unwrap()
    };
    type Case<'a> = (Scan, &'a str, [(&'a str, &'a str); 2]);
    let cases: [Case<'_>; 3] = [
        (shards::list, "train-{000..001}.tar", [("image", "image:png;jpg"), ("label", "class:cls")]),
        (list, "train", [("image", "image"), ("label", "class")]),
        (list, "indexed-train", [("image", "image:picture"), ("label", "class:kind")]),
    ];
    // Indexes of archives are written beside copies.
    let copies = tempfile::tempdir().unwrap();
    for entry in fs::read_dir(&root).unwrap().flatten().filter(|entry| entry.path().is_file()) {
        fs::copy(entry.path(), copies.path().join(entry.file_name())).unwrap();
    }
    for (of_kind, set, fields) in cases {
        let packed = scan(of_kind, copies.path(), set, &fields).unwrap();
        assert_eq!((packed.count(), packed.classes()), (24, folder.classes()), "{set}");
        let needs = Needs {
            channels: 3,
            resize: Resize::Crop,
            orientation: Orientation::Stored,
            nodata: None,
            fill: None,
        };
        assert_eq!(check(&packed, needs, Depth::Full, 2, &mut |_, _| {}).bad, [], "{set}");
        for sample in [0, 1, 9, 10, 11, 23] {
            assert_eq!(image(&packed, sample), image(&folder, sample), "{set} {sample}");
        }
    }
    let described = scan(list, &root, "train", &cases[1].2).unwrap().describe(13);
    assert_eq!(described, format!("{}: row 1", root.join("train-00001-of-00002.parquet").display()));
    let others = [("n", "numbers:size,even"), ("t", "classes:kind")];
    let numbers = scan(list, &root, "indexed-train", &others).unwrap();
    assert_eq!(numbers.numbers().1[..6], [0.0, 1.0, 0.25, 0.0, 0.5, 1.0]);
    assert_eq!(numbers.describe(3), format!("{}:4", root.join("indexed-train").display()));
}

/// Writes a file with a row group of these rows: an image, the number of a class, and a size.
fn written(path: &Path, rows: &[(&[u8], i64, f64)], names: &str, compression: Compression) {
    let schema = "message m { required binary image; required int64 label; required double size; required binary text (UTF8); \
                  repeated int64 list; }";
    let note = parquet::file::metadata::KeyValue::new("huggingface".to_owned(), names.to_owned());
    let properties = WriterProperties::builder()
        .set_compression(compression)
        .set_key_value_metadata(Some(vec![note]))
        .build();
    let schema = Arc::new(parse_message_type(schema).unwrap());
    let file = fs::File::create(path).unwrap();
    let mut writer = SerializedFileWriter::new(file, schema, Arc::new(properties)).unwrap();
    if !rows.is_empty() {
        let mut group = writer.next_row_group().unwrap();
        let mut bytes = |values: Vec<ByteArray>| {
            let mut column = group.next_column().unwrap().unwrap();
            column.typed::<ByteArrayType>().write_batch(&values, None, None).unwrap();
            column.close().unwrap();
        };
        bytes(rows.iter().map(|row| row.0.to_vec().into()).collect());
        let mut column = group.next_column().unwrap().unwrap();
        let labels: Vec<i64> = rows.iter().map(|row| row.1).collect();
        column.typed::<Int64Type>().write_batch(&labels, None, None).unwrap();
        column.close().unwrap();
        let mut column = group.next_column().unwrap().unwrap();
        let sizes: Vec<f64> = rows.iter().map(|row| row.2).collect();
        column.typed::<DoubleType>().write_batch(&sizes, None, None).unwrap();
        column.close().unwrap();
        let mut column = group.next_column().unwrap().unwrap();
        let texts: Vec<ByteArray> = rows.iter().map(|_| "text".into()).collect();
        column.typed::<ByteArrayType>().write_batch(&texts, None, None).unwrap();
        column.close().unwrap();
        let mut column = group.next_column().unwrap().unwrap();
        let levels = vec![0; rows.len()];
        column.typed::<Int64Type>().write_batch(&[], Some(&levels), Some(&levels)).unwrap();
        column.close().unwrap();
        group.close().unwrap();
    }
    writer.close().unwrap();
}

const NAMES: &str =
    r#"{"info": {"features": {"label": {"names": ["zebra", "ant"], "_type": "ClassLabel"}}}}"#;

#[test]
fn numbers_of_classes_have_the_names_of_the_footer() {
    let root = tempfile::tempdir().unwrap();
    let image = png(4, 4);
    let path = root.path().join("a.parquet");
    written(&path, &[(&image, 1, 0.5), (&image, 0, 1.5)], NAMES, Compression::SNAPPY);
    let fields = [("image", "image"), ("label", "class"), ("size", "numbers")];
    let samples = scan(list, root.path(), "a.parquet", &fields).unwrap();
    assert_eq!(samples.classes(), (&["zebra".to_owned(), "ant".to_owned()][..], &[1, 0][..]));
    assert_eq!(samples.numbers().1, [0.5, 1.5]);
    // Without names the numbers are in their order.
    written(&path, &[(&image, 10, 0.5), (&image, 9, 1.5)], "", Compression::SNAPPY);
    let samples = scan(list, root.path(), "a", &fields).unwrap();
    assert_eq!(samples.classes(), (&["9".to_owned(), "10".to_owned()][..], &[1, 0][..]));
    // Texts are names, also where they are numbers.
    let names = r#"{"info": {"features": {"text": {"names": ["text", "1"], "_type": "ClassLabel"}}}}"#;
    written(&path, &[(&image, 10, 0.5), (&image, 9, 1.5)], names, Compression::SNAPPY);
    let of_texts = [("image", "image"), ("label", "class:text")];
    let samples = scan(list, root.path(), "a", &of_texts).unwrap();
    assert_eq!(samples.classes(), (&["text".to_owned(), "1".to_owned()][..], &[0, 0][..]));
    // A changed file is unpacked anew.
    let other = png(5, 5);
    written(&path, &[(&other, 10, 0.5), (b"no image", 9, 1.5)], "", Compression::SNAPPY);
    let samples = scan(list, root.path(), "a", &fields).unwrap();
    let needs = Needs {
        channels: 3,
        resize: Resize::None,
        orientation: Orientation::Stored,
        nodata: None,
        fill: None,
    };
    let bad = check(&samples, needs, Depth::Full, 1, &mut |_, _| {}).bad;
    assert_eq!((bad.len(), bad[0].index), (1, 1));
    assert_eq!(bad[0].path, format!("{}: row 1", path.display()));
}

#[test]
fn wrong_files_are_named_with_the_remedy() {
    let root = tempfile::tempdir().unwrap();
    let image = png(4, 4);
    let path = root.path().join("a.parquet");
    let fields = [("image", "image"), ("label", "class")];
    let said = |fields: &[(&str, &str)]| {
        let error = scan(list, root.path(), "a", fields).unwrap_err().to_string();
        error.replace(root.path().to_str().unwrap(), "ROOT")
    };
    let rows = [(&image[..], 1, 0.5), (&image[..], -1, 1.5)];
    written(&path, &rows, NAMES, Compression::SNAPPY);
    assert_eq!(
        said(&fields),
        "ROOT/a.parquet: row 1: `label` is -1, but its names of classes go from 0 to 1; correct it, or remove the row"
    );
    let types = [
        (
            "image:size",
            "`size` is of the type DOUBLE, and a field of the kind \"image\" takes bytes of encoded images, or a group with a leaf `bytes`",
        ),
        ("image:text", "`text` is of the type "),
        (
            "numbers:list",
            "`list` is of the type a list of INT64, and a field of the kind \"numbers\" takes texts, whole numbers, floats or booleans",
        ),
        ("class:image", "`image` is of the type BYTE_ARRAY"),
        (
            "image:img",
            "it has no column `img`, but `image`, `label`, `size`, `text`, `list`; name one of them in data.fields.image",
        ),
    ];
    for (text, expected) in types {
        let said = said(&[("image", text)]);
        assert!(said.contains(expected), "{said}");
    }
    let whole = fs::read(&path).unwrap();
    for cut in [0, 3, 100, whole.len() / 2, whole.len() - 1] {
        fs::write(&path, &whole[..cut]).unwrap();
        let said = said(&fields);
        assert!(
            said.starts_with("ROOT/a.parquet: the ") && said.contains("copy or download it again"),
            "{cut}: {said}"
        );
    }
    fs::write(&path, b"PK\x03\x04 and so on").unwrap();
    assert_eq!(said(&fields), "ROOT/a.parquet: it is a zip archive; expected a Parquet file");
    written(&path, &[], NAMES, Compression::SNAPPY);
    assert_eq!(
        said(&fields),
        "ROOT/a.parquet: it has no samples; leave it out of the files of the set, or write it again"
    );
    // The library writes no such file without the encoder, so the codec's number in the footer is changed: snappy is 1, and LZO 3.
    let path_of = path.clone();
    let codec = |number: u8| {
        let mut bytes = whole.clone();
        let footer =
            bytes.len() - 8 - u32::from_le_bytes(bytes[bytes.len() - 8..][..4].try_into().unwrap()) as usize;
        // Field 4 of a column's metadata: an i32 (type 5) after the path of the schema, in zigzag.
        let path = bytes[footer..]
            .windows(8)
            .rposition(|window| window == b"\x19\x18\x05image\x15\x02".get(..8).unwrap())
            .unwrap();
        assert_eq!(bytes[footer + path + 8..][..2], *b"\x15\x02");
        bytes[footer + path + 9] = 2 * number;
        fs::write(&path_of, bytes).unwrap();
    };
    codec(3);
    assert_eq!(
        said(&fields[..1]),
        "ROOT/a.parquet: the column `image` is compressed by LZO, for which dtrain has no decoder; write the file again with compression=\"zstd\""
    );
    written(&path, &rows, r#"{"info": {"features": {"label": {"names": ["a"]}}}}"#, Compression::SNAPPY);
    put(root.path().join("b.parquet"), &whole);
    let error = scan(list, root.path(), "{b,a}.parquet", &[("label", "class")]).unwrap_err().to_string();
    assert!(error.contains("b.parquet: row 1: `label` is -1"), "{error}");
    // Two files must have the same names, or the data has no names.
    for (first, second) in [(NAMES, ""), ("", NAMES)] {
        for (name, names) in [("a", first), ("b", second)] {
            written(&root.path().join(format!("{name}.parquet")), &rows[..1], names, Compression::SNAPPY);
        }
        let error = scan(list, root.path(), "{a,b}.parquet", &[("label", "class")]).unwrap_err().to_string();
        assert!(
            error.contains("b.parquet: its classes in `label` have other names than those of a.parquet"),
            "{error}"
        );
    }
}

#[test]
fn damaged_files_are_errors_and_no_panics() {
    let root = tempfile::tempdir().unwrap();
    let path = root.path().join("a.parquet");
    let whole = reference("packs/test-00000-of-00002.parquet");
    let whole = fs::read(whole).unwrap();
    let needs = Needs {
        channels: 3,
        resize: Resize::Crop,
        orientation: Orientation::Stored,
        nodata: None,
        fill: None,
    };
    for place in (0..whole.len()).step_by(whole.len() / 150) {
        for change in [1u8, 0x80] {
            let mut bytes = whole.clone();
            bytes[place] ^= change;
            fs::write(&path, &bytes).unwrap();
            match scan(list, root.path(), "a", &[("image", "image"), ("label", "class")]) {
                Ok(samples) => drop(check(&samples, needs, Depth::Full, 1, &mut |_, _| {})),
                Err(error) => assert!(error.to_string().contains("a.parquet"), "{error}"),
            }
        }
    }
}
