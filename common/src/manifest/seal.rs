//! The checksum of a manifest over itself, its last field: what a manifest says of steps and scales is as much worth as the files.
//!
//! It is of all bytes before the comma in front of it, so it can be checked without knowing how JSON was written.

use super::checksum::hex;
use sha2::{Digest, Sha256};

const BEFORE: &str = ",\n  \"checksum\": \"";
const BEHIND: &str = "\"\n}\n";

/// A JSON object as `serde_json` writes it prettily, with the checksum as its last field.
pub(super) fn seal(mut object: Vec<u8>) -> Vec<u8> {
    let end = object.strip_suffix(b"\n}").map_or(object.len(), <[u8]>::len);
    object.truncate(end);
    let checksum = of(&object);
    object.extend(BEFORE.bytes().chain(checksum.bytes()).chain(BEHIND.bytes()));
    object
}

/// What a manifest's checksum says of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Seal {
    /// It is as it was written.
    Whole,
    /// It is not.
    Broken,
    /// It has none.
    None,
}

/// Compares a manifest with its checksum.
pub(super) fn check(bytes: &[u8]) -> Seal {
    // From the end: the recipe in it may hold any text, though none with a line break in quotes.
    let Some(at) = bytes
        .windows(BEFORE.len())
        .rposition(|window| window == BEFORE.as_bytes())
    else {
        return Seal::None;
    };
    let (object, rest) = bytes.split_at(at);
    let wanted = [BEFORE, &of(object), BEHIND].concat();
    match rest == wanted.as_bytes() {
        true => Seal::Whole,
        false => Seal::Broken,
    }
}

fn of(bytes: &[u8]) -> String {
    hex(&Sha256::digest(bytes))
}
