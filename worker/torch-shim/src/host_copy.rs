//! Asynchronous copies of tensors to host memory. On a GPU they run beside the computation: the host does not
//! wait, and the computation waits only before it changes tensors that are being copied.

use std::ffi::c_void;
use std::ops::DerefMut;
use std::sync::Arc;

use tch::{Device, Tensor};

use crate::copy::copy_out;
use crate::error::{ErrorKind, ShimError, try_call};
use crate::stream::{Event, Stream};
use crate::{cuda, ffi};

/// Tensors with the memory for their values.
pub type Pairs<'m> = Vec<(Tensor, &'m mut [u8])>;

/// The copy queue of a device. On a GPU it is one stream, which is kept: libtorch hands out 32 streams in
/// turn, so a new stream for each copy would soon be the compute stream.
pub struct CopyStream(Box<dyn CopyQueue>);

impl CopyStream {
    /// Creates the queue for tensors on `device`. If it is not a GPU, the calling thread copies immediately.
    pub fn of(device: Device) -> Result<Self, ShimError> {
        Ok(Self(match device {
            Device::Cuda(gpu) => Box::new(Gpu { gpu, stream: Stream::from_pool(gpu, false)? }),
            _ => Box::new(Host),
        }))
    }
}

/// Memory into which tensors are copied. Only [`HostCopy::wait`] returns it.
pub struct HostCopy<M> {
    /// None after it was returned.
    memory: Option<Box<M>>,
    /// Kept until they are copied.
    tensors: Vec<Tensor>,
    done: Arc<dyn Mark>,
}

/// The end of all copies of a [`HostCopy`].
#[derive(Clone)]
pub struct CopyDone(Arc<dyn Mark>);

impl CopyDone {
    /// Makes later work of the calling thread wait for the copies. The host waits only if it computes itself.
    pub fn block_current_stream(&self) -> Result<(), ShimError> {
        self.0.block_current_stream()
    }
}

impl<M: DerefMut<Target = [u8]> + Send> HostCopy<M> {
    /// Starts to copy tensors of `stream`'s device, after the calling thread's work so far. `pairs` assigns
    /// tensors to parts of the memory: first those that the calling thread may change next, so its later work
    /// waits for these copies; then those that it changes only after [`CopyDone::block_current_stream`]. On
    /// success the memory is taken. If the memory is not [`Pinned`], the host waits for the copies.
    pub fn start<E: From<ShimError>>(
        stream: &mut CopyStream,
        memory: &mut Option<Box<M>>,
        pairs: impl for<'m> FnOnce(&'m mut [u8]) -> Result<[Pairs<'m>; 2], E>,
    ) -> Result<Self, E> {
        let (op, queue) = ("copy to host memory", stream.0.as_mut());
        let Some(whole) = memory.as_mut() else {
            return Err(ShimError::invalid(op, "the memory is missing").into());
        };
        let bounds = whole.as_mut_ptr_range();
        let [changing, unchanged] = pairs(whole)?;
        let inside = |to: &[u8]| {
            let range = to.as_ptr_range();
            range.is_empty()
                || (bounds.start.cast_const() <= range.start && range.end <= bounds.end.cast_const())
        };
        if !changing.iter().chain(&unchanged).all(|(_, to)| inside(to)) {
            return Err(ShimError::invalid(op, "a target is outside the memory").into());
        }
        let mut tensors = Vec::new();
        let done = enqueue(queue, [changing, unchanged], &mut tensors).inspect_err(|_| {
            // Afterwards nothing writes to the memory, which the owner gets back.
            queue.drain();
        })?;
        Ok(Self { memory: memory.take(), tensors, done })
    }

    /// Returns a handle of the end of the copies.
    pub fn done(&self) -> CopyDone {
        CopyDone(Arc::clone(&self.done))
    }

    /// Waits for the copies, on any thread, and returns the memory.
    pub fn wait(mut self) -> Result<Box<M>, ShimError> {
        self.end()?;
        let missing =
            || ShimError::new("wait for a copy", ErrorKind::Other, "the memory was already returned");
        self.memory.take().ok_or_else(missing)
    }
}

impl<M> HostCopy<M> {
    fn end(&mut self) -> Result<(), ShimError> {
        let waited = self.done.wait();
        self.tensors.clear();
        if waited.is_err() {
            // The device may still write to it: leak it.
            std::mem::forget(self.memory.take());
        }
        waited
    }
}

impl<M> Drop for HostCopy<M> {
    fn drop(&mut self) {
        if self.memory.is_some() {
            // Drop ignores the error.
            let _ = self.end();
        }
    }
}

fn enqueue(
    queue: &mut dyn CopyQueue,
    [changing, unchanged]: [Pairs<'_>; 2],
    tensors: &mut Vec<Tensor>,
) -> Result<Arc<dyn Mark>, ShimError> {
    queue.fork()?;
    if !changing.is_empty() {
        copy(queue, changing, tensors)?;
        queue.mark()?.block_current_stream()?;
    }
    copy(queue, unchanged, tensors)?;
    queue.mark()
}

fn copy(queue: &mut dyn CopyQueue, pairs: Pairs<'_>, tensors: &mut Vec<Tensor>) -> Result<(), ShimError> {
    for (tensor, to) in pairs {
        queue.copy(&tensor, to)?;
        tensors.push(tensor);
    }
    Ok(())
}

/// A queue of copies.
trait CopyQueue {
    /// Makes later copies wait for the calling thread's work.
    fn fork(&mut self) -> Result<(), ShimError>;
    /// Starts a copy. The memory of `to` must live, and not be used, until a later mark is reached.
    fn copy(&mut self, tensor: &Tensor, to: &mut [u8]) -> Result<(), ShimError>;
    /// Marks the end of the copies so far.
    fn mark(&mut self) -> Result<Arc<dyn Mark>, ShimError>;
    /// Waits for all started copies, also after errors.
    fn drain(&mut self);
}

/// A position in a queue.
trait Mark: Send + Sync {
    /// Makes later work of the calling thread wait for the mark.
    fn block_current_stream(&self) -> Result<(), ShimError>;
    /// Makes the host wait for the mark.
    fn wait(&self) -> Result<(), ShimError>;
}

/// A stream beside the compute stream.
struct Gpu {
    gpu: usize,
    stream: Stream,
}

impl CopyQueue for Gpu {
    fn fork(&mut self) -> Result<(), ShimError> {
        Stream::current(self.gpu)?.record_event()?.block(self.stream)
    }

    fn copy(&mut self, tensor: &Tensor, to: &mut [u8]) -> Result<(), ShimError> {
        let (data, bytes) = (to.as_mut_ptr(), to.len() as i64);
        self.stream.run(|| {
            try_call("copy a tensor to the host", |error| {
                // SAFETY: `data` has `bytes` bytes, and the caller keeps it until a later mark.
                unsafe { ffi::dt_tensor_copy_to(tensor.into(), data, bytes, error) }
            })
        })?
    }

    fn mark(&mut self) -> Result<Arc<dyn Mark>, ShimError> {
        Ok(Arc::new(GpuMark { gpu: self.gpu, event: self.stream.record_event()? }))
    }

    fn drain(&mut self) {
        // If the device has failed, it writes nothing either.
        let _ = self.stream.synchronize();
    }
}

struct GpuMark {
    gpu: usize,
    event: Event,
}

impl Mark for GpuMark {
    fn block_current_stream(&self) -> Result<(), ShimError> {
        self.event.block(Stream::current(self.gpu)?)
    }

    fn wait(&self) -> Result<(), ShimError> {
        // The thread may not have used a GPU before.
        cuda::set_device(self.gpu)?;
        self.event.synchronize()
    }
}

/// The calling thread, which copies immediately, so its marks are always reached.
struct Host;

impl CopyQueue for Host {
    fn fork(&mut self) -> Result<(), ShimError> {
        Ok(())
    }

    fn copy(&mut self, tensor: &Tensor, to: &mut [u8]) -> Result<(), ShimError> {
        Ok(copy_out(tensor, to)?)
    }

    fn mark(&mut self) -> Result<Arc<dyn Mark>, ShimError> {
        Ok(Arc::new(Host))
    }

    fn drain(&mut self) {}
}

impl Mark for Host {
    fn block_current_stream(&self) -> Result<(), ShimError> {
        Ok(())
    }

    fn wait(&self) -> Result<(), ShimError> {
        Ok(())
    }
}

/// Pinned host memory: every GPU can access it without the host. Drop it before the memory.
#[derive(Debug)]
pub struct Pinned(*mut c_void);

// SAFETY: the address is only passed to CUDA, by one thread at a time.
unsafe impl Send for Pinned {}
// SAFETY: a shared reference allows no operation.
unsafe impl Sync for Pinned {}

impl Pinned {
    /// Pins `memory`, in about the time of writing it once. Set the GPU first: see [`cuda::set_device`].
    pub fn pin(memory: &mut [u8]) -> Result<Self, ShimError> {
        let data = memory.as_mut_ptr().cast();
        try_call("pin memory", |error| {
            // SAFETY: the memory is valid for its length during the call, which does not write to it.
            unsafe { ffi::dt_host_register(data, memory.len() as u64, error) }
        })?;
        Ok(Self(data))
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        // On failure the memory stays pinned until the process ends.
        let _ = try_call("unpin memory", |error| {
            // SAFETY: it was pinned, and is unpinned once.
            unsafe { ffi::dt_host_unregister(self.0, error) }
        });
    }
}

#[cfg(test)]
mod tests;
