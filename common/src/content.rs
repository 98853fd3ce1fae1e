//! Kinds of files, by their first bytes: for errors about a file of another kind than expected.

use std::fmt;
use std::fs::{self, File};
use std::io::Read;
use std::os::unix::fs::FileExt;
use std::path::Path;

use crate::files::unused;

/// Bytes at the start of a file by which it is recognised; a tar archive has its mark at byte 257.
const START: usize = 4096;
/// Bytes at the end of a zip archive in which names of entries are looked for.
const END: u64 = 64 << 10;
/// Longer than any index of sharded weights: 100 bytes for each of a million tensors.
pub const MAX_INDEX_BYTES: u64 = 100_000_000;

/// A kind of file that is often found in the place of another one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Content {
    LfsPointer,
    Html,
    Xml,
    /// A list of the parts of sharded weights.
    WeightIndex,
    Json,
    /// A zip of `torch.save`.
    TorchZip,
    /// A pickle of `torch.save` of PyTorch 1.5 or older.
    TorchPickle,
    TorchScript,
    /// A zip of `torch.export.save`.
    Exported,
    Npz,
    Npy,
    /// A zip of Excel or LibreOffice.
    Spreadsheet,
    Zip,
    Pickle,
    Gzip,
    Zstd,
    Xz,
    Bzip2,
    SevenZip,
    Rar,
    Tar,
    Hdf5,
    Onnx,
    Gguf,
    TfLite,
    Safetensors,
    Parquet,
    Pdf,
    Picture,
    Elf,
    Utf16,
    /// Nothing but zero bytes at its start.
    Zeros,
}

/// First bytes that tell a kind.
const MARKS: [(&[u8], Content); 31] = [
    (b"version https://git-lfs", Content::LfsPointer),
    (b"PK\x03\x04", Content::Zip),
    // torch.save before zip: a pickle of its magic number.
    (b"\x80\x02\x8a\x0al\xfc\x9cF\xf9 j\xa8P\x19.", Content::TorchPickle),
    (b"\x80\x02", Content::Pickle),
    (b"\x80\x03", Content::Pickle),
    (b"\x80\x04\x95", Content::Pickle),
    (b"\x80\x05\x95", Content::Pickle),
    (b"\x1f\x8b", Content::Gzip),
    (b"\x28\xb5\x2f\xfd", Content::Zstd),
    (b"\xfd7zXZ\0", Content::Xz),
    (b"BZh", Content::Bzip2),
    (b"7z\xbc\xaf\x27\x1c", Content::SevenZip),
    (b"Rar!\x1a\x07", Content::Rar),
    (b"\x89HDF\r\n\x1a\n", Content::Hdf5),
    (b"GGUF", Content::Gguf),
    (b"\x93NUMPY", Content::Npy),
    (b"PAR1", Content::Parquet),
    (b"%PDF-", Content::Pdf),
    (b"\x7fELF", Content::Elf),
    (b"\x89PNG\r\n", Content::Picture),
    (b"\xff\xd8\xff", Content::Picture),
    (b"GIF8", Content::Picture),
    (b"II*\0", Content::Picture),
    (b"MM\0*", Content::Picture),
    (b"\xff\xfe", Content::Utf16),
    (b"\xfe\xff", Content::Utf16),
    (b"<?xml", Content::Xml),
    (b"<!doctype html", Content::Html),
    (b"<html", Content::Html),
    (b"<!--", Content::Html),
    (b"<head", Content::Html),
];

/// Entries of zip archives that tell their kind.
const ENTRIES: [(&[u8], Content); 8] = [
    (b"constants.pkl", Content::TorchScript),
    (b"archive_format", Content::Exported),
    (b"serialized_exported_program.json", Content::Exported),
    (b"data.pkl", Content::TorchZip),
    (b".npy", Content::Npz),
    (b"xl/workbook", Content::Spreadsheet),
    (b"[Content_Types].xml", Content::Spreadsheet),
    (b"mimetypeapplication/vnd.oasis", Content::Spreadsheet),
];

impl Content {
    /// Recognises a file. Returns `None` for an unknown or unreadable one.
    pub fn of_file(path: &Path) -> Option<Self> {
        let file = File::open(path).ok().filter(|file| file.metadata().is_ok_and(|about| about.is_file()))?;
        let mut start = Vec::with_capacity(START);
        (&file).take(START as u64).read_to_end(&mut start).ok()?;
        let length = file.metadata().ok()?.len();
        let known = length.min(END);
        let mut end = vec![0; known as usize];
        file.read_exact_at(&mut end, length - known).ok()?;
        let content = Self::of(&start, &end)?;
        // An index's list of parts may be far from both ends: after long metadata, and long itself.
        if content == Self::Json && length > START as u64 + END && length <= MAX_INDEX_BYTES {
            return Self::of(&start, &fs::read(path).ok()?);
        }
        Some(content)
    }

    /// Recognises a file by its first bytes, and a zip archive also by its last ones, which list its entries.
    pub fn of(start: &[u8], end: &[u8]) -> Option<Self> {
        // First, since the length of a safetensors header may be the mark of another kind. It is below 4 GiB.
        if start.get(4..9) == Some(b"\0\0\0\0{") {
            return Some(Self::Safetensors);
        }
        let text = start.strip_prefix(b"\xef\xbb\xbf").unwrap_or(start).trim_ascii_start();
        let marked = |(mark, _): &&(&[u8], Self)| {
            // Marks of texts are in any case.
            let begins = || text.get(..mark.len()).is_some_and(|begin| begin.eq_ignore_ascii_case(mark));
            start.starts_with(mark) || (mark[0] == b'<' && begins())
        };
        let found = MARKS.iter().find(marked).map(|(_, content)| *content);
        match found {
            Some(Self::Zip) => {
                let has = |name: &[u8]| contains(start, name) || contains(end, name);
                let kind = ENTRIES.iter().find(|(name, _)| has(name));
                Some(kind.map_or(Self::Zip, |(_, content)| *content))
            }
            Some(Self::Xml) if contains(&start.to_ascii_lowercase(), b"<html") => Some(Self::Html),
            Some(known) => Some(known),
            None if text.starts_with(b"{") && contains(start, b"\"weight_map\"") => Some(Self::WeightIndex),
            // Its list of parts may begin after the metadata.
            None if text.starts_with(b"{") || text.starts_with(b"[") => {
                Some(match contains(end, b"\"weight_map\"") {
                    true => Self::WeightIndex,
                    false => Self::Json,
                })
            }
            None if start.get(257..262) == Some(b"ustar") => Some(Self::Tar),
            None if start.get(4..8) == Some(b"TFL3") => Some(Self::TfLite),
            None if is_onnx(start) => Some(Self::Onnx),
            None if start.len() >= 8 && start.iter().all(|byte| *byte == 0) => Some(Self::Zeros),
            None => None,
        }
    }

    /// Returns the program that unpacks a compressed file by `-dc`.
    pub fn unpacker(self) -> Option<&'static str> {
        match self {
            Self::Gzip => Some("gzip"),
            Self::Zstd => Some("zstd"),
            Self::Xz => Some("xz"),
            Self::Bzip2 => Some("bzip2"),
            _ => None,
        }
    }

    /// Returns what brings the wanted file in the place of this one, in an imperative clause, if that does not depend on its use.
    pub fn remedy(self, path: &Path) -> Option<String> {
        let (folder, name) = (path.parent().unwrap_or(Path::new("/")), path.file_name().unwrap_or_default());
        let word = |path: &Path| shell_word(&path.to_string_lossy());
        // Without its ending, or with a new one: no command overwrites a file.
        let unpack = |program: &str| {
            // From standard input, since gzip refuses names without its ending.
            let packed = path
                .extension()
                .is_some_and(|ending| ["gz", "zst", "xz", "bz2"].iter().any(|it| ending == *it));
            let plain = if packed { path.with_extension("") } else { path.with_extension("unpacked") };
            let plain = unused(&plain);
            format!(
                "unpack it with `{program} -dc < {} > {}` and name the new file",
                word(path),
                word(&plain)
            )
        };
        Some(match self {
            Self::LfsPointer => {
                let name = shell_word(&name.to_string_lossy());
                format!("fetch the file with `git -C {} lfs pull --include {name}`", word(folder))
            }
            Self::Html | Self::Xml => {
                "download the file itself: its address answered with a page, such as an error, a login or a \
                                       preview (on Hugging Face, write /resolve/ for /blob/ in the address)"
                    .to_owned()
            }
            Self::Zeros => "download or copy it again: its data never arrived".to_owned(),
            Self::Gzip | Self::Zstd | Self::Xz | Self::Bzip2 => unpack(self.unpacker()?),
            Self::Tar => {
                let folder = word(&unused(&path.with_extension("unpacked")));
                format!(
                    "unpack it with `mkdir {folder} && tar -xf {} -C {folder}` and name the file in that folder",
                    word(path)
                )
            }
            _ => return None,
        })
    }
}

impl fmt::Display for Content {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::LfsPointer => "a Git LFS pointer, which stands for a file that was not fetched",
            Self::Html => "a web page (HTML)",
            Self::Xml => "an XML text, such as a server's error message",
            Self::WeightIndex => "a JSON index of sharded weights",
            Self::Json => "a JSON text",
            Self::TorchZip => "a file of torch.save (zip with pickle)",
            Self::TorchPickle => "a file of torch.save of PyTorch 1.5 or older (pickle)",
            Self::TorchScript => "a TorchScript module",
            Self::Exported => "an exported program (.pt2)",
            Self::Npz => "a NumPy archive (.npz)",
            Self::Npy => "a NumPy array (.npy)",
            Self::Spreadsheet => "a spreadsheet of Excel or LibreOffice",
            Self::Zip => "a zip archive",
            Self::Pickle => "a Python pickle",
            Self::Gzip => "compressed by gzip",
            Self::Zstd => "compressed by zstd",
            Self::Xz => "compressed by xz",
            Self::Bzip2 => "compressed by bzip2",
            Self::SevenZip => "a 7z archive",
            Self::Rar => "a RAR archive",
            Self::Tar => "a tar archive",
            Self::Hdf5 => "an HDF5 file, as of Keras",
            Self::Onnx => "an ONNX model",
            Self::Gguf => "a GGUF file, as of llama.cpp",
            Self::TfLite => "a TensorFlow Lite model",
            Self::Safetensors => "a safetensors file",
            Self::Parquet => "a Parquet table",
            Self::Pdf => "a PDF document",
            Self::Picture => "a picture",
            Self::Elf => "a Linux program or library",
            Self::Utf16 => "a text in UTF-16",
            Self::Zeros => "a file of zero bytes",
        })
    }
}

fn contains(bytes: &[u8], part: &[u8]) -> bool {
    bytes.windows(part.len()).any(|window| window == part)
}

/// An ONNX model begins with its version (a number below 32) and the name of the program that wrote it.
fn is_onnx(start: &[u8]) -> bool {
    let [8, version, 0x12, length, name @ ..] = start else { return false };
    let name = name.get(..usize::from(*length));
    *version < 32 && name.is_some_and(|name| !name.is_empty() && name.iter().all(u8::is_ascii_graphic))
}

/// Returns a word of a shell for any text.
pub fn shell_word(text: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "/._-+=:,@%".contains(c);
    match !text.is_empty() && text.chars().all(is_plain) {
        true => text.to_owned(),
        false => format!("'{}'", text.replace('\'', r"'\''")),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn files_are_recognised_by_their_first_bytes() {
        let cases: [(&[u8], Content); 27] = [
            (b"version https://git-lfs.github.com/spec/v1\noid sha256:1\nsize 4\n", Content::LfsPointer),
            (b"\n <!DOCTYPE html><html>", Content::Html),
            (b"\xef\xbb\xbf<HTML lang=en>", Content::Html),
            (b"<?xml version=\"1.0\"?><!DOCTYPE html><html>", Content::Html),
            (b"<?xml version=\"1.0\"?><Error><Code>AccessDenied", Content::Xml),
            (b"{\"metadata\": {}, \"weight_map\": {}}", Content::WeightIndex),
            (b"{\"model_type\": \"vit\"}", Content::Json),
            (b"[1, 2]", Content::Json),
            (b"PK\x03\x04..................archive/data.pkl", Content::TorchZip),
            (b"PK\x03\x04..net/data.pkl..net/constants.pkl", Content::TorchScript),
            (b"PK\x03\x04..net/archive_format", Content::Exported),
            (b"PK\x03\x04..weight.npy", Content::Npz),
            (b"PK\x03\x04..[Content_Types].xml", Content::Spreadsheet),
            (b"PK\x03\x04..a.txt", Content::Zip),
            (b"\x80\x02\x8a\x0al\xfc\x9cF\xf9 j\xa8P\x19.", Content::TorchPickle),
            (b"\x80\x04\x95\x11\0\0\0\0\0\0\0}", Content::Pickle),
            (b"\x1f\x8b\x08\0\0\0\0\0", Content::Gzip),
            (b"\x89HDF\r\n\x1a\n\0", Content::Hdf5),
            (b"\x08\x07\x12\x07pytorch\x1a", Content::Onnx),
            (b"GGUF\x03\0\0\0", Content::Gguf),
            (b"\x1c\0\0\0TFL3", Content::TfLite),
            (b"\x10\0\0\0\0\0\0\0{\"a\"", Content::Safetensors),
            // Headers of 640, 896 and 31520 bytes.
            (b"\x80\x02\0\0\0\0\0\0{\"a\"", Content::Safetensors),
            (b"\x80\x03\0\0\0\0\0\0{\"a\"", Content::Safetensors),
            (b" {\0\0\0\0\0\0{\"a\"", Content::Safetensors),
            (b"\0\0\0\0\0\0\0\0\0\0", Content::Zeros),
            (b"\xff\xfef\0i\0", Content::Utf16),
        ];
        for (start, content) in cases {
            assert_eq!(Content::of(start, b""), Some(content), "{}", start.escape_ascii());
        }
        for start in [&b""[..], b"a text", b"\0\0", b"\x08\x07\x12\xffabc"] {
            assert_eq!(Content::of(start, b""), None, "{}", start.escape_ascii());
        }
        // The list of entries is at the end of a zip.
        assert_eq!(Content::of(b"PK\x03\x04", b"..net/code/x net/constants.pkl"), Some(Content::TorchScript));
    }

    #[test]
    fn a_list_of_parts_is_found_anywhere_in_an_index() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("index.json");
        let space = " ".repeat(END as usize + START);
        for (list, content) in [("weight_map", Content::WeightIndex), ("weights", Content::Json)] {
            fs::write(&path, format!("{{{space}\"{list}\": {{{space}}}}}")).unwrap();
            assert_eq!(Content::of_file(&path), Some(content));
        }
    }

    #[test]
    fn commands_write_new_files() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("it's.gz");
        std::fs::write(folder.path().join("it's"), "mine").unwrap();
        let remedy = Content::Gzip.remedy(&path).unwrap();
        assert!(remedy.contains(r"/it'\''s.gz' > ") && remedy.contains(r"/it'\''s-1'`"), "{remedy}");
        assert_eq!(shell_word("a b"), "'a b'");
        assert_eq!(shell_word("/a/b-1.pt"), "/a/b-1.pt");
    }
}
