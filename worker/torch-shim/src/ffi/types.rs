//! What goes over the boundary, as types that say who owns it and how long it lives.

use std::ffi::c_void;
use std::fmt;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;

use tch::Tensor;

/// A tensor that lives during a call.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub(crate) struct Lent<'a>(NonNull<c_void>, PhantomData<&'a Tensor>);

impl<'a> From<&'a Tensor> for Lent<'a> {
    fn from(tensor: &'a Tensor) -> Self {
        // SAFETY: tch's pointer is that of an at::Tensor which lives as long as its handle; it is never null.
        Self(unsafe { NonNull::new_unchecked(tensor.as_ptr().cast_mut().cast()) }, PhantomData)
    }
}

impl Lent<'_> {
    /// A handle of one's own.
    pub(crate) fn to_owned(self) -> Tensor {
        // SAFETY: the tensor is live.
        unsafe { Tensor::clone_from_ptr(self.0.as_ptr().cast()) }
    }
}

/// Tensors that live during a call.
#[repr(C)]
pub(crate) struct LentList<'a> {
    data: *const Lent<'a>,
    count: usize,
}

impl<'a> LentList<'a> {
    pub(crate) fn new(tensors: &'a [Lent<'a>]) -> Self {
        Self { data: tensors.as_ptr(), count: tensors.len() }
    }

    pub(crate) fn to_owned(&self) -> Vec<Tensor> {
        // SAFETY: `data` points to `count` live tensors, or is null where there are none.
        (0..self.count).map(|index| unsafe { *self.data.add(index) }.to_owned()).collect()
    }
}

/// A new at::Tensor, whose owner is Rust.
#[repr(transparent)]
pub(crate) struct NewTensor(NonNull<c_void>);

impl NewTensor {
    pub(crate) fn take(self) -> Tensor {
        // SAFETY: it is a new at::Tensor, which is what tch's C_tensor stands for; tch frees it.
        unsafe { Tensor::from_ptr(self.0.as_ptr().cast()) }
    }
}

/// Bytes that live during a call.
#[repr(C)]
pub(crate) struct Text<'a> {
    data: *const u8,
    size: usize,
    _lives: PhantomData<&'a [u8]>,
}

impl<'a, B: AsRef<[u8]> + ?Sized> From<&'a B> for Text<'a> {
    fn from(bytes: &'a B) -> Self {
        let bytes = bytes.as_ref();
        Self { data: bytes.as_ptr(), size: bytes.len(), _lives: PhantomData }
    }
}

impl Text<'_> {
    pub(crate) fn to_owned(&self) -> String {
        // SAFETY: `data` points to `size` bytes, which live.
        let bytes = unsafe { std::slice::from_raw_parts(self.data, self.size) };
        String::from_utf8_lossy(bytes).into_owned()
    }
}

/// Bytes that C++ has allocated with malloc.
#[repr(C)]
pub(crate) struct Bytes {
    data: *mut u8,
    size: usize,
}

impl Default for Bytes {
    fn default() -> Self {
        let data = std::ptr::null_mut();
        Self { data, size: 0 }
    }
}

impl Deref for Bytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self.data.is_null() {
            true => &[],
            // SAFETY: C++ has filled in both fields.
            false => unsafe { std::slice::from_raw_parts(self.data, self.size) },
        }
    }
}

impl Drop for Bytes {
    fn drop(&mut self) {
        // SAFETY: null, or allocated with malloc and freed once.
        unsafe { libc::free(self.data.cast()) }
    }
}

/// What kind of failure libtorch reported. The numbers are those of `DtErrorKind` in csrc/boundary.h.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[repr(i32)]
pub enum ErrorKind {
    /// An allocation was refused, on the device or on the host.
    OutOfMemory = 1,
    /// An operation or a connection waited past its time-out.
    Timeout = 2,
    /// A connection could not be made or was closed by the peer.
    Network = 3,
    /// The key-value store failed.
    Store = 4,
    /// A shape, dtype, index or value that the operation does not take.
    InvalidArgument = 5,
    /// libtorch has no implementation for this operation on this device or dtype.
    NotImplemented = 6,
    /// A shared library, such as libtorch's CUDA set, is not on this machine.
    LibraryMissing = 7,
    /// Anything else; the message is all there is.
    #[default]
    Other = 8,
    /// A GPU, or one of CUDA's libraries on it, failed. What the process computed there is lost, and after most such failures nothing
    /// on this GPU succeeds any more before the process ends.
    Device = 9,
    /// There is no NVIDIA driver on this machine.
    DriverMissing = 10,
    /// The NVIDIA driver is older than the CUDA that libtorch was built with.
    DriverTooOld = 11,
}

/// What a failed call leaves.
#[derive(Default)]
#[repr(C)]
pub(crate) struct DtError {
    /// Only C++ writes another than this, one of its own `DtErrorKind`.
    pub(crate) kind: ErrorKind,
    pub(crate) message: Bytes,
}

/// A C++ object that only C++ knows.
pub(crate) trait Object {
    const FREE: unsafe extern "C" fn(NonNull<Self>);
}

/// A C++ object, freed when it is dropped.
#[repr(transparent)]
pub(crate) struct Owned<T: Object>(NonNull<T>);

impl<T: Object> Deref for Owned<T> {
    type Target = T;

    fn deref(&self) -> &T {
        // SAFETY: the object is live; nothing of it is seen from Rust.
        unsafe { self.0.as_ref() }
    }
}

impl<T: Object> DerefMut for Owned<T> {
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: as above.
        unsafe { self.0.as_mut() }
    }
}

impl<T: Object> Drop for Owned<T> {
    fn drop(&mut self) {
        // SAFETY: the object is live and freed once.
        unsafe { T::FREE(self.0) }
    }
}

impl<T: Object> fmt::Debug for Owned<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}
