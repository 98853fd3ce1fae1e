//! libtorch's profiler: the operations of this thread and of the threads that backward uses, and the work of GPUs.

use std::marker::PhantomData;

use crate::error::{ErrorKind, ShimError, fetch, try_call};
use crate::ffi;

/// An operation, a call of the GPU's runtime, or work of a GPU.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Operation {
    /// The name, such as `aten::conv2d`.
    pub name: String,
    /// Nanoseconds since 1970.
    pub start_ns: u64,
    /// The duration in nanoseconds.
    pub duration_ns: u64,
    /// The kernel's number of the thread, or the stream of a GPU.
    pub thread: u64,
    /// The GPU; None for the host.
    pub gpu: Option<u64>,
    /// The number that a forward operation and its backward function share.
    pub sequence: Option<u64>,
    /// Whether it is of a backward pass.
    pub is_backward: bool,
}

/// A recording. It ends on the thread that began it; one that is dropped discards its operations.
#[derive(Debug)]
pub struct Profile {
    is_open: bool,
    _of_this_thread: PhantomData<*const ()>,
}

impl Profile {
    /// Begins a recording, also of GPUs if `with_gpu`. A process has one at a time.
    ///
    /// # Errors
    /// libtorch has no profiler, or another one records.
    pub fn begin(with_gpu: bool) -> Result<Self, ShimError> {
        try_call("begin a profile", |error| ffi::dt_profile_begin(with_gpu, error))?;
        Ok(Self { is_open: true, _of_this_thread: PhantomData })
    }

    /// Ends the recording. Returns the operations in the order of their start.
    pub fn end(mut self) -> Result<Vec<Operation>, ShimError> {
        self.is_open = false;
        let bytes = fetch("end a profile", |bytes, error| ffi::dt_profile_end(bytes, error))?;
        let damaged = || ShimError::new("end a profile", ErrorKind::Other, "its events are cut off");
        let mut all = parse(&bytes).ok_or_else(damaged)?;
        all.sort_by_key(|operation| operation.start_ns);
        Ok(all)
    }
}

impl Drop for Profile {
    fn drop(&mut self) {
        if self.is_open {
            let _ = fetch("end a profile", |bytes, error| ffi::dt_profile_end(bytes, error));
        }
    }
}

/// The numbers before each name; see csrc/profile.cpp.
const HEADER: usize = 7;

fn parse(mut bytes: &[u8]) -> Option<Vec<Operation>> {
    let mut all = Vec::new();
    while !bytes.is_empty() {
        let (header, rest) = bytes.split_at_checked(HEADER * size_of::<i64>())?;
        let mut numbers = header.as_chunks().0.iter().map(|number| i64::from_ne_bytes(*number));
        let mut next = || numbers.next();
        let (start, duration, thread) = (next()?, next()?, next()?);
        let (gpu, sequence, is_backward, length) = (next()?, next()?, next()?, next()?);
        let (name, rest) = rest.split_at_checked(usize::try_from(length).ok()?)?;
        bytes = rest;
        all.push(Operation {
            name: String::from_utf8_lossy(name).into_owned(),
            start_ns: u64::try_from(start).unwrap_or(0),
            duration_ns: u64::try_from(duration).unwrap_or(0),
            thread: thread.unsigned_abs(),
            gpu: u64::try_from(gpu).ok(),
            sequence: u64::try_from(sequence).ok(),
            is_backward: is_backward != 0,
        });
    }
    Some(all)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::time::{SystemTime, UNIX_EPOCH};

    use tch::{Device, Kind, Tensor};

    use super::*;

    #[test]
    fn backward_functions_name_their_forward_operations() {
        let now = || SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_nanos() as u64;
        let x = Tensor::ones([8, 8], (Kind::Float, Device::Cpu)).set_requires_grad(true);
        let began = now();
        let profile = Profile::begin(false).unwrap();
        x.matmul(&x).relu().sum(Kind::Float).backward();
        let operations = profile.end().unwrap();
        let ended = now();
        let find = |name: &str| operations.iter().find(|one| one.name == name).unwrap();
        let (forward, backward) =
            (find("aten::relu"), find("autograd::engine::evaluate_function: ReluBackward0"));
        assert_eq!(forward.sequence, backward.sequence);
        assert!(forward.sequence.is_some() && backward.is_backward && !forward.is_backward);
        let own = u64::from(own_thread());
        for one in [forward, backward] {
            assert_eq!((one.gpu, one.thread), (None, own));
            // The profiler converts another clock, which costs some microseconds.
            assert!(one.start_ns + 1_000_000 >= began && one.start_ns <= ended + 1_000_000);
        }
        // A recording that is dropped leaves no other one in its way.
        drop(Profile::begin(false).unwrap());
        assert!(Profile::begin(false).unwrap().end().unwrap().len() < operations.len());
        assert!(parse(&[0; 8]).is_none());
    }

    fn own_thread() -> u32 {
        // SAFETY: gettid has no arguments and cannot fail.
        unsafe { libc::gettid() }.unsigned_abs()
    }
}
