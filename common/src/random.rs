//! Random numbers that tell processes apart, not for secrets.

use rustix::rand::{GetRandomFlags, getrandom};

/// Returns a number that differs between calls and processes.
pub fn number() -> u64 {
    let mut bytes = [0; 8];
    // It fails only on kernels before 3.17.
    let _ = getrandom(&mut bytes, GetRandomFlags::empty());
    u64::from_ne_bytes(bytes)
}
