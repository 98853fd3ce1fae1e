//! Collectives as calls of NCCL functions.

use std::ffi::c_void;

use cudarc::nccl::sys::{ncclComm_t, ncclDataType_t, ncclRedOp_t};
use tch::{Kind, Tensor};

use super::super::{Collective, ReduceOp};
use super::api::{Api, Code, CudaStream, IN_PROGRESS, SUCCESS};

fn enqueue_one(api: &Api, collective: Collective<'_>, comm: ncclComm_t, stream: CudaStream) -> Code {
    let functions = &api.functions;
    // SAFETY, of all: the communicator is live. The tensors live until the operation has ended, and their
    // sizes were checked for every rank's part.
    match collective {
        Collective::AllReduce(tensor, op) => {
            let (data, count, kind) = parts(tensor);
            // SAFETY: see above.
            unsafe { (functions.all_reduce)(data, data, count, kind, reduction(op), comm, stream) }
        }
        Collective::Broadcast(tensor, root) => {
            let (data, count, kind) = parts(tensor);
            // SAFETY: see above.
            unsafe { (functions.broadcast)(data, data, count, kind, root as i32, comm, stream) }
        }
        Collective::AllGather { output, input } => {
            let (from, count, kind) = parts(input);
            // SAFETY: see above.
            unsafe { (functions.all_gather)(from, output.data_ptr(), count, kind, comm, stream) }
        }
        Collective::ReduceScatter { output, input, op } => {
            let (to, count, kind) = parts(output);
            let from = input.data_ptr();
            // SAFETY: see above.
            unsafe { (functions.reduce_scatter)(from, to, count, kind, reduction(op), comm, stream) }
        }
    }
}

/// Passes operations to NCCL, several as one group.
pub(super) fn enqueue(api: &Api, all: &[Collective<'_>], comm: ncclComm_t, stream: CudaStream) -> Code {
    if let [collective] = all {
        return enqueue_one(api, *collective, comm, stream);
    }
    // SAFETY: the same thread starts and ends the group.
    let started = unsafe { (api.functions.group_start)() };
    if started != SUCCESS {
        return started;
    }
    let mut codes = all.iter().map(|collective| enqueue_one(api, *collective, comm, stream));
    let failed = codes.find(|&code| code != SUCCESS && code != IN_PROGRESS);
    // SAFETY: as above.
    let ended = unsafe { (api.functions.group_end)() };
    failed.unwrap_or(ended)
}

/// Returns the address of a tensor's elements, their number, and NCCL's number for their dtype.
fn parts(tensor: &Tensor) -> (*mut c_void, usize, i32) {
    let kind = match tensor.kind() {
        Kind::Double => ncclDataType_t::ncclFloat64,
        Kind::Half => ncclDataType_t::ncclFloat16,
        Kind::BFloat16 => ncclDataType_t::ncclBfloat16,
        Kind::Int64 => ncclDataType_t::ncclInt64,
        Kind::Int => ncclDataType_t::ncclInt32,
        Kind::Int8 => ncclDataType_t::ncclInt8,
        Kind::Uint8 => ncclDataType_t::ncclUint8,
        // `Collective::check` has rejected all other dtypes.
        _ => ncclDataType_t::ncclFloat32,
    };
    (tensor.data_ptr(), tensor.numel(), kind as i32)
}

fn reduction(op: ReduceOp) -> i32 {
    (match op {
        ReduceOp::Sum => ncclRedOp_t::ncclSum,
        ReduceOp::Min => ncclRedOp_t::ncclMin,
        ReduceOp::Max => ncclRedOp_t::ncclMax,
    }) as i32
}
