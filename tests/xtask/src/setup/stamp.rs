//! The stamp file: which packages a folder holds whole.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::Write;
use std::path::Path;

use serde::{Deserialize, Serialize};

use super::requirement::{Arch, Requirement};
use super::{Problem, Set, libtorch};

/// Beside the packages, in the folder that holds them all.
const FILE: &str = "dtrain-setup.json";

/// What a folder holds. A package is entered once all its files are in place, so this is also how far a set-up got.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Stamp {
    architecture: String,
    /// The largest set that is whole, for people who read this; recomputed, never trusted.
    #[serde(skip_deserializing)]
    set: Option<Set>,
    /// Version by name.
    packages: BTreeMap<String, String>,
}

impl Stamp {
    /// The stamp of an empty folder.
    pub(crate) fn empty(arch: Arch) -> Self {
        Self {
            architecture: arch.name().to_owned(),
            set: None,
            packages: BTreeMap::new(),
        }
    }

    /// Reads the stamp of a folder; none where it is absent, damaged or for another architecture.
    pub(crate) fn read(folder: &Path, arch: Arch) -> Option<Self> {
        let text = fs::read_to_string(folder.join(FILE)).ok()?;
        let stamp: Self = serde_json::from_str(&text).ok()?;
        (stamp.architecture == arch.name()).then_some(stamp)
    }

    /// A stamp for a folder that has none: those packages of `all` that are there by their files.
    pub(crate) fn adopt(folder: &Path, arch: Arch, all: &[Requirement]) -> Self {
        let mut stamp = Self::empty(arch);
        if libtorch::is_right(&folder.join("torch")) {
            for requirement in all.iter().filter(|requirement| is_there(folder, requirement)) {
                stamp.enter(requirement);
            }
        }
        stamp
    }

    /// Adds a package, all files of which are in place.
    pub(crate) fn enter(&mut self, requirement: &Requirement) {
        self.packages
            .insert(requirement.name.clone(), requirement.version.clone());
    }

    /// Those of `wanted` that the folder lacks: not entered, of another version, or with the key file gone since.
    pub(crate) fn missing(&self, folder: &Path, wanted: &[Requirement]) -> Vec<Requirement> {
        let entered = |r: &Requirement| self.packages.get(&r.name) == Some(&r.version) && is_there(folder, r);
        wanted
            .iter()
            .filter(|requirement| !entered(requirement))
            .cloned()
            .collect()
    }

    /// Writes the stamp into its folder, whole or not at all.
    pub(crate) fn write(
        &mut self,
        folder: &Path,
        cpu: &[Requirement],
        cuda: &[Requirement],
    ) -> Result<(), Problem> {
        let whole = |set| self.missing(folder, set).is_empty();
        self.set = if whole(cuda) {
            Some(Set::Cuda)
        } else {
            whole(cpu).then_some(Set::Cpu)
        };
        let path = folder.join(FILE);
        let beside = folder.join(format!("{FILE}.new"));
        let text = serde_json::to_string_pretty(self).map_err(std::io::Error::from);
        text.and_then(|text| {
            let mut file = File::create(&beside)?;
            file.write_all(text.as_bytes())?;
            file.sync_all()?;
            fs::rename(&beside, &path)
        })
        .map_err(|error| Problem::write(path, error))
    }
}

/// Whether a package's key file is there, and is not one that a crash left empty.
fn is_there(folder: &Path, requirement: &Requirement) -> bool {
    let right = requirement.name != "torch" || libtorch::is_right(&folder.join("torch"));
    right && fs::metadata(folder.join(&requirement.key_file)).is_ok_and(|file| file.len() > 0)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::super::requirement::requirements;
    use super::*;

    fn put(folder: &Path, file: &str, text: &str) {
        let path = folder.join(file);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    fn names(missing: &[Requirement]) -> Vec<&str> {
        missing
            .iter()
            .map(|requirement| requirement.name.as_str())
            .collect()
    }

    #[test]
    fn a_stamp_is_believed_only_with_the_key_files() {
        let folder = tempfile::tempdir().unwrap();
        let cpu = requirements(Arch::X86_64, Set::Cpu).unwrap();
        let cuda = requirements(Arch::X86_64, Set::Cuda).unwrap();
        for file in ["torch/lib/libc10.so", "torch/include/ATen/ATen.h"] {
            put(folder.path(), file, "x");
        }
        put(
            folder.path(),
            "torch/version.py",
            "__version__ = '2.11.0+cu130'\n",
        );
        let mut stamp = Stamp::empty(Arch::X86_64);
        for requirement in &cpu {
            put(folder.path(), &requirement.key_file, "x");
            stamp.enter(requirement);
        }
        stamp.write(folder.path(), &cpu, &cuda).unwrap();

        let text = fs::read_to_string(folder.path().join(FILE)).unwrap();
        assert!(
            text.contains(r#""set": "cpu""#) && text.contains(r#""torch": "2.11.0""#),
            "{text}"
        );
        let read = Stamp::read(folder.path(), Arch::X86_64).unwrap();
        assert!(read.missing(folder.path(), &cpu).is_empty());
        assert_eq!(read.missing(folder.path(), &cuda).len(), 13);
        assert_eq!(Stamp::read(folder.path(), Arch::Aarch64), None);

        put(folder.path(), "nvidia/cu13/lib/libcudart.so.13", "");
        assert_eq!(names(&read.missing(folder.path(), &cpu)), ["nvidia-cuda-runtime"]);
        fs::remove_file(folder.path().join("torch/lib/libc10.so")).unwrap();
        assert_eq!(
            names(&read.missing(folder.path(), &cpu)),
            ["torch", "nvidia-cuda-runtime"]
        );

        put(folder.path(), FILE, "{");
        assert_eq!(Stamp::read(folder.path(), Arch::X86_64), None);
    }

    #[test]
    fn another_version_of_a_package_is_missing() {
        let folder = tempfile::tempdir().unwrap();
        let runtime = requirements(Arch::X86_64, Set::Cpu).unwrap().remove(2);
        put(folder.path(), &runtime.key_file, "x");
        let mut stamp = Stamp::empty(Arch::X86_64);
        stamp.enter(&Requirement {
            version: "12.0".into(),
            ..runtime.clone()
        });
        assert_eq!(
            stamp.missing(folder.path(), std::slice::from_ref(&runtime)),
            [runtime]
        );
    }

    #[test]
    fn nothing_is_adopted_beside_another_libtorch() {
        let folder = tempfile::tempdir().unwrap();
        let cpu = requirements(Arch::X86_64, Set::Cpu).unwrap();
        for requirement in &cpu {
            put(folder.path(), &requirement.key_file, "x");
        }
        for file in ["torch/lib/libc10.so", "torch/include/ATen/ATen.h"] {
            put(folder.path(), file, "x");
        }
        put(folder.path(), "torch/version.py", "__version__ = '2.10.0'\n");
        assert_eq!(
            Stamp::adopt(folder.path(), Arch::X86_64, &cpu),
            Stamp::empty(Arch::X86_64)
        );
        put(folder.path(), "torch/version.py", "__version__ = '2.11.0'\n");
        let adopted = Stamp::adopt(folder.path(), Arch::X86_64, &cpu);
        assert!(adopted.missing(folder.path(), &cpu).is_empty());
    }
}
