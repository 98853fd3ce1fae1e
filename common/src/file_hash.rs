//! Hashes of files that may be large, to tell whether two runs had the same.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::path::Path;

/// Files above this size are hashed in parts: reading more would delay the start of a run by more than a second.
const WHOLE: u64 = 1 << 30;
/// Parts of a larger file, at equal distances, and the bytes of each.
const PARTS: u64 = 1024;
const PART: u64 = 64 << 10;

/// Returns the BLAKE3 hash of the file in hexadecimal digits. For a file above 1 GiB it is `parts:` and the hash of its size and of
/// 64 MiB of it.
pub fn quick_hash(path: &Path) -> io::Result<String> {
    quick_hash_above(path, WHOLE, PART)
}

fn quick_hash_above(path: &Path, whole: u64, part: u64) -> io::Result<String> {
    let mut file = File::open(path)?;
    let bytes = file.metadata()?.len();
    let mut hasher = blake3::Hasher::new();
    if bytes <= whole {
        hasher.update_reader(file)?;
        return Ok(hasher.finalize().to_hex().to_string());
    }
    hasher.update(&bytes.to_le_bytes());
    let last = bytes - part;
    for number in 0..PARTS {
        let at = (u128::from(last) * u128::from(number) / u128::from(PARTS - 1)) as u64;
        file.seek(SeekFrom::Start(at))?;
        hasher.update_reader((&file).take(part))?;
    }
    Ok(format!("parts:{}", hasher.finalize().to_hex()))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn a_large_file_is_hashed_in_parts_with_its_ends() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        let hash = |bytes: &[u8], whole| {
            std::fs::write(&path, bytes).unwrap();
            quick_hash_above(&path, whole, 2).unwrap()
        };
        let mut bytes: Vec<u8> = (0..40_000u32).map(|number| (number * 7 % 251) as u8).collect();
        let [whole, parts] = [hash(&bytes, 40_000), hash(&bytes, 39_999)];
        assert_eq!(whole, crate::files::hash(&path).unwrap());
        assert!(parts.starts_with("parts:") && parts.len() == 6 + 64);
        assert_ne!(hash(&bytes[..39_999], 10), parts);
        for at in [0, 39_999] {
            bytes[at] ^= 1;
            assert_ne!(hash(&bytes, 39_999), parts);
            bytes[at] ^= 1;
        }
        assert_eq!(hash(&bytes, 39_999), parts);
        assert!(quick_hash(folder.path()).is_err());
    }
}
