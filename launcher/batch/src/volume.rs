//! Storage that the pods of a job share.

use std::str::FromStr;

/// Why a text is not a volume.
#[derive(Debug, thiserror::Error, Clone, PartialEq, Eq)]
#[error("{text:?} is not a volume: write `CLAIM:PATH`, such as `datasets:/data`, with an absolute path")]
pub struct VolumeError {
    text: String,
}

/// A claim of persistent storage, and the path where the pods see it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Volume {
    pub claim: String,
    /// Absolute.
    pub path: String,
}

impl Volume {
    /// Returns whether the volume keeps this folder.
    pub(crate) fn keeps(&self, folder: &str) -> bool {
        let rest = folder.strip_prefix(self.path.trim_end_matches('/'));
        rest.is_some_and(|rest| rest.starts_with('/')) && !folder.split('/').any(|part| part == "..")
    }
}

impl FromStr for Volume {
    type Err = VolumeError;

    fn from_str(text: &str) -> Result<Self, VolumeError> {
        let known = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || "-.".contains(c);
        match text.split_once(':') {
            Some((claim, path))
                if claim.starts_with(|c: char| c.is_ascii_alphanumeric())
                    && claim.chars().all(known)
                    && path.starts_with('/')
                    && !path.contains(|c: char| c == ':' || c.is_control()) =>
            {
                Ok(Self { claim: claim.to_owned(), path: path.to_owned() })
            }
            _ => Err(VolumeError { text: text.to_owned() }),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn volumes_are_a_claim_and_an_absolute_path() {
        let volume: Volume = "scratch:/data".parse().unwrap();
        assert_eq!((volume.claim.as_str(), volume.path.as_str()), ("scratch", "/data"));
        for wrong in ["", "scratch", ":/data", "scratch:data", "Scratch:/data", "-a:/b", "a:/b:c", "a:/b\n"] {
            assert!(wrong.parse::<Volume>().is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn a_volume_keeps_the_folders_below_its_path() {
        let volume: Volume = "scratch:/data/".parse().unwrap();
        assert!(volume.keeps("/data/runs/a"));
        for other in ["/data", "/database/a", "data/a", "/data/../a"] {
            assert!(!volume.keeps(other), "{other}");
        }
    }
}
