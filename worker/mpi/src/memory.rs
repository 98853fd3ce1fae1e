//! Tensors as buffers of MPI, and the GPUs behind them.

use std::ffi::{c_int, c_void};

use dtrain_torch_shim::stream::Stream;
use dtrain_torch_shim::{ShimError, cuda};
use libloading::os::unix::Library;
use mpi::datatype::{DatatypeRef, DynBuffer, DynBufferMut, SystemDatatype};
use mpi::raw::{AsRaw, FromRaw};
use mpi::traits::Equivalence;
use tch::{Device, Kind, Tensor};

/// Returns whether the library reads and writes memory of GPUs. Open MPI and MPICH have a function that tells it, an
/// extension of the standard: <https://www.open-mpi.org/faq/?category=runcuda>.
pub(crate) fn takes_gpus() -> bool {
    let name = b"MPIX_Query_cuda_support\0";
    // SAFETY: wherever this function exists, it takes nothing and returns an int. The library stays loaded.
    unsafe {
        let query = Library::this().get::<unsafe extern "C" fn() -> c_int>(name);
        query.is_ok_and(|query| query() == 1)
    }
}

/// Waits until a GPU has computed the tensor: MPI does not know libtorch's streams.
pub(crate) fn settle(tensor: &Tensor) -> Result<(), ShimError> {
    match tensor.device() {
        Device::Cuda(gpu) => Stream::current(gpu)?.synchronize(),
        _ => Ok(()),
    }
}

/// Makes the tensors' GPU current in this thread, as the libraries of MPI expect.
pub(crate) fn make_current(device: Device) {
    if let Device::Cuda(gpu) = device
        && let Err(error) = cuda::set_device(gpu)
    {
        tracing::warn!("GPU {gpu} cannot be selected for MPI: {error}");
    }
}

/// Returns a tensor as what MPI reads.
pub(crate) fn read(tensor: &Tensor) -> DynBuffer<'_> {
    let (data, count, datatype) = parts(tensor);
    // SAFETY: the tensor is contiguous, has this many elements of this datatype, and lives as long as the buffer.
    unsafe { DynBuffer::from_raw(data.cast_const(), count, datatype) }
}

/// Returns a tensor as what MPI writes.
pub(crate) fn write(tensor: &mut Tensor) -> DynBufferMut<'_> {
    let (data, count, datatype) = parts(tensor);
    // SAFETY: as above. Nobody else uses the memory before the operation has ended: a condition of `ProcessGroup`.
    unsafe { DynBufferMut::from_raw(data, count, datatype) }
}

fn parts(tensor: &Tensor) -> (*mut c_void, c_int, DatatypeRef<'static>) {
    // The group has checked the number of elements and the dtype.
    let count = c_int::try_from(tensor.numel()).unwrap_or(0);
    let datatype = datatype(tensor.kind()).as_raw();
    // SAFETY: MPI's own datatypes live as long as the program.
    (tensor.data_ptr(), count, unsafe { DatatypeRef::from_raw(datatype) })
}

fn datatype(kind: Kind) -> SystemDatatype {
    match kind {
        Kind::Float => f32::equivalent_datatype(),
        Kind::Double => f64::equivalent_datatype(),
        Kind::Int64 => i64::equivalent_datatype(),
        Kind::Int => i32::equivalent_datatype(),
        Kind::Int8 => i8::equivalent_datatype(),
        // Half precision is only copied.
        Kind::Half | Kind::BFloat16 => u16::equivalent_datatype(),
        _ => u8::equivalent_datatype(),
    }
}
