//! Installs the packages: finds missing ones, prepares them, and puts them in place.

use std::fs::{self, File, TryLockError};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::time::Duration;
use std::{io, process, thread};

use anyhow::{Context, Result};
use rustix::fs::statvfs;

use super::pins::{Arch, Pin, pins};
use super::{Problem, Set, libtorch, pip, tools};
use crate::files::create;
use crate::process::Signals;
use crate::workspace::Workspace;

/// The file in a folder that lists the pins of its complete packages.
const STAMP: &str = "dtrain-setup.txt";

/// The set-up of one set on one machine.
#[derive(Debug)]
pub(crate) struct Installation<'a> {
    pub(crate) workspace: &'a Workspace,
    pub(crate) signals: &'a Signals,
    pub(crate) arch: Arch,
    pub(crate) set: Set,
}

impl Installation<'_> {
    /// Returns whether all packages are present. Only reads a few files, so it needs no lock.
    pub(crate) fn is_complete(&self) -> Result<bool> {
        let folder = self.workspace.libtorch();
        let linked = self.set == Set::Cpu || is_linked(&folder);
        let stamped = folder.join(STAMP).is_file();
        Ok(linked && stamped && missing(&folder, &pins(self.arch, self.set)?).is_empty())
    }

    /// Fetches missing packages, or all with `force`.
    pub(crate) fn complete(&self, force: bool) -> Result<()> {
        let target = self.workspace.target();
        create(&target)?;
        let _lock = self.lock()?;
        let (staging, folder) = (self.workspace.staging(), self.workspace.libtorch());
        let tree = staging.join("tree");
        // Files of killed set-ups.
        for entry in fs::read_dir(&staging).into_iter().flatten().flatten() {
            if entry.file_name().to_string_lossy().starts_with(SCRATCH) {
                remove(&entry.path())?;
            }
        }
        if force {
            remove(&staging)?;
        }
        let wanted = pins(self.arch, self.set)?;
        let absent = missing(&folder, &wanted);
        // Replaces a folder without the right libtorch as a whole; otherwise adds the missing packages to it.
        if force || absent.iter().any(|pin| pin.name == "torch") {
            let left = missing(&tree, &wanted);
            if left.len() < wanted.len() {
                let (left, all) = (left.len(), wanted.len());
                eprintln!("continuing an interrupted set-up: {left} of {all} packages left");
            } else {
                remove(&tree)?;
            }
            self.add(&tree, &left)?;
            if fs::symlink_metadata(&folder).is_ok() {
                eprintln!("replacing {}", self.workspace.show(&folder));
                let old = staging.join("old");
                remove(&old)?;
                fs::rename(&folder, &old).map_err(|error| Problem::write(&folder, error))?;
            }
            fs::rename(&tree, &folder).map_err(|error| Problem::write(&folder, error))?;
        } else {
            self.add(&folder, &absent)?;
        }
        if self.set == Set::Cuda && !is_linked(&folder) {
            let link = nccl_link(&folder);
            remove(&link)?;
            symlink(NCCL, &link).map_err(|error| Problem::write(link, error))?;
        }
        remove(&staging)
    }

    /// Adds packages to a folder; enters each into the stamp when it is complete.
    fn add(&self, folder: &Path, wanted: &[Pin]) -> Result<()> {
        create(folder)?;
        let all = pins(self.arch, Set::Cuda)?;
        let lines =
            |present: &[&Pin]| present.iter().map(|pin| format!("{}\n", pin.line)).collect::<String>();
        let absent = missing(folder, &all);
        let mut present: Vec<&Pin> = all.iter().filter(|pin| !absent.contains(pin)).collect();
        stamp(folder, &lines(&present))?;
        if wanted.is_empty() {
            return Ok(());
        }
        let (python, target) = (tools::find_python()?, self.workspace.target());
        check_space(&target, wanted)?;
        let sum = |bytes: fn(&Pin) -> u64| size(wanted.iter().map(bytes).sum());
        eprintln!(
            "fetching {} into {}, {} unpacked",
            sum(|pin| pin.fetch_bytes),
            self.workspace.show(&self.workspace.libtorch()),
            sum(|pin| pin.unpacked_bytes),
        );
        for (index, pin) in wanted.iter().enumerate() {
            eprintln!("[{}/{}] {pin} ({})", index + 1, wanted.len(), size(pin.fetch_bytes));
            // Unique for each process: a pip that outlives a killed set-up writes into a removed folder.
            let scratch = Scratch(self.workspace.staging().join(format!("{SCRATCH}{}", process::id())));
            create(&scratch.0)?;
            let fetched = pip::download(self.signals, &python, self.arch, pin, &scratch.0, &target)?;
            pip::unpack(self.signals, &python, &fetched, pin, folder, &target)?;
            present.push(pin);
            stamp(folder, &lines(&present))?;
        }
        Ok(())
    }

    /// Waits for another set-up to end. The lock ends with its process, even if that is killed.
    fn lock(&self) -> Result<File> {
        let path = self.workspace.lock();
        let file = File::options().create(true).write(true).truncate(false).open(&path);
        let file = file.map_err(|error| Problem::write(&path, error))?;
        let mut reported = false;
        loop {
            match file.try_lock() {
                Ok(()) => return Ok(file),
                Err(TryLockError::Error(error)) => {
                    return Err(error).with_context(|| format!("cannot lock {}", path.display()));
                }
                Err(TryLockError::WouldBlock) => {}
            }
            if !reported {
                eprintln!("waiting for another set-up in this workspace");
                reported = true;
            }
            self.signals.check()?;
            thread::sleep(Duration::from_millis(100));
        }
    }
}

/// Returns the pins that the folder lacks: not in its stamp, or with a missing key file. Without a stamp
/// (written by earlier versions), only the files count.
fn missing(folder: &Path, wanted: &[Pin]) -> Vec<Pin> {
    let stamp = fs::read_to_string(folder.join(STAMP)).ok();
    let is_present = |pin: &Pin| {
        let is_entered = |stamp: &String| stamp.lines().any(|line| line == pin.line);
        let right = pin.name != "torch" && stamp.is_some() || libtorch::is_right(&folder.join("torch"));
        // A crash can leave an empty file.
        let whole = fs::metadata(folder.join(&pin.key_file)).is_ok_and(|file| file.len() > 0);
        stamp.as_ref().is_none_or(is_entered) && right && whole
    };
    wanted.iter().filter(|pin| !is_present(pin)).cloned().collect()
}

/// Writes the stamp atomically.
fn stamp(folder: &Path, lines: &str) -> Result<(), Problem> {
    let (path, temporary) = (folder.join(STAMP), folder.join(format!("{STAMP}.new")));
    let written = fs::write(&temporary, lines)
        .and_then(|()| File::open(&temporary)?.sync_all())
        .and_then(|()| fs::rename(&temporary, &path));
    written.map_err(|error| Problem::write(path, error))
}

/// Fails if the disk has too little space. pip stores a wheel twice at first; unpacking removes the wheel.
fn check_space(folder: &Path, wanted: &[Pin]) -> Result<(), Problem> {
    /// For folders, logs and other files.
    const MARGIN: u64 = 64_000_000;
    let (mut kept, mut most) = (0, 0);
    for pin in wanted {
        most = most.max(kept + (2 * pin.fetch_bytes).max(pin.fetch_bytes + pin.unpacked_bytes));
        kept += pin.unpacked_bytes;
    }
    let needed = most + MARGIN;
    let state = statvfs(folder).map_err(|error| Problem::write(folder, error.into()))?;
    let free = state.f_bavail.saturating_mul(state.f_frsize);
    if free < needed {
        return Err(Problem::Space { folder: folder.to_owned(), needed: size(needed), free: size(free) });
    }
    Ok(())
}

/// Returns a size for people, in decimal units like package indexes and disks.
fn size(bytes: u64) -> String {
    match bytes {
        0..1_000_000_000 => format!("{:.0} MB", bytes as f64 / 1e6),
        _ => format!("{:.1} GB", bytes as f64 / 1e9),
    }
}

/// A temporary folder for fetching one package.
#[derive(Debug)]
struct Scratch(PathBuf);

const SCRATCH: &str = "scratch-";

impl Drop for Scratch {
    fn drop(&mut self) {
        // The next set-up removes what remains.
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Removes a folder, a file or a link, if it exists.
fn remove(path: &Path) -> Result<()> {
    let removed = match fs::symlink_metadata(path) {
        Ok(about) if about.is_dir() => fs::remove_dir_all(path),
        Ok(_) => fs::remove_file(path),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error),
    };
    Ok(removed.map_err(|error| Problem::write(path, error))?)
}

/// NVIDIA's wheel has NCCL only under this name; its Rust binding looks for libnccl.so.
const NCCL: &str = "libnccl.so.2";

fn nccl_link(folder: &Path) -> PathBuf {
    folder.join("nvidia/nccl/lib/libnccl.so")
}

fn is_linked(folder: &Path) -> bool {
    fs::read_link(nccl_link(folder)).is_ok_and(|target| target == Path::new(NCCL))
}
