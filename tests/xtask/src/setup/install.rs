//! Putting the packages in place: what is missing, where to prepare it, and the moment from which it counts.

use std::fs::{self, File, TryLockError};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::time::Duration;
use std::{io, process, thread};

use anyhow::{Context, Result};

use super::fetch::Fetcher;
use super::requirement::{Arch, Requirement, requirements};
use super::space::{self, Bytes};
use super::stamp::Stamp;
use super::{Problem, Set, tools};
use crate::process::Signals;
use crate::workspace::Workspace;

/// The set-up of one set on one machine.
#[derive(Debug)]
pub(crate) struct Installation<'a> {
    pub(crate) workspace: &'a Workspace,
    pub(crate) signals: &'a Signals,
    pub(crate) arch: Arch,
    pub(crate) set: Set,
}

impl Installation<'_> {
    /// Whether all is there by the stamp. Reads a few files and changes nothing, so it needs no lock.
    pub(crate) fn is_complete(&self) -> Result<bool> {
        let folder = self.workspace.libtorch();
        let Some(stamp) = Stamp::read(&folder, self.arch) else {
            return Ok(false);
        };
        let linked = self.set == Set::Cpu || is_linked(&folder);
        Ok(linked
            && stamp
                .missing(&folder, &requirements(self.arch, self.set)?)
                .is_empty())
    }

    /// Fetches what is missing, or everything with `force`.
    pub(crate) fn complete(&self, force: bool) -> Result<()> {
        let target = self.workspace.target();
        fs::create_dir_all(&target).map_err(|error| Problem::write(&target, error))?;
        let _lock = self.lock()?;
        let staging = self.workspace.staging();
        remove_scratch(&staging)?;
        if force {
            remove(&staging)?;
        }

        let folder = self.workspace.libtorch();
        let wanted = requirements(self.arch, self.set)?;
        let all = requirements(self.arch, Set::Cuda)?;
        let stamp = Stamp::read(&folder, self.arch).unwrap_or_else(|| Stamp::adopt(&folder, self.arch, &all));
        let missing = stamp.missing(&folder, &wanted);
        // A folder without the right libtorch itself is replaced as a whole; otherwise what is missing is added to it.
        let afresh = force || missing.iter().any(|requirement| requirement.name == "torch");
        if afresh {
            self.put_together(&staging, &wanted)?;
        } else {
            self.add(&folder, stamp, &missing, &staging)?;
        }
        if self.set == Set::Cuda {
            link_nccl(&folder)?;
        }
        remove(&staging)
    }

    /// Makes a new folder in `staging`, going on where an earlier set-up stopped, and moves it into place.
    fn put_together(&self, staging: &Path, wanted: &[Requirement]) -> Result<()> {
        let tree = staging.join("tree");
        let folder = self.workspace.libtorch();
        let stamp = Stamp::read(&tree, self.arch).unwrap_or_else(|| Stamp::empty(self.arch));
        let missing = stamp.missing(&tree, wanted);
        if missing.len() < wanted.len() {
            eprintln!(
                "going on with the set-up that was stopped: {} of {} packages are left",
                missing.len(),
                wanted.len()
            );
        } else {
            remove(&tree)?;
        }
        self.add(&tree, stamp, &missing, staging)?;
        if fs::symlink_metadata(&folder).is_ok() {
            eprintln!("replacing what is in {}", self.workspace.show(&folder));
            let old = staging.join("old");
            remove(&old)?;
            fs::rename(&folder, &old).map_err(|error| Problem::write(&folder, error))?;
        }
        fs::rename(&tree, &folder).map_err(|error| Problem::write(&folder, error))?;
        Ok(())
    }

    /// Adds packages to `tree`, entering each into its stamp when it is whole.
    fn add(&self, tree: &Path, mut stamp: Stamp, missing: &[Requirement], staging: &Path) -> Result<()> {
        let (cpu, cuda) = (
            requirements(self.arch, Set::Cpu)?,
            requirements(self.arch, Set::Cuda)?,
        );
        fs::create_dir_all(tree).map_err(|error| Problem::write(tree, error))?;
        if missing.is_empty() {
            return Ok(stamp.write(tree, &cpu, &cuda)?);
        }
        let python = tools::find_python()?;
        fs::create_dir_all(staging).map_err(|error| Problem::write(staging, error))?;
        let target = self.workspace.target();
        space::check(&target, space::needed(missing))?;
        self.announce(missing);
        let fetcher = Fetcher {
            python: &python,
            arch: self.arch,
            signals: self.signals,
            target: &target,
        };
        for (index, requirement) in missing.iter().enumerate() {
            let Requirement {
                name,
                version,
                fetch_bytes,
                ..
            } = requirement;
            eprintln!(
                "[{}/{}] {name} {version} ({})",
                index + 1,
                missing.len(),
                Bytes(*fetch_bytes)
            );
            let scratch = Scratch::new(staging)?;
            fetcher.fetch(requirement, &scratch.0, tree)?;
            stamp.enter(requirement);
            stamp.write(tree, &cpu, &cuda)?;
        }
        Ok(())
    }

    fn announce(&self, missing: &[Requirement]) {
        let sum = |bytes: fn(&Requirement) -> u64| Bytes(missing.iter().map(bytes).sum());
        eprintln!(
            "fetching {} into {}, {} on the disk once unpacked",
            sum(|requirement| requirement.fetch_bytes),
            self.workspace.show(&self.workspace.libtorch()),
            sum(|requirement| requirement.unpacked_bytes),
        );
    }

    /// Waits for another set-up to end. The lock goes with the process that holds it, however that one ends.
    fn lock(&self) -> Result<File> {
        let path = self.workspace.lock();
        let file = File::options()
            .create(true)
            .write(true)
            .truncate(false)
            .open(&path);
        let file = file.map_err(|error| Problem::write(&path, error))?;
        let mut told = false;
        loop {
            match file.try_lock() {
                Ok(()) => return Ok(file),
                Err(TryLockError::Error(error)) => {
                    return Err(error).with_context(|| format!("cannot lock {}", path.display()));
                }
                Err(TryLockError::WouldBlock) => {}
            }
            if !told {
                eprintln!("waiting for another set-up in this workspace to end");
                told = true;
            }
            self.signals.check()?;
            thread::sleep(Duration::from_millis(100));
        }
    }
}

/// A folder for what is needed only while one package is fetched. Its name is this process's own: a pip that outlived
/// a killed set-up writes into a folder that is gone.
#[derive(Debug)]
struct Scratch(PathBuf);

const SCRATCH: &str = "scratch-";

impl Scratch {
    fn new(staging: &Path) -> Result<Self, Problem> {
        let folder = staging.join(format!("{SCRATCH}{}", process::id()));
        fs::create_dir_all(&folder).map_err(|error| Problem::write(&folder, error))?;
        Ok(Self(folder))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // What stays here is removed by the next set-up.
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Removes what set-ups that were killed left behind.
fn remove_scratch(staging: &Path) -> Result<()> {
    let Ok(entries) = fs::read_dir(staging) else {
        return Ok(());
    };
    for entry in entries.flatten() {
        if entry.file_name().to_string_lossy().starts_with(SCRATCH) {
            remove(&entry.path())?;
        }
    }
    Ok(())
}

/// Removes a folder, a file or a link; it may be absent.
fn remove(path: &Path) -> Result<()> {
    let removed = match fs::symlink_metadata(path) {
        Ok(about) if about.is_dir() => fs::remove_dir_all(path),
        Ok(_) => fs::remove_file(path),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error),
    };
    Ok(removed.map_err(|error| Problem::write(path, error))?)
}

const NCCL: &str = "libnccl.so.2";

fn nccl_link(folder: &Path) -> PathBuf {
    folder.join("nvidia/nccl/lib/libnccl.so")
}

fn is_linked(folder: &Path) -> bool {
    fs::read_link(nccl_link(folder)).is_ok_and(|target| target == Path::new(NCCL))
}

/// NVIDIA's wheel has NCCL as libnccl.so.2 alone; its Rust binding looks for libnccl.so.
fn link_nccl(folder: &Path) -> Result<()> {
    if is_linked(folder) {
        return Ok(());
    }
    let link = nccl_link(folder);
    remove(&link)?;
    Ok(symlink(NCCL, &link).map_err(|error| Problem::write(link, error))?)
}
