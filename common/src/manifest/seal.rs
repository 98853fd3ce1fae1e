//! The checksum of a manifest over itself, its last field: of all bytes before the comma in front of it, so
//! that it can be checked without knowing how JSON was written.

use super::checksum::hex;
use sha2::{Digest, Sha256};

const BEFORE: &str = ",\n  \"checksum\": \"";
const BEHIND: &str = "\"\n}\n";

/// A JSON object as `serde_json` writes it prettily, with the checksum as its last field.
pub(super) fn seal(mut object: Vec<u8>) -> Vec<u8> {
    let end = object.strip_suffix(b"\n}").map_or(object.len(), <[u8]>::len);
    object.truncate(end);
    object.extend(BEFORE.bytes().chain(of(&object).bytes()).chain(BEHIND.bytes()));
    object
}

/// Whether a manifest is as it was written, by its checksum; none where it has none.
pub(super) fn is_whole(bytes: &[u8]) -> Option<bool> {
    // From the end: the recipe in it may hold any text, though none with a line break in quotes.
    let mut windows = bytes.windows(BEFORE.len());
    let at = windows.rposition(|window| window == BEFORE.as_bytes())?;
    let (object, rest) = bytes.split_at(at);
    Some(rest == [BEFORE, &of(object), BEHIND].concat().as_bytes())
}

fn of(bytes: &[u8]) -> String {
    hex(&Sha256::digest(bytes))
}
