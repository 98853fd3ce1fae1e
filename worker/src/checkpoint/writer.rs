//! The thread that writes this rank's part of a checkpoint beside the training, and on rank 0 makes the whole a checkpoint.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{self, Receiver, Sender, TryRecvError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use dtrain_common::manifest::CHECKSUM_BYTES;
use tch::Device;

use super::commit::{self, Commit};
use super::disk::{Disk, Output};
use super::error::CheckpointError;
use super::filling::Filling;
use super::staging::{Memory, StagedPart};

/// BLAKE3 of a part.
pub(super) type Digest = [u8; CHECKSUM_BYTES];

/// What is done beside the training.
enum Job {
    /// Memory is touched for the first time, by so many threads, and pinned for a GPU.
    Prepare(Memory, usize, Device),
    Write(Box<Write>),
    Commit(Box<Commit>),
}

/// This rank's part of a checkpoint.
pub(super) struct Write {
    pub(super) filling: Filling,
    pub(super) staged: Staged,
}

/// What is written of it, when all of it is copied.
pub(super) struct Staged {
    /// The folder, which is made where it is not there.
    pub(super) folder: PathBuf,
    /// The files' names and sizes.
    pub(super) files: Vec<(String, u64)>,
    pub(super) parts: Vec<StagedPart>,
    /// Threads for the checksums.
    pub(super) hashers: usize,
}

/// All of it, copied.
struct Whole<'a> {
    staged: &'a Staged,
    memory: &'a Memory,
}

impl Whole<'_> {
    fn bytes_of(&self, part: &StagedPart) -> &[u8] {
        &self.memory[part.start..part.start + part.bytes]
    }
}

/// What has become of a job.
pub(super) enum Done {
    Prepared(Memory),
    /// What is to be written is copied: nothing is read of the training any more. The writing goes on.
    Copied,
    /// The memory, where it is not lost, and the checksums of the parts or why there are none.
    Written(Option<Memory>, Result<Written, CheckpointError>),
    /// The folder of the checkpoint.
    Committed(Result<PathBuf, CheckpointError>),
}

/// What was written.
pub(super) struct Written {
    /// The checksum of every part.
    pub(super) digests: Vec<Digest>,
    pub(super) took: Duration,
}

/// The thread, with what it is told and says.
pub(super) struct Writer {
    jobs: Option<Sender<Job>>,
    done: Receiver<Done>,
    thread: Option<JoinHandle<()>>,
}

impl Writer {
    /// # Errors
    /// Where the system refuses a thread.
    pub(super) fn start(disk: Arc<dyn Disk>) -> std::io::Result<Self> {
        let (jobs, queue) = mpsc::channel();
        let (says, done) = mpsc::channel();
        let thread = std::thread::Builder::new()
            .name("checkpoint".to_owned())
            .spawn(move || {
                stand_back();
                for job in queue {
                    // Saying fails only when the training is over.
                    let copied = || drop(says.send(Done::Copied));
                    let _ = says.send(run(job, disk.as_ref(), copied));
                }
            })?;
        Ok(Self {
            jobs: Some(jobs),
            done,
            thread: Some(thread),
        })
    }

    pub(super) fn prepare(
        &self,
        memory: Memory,
        threads: usize,
        device: Device,
    ) -> Result<(), CheckpointError> {
        self.give(Job::Prepare(memory, threads, device))
    }

    pub(super) fn write(&self, write: Write) -> Result<(), CheckpointError> {
        self.give(Job::Write(Box::new(write)))
    }

    pub(super) fn commit(&self, commit: Commit) -> Result<(), CheckpointError> {
        self.give(Job::Commit(Box::new(commit)))
    }

    fn give(&self, job: Job) -> Result<(), CheckpointError> {
        let jobs = self.jobs.as_ref().ok_or(CheckpointError::Writer)?;
        jobs.send(job).map_err(|_| CheckpointError::Writer)
    }

    /// What has become of the oldest job that was not asked after, if it is done.
    pub(super) fn poll(&self) -> Result<Option<Done>, CheckpointError> {
        match self.done.try_recv() {
            Ok(done) => Ok(Some(done)),
            Err(TryRecvError::Empty) => Ok(None),
            Err(TryRecvError::Disconnected) => Err(CheckpointError::Writer),
        }
    }

    /// Waits for it.
    pub(super) fn wait(&self) -> Result<Done, CheckpointError> {
        self.done.recv().map_err(|_| CheckpointError::Writer)
    }
}

impl Drop for Writer {
    /// What is being written is written to its end: a checkpoint that is nearly there is worth the wait.
    fn drop(&mut self) {
        drop(self.jobs.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// The training goes first where there are fewer cores than threads.
fn stand_back() {
    const NICE: i32 = 10;
    let thread = rustix::thread::gettid();
    if let Err(error) = rustix::process::setpriority_process(Some(thread), NICE) {
        tracing::debug!("the thread that writes checkpoints keeps its priority: {error}");
    }
}

fn run(job: Job, disk: &dyn Disk, copied: impl FnOnce()) -> Done {
    match job {
        Job::Prepare(mut memory, threads, device) => {
            memory.touch(threads, stand_back);
            memory.pin(device);
            Done::Prepared(memory)
        }
        Job::Write(write) => {
            let Write { filling, staged } = *write;
            let (memory, filled) = filling.end(&staged.parts);
            // The training's tensors were let go of before it hears that it can change them.
            copied();
            let begun = Instant::now();
            let written = filled.and_then(|()| {
                let memory = memory.as_ref().ok_or(CheckpointError::Writer)?;
                let digests = write_parts(
                    &Whole {
                        staged: &staged,
                        memory,
                    },
                    disk,
                )?;
                Ok(Written {
                    digests,
                    took: begun.elapsed(),
                })
            });
            Done::Written(memory, written)
        }
        Job::Commit(commit) => Done::Committed(commit::commit(*commit)),
    }
}

/// Writes and hashes at the same time, one part after the other to the disk and several at once for their checksums.
fn write_parts(write: &Whole<'_>, disk: &dyn Disk) -> Result<Vec<Digest>, CheckpointError> {
    let next = AtomicUsize::new(0);
    let hash = || {
        stand_back();
        let mut own = Vec::new();
        loop {
            let number = next.fetch_add(1, Ordering::Relaxed);
            let Some(part) = write.staged.parts.get(number) else {
                return own;
            };
            own.push((number, blake3::hash(write.bytes_of(part)).into()));
        }
    };
    std::thread::scope(|scope| {
        let threads = write.staged.hashers.clamp(1, write.staged.parts.len().max(1));
        let hashing: Vec<_> = (0..threads).map(|_| scope.spawn(hash)).collect();
        let written = write_files(write, disk);
        let mut digests = vec![Digest::default(); write.staged.parts.len()];
        for thread in hashing {
            for (number, digest) in thread.join().map_err(|_| CheckpointError::Writer)? {
                digests[number] = digest;
            }
        }
        written.map(|()| digests)
    })
}

fn write_files(write: &Whole<'_>, disk: &dyn Disk) -> Result<(), CheckpointError> {
    let folder = &write.staged.folder;
    fs::create_dir_all(folder).map_err(CheckpointError::io("make the folder", folder))?;
    let sync = |path: &Path, file: &Output| disk.sync(file).map_err(CheckpointError::io("sync", path));
    let mut open: Option<(usize, PathBuf, Output)> = None;
    for part in &write.staged.parts {
        if open.as_ref().is_none_or(|(file, ..)| *file != part.file) {
            if let Some((_, path, file)) = open.take() {
                sync(&path, &file)?;
            }
            let (name, bytes) = &write.staged.files[part.file];
            let path = folder.join(name);
            let file = disk
                .create(&path, *bytes)
                .map_err(CheckpointError::io("make", &path))?;
            open = Some((part.file, path, file));
        }
        let Some((_, path, file)) = &open else { continue };
        disk.write_at(file, write.bytes_of(part), part.offset)
            .map_err(CheckpointError::io("write", path))?;
    }
    match open {
        Some((_, path, file)) => sync(&path, &file),
        None => Ok(()),
    }
}
