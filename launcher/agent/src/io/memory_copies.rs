//! Memory for copies of a training's state that outlive its workers.
//!
//! The memory has no name: the system frees it with the last process that has it open. Workers reach it by
//! links to this process's open files; the system lets processes of the same user open them.

use crate::io::process::proc::path_of;
use crate::io::temporary::Temporary;
use anyhow::Context;
use dtrain_common::memory_copies::{FILES, SLOTS};
use rustix::fs::{MemfdFlags, memfd_create};
use std::fs;
use std::os::fd::OwnedFd;
use std::os::unix::fs::symlink;
use std::path::Path;
use tempfile::TempDir;

/// The memory of one run on this node, over all its attempts.
#[derive(Debug)]
pub struct MemoryCopies {
    folder: TempDir,
    _files: Vec<OwnedFd>,
}

impl MemoryCopies {
    pub fn new(temporary: &Temporary) -> anyhow::Result<Self> {
        let folder = temporary.folder("copies-")?;
        let mut files = Vec::new();
        for slot in SLOTS {
            let slot = folder.path().join(slot);
            fs::create_dir(&slot).with_context(|| format!("cannot create the folder {}", slot.display()))?;
            for name in FILES {
                let file = memfd_create(name, MemfdFlags::CLOEXEC)
                    .context("cannot create a file in memory for checkpoint.in_memory")?;
                let link = slot.join(name);
                symlink(path_of(&file), &link)
                    .with_context(|| format!("cannot create the link {}", link.display()))?;
                files.push(file);
            }
        }
        Ok(Self { folder, _files: files })
    }

    pub fn path(&self) -> &Path {
        self.folder.path()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;
    use dtrain_common::memory_copies::{mark, marks};

    #[test]
    fn copies_written_through_links_exist_until_the_end() {
        let temporary = Temporary::make().unwrap();
        let copies = MemoryCopies::new(&temporary).unwrap();
        let slot = copies.path().join(SLOTS[1]);
        let file = slot.join(FILES[0]);
        fs::write(&file, b"weights").unwrap();
        assert_eq!(fs::read(&file).unwrap(), b"weights");
        mark(&slot, 0, 3).unwrap();
        assert_eq!(marks(&slot).unwrap(), [3]);
        drop(copies);
        assert!(!file.exists());
    }
}
