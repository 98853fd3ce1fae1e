//! Archives, also those that PyTorch would not write.

use std::io::{Read, Seek, SeekFrom, Write};
use std::path::Path;

use super::*;

/// Writes the entries of a file of torch as torch does for another name and, with a `hole`, behind an entry of that many
/// bytes: the sizes of an entry follow its content, and there always is an end record of zip64.
fn write_as_torch(path: &Path, folder: &str, hole: u64) {
    fn small(value: u64) -> [u8; 4] {
        u32::try_from(value).unwrap_or(u32::MAX).to_le_bytes()
    }
    let mut read = zip::ZipArchive::new(std::fs::File::open(reference("functional.pt2")).unwrap()).unwrap();
    let mut file = std::fs::File::create(path).unwrap();
    let (mut list, count) = (Vec::new(), read.len() as u64 + u64::from(hole > 0));
    let mut add = |name: &str, crc: u32, size: u64, content: &[u8]| {
        let start = file.stream_position().unwrap();
        let name = format!("{folder}/{name}");
        // Version, flags, method, time and date.
        let common = [&[0, 0, 8, 8][..], &[0; 6]].concat();
        let length = (name.len() as u16).to_le_bytes();
        let header =
            [b"PK\x03\x04".as_slice(), &common[..], &[0; 12], &length, &[0, 0], name.as_bytes()].concat();
        file.write_all(&[&header[..], content].concat()).unwrap();
        file.seek(SeekFrom::Start(start + header.len() as u64 + size)).unwrap();
        let crc = crc.to_le_bytes();
        let large = size.max(start) >= u64::from(u32::MAX);
        let sizes = if large { [size.to_le_bytes(); 2].concat() } else { [small(size); 2].concat() };
        file.write_all(&[b"PK\x07\x08".as_slice(), &crc[..], &sizes].concat()).unwrap();
        let mut extra = Vec::new();
        if size >= u64::from(u32::MAX) {
            extra.extend([size.to_le_bytes(); 2].concat());
        }
        if start >= u64::from(u32::MAX) {
            extra.extend(start.to_le_bytes());
        }
        if large {
            extra = [&[1, 0, extra.len() as u8, 0][..], &extra].concat();
        }
        let lengths = [length, (extra.len() as u16).to_le_bytes()].concat();
        let sizes = [small(size); 2].concat();
        list.extend(
            [
                b"PK\x01\x02\0\0".as_slice(),
                &common[..],
                &crc,
                &sizes,
                &lengths,
                &[0; 10],
                &small(start),
                name.as_bytes(),
            ]
            .concat(),
        );
        list.extend(extra);
    };
    if hole > 0 {
        add("data/weights/unused", 0, hole, &[]);
    }
    for number in 0..read.len() {
        let mut entry = read.by_index(number).unwrap();
        let mut content = Vec::new();
        entry.read_to_end(&mut content).unwrap();
        let name = entry.name().unwrap().into_owned();
        add(name.split_once('/').unwrap().1, entry.crc32(), content.len() as u64, &content);
    }
    let (start, size) = (file.stream_position().unwrap(), list.len() as u64);
    let numbers = [count, count, size, start].map(u64::to_le_bytes).concat();
    let record =
        [b"PK\x06\x06".as_slice(), &44u64.to_le_bytes()[..], &[0x1e, 3, 0x2d, 0], &[0; 8], &numbers].concat();
    let locator =
        [b"PK\x06\x07".as_slice(), &[0; 4][..], &(start + size).to_le_bytes(), &[1, 0, 0, 0]].concat();
    let counts = [(count as u16).to_le_bytes(); 2].concat();
    let end = [b"PK\x05\x06".as_slice(), &[0; 4][..], &counts, &small(size), &small(start), &[0, 0]].concat();
    file.write_all(&[list, record, locator, end].concat()).unwrap();
}

fn load(path: &Path) -> Result<Exported, ModelError> {
    Exported::load(path, &mut Registry::new(Device::Cpu))
}

#[test]
fn files_are_read_whatever_the_length_of_their_name() {
    let folder = tempfile::tempdir().unwrap();
    for length in 1..=40 {
        let name = "n".repeat(length);
        let path = folder.path().join(format!("{name}.pt2"));
        write_as_torch(&path, &name, 0);
        assert!(load(&path).is_ok(), "{length} letters: {:?}", load(&path).err());
    }
}

/// The file is a hole but for its entries: it takes no space.
#[test]
fn files_of_more_than_4_gib_are_read() {
    let folder = tempfile::tempdir().unwrap();
    for (name, hole) in [("large", 653 << 20), ("larger", 3 << 30), ("resnet50", 5 << 30)] {
        let path = folder.path().join(format!("{name}.pt2"));
        write_as_torch(&path, name, hole);
        assert!(load(&path).is_ok(), "{hole} bytes: {:?}", load(&path).err());
    }
}

#[test]
fn files_of_other_kinds_are_named() {
    for (bytes, words) in [
        (
            &b"version https://git-lfs.github.com/spec/v1\n"[..],
            "the file is a Git LFS pointer, which stands for a file that was not",
        ),
        (
            b"<!DOCTYPE html><html>",
            "the file is a web page (HTML), not an exported program; download the file itself",
        ),
        (
            b"PK\x03\x04 net/data.pkl net/constants.pkl",
            "the file is a TorchScript module, not an exported program; write the model by `dtrain import`",
        ),
        (
            b"PK\x03\x04 archive/data.pkl",
            "it has weights and no program: write model.file by `dtrain import`",
        ),
        (b"\x02\0\0\0\0\0\0\0{}", "the file is a safetensors file, not an exported program; it has weights"),
    ] {
        let text = message(load_bytes(bytes));
        assert!(text.contains(words), "{text}");
    }
}

#[test]
fn truncated_files_are_refused() {
    let bytes = std::fs::read(reference("functional.pt2")).unwrap();
    for length in (0..bytes.len()).step_by(97) {
        let text = message(load_bytes(&bytes[..length]));
        assert!(text.contains("not an exported program") || text.contains("damaged"), "{length}: {text}");
    }
    assert!(load_bytes(&bytes).is_ok());
}

#[test]
fn names_outside_the_folder_are_refused() {
    for name in ["functional/../x", "/functional/x", "functional\\x", "other/x", "x", "../x"] {
        let mut entries = Entries::of("functional");
        entries.0.push((name.to_owned(), Vec::new()));
        let text = refusal(&entries);
        assert!(text.contains(name) && text.contains("outside the archive's folder"), "{text}");
    }
}

/// Replaces two bytes in every header of a file's entries: in its own, and in the list at the end.
fn with_headers(mut bytes: Vec<u8>, local: usize, listed: usize, value: [u8; 2]) -> Vec<u8> {
    for (signature, at) in [(b"PK\x03\x04", local), (b"PK\x01\x02", listed)] {
        let found: Vec<usize> =
            bytes.windows(4).enumerate().filter(|(_, part)| part == signature).map(|(at, _)| at).collect();
        for start in found {
            bytes[start + at..start + at + 2].copy_from_slice(&value);
        }
    }
    bytes
}

#[test]
fn compressed_entries_are_refused() {
    let bytes = with_headers(Entries::of("functional").bytes(), 8, 10, [8, 0]);
    let text = message(load_bytes(&bytes));
    assert!(text.contains("is compressed"), "{text}");
}

/// Returns an archive of one entry whose list claims a number of bytes.
fn claiming(bytes: u64) -> Vec<u8> {
    let name = b"model/models/model.json";
    let mut extra = vec![1, 0, 16, 0];
    extra.extend([bytes.to_le_bytes(), bytes.to_le_bytes()].concat());
    let lengths = |extra: usize| [(name.len() as u16).to_le_bytes(), (extra as u16).to_le_bytes()].concat();
    // Version, flags, method, time, date, checksum; sizes of 2^32 - 1 are in the extra field.
    let common = [vec![45, 0], vec![0; 12], vec![255; 8]].concat();
    let local = [b"PK\x03\x04".as_slice(), &common, &lengths(extra.len()), name, &extra, b"{}"].concat();
    let list =
        [b"PK\x01\x02\x2d\x00".as_slice(), &common, &lengths(extra.len()), &[0; 14], name, &extra].concat();
    let sizes = [(list.len() as u32).to_le_bytes(), (local.len() as u32).to_le_bytes()].concat();
    let end = [b"PK\x05\x06\0\0\0\0\x01\0\x01\0".as_slice(), &sizes, &[0, 0]].concat();
    [local, list, end].concat()
}

#[test]
fn entries_larger_than_the_file_are_refused() {
    let text = message(load_bytes(&claiming(1 << 40)));
    assert!(text.contains("`model/models/model.json` exceeds the file"), "{text}");
    assert!(message(load_bytes(&claiming(2))).contains("damaged"), "the checksum is wrong");
}

#[test]
fn entries_that_share_bytes_are_refused() {
    // 100 names for one entry of 1000 bytes.
    let mut entries = Entries(Vec::new());
    for number in 0..100 {
        entries.0.push((
            format!("m/data/weights/{number:02}"),
            if number == 0 { vec![7; 1000] } else { Vec::new() },
        ));
    }
    let bytes = entries.bytes();
    let list = bytes.windows(4).position(|part| part == b"PK\x01\x02").unwrap();
    let shared = bytes[list + 16..list + 28].to_vec();
    let mut bytes = bytes;
    let starts: Vec<usize> =
        bytes.windows(4).enumerate().filter(|(_, part)| part == b"PK\x01\x02").map(|(at, _)| at).collect();
    for start in starts {
        bytes[start + 16..start + 28].copy_from_slice(&shared);
        bytes[start + 42..start + 46].copy_from_slice(&[0; 4]);
    }
    let text = message(load_bytes(&bytes));
    assert!(text.contains("exceeds the file"), "{text}");
}

#[test]
fn there_must_be_one_program_of_a_known_schema() {
    let mut entries = Entries::of("functional");
    entries.0.push(("functional/models/other.json".to_owned(), b"{}".to_vec()));
    assert!(refusal(&entries).contains("2 programs"), "{}", refusal(&entries));
    entries.0.retain(|(name, _)| !name.contains("/models/"));
    assert!(refusal(&entries).contains("it has no program"), "{}", refusal(&entries));
    entries.0.push(("functional/serialized_exported_program.json".to_owned(), b"{}".to_vec()));
    assert!(refusal(&entries).contains("torch 2.7 or older"), "{}", refusal(&entries));
    for major in [7, 9] {
        let entries = Entries::of("functional")
            .edit("models/model.json", |document| document["schema_version"]["major"] = json!(major));
        let text = refusal(&entries);
        assert!(
            text.contains(&format!("schema {major}.")) && text.contains("dtrain reads schema 8"),
            "{text}"
        );
    }
    let mut entries = Entries::of("functional");
    entries.0.retain(|(name, _)| !name.ends_with("weight_2"));
    let text = refusal(&entries);
    assert!(text.contains("no entry `data/weights/weight_2`"), "{text}");
    let folder = tempfile::tempdir().unwrap();
    let mut registry = Registry::new(Device::Cpu);
    for (path, problem) in
        [(folder.path().to_owned(), "not a regular file"), (folder.path().join("x"), "cannot be read")]
    {
        let error = Exported::load(&path, &mut registry).err().unwrap().to_string();
        assert!(error.contains(problem), "{error}");
    }
}
