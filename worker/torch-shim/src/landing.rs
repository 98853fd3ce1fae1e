//! Copies of tensors into memory of the host, on a GPU beside what it computes: the host waits for none of them, nor does what is
//! computed, but where it changes what is copied.

use std::ffi::c_void;
use std::ops::DerefMut;
use std::sync::Arc;

use tch::{Device, Tensor};

use crate::copy::copy_out;
use crate::error::{ErrorKind, ShimError, checked};
use crate::stream::{Event, Stream};
use crate::{cuda, ffi};

/// Tensors, and where the values of each go.
pub type Pairs<'m> = Vec<(Tensor, &'m mut [u8])>;

/// Where a device copies beside what it computes: on a GPU a stream, which is kept. libtorch gives out 32 in turn: one taken for each copy
/// would soon be the stream that computes.
pub struct Beside(Box<dyn Lane>);

impl Beside {
    /// For tensors on `device`. What is not on a GPU is copied at once, by the calling thread.
    pub fn of(device: Device) -> Result<Self, ShimError> {
        Ok(Self(match device {
            Device::Cuda(gpu) => Box::new(Gpu { gpu, stream: Stream::from_pool(gpu, false)? }),
            _ => Box::new(Host),
        }))
    }
}

/// Memory into which tensors are copied. Nobody has it before [`Landing::wait`].
pub struct Landing<M> {
    /// None once it was given back.
    memory: Option<Box<M>>,
    /// Read until all is copied.
    tensors: Vec<Tensor>,
    done: Arc<dyn Mark>,
}

/// When all of a [`Landing`] is copied.
#[derive(Clone)]
pub struct Landed(Arc<dyn Mark>);

impl Landed {
    /// Work of the calling thread from now on waits until all is copied; the host waits only where it computes itself.
    pub fn hold(&self) -> Result<(), ShimError> {
        self.0.hold()
    }
}

impl<M: DerefMut<Target = [u8]> + Send> Landing<M> {
    /// Begins to copy tensors of the device that `beside` is of, as they are when what the calling thread has computed is done. `pairs`
    /// says what goes where in the memory: first what the calling thread may change from now on, which waits until that is copied; then
    /// what it changes only behind [`Landed::hold`]. The memory is taken where this succeeds. A copy to memory that is not [`Pinned`] makes
    /// the host wait.
    pub fn start<E: From<ShimError>>(
        beside: &mut Beside,
        memory: &mut Option<Box<M>>,
        pairs: impl for<'m> FnOnce(&'m mut [u8]) -> Result<[Pairs<'m>; 2], E>,
    ) -> Result<Self, E> {
        let (op, lane) = ("copy beside the training", beside.0.as_mut());
        let Some(whole) = memory.as_mut() else {
            return Err(ShimError::invalid(op, "there is no memory to copy to").into());
        };
        let bounds = whole.as_mut_ptr_range();
        let [changing, lasting] = pairs(whole)?;
        let inside = |to: &[u8]| {
            let range = to.as_ptr_range();
            range.is_empty()
                || (bounds.start.cast_const() <= range.start && range.end <= bounds.end.cast_const())
        };
        if !changing.iter().chain(&lasting).all(|(_, to)| inside(to)) {
            return Err(ShimError::invalid(op, "a place outside of the memory").into());
        }
        let mut tensors = Vec::new();
        let done = give(lane, [changing, lasting], &mut tensors).inspect_err(|_| {
            // Nothing is written to the memory any more when its owner has it back.
            lane.drain();
        })?;
        Ok(Self { memory: memory.take(), tensors, done })
    }

    /// When all is copied.
    pub fn landed(&self) -> Landed {
        Landed(Arc::clone(&self.done))
    }

    /// Waits until all is copied, on any thread, and gives the memory back.
    pub fn wait(mut self) -> Result<Box<M>, ShimError> {
        self.end()?;
        let gone = || ShimError::new("wait for a copy", ErrorKind::Other, "the memory was given back");
        self.memory.take().ok_or_else(gone)
    }
}

impl<M> Landing<M> {
    fn end(&mut self) -> Result<(), ShimError> {
        let waited = self.done.wait();
        self.tensors.clear();
        if waited.is_err() {
            // Whether the device writes to it still, nobody knows.
            std::mem::forget(self.memory.take());
        }
        waited
    }
}

impl<M> Drop for Landing<M> {
    fn drop(&mut self) {
        if self.memory.is_some() {
            // Who drops it does not want to know.
            let _ = self.end();
        }
    }
}

fn give(
    lane: &mut dyn Lane,
    [changing, lasting]: [Pairs<'_>; 2],
    tensors: &mut Vec<Tensor>,
) -> Result<Arc<dyn Mark>, ShimError> {
    lane.fork()?;
    if !changing.is_empty() {
        copy(lane, changing, tensors)?;
        lane.mark()?.hold()?;
    }
    copy(lane, lasting, tensors)?;
    lane.mark()
}

fn copy(lane: &mut dyn Lane, pairs: Pairs<'_>, tensors: &mut Vec<Tensor>) -> Result<(), ShimError> {
    for (tensor, to) in pairs {
        lane.copy(&tensor, to)?;
        tensors.push(tensor);
    }
    Ok(())
}

/// Where copies are made, one after the other.
trait Lane {
    /// Later copies wait for what the calling thread has computed.
    fn fork(&mut self) -> Result<(), ShimError>;
    /// Begins to copy. The memory of `to` lives, and is not used, until a later mark is reached.
    fn copy(&mut self, tensor: &Tensor, to: &mut [u8]) -> Result<(), ShimError>;
    /// The place up to which copies were begun.
    fn mark(&mut self) -> Result<Arc<dyn Mark>, ShimError>;
    /// Waits for all that was begun, well or badly.
    fn drain(&mut self);
}

/// A place in a lane.
trait Mark: Send + Sync {
    /// Later work of the calling thread waits for it.
    fn hold(&self) -> Result<(), ShimError>;
    /// The host waits for it.
    fn wait(&self) -> Result<(), ShimError>;
}

/// A stream beside the one that computes.
struct Gpu {
    gpu: usize,
    stream: Stream,
}

impl Lane for Gpu {
    fn fork(&mut self) -> Result<(), ShimError> {
        Stream::current(self.gpu)?.mark()?.block(self.stream)
    }

    fn copy(&mut self, tensor: &Tensor, to: &mut [u8]) -> Result<(), ShimError> {
        let (place, bytes) = (to.as_mut_ptr(), to.len() as i64);
        self.stream.run(|| {
            checked("copy a tensor to the host", |error| {
                // SAFETY: `place` has as many bytes as the call is told, and the caller keeps it until a later mark.
                unsafe { ffi::dt_tensor_copy_to(tensor.into(), place, bytes, error) }
            })
        })?
    }

    fn mark(&mut self) -> Result<Arc<dyn Mark>, ShimError> {
        Ok(Arc::new(GpuMark { gpu: self.gpu, event: self.stream.mark()? }))
    }

    fn drain(&mut self) {
        // What the device cannot end it does not write either.
        let _ = self.stream.synchronize();
    }
}

struct GpuMark {
    gpu: usize,
    event: Event,
}

impl Mark for GpuMark {
    fn hold(&self) -> Result<(), ShimError> {
        self.event.block(Stream::current(self.gpu)?)
    }

    fn wait(&self) -> Result<(), ShimError> {
        // The thread may be one that has used no GPU.
        cuda::set_device(self.gpu)?;
        self.event.synchronize()
    }
}

/// The calling thread, which copies at once: its marks are reached.
struct Host;

impl Lane for Host {
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
    fn hold(&self) -> Result<(), ShimError> {
        Ok(())
    }

    fn wait(&self) -> Result<(), ShimError> {
        Ok(())
    }
}

/// Memory of the host that is pinned where it lies, as long as this lives: every GPU reads and writes it without the host. It is
/// dropped before the memory is.
#[derive(Debug)]
pub struct Pinned(*mut c_void);

// SAFETY: the address is only told to CUDA, from one thread at a time.
unsafe impl Send for Pinned {}
// SAFETY: nothing can be done by a shared reference.
unsafe impl Sync for Pinned {}

impl Pinned {
    /// Pins `memory`, which takes about as long as to write it once. The thread is on its GPU: see [`cuda::set_device`].
    pub fn over(memory: &mut [u8]) -> Result<Self, ShimError> {
        let data = memory.as_mut_ptr().cast();
        checked("pin memory", |error| {
            // SAFETY: the memory is there, for as many bytes, during the call; nothing is written to it.
            unsafe { ffi::dt_host_register(data, memory.len() as u64, error) }
        })?;
        Ok(Self(data))
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        // What cannot be given back ends with the process.
        let _ = checked("unpin memory", |error| {
            // SAFETY: it was pinned, and is unpinned once.
            unsafe { ffi::dt_host_unregister(self.0, error) }
        });
    }
}

#[cfg(test)]
mod tests;
