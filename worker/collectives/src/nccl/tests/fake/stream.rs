//! A stream of the stand-in: a queue with a thread.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, mpsc};
use std::time::Duration;

use dtrain_torch_shim::ShimError;
use tch::Tensor;

use crate::nccl::api::CudaStream;
use crate::nccl::timeline::{Mark, Timeline};

pub(super) type Kernel = Box<dyn FnOnce() + Send>;

/// A queue of kernels that a thread executes in order.
pub(in super::super) struct FakeStream {
    kernels: mpsc::Sender<Kernel>,
    enqueued: AtomicU64,
    done: Arc<AtomicU64>,
}

impl FakeStream {
    /// Creates a stream that lives until the process ends, as libtorch's streams do.
    pub(in super::super) fn leaked() -> &'static Self {
        let (kernels, queue) = mpsc::channel::<Kernel>();
        let done = Arc::new(AtomicU64::new(0));
        let counter = Arc::clone(&done);
        std::thread::spawn(move || {
            for kernel in queue {
                kernel();
                counter.fetch_add(1, Ordering::SeqCst);
            }
        });
        Box::leak(Box::new(Self { kernels, enqueued: AtomicU64::new(0), done }))
    }

    pub(super) fn enqueue(&self, kernel: Kernel) {
        self.enqueued.fetch_add(1, Ordering::SeqCst);
        self.kernels.send(kernel).expect("the thread waits for kernels");
    }
}

/// A timeline whose computation is on the host and whose communication is on the stream.
pub(in super::super) struct FakeTimeline(pub(in super::super) &'static FakeStream);

impl Timeline for FakeTimeline {
    fn set_device(&self) -> Result<(), ShimError> {
        Ok(())
    }

    fn stream(&self) -> CudaStream {
        std::ptr::from_ref(self.0).cast_mut().cast()
    }

    fn fork(&self) -> Result<(), ShimError> {
        Ok(())
    }

    fn mark(&self) -> Result<Arc<dyn Mark>, ShimError> {
        Ok(Arc::new(FakeMark {
            position: self.0.enqueued.load(Ordering::SeqCst),
            done: Arc::clone(&self.0.done),
        }))
    }

    fn record_tensor(&self, _tensor: &Tensor) -> Result<(), ShimError> {
        Ok(())
    }
}

struct FakeMark {
    position: u64,
    done: Arc<AtomicU64>,
}

impl Mark for FakeMark {
    fn block_current_stream(&self) -> Result<(), ShimError> {
        while !self.is_reached()? {
            std::thread::sleep(Duration::from_micros(100));
        }
        Ok(())
    }

    fn is_reached(&self) -> Result<bool, ShimError> {
        Ok(self.done.load(Ordering::SeqCst) >= self.position)
    }
}
