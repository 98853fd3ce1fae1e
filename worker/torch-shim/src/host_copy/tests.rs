#![allow(clippy::unwrap_used)]
use std::sync::Mutex;

use super::*;

type Log = Arc<Mutex<Vec<String>>>;

/// A device that logs its calls, copies immediately, and fails at copy number `fails_at`.
struct RecordingQueue {
    log: Log,
    copies: usize,
    fails_at: Option<usize>,
    marks: usize,
}

struct RecordedMark(Log, usize);

impl RecordedMark {
    fn record(&self, call: &str) -> Result<(), ShimError> {
        self.0.lock().unwrap().push(format!("{call} {}", self.1));
        Ok(())
    }
}

impl Mark for RecordedMark {
    fn block_current_stream(&self) -> Result<(), ShimError> {
        self.record("block")
    }
    fn wait(&self) -> Result<(), ShimError> {
        self.record("wait")
    }
}

impl RecordingQueue {
    fn queue(fails_at: Option<usize>) -> (CopyStream, Log) {
        let log = Log::default();
        let device = Self { log: Arc::clone(&log), copies: 0, fails_at, marks: 0 };
        (CopyStream(Box::new(device)), log)
    }

    fn record(&self, call: String) {
        self.log.lock().unwrap().push(call);
    }
}

impl CopyQueue for RecordingQueue {
    fn fork(&mut self) -> Result<(), ShimError> {
        self.record("fork".to_owned());
        Ok(())
    }
    fn copy(&mut self, tensor: &Tensor, to: &mut [u8]) -> Result<(), ShimError> {
        self.copies += 1;
        if self.fails_at == Some(self.copies) {
            return Err(ShimError::new("copy", ErrorKind::OutOfMemory, "out of memory"));
        }
        self.record(format!("copy {}", tensor.numel()));
        Host.copy(tensor, to)
    }
    fn mark(&mut self) -> Result<Arc<dyn Mark>, ShimError> {
        self.marks += 1;
        self.record(format!("mark {}", self.marks));
        Ok(Arc::new(RecordedMark(Arc::clone(&self.log), self.marks)))
    }
    fn drain(&mut self) {
        self.record("drain".to_owned());
    }
}

// A copy keeps its memory in a box of any type; here it is a vector.
#[allow(clippy::box_collection)]
fn start(queue: &mut CopyStream, memory: &mut Option<Box<Vec<u8>>>) -> Result<HostCopy<Vec<u8>>, ShimError> {
    let tensor = |bytes: &[u8]| Tensor::from_slice(bytes);
    HostCopy::start(queue, memory, |bytes| {
        let (statistics, parameters) = bytes.split_at_mut(2);
        let (first, second) = parameters.split_at_mut(3);
        let changing = vec![(tensor(&[1, 2]), statistics)];
        let unchanged = vec![(tensor(&[3, 4, 5]), first), (tensor(&[6]), second)];
        Ok([changing, unchanged])
    })
}

#[test]
fn changing_tensors_are_copied_first_and_only_the_device_waits() {
    let (mut queue, log) = RecordingQueue::queue(None);
    let mut memory = Some(Box::new(vec![0u8; 6]));
    let copy = start(&mut queue, &mut memory).unwrap();
    assert!(memory.is_none(), "the copy owns it");
    // The training computes the next step and reaches its update.
    copy.done().block_current_stream().unwrap();
    assert_eq!(**copy.wait().unwrap(), [1, 2, 3, 4, 5, 6]);
    let expected = ["fork", "copy 2", "mark 1", "block 1", "copy 3", "copy 1", "mark 2", "block 2", "wait 2"];
    assert_eq!(*log.lock().unwrap(), expected);
}

#[test]
fn dropping_a_copy_waits_for_it() {
    let (mut queue, log) = RecordingQueue::queue(None);
    let mut memory = Some(Box::new(vec![0u8; 6]));
    drop(start(&mut queue, &mut memory).unwrap());
    assert_eq!(log.lock().unwrap().last().unwrap(), "wait 2");
}

#[test]
fn a_failed_copy_returns_the_memory_after_all_writes() {
    let (mut queue, log) = RecordingQueue::queue(Some(3));
    let mut memory = Some(Box::new(vec![0u8; 6]));
    let error = start(&mut queue, &mut memory).err().unwrap();
    assert_eq!(error.kind, ErrorKind::OutOfMemory);
    assert_eq!(log.lock().unwrap().last().unwrap(), "drain");
    // A second attempt with the same memory succeeds.
    assert!(start(&mut RecordingQueue::queue(None).0, &mut memory).is_ok());
}

#[test]
fn a_target_outside_the_memory_is_an_error() {
    let mut memory = Some(Box::new(vec![0u8; 6]));
    let outcome = HostCopy::start(&mut CopyStream(Box::new(Host)), &mut memory, |_| {
        let outside: &'static mut [u8] = Box::leak(Box::new([0u8; 4]));
        Ok::<_, ShimError>([Pairs::new(), vec![(Tensor::from_slice(&[1u8; 4]), outside)]])
    });
    assert_eq!(outcome.err().unwrap().kind, ErrorKind::InvalidArgument);
    assert!(memory.is_some());
}

#[test]
fn without_cuda_pinning_is_an_error() {
    if cuda::load().is_err() {
        assert!(Pinned::pin(&mut [0u8; 64]).is_err());
    }
}
