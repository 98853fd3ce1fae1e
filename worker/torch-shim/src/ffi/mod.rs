//! The C functions of `csrc`, by file.
//!
//! The types of their parameters express C++'s requirements, so most functions are safe to call: [`Borrowed`]
//! is a live tensor, [`Text`] has bytes that live during the call, a reference is valid for reads and writes.

mod options;
mod types;

use std::ffi::c_void;
use std::ptr::NonNull;

pub use self::options::{Adam, Head, Operations, Sgd, Usage, WeightDecay};
pub use self::types::ErrorKind;
pub(crate) use self::types::{
    Borrowed, BorrowedList, Bytes, DtError, DtNumbers, NewTensor, Object, Owned, Text,
};

macro_rules! objects {
    ($($(#[$doc:meta])* $name:ident, $free:ident;)*) => {
        $(
            $(#[$doc])*
            #[repr(C)]
            pub(crate) struct $name {
                _private: [u8; 0],
            }

            impl Object for $name {
                const FREE: unsafe extern "C" fn(NonNull<Self>) = $free;
            }
        )*
        unsafe extern "C" {
            $(fn $free(object: NonNull<$name>);)*
        }
    };
}

objects! {
    /// A reference-counted c10d::Store.
    StoreHandle, dt_store_free;
    /// A reference-counted c10d::ProcessGroupGloo.
    GlooHandle, dt_gloo_free;
    /// A reference-counted c10d::Work.
    WorkHandle, dt_work_free;
    /// c10::Event.
    EventHandle, dt_event_free;
    /// A GPU graph.
    GraphHandle, dt_graph_free;
    /// A region of symbolic tensors on the thread that entered it.
    SymbolicMode, dt_symbolic_leave;
    /// A count of a thread's operations.
    CountingMode, dt_count_leave;
    /// The samples of the thread's random numbers before a region, which end it.
    SamplesHandle, dt_samples_leave;
    /// The values of a program's run.
    FrameHandle, dt_frame_free;
    /// A prepared call of an operation.
    CallHandle, dt_call_free;
}

/// c10::Stream of a CUDA device.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct DtStream {
    pub(crate) id: i64,
    pub(crate) device: i32,
}

/// The pool of memory that graphs share.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct DtPool {
    pub(crate) first: u64,
    pub(crate) second: u64,
}

/// A Rust closure that C++ owns; see `callback`.
#[repr(C)]
pub(crate) struct DtCallback {
    pub(crate) context: *mut c_void,
    pub(crate) call: extern "C" fn(*mut c_void, BorrowedList<'_>, bool, &mut Outputs, &mut Reason) -> i32,
    pub(crate) release: extern "C" fn(*mut c_void),
}

/// One argument of a prepared call; see csrc/program.cpp.
#[repr(C)]
pub(crate) struct DtArgument<'a> {
    pub(crate) name: Text<'a>,
    pub(crate) tag: i32,
    pub(crate) text: Text<'a>,
    pub(crate) numbers: *const i64,
    pub(crate) slots: *const i64,
    pub(crate) reals: *const f64,
    pub(crate) count: usize,
}

/// The arguments of a prepared call.
#[repr(C)]
pub(crate) struct DtArguments<'a> {
    pub(crate) data: *const DtArgument<'a>,
    pub(crate) count: usize,
}

/// Where a prepared call puts its results, and the values that it drops.
#[repr(C)]
pub(crate) struct DtResults<'a> {
    pub(crate) counts: DtNumbers<'a>,
    pub(crate) slots: DtNumbers<'a>,
    pub(crate) frees: DtNumbers<'a>,
}

/// std::vector<at::Tensor>.
#[repr(C)]
pub(crate) struct Outputs {
    _private: [u8; 0],
}

/// std::string.
#[repr(C)]
pub(crate) struct Reason {
    _private: [u8; 0],
}

/// Declares functions that return 0, or an error kind after filling `error`, their last argument.
macro_rules! fallible {
    ($($safety:tt fn $name:ident($($argument:ident: $type:ty),* $(,)?);)*) => {
        unsafe extern "C" {
            $(pub(crate) $safety fn $name($($argument: $type,)* error: &mut DtError) -> i32;)*
        }
    };
}

// c10d.cpp
fallible! {
    safe fn dt_tcp_store_new(
        host: Text<'_>, port: u16, server: bool, listener: i32, timeout_ms: u64, out: &mut Option<Owned<StoreHandle>>
    );
    safe fn dt_store_prefix(store: &StoreHandle, prefix: Text<'_>, out: &mut Option<Owned<StoreHandle>>);
    safe fn dt_store_set(store: &StoreHandle, key: Text<'_>, value: Text<'_>);
    safe fn dt_store_get(store: &StoreHandle, key: Text<'_>, out: &mut Bytes);
    safe fn dt_store_delete(store: &StoreHandle, key: Text<'_>);
    safe fn dt_store_add(store: &StoreHandle, key: Text<'_>, amount: i64, out: &mut i64);
    safe fn dt_gloo_new(
        store: &StoreHandle, rank: i32, size: i32, timeout_ms: u64, by_interface: bool, name: Text<'_>,
        out: &mut Option<Owned<GlooHandle>>
    );
    safe fn dt_gloo_start(
        group: &GlooHandle, operation: i32, value: i32, outputs: BorrowedList<'_>, inputs: BorrowedList<'_>, timeout_ms: u64,
        out: &mut Option<Owned<WorkHandle>>
    );
    safe fn dt_work_wait(work: &WorkHandle);
}

// context.cpp
fallible! {
    safe fn dt_library_folder(out: &mut Bytes);
    safe fn dt_cuda_load();
    safe fn dt_cuda_device_count(out: &mut u64);
    safe fn dt_cuda_total_memory(index: i32, out: &mut u64);
    safe fn dt_cuda_prefers_cudnn_attention(index: i32, out: &mut bool);
    safe fn dt_cuda_blas_workspace(out: &mut u64);
    safe fn dt_cuda_properties(index: i32, out: &mut [i32; 3]);
    safe fn dt_cuda_set_device(index: i32);
    safe fn dt_cuda_set_tf32(on: bool);
    safe fn dt_cuda_tf32(products_and_convolutions: &mut [bool; 2]);
    safe fn dt_cuda_cudnn_benchmark(out: &mut bool);
    safe fn dt_rng_get_state(device: i32, out: &mut Option<NewTensor>);
    safe fn dt_rng_seed(seed: u64);
    safe fn dt_rng_set_state(device: i32, state: Borrowed<'_>);
    safe fn dt_autocast_enter(device: i32, dtype: i32, before: &mut DtAutocast);
    safe fn dt_autocast_leave(device: i32, before: &DtAutocast);
}

#[cfg(test)]
fallible! {
    safe fn dt_throw(exception: i32);
}

/// The autocast state of a thread for a device.
#[repr(C)]
#[derive(Debug, Default)]
pub(crate) struct DtAutocast {
    enabled: bool,
    dtype: i32,
}

unsafe extern "C" {
    pub(crate) safe fn dt_set_log_level(level: i32);
    pub(crate) safe fn dt_libtorch_version() -> Text<'static>;
    pub(crate) safe fn dt_grad_mode_set(enabled: bool);
    pub(crate) safe fn dt_on_terminate(report: extern "C" fn(Text<'_>));
    pub(crate) safe fn dt_grad_mode() -> bool;
}

// stream.cpp
fallible! {
    safe fn dt_stream_current(device: i32, out: &mut DtStream);
    safe fn dt_stream_from_pool(device: i32, high_priority: bool, out: &mut DtStream);
    safe fn dt_stream_exchange(stream: DtStream, before: &mut DtStream);
    safe fn dt_stream_native(stream: DtStream, out: &mut usize);
    safe fn dt_stream_synchronize(stream: DtStream);
    safe fn dt_stream_record_tensor(stream: DtStream, tensor: Borrowed<'_>);
    safe fn dt_event_new(timed: bool, out: &mut Option<Owned<EventHandle>>);
    safe fn dt_event_elapsed(from: &EventHandle, to: &EventHandle, out: &mut f64);
    safe fn dt_event_record(event: &mut EventHandle, stream: DtStream);
    safe fn dt_event_block(event: &EventHandle, stream: DtStream);
    safe fn dt_event_query(event: &EventHandle, out: &mut bool);
    safe fn dt_event_synchronize(event: &EventHandle);
}

// blob.cpp
fallible! {
    unsafe fn dt_tensor_copy_to(tensor: Borrowed<'_>, to: *mut u8, bytes: i64);
    unsafe fn dt_host_register(data: *mut c_void, bytes: u64);
    unsafe fn dt_host_unregister(data: *mut c_void);
    unsafe fn dt_tensor_pinned(data: *const c_void, count: i64, dtype: i32, out: &mut Option<NewTensor>);
    unsafe fn dt_tensor_from_memory(
        data: *mut u8, count: i64, dtype: i32, owner: *mut c_void, drop: extern "C" fn(*mut c_void), out: &mut Option<NewTensor>
    );
}

/// A GPU that symbolic tensors simulate: what the scratch memory of its kernels depends on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(C)]
pub struct SimulatedGpu {
    /// The widest heads for which it prefers cuDNN's attention in half precision to libtorch's; 0: none. See
    /// [`crate::cuda::prefers_cudnn_attention`]. As in libtorch, inputs that cuDNN does not support go to the next kernel.
    pub cudnn_attention_width: i32,
    /// The number of multiprocessors.
    pub multiprocessors: i32,
    /// The number of threads that run at once on each.
    pub threads_per_multiprocessor: i32,
    /// Whether it has attention kernels in bfloat16: since compute capability 8.0.
    pub has_bf16_attention: bool,
}

impl SimulatedGpu {
    /// A large GPU of 2026, for plans without a GPU: a B200 that prefers libtorch's attention, which takes more memory.
    pub const LARGE: Self = Self {
        cudnn_attention_width: 0,
        multiprocessors: 148,
        threads_per_multiprocessor: 2048,
        has_bf16_attention: true,
    };

    /// Returns [`Self::cudnn_attention_width`] of a GPU that prefers cuDNN's attention, by its major compute capability
    /// (check_cudnn_tensor_shapes of sdp_utils.cpp in libtorch 2.11).
    pub fn cudnn_attention_width_of(major: i32) -> i32 {
        match major {
            9 => 256,
            10 => 128,
            _ => 0,
        }
    }
}

// profile.cpp
fallible! {
    safe fn dt_profile_begin(with_gpu: bool);
    safe fn dt_profile_end(events: &mut Bytes);
}

// tensor.cpp
fallible! {
    safe fn dt_tensor_set_grad(target: Borrowed<'_>, source: Option<Borrowed<'_>>);
    safe fn dt_is_same_memory(a: Borrowed<'_>, b: Borrowed<'_>, out: &mut bool);
    safe fn dt_fused_adam(
        parameter: Borrowed<'_>, grad: Borrowed<'_>, exp_avg: Borrowed<'_>, exp_avg_sq: Borrowed<'_>, step: Borrowed<'_>,
        grad_scale: Option<Borrowed<'_>>, found_inf: Option<Borrowed<'_>>, options: Adam
    );
    safe fn dt_fused_sgd(
        parameter: Borrowed<'_>, grad: Borrowed<'_>, momentum_buffer: Option<Borrowed<'_>>, grad_scale: Option<Borrowed<'_>>,
        found_inf: Option<Borrowed<'_>>, options: Sgd
    );
    safe fn dt_unscale(grads: BorrowedList<'_>, found_inf: Borrowed<'_>, inv_scale: Borrowed<'_>);
    safe fn dt_copy_all(targets: BorrowedList<'_>, sources: BorrowedList<'_>);
    safe fn dt_add_to_all(targets: BorrowedList<'_>, number: i64);
    safe fn dt_addmm(
        input: Borrowed<'_>, first: Borrowed<'_>, second: Borrowed<'_>, beta: f64, alpha: f64, out: &mut Option<NewTensor>
    );
}

// hooks.cpp
fallible! {
    safe fn dt_gradient_hook_set(parameter: Borrowed<'_>, place: Borrowed<'_>, callback: DtCallback);
    safe fn dt_gradient_begin(parameter: Borrowed<'_>, may_place: bool);
    safe fn dt_gradient_hook_clear(parameter: Borrowed<'_>);
    safe fn dt_substitute_shadow(leaf: Borrowed<'_>, shadow: Borrowed<'_>, out: &mut Option<NewTensor>);
    safe fn dt_self_adjoint(x: Borrowed<'_>, callback: DtCallback, out: &mut Option<NewTensor>);
}
unsafe extern "C" {
    pub(crate) safe fn dt_reason_set(reason: &mut Reason, text: Text<'_>);
    pub(crate) safe fn dt_output_push(outputs: &mut Outputs, tensor: Borrowed<'_>);
}

// memory.cpp
fallible! {
    safe fn dt_memory_enable_stats();
    safe fn dt_memory_usage(device: i32, out: &mut Usage);
    safe fn dt_memory_reset_peak(device: i32);
    safe fn dt_memory_empty_cache(device: i32);
    safe fn dt_memory_info(device: i32, free_and_total: &mut [u64; 2]);
    safe fn dt_memory_configure(settings: Text<'_>);
    safe fn dt_memory_count(bytes: i64);
}
unsafe extern "C" {
    pub(crate) safe fn dt_memory_set_budget(bytes: i64);
    pub(crate) safe fn dt_memory_fail_allocation(allocation: i64);
    pub(crate) safe fn dt_memory_allocations_until_failure() -> i64;
}

// graph.cpp
fallible! {
    safe fn dt_graph_pool(out: &mut DtPool);
    safe fn dt_graph_new(out: &mut Option<Owned<GraphHandle>>);
    safe fn dt_graph_begin(graph: &mut GraphHandle, pool: DtPool);
    safe fn dt_graph_end(graph: &mut GraphHandle);
    safe fn dt_graph_has_ended(graph: &GraphHandle, out: &mut bool);
    safe fn dt_graph_leave_pool(host: bool, release: bool, device: i32, pool: DtPool);
    // Only for a capture that ended successfully.
    safe fn dt_graph_replay(graph: &mut GraphHandle);
}

// symbolic.cpp
fallible! {
    unsafe fn dt_count_enter(into: *mut Operations, out: &mut Option<Owned<CountingMode>>);
    safe fn dt_symbolic_enter(gpu: Option<&SimulatedGpu>, out: &mut Option<Owned<SymbolicMode>>);
}
unsafe extern "C" {
    pub(crate) safe fn dt_symbolic_flops() -> f64;
    pub(crate) safe fn dt_symbolic_library_threads(blas: &mut u32, lt: &mut u32);
    pub(crate) safe fn dt_symbolic_gpu() -> bool;
    pub(crate) safe fn dt_symbolic_here() -> bool;
}

// draws.cpp
fallible! {
    safe fn dt_dropout(x: Borrowed<'_>, p: f64, number: i64, dim: i64, out: &mut Option<NewTensor>);
    unsafe fn dt_samples_enter(key: u64, places: *const i64, count: usize, before: &mut Option<Owned<SamplesHandle>>);
    unsafe fn dt_samples_select(rows: *const i64, count: usize, before: &mut Option<Owned<SamplesHandle>>);
}
#[cfg(test)]
unsafe extern "C" {
    pub(crate) safe fn dt_philox(key: u64, call: u64, place: u32, operation: u32, numbers: &mut [u32; 4]);
}

// cross_entropy.cpp
fallible! {
    safe fn dt_head_loss(
        hidden: Borrowed<'_>, table: Borrowed<'_>, shadow: Option<Borrowed<'_>>, targets: Borrowed<'_>, head: Head,
        out: &mut Option<NewTensor>
    );
}

// frozen.cpp
fallible! {
    safe fn dt_frozen_linear(
        x: Borrowed<'_>, weight: Borrowed<'_>, scale: Option<Borrowed<'_>>, bias: Option<Borrowed<'_>>, out: &mut Option<NewTensor>
    );
    safe fn dt_frozen_conv2d(
        x: Borrowed<'_>, weight: Borrowed<'_>, scale: Option<Borrowed<'_>>, bias: Option<Borrowed<'_>>, stride: i64, padding: i64,
        out: &mut Option<NewTensor>
    );
}

// program.cpp
fallible! {
    safe fn dt_frame_new(values: usize, out: &mut Option<Owned<FrameHandle>>);
    safe fn dt_frame_set(frame: &mut FrameHandle, slot: usize, tensor: Borrowed<'_>);
    safe fn dt_frame_copy(to: &mut FrameHandle, from: &FrameHandle, slots: DtNumbers<'_>);
    safe fn dt_frame_get(frame: &FrameHandle, slot: usize, out: &mut Option<NewTensor>);
    safe fn dt_frame_clear(frame: &mut FrameHandle, slots: DtNumbers<'_>);
    // The pointers of `arguments` must refer to as many values as `count` states.
    unsafe fn dt_call_new(
        name: Text<'_>, overload: Text<'_>, arguments: DtArguments<'_>, fixed: BorrowedList<'_>, device: i32,
        results: DtResults<'_>, out: &mut Option<Owned<CallHandle>>
    );
    safe fn dt_call_run(call: &CallHandle, frame: &mut FrameHandle);
    safe fn dt_operation_traits(
        name: Text<'_>, overload: Text<'_>, argument: Text<'_>, traits: &mut i32
    );
    safe fn dt_operation_schemas(schemas: &mut Bytes);
    safe fn dt_library_load(path: Text<'_>);
}

// recompute.cpp
fallible! {
    safe fn dt_recompute(inputs: BorrowedList<'_>, segment: DtCallback, out: &mut Option<NewTensor>);
    safe fn dt_fingerprint(tensor: Borrowed<'_>, by_loop: bool, out: &mut u64);
}
