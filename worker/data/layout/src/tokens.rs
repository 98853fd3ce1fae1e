//! Token files, as nanoGPT writes them: the numbers of tokens without a header.

use std::fs::File;
use std::io::{self, BufReader, Read};
use std::path::Path;

use dtrain_common::look::Layout;

use super::classes::ROOT;
use super::roles::Sets;
use super::tree::Tree;

/// The vocabulary of GPT-2, whose last tokens are rare.
const GPT2: u32 = 50_257;
/// Tokens of which the upper half decides their type.
const JUDGED: usize = 1 << 20;

/// Finds a token file for each set.
pub(crate) fn of_folder(tree: &Tree) -> Result<Vec<Layout>, String> {
    let names: Vec<&str> = tree.top.files.iter().filter_map(|name| name.strip_suffix(".bin")).collect();
    let sets = Sets::of(names.iter().copied());
    let (Some(train), Some(test)) = (&sets.train, sets.test.as_ref().or(sets.val.as_ref())) else {
        return Ok(Vec::new());
    };
    let words = format!("token files {train}.bin and {test}.bin");
    let layout = Layout::new("tokens", words).with("kind", "tokens", "files of token numbers");
    let mut layout = layout.with("root", tree.shown(), ROOT);
    layout.add("train", train.as_str(), "the file, without .bin");
    layout.add("test", test.as_str(), "");
    let files = [train, test].map(|name| tree.root.join(format!("{name}.bin")));
    add_type(&mut layout, &files)?;
    Ok(vec![layout])
}

/// Returns the layout of one token file.
pub(crate) fn of_file(path: &Path) -> Result<Layout, String> {
    let layout = Layout::new("tokens", "a token file").with("kind", "tokens", "a file of token numbers");
    let mut layout = layout.with("root", path.to_string_lossy().as_ref(), ROOT);
    add_type(&mut layout, &[path.to_owned()])?;
    layout.add("test_fraction", 0.1, "the last tenth of the file is the test set");
    Ok(layout)
}

fn add_type(layout: &mut Layout, files: &[std::path::PathBuf]) -> Result<(), String> {
    let (mut largest, mut wide) = (0, None);
    for path in files {
        let found = read(path, wide).map_err(|error| format!("cannot read {}: {error}", path.display()))?;
        wide = Some(found.0);
        largest = largest.max(found.1);
    }
    if wide == Some(true) {
        layout.add("dtype", "uint32", "four bytes for each token");
    }
    let vocabulary = if (40_000..GPT2).contains(&largest) { GPT2 } else { largest.saturating_add(1).max(2) };
    let about = match vocabulary {
        GPT2 => "that of GPT-2",
        _ => "one more than the largest token",
    };
    layout.add("vocabulary", i64::from(vocabulary), about);
    Ok(())
}

/// Returns whether tokens have four bytes, and the largest of them.
fn read(path: &Path, wide: Option<bool>) -> io::Result<(bool, u32)> {
    let length = std::fs::metadata(path)?.len();
    let wide = match wide {
        Some(wide) => wide,
        None => {
            let mut first = Vec::new();
            File::open(path)?.take(4 * JUDGED as u64).read_to_end(&mut first)?;
            // The upper halves of 32 bits are small, and mostly 0.
            let halves =
                || first.as_chunks::<4>().0.iter().map(|token| u16::from_le_bytes([token[2], token[3]]));
            length % 4 == 0
                && halves().all(|half| half < 16)
                && halves().filter(|half| *half == 0).count() * 2 > halves().count()
        }
    };
    let (mut file, mut bytes, mut largest) = (BufReader::new(File::open(path)?), vec![0; 1 << 20], 0);
    loop {
        let mut filled = 0;
        while filled < bytes.len() {
            match file.read(&mut bytes[filled..])? {
                0 => break,
                count => filled += count,
            }
        }
        if filled == 0 {
            return Ok((wide, largest));
        }
        let of = match wide {
            true => bytes[..filled].as_chunks::<4>().0.iter().map(|token| u32::from_le_bytes(*token)).max(),
            false => {
                bytes[..filled].as_chunks::<2>().0.iter().map(|token| u16::from_le_bytes(*token).into()).max()
            }
        };
        largest = largest.max(of.unwrap_or(0));
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn the_bytes_of_a_token_and_the_vocabulary_are_found() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.bin");
        let narrow: Vec<u8> = (0..400u16).flat_map(|at| (at * 7 % 300).to_le_bytes()).collect();
        std::fs::write(&path, narrow).unwrap();
        let layout = of_file(&path).unwrap();
        assert_eq!((layout.value("vocabulary"), layout.value("dtype")), (Some("300"), None));
        let wide: Vec<u8> = (0..400u32).flat_map(|at| (at * 300 % 70_000).to_le_bytes()).collect();
        std::fs::write(&path, wide).unwrap();
        let layout = of_file(&path).unwrap();
        assert_eq!((layout.value("vocabulary"), layout.value("dtype")), (Some("69901"), Some("\"uint32\"")));
    }
}
