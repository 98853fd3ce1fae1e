//! What the JPEG decoder does not tell.

/// JPEG markers, each after a byte 0xff.
pub(super) const SOI: u8 = 0xd8;
const EOI: u8 = 0xd9;

/// Whether a JPEG file reaches its end-of-image marker. The segments are walked through, since an embedded preview
/// has a marker of its own, and many good files have something after the end.
pub(super) fn is_whole(bytes: &[u8]) -> bool {
    let mut at = 2;
    loop {
        // Compressed data, in which 0xff is followed by 0x00 or a restart marker, or padding between segments.
        let Some(found) = bytes.get(at..).and_then(|rest| memchr::memchr(0xff, rest)) else {
            return false;
        };
        at += found + 1;
        match bytes.get(at) {
            None => return false,
            Some(&EOI) => return true,
            Some(0xff) => {}
            // Escaped data, and the markers without a length: temporary, restart 0 to 7, start of image.
            Some(0x00 | 0x01 | 0xd0..=0xd8) => at += 1,
            Some(_) => match bytes.get(at + 1..at + 3) {
                Some(length) => at += 1 + usize::from(u16::from_be_bytes([length[0], length[1]])),
                None => return false,
            },
        }
    }
}
