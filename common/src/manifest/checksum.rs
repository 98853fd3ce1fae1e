//! The checksums of a checkpoint's files.

use std::io::{self, Read};

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

pub const CHECKSUM_BYTES: usize = 32;

/// Bytes of one read: enough for all SIMD lanes of a processor, and small enough for its cache.
const READ_BYTES: usize = 1 << 18;

/// A checksum in 64 lower-case hexadecimal digits; in JSON a field with the name of its kind.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Checksum {
    /// BLAKE3 with 256 bits; one core computes it as fast as a disk writes.
    Blake3(String),
    /// SHA-256, in checkpoints up to format 3.
    Sha256(String),
}

impl Checksum {
    /// Makes a checksum of the bytes of a BLAKE3 hash.
    pub fn of_bytes(bytes: &[u8; CHECKSUM_BYTES]) -> Self {
        Self::Blake3(hex(bytes))
    }

    pub fn digits(&self) -> &str {
        match self {
            Self::Blake3(digits) | Self::Sha256(digits) => digits,
        }
    }

    pub(super) fn is_well_formed(&self) -> bool {
        let digit = |byte: u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
        self.digits().len() == 2 * CHECKSUM_BYTES && self.digits().bytes().all(digit)
    }

    /// Computes the same kind of checksum of the rest of `source`, and its length. Calls `read` with bytes
    /// read.
    pub(super) fn recompute(&self, mut source: impl Read, read: impl Fn(u64)) -> io::Result<(u64, Self)> {
        let (mut blake3, mut sha256) = (blake3::Hasher::new(), Sha256::new());
        let (mut buffer, mut bytes) = (vec![0; READ_BYTES], 0);
        loop {
            let some = match source.read(&mut buffer) {
                Ok(0) => break,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                count => &buffer[..count?],
            };
            match self {
                Self::Blake3(_) => drop(blake3.update(some)),
                Self::Sha256(_) => sha256.update(some),
            }
            read(some.len() as u64);
            bytes += some.len() as u64;
        }
        let checksum = match self {
            Self::Blake3(_) => Self::of_bytes(blake3.finalize().as_bytes()),
            Self::Sha256(_) => Self::Sha256(hex(&sha256.finalize())),
        };
        Ok((bytes, checksum))
    }
}

/// Writes bytes in lower-case hexadecimal, as in manifests.
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    /// Test vectors of FIPS 180 and of the BLAKE3 team (an input of 102400 bytes 0, 1, ... 250, 0, ...).
    #[test]
    fn both_kinds_are_the_standard_ones() {
        let sha256 = |bytes: &[u8]| Checksum::Sha256(String::new()).recompute(bytes, |_| ()).unwrap();
        let abc = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        assert_eq!(sha256(b"abc"), (3, Checksum::Sha256(abc.to_owned())));
        // Longer than one read: a million times "a".
        let million = "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0";
        assert_eq!(sha256(&vec![b'a'; 1_000_000]), (1_000_000, Checksum::Sha256(million.to_owned())));
        let blake3 = |bytes: &[u8]| Checksum::Blake3(String::new()).recompute(bytes, |_| ()).unwrap();
        let empty = "af1349b9f5f9a1a6a0404dea36dcc9499bcb25c9adc112b7cc9a93cae41f3262";
        assert_eq!(blake3(b""), (0, Checksum::Blake3(empty.to_owned())));
        let counted: Vec<u8> = (0..102_400_u32).map(|at| (at % 251) as u8).collect();
        let of_counted = "bc3e3d41a1146b069abffad3c0d44860cf664390afce4d9661f7902e7943e085";
        assert_eq!(blake3(&counted), (102_400, Checksum::Blake3(of_counted.to_owned())));
    }
}
