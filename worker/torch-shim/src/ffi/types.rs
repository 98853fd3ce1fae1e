//! Types that cross the boundary and express ownership and lifetime.

use std::ffi::c_void;
use std::fmt;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;

use tch::Tensor;

/// A tensor that is borrowed during a call.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub(crate) struct Borrowed<'a>(NonNull<c_void>, PhantomData<&'a Tensor>);

impl<'a> From<&'a Tensor> for Borrowed<'a> {
    fn from(tensor: &'a Tensor) -> Self {
        // SAFETY: tch's pointer is never null; its at::Tensor lives as long as its handle.
        Self(unsafe { NonNull::new_unchecked(tensor.as_ptr().cast_mut().cast()) }, PhantomData)
    }
}

impl Borrowed<'_> {
    /// Returns a new handle of the tensor.
    pub(crate) fn to_owned(self) -> Tensor {
        // SAFETY: the tensor is live.
        unsafe { Tensor::clone_from_ptr(self.0.as_ptr().cast()) }
    }
}

/// Tensors that are borrowed during a call.
#[repr(C)]
pub(crate) struct BorrowedList<'a> {
    data: *const Borrowed<'a>,
    count: usize,
}

impl<'a> BorrowedList<'a> {
    pub(crate) fn new(tensors: &'a [Borrowed<'a>]) -> Self {
        Self { data: tensors.as_ptr(), count: tensors.len() }
    }

    pub(crate) fn to_owned(&self) -> Vec<Tensor> {
        // SAFETY: `data` points to `count` live tensors, or is null if `count` is 0.
        (0..self.count).map(|index| unsafe { *self.data.add(index) }.to_owned()).collect()
    }
}

/// A new at::Tensor that Rust owns.
#[repr(transparent)]
pub(crate) struct NewTensor(NonNull<c_void>);

impl NewTensor {
    pub(crate) fn take(self) -> Tensor {
        // SAFETY: the pointer is that of a new at::Tensor, which is tch's C_tensor; tch frees it.
        unsafe { Tensor::from_ptr(self.0.as_ptr().cast()) }
    }
}

/// Bytes that are borrowed during a call.
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
        // SAFETY: `data` points to `size` live bytes.
        let bytes = unsafe { std::slice::from_raw_parts(self.data, self.size) };
        String::from_utf8_lossy(bytes).into_owned()
    }
}

/// Numbers that are borrowed during a call.
#[repr(C)]
pub(crate) struct DtNumbers<'a> {
    data: *const i64,
    count: usize,
    _lives: PhantomData<&'a [i64]>,
}

impl<'a> From<&'a [i64]> for DtNumbers<'a> {
    fn from(numbers: &'a [i64]) -> Self {
        Self { data: numbers.as_ptr(), count: numbers.len(), _lives: PhantomData }
    }
}

/// Bytes that C++ allocated with malloc.
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
            // SAFETY: C++ has set both fields.
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

/// The kind of a failure in libtorch. The numbers are those of `DtErrorKind` in csrc/boundary.h.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[repr(i32)]
pub enum ErrorKind {
    /// An allocation failed, on the device or on the host.
    OutOfMemory = 1,
    /// An operation or a connection exceeded its time-out.
    Timeout = 2,
    /// A connection failed or the peer closed it.
    Network = 3,
    /// The key-value store failed.
    Store = 4,
    /// A shape, dtype, index or value that the operation does not support.
    InvalidArgument = 5,
    /// libtorch has no implementation for this operation on this device or dtype.
    NotImplemented = 6,
    /// A shared library, such as libtorch's CUDA set, is not on this machine.
    LibraryMissing = 7,
    /// Any other failure; only the message describes it.
    #[default]
    Other = 8,
    /// A GPU or a CUDA library failed. The process's data on that GPU is lost. After most such failures,
    /// later operations on it fail too until the process ends.
    Device = 9,
    /// This machine has no NVIDIA driver.
    DriverMissing = 10,
    /// The NVIDIA driver is older than the CUDA that libtorch was built with.
    DriverTooOld = 11,
}

/// The error of a failed call.
#[derive(Default)]
#[repr(C)]
pub(crate) struct DtError {
    /// Only C++ changes it, to a value of its `DtErrorKind`.
    pub(crate) kind: ErrorKind,
    pub(crate) message: Bytes,
}

/// A C++ object that is opaque to Rust.
pub(crate) trait Object {
    const FREE: unsafe extern "C" fn(NonNull<Self>);
}

/// An owned C++ object, freed on drop.
#[repr(transparent)]
pub(crate) struct Owned<T: Object>(NonNull<T>);

impl<T: Object> Deref for Owned<T> {
    type Target = T;

    fn deref(&self) -> &T {
        // SAFETY: the object is live, and Rust does not access its contents.
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
