//! The C functions of `csrc`, by file.

use std::ffi::{c_char, c_void};

#[repr(C)]
pub(crate) struct DtError {
    pub(crate) kind: i32,
    pub(crate) message: *mut c_char,
}

/// c10d::Store behind a reference count.
#[repr(C)]
pub(crate) struct StoreHandle {
    _private: [u8; 0],
}

/// c10d::ProcessGroupGloo behind a reference count.
#[repr(C)]
pub(crate) struct GlooHandle {
    _private: [u8; 0],
}

/// c10d::Work behind a reference count.
#[repr(C)]
pub(crate) struct WorkHandle {
    _private: [u8; 0],
}

/// c10::Event.
#[repr(C)]
pub(crate) struct EventHandle {
    _private: [u8; 0],
}

/// c10::Stream of a CUDA device.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DtStream {
    pub(crate) id: i64,
    pub(crate) device: i32,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct DtAdam {
    pub(crate) lr: f64,
    pub(crate) beta1: f64,
    pub(crate) beta2: f64,
    pub(crate) weight_decay: f64,
    pub(crate) eps: f64,
    pub(crate) decoupled: bool,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct DtSgd {
    pub(crate) lr: f64,
    pub(crate) momentum: f64,
    pub(crate) weight_decay: f64,
    pub(crate) nesterov: bool,
    pub(crate) first_step: bool,
}

/// Declares functions that return 0, or a kind and a filled `error`, which is their last argument.
macro_rules! fallible {
    ($($(#[$attribute:meta])* fn $name:ident($($argument:ident: $type:ty),* $(,)?);)*) => {
        unsafe extern "C" {
            $($(#[$attribute])* pub(crate) fn $name($($argument: $type,)* error: *mut DtError) -> i32;)*
        }
    };
}

/// A borrowed `at::Tensor*`, as `tch::Tensor::as_ptr` gives it.
pub(crate) type TensorPtr = *const c_void;

// store.cpp
fallible! {
    fn dt_tcp_store_new(
        host: *const c_char, port: u16, is_server: bool, timeout_ms: u64, out: *mut *mut StoreHandle
    );
    fn dt_store_prefix(store: *mut StoreHandle, prefix: *const c_char, out: *mut *mut StoreHandle);
    fn dt_store_set_timeout(store: *mut StoreHandle, timeout_ms: u64);
    fn dt_store_set(store: *mut StoreHandle, key: *const c_char, value: *const u8, length: usize);
    fn dt_store_get(store: *mut StoreHandle, key: *const c_char, out: *mut *mut u8, length: *mut usize);
    fn dt_store_add(store: *mut StoreHandle, key: *const c_char, amount: i64, out: *mut i64);
    fn dt_store_wait(store: *mut StoreHandle, key: *const c_char, timeout_ms: u64);
    fn dt_store_delete(store: *mut StoreHandle, key: *const c_char, out: *mut bool);
}
unsafe extern "C" {
    pub(crate) fn dt_store_port(store: *const StoreHandle) -> u16;
    pub(crate) fn dt_store_free(store: *mut StoreHandle);
    pub(crate) fn dt_string_free(text: *mut c_char);
    pub(crate) fn dt_bytes_free(bytes: *mut u8);
}

// gloo.cpp
fallible! {
    fn dt_gloo_new(
        store: *mut StoreHandle, rank: i32, size: i32, timeout_ms: u64, hostname: *const c_char,
        interface: *const c_char, out: *mut *mut GlooHandle
    );
    fn dt_gloo_all_reduce(
        group: *mut GlooHandle, in_out: TensorPtr, op: i32, timeout_ms: u64, out: *mut *mut WorkHandle
    );
    fn dt_gloo_broadcast(
        group: *mut GlooHandle, in_out: TensorPtr, root: i32, timeout_ms: u64, out: *mut *mut WorkHandle
    );
    fn dt_gloo_all_gather(
        group: *mut GlooHandle, outputs: *const TensorPtr, size: usize, input: TensorPtr, timeout_ms: u64,
        out: *mut *mut WorkHandle
    );
    fn dt_gloo_reduce_scatter(
        group: *mut GlooHandle, output: TensorPtr, input: TensorPtr, op: i32, timeout_ms: u64,
        out: *mut *mut WorkHandle
    );
    fn dt_gloo_barrier(group: *mut GlooHandle, timeout_ms: u64, out: *mut *mut WorkHandle);
    fn dt_gloo_free(group: *mut GlooHandle);
    fn dt_work_wait(work: *mut WorkHandle, timeout_ms: u64);
    fn dt_work_is_completed(work: *mut WorkHandle, out: *mut bool);
}
unsafe extern "C" {
    pub(crate) fn dt_work_free(work: *mut WorkHandle);
}

// context.cpp
fallible! {
    fn dt_keep_freed_memory();
    fn dt_set_log_level(level: i32);
    fn dt_library_folder(out: *mut *mut c_char);
    fn dt_cuda_load();
    fn dt_cuda_device_count(out: *mut i64);
    fn dt_cuda_total_memory(index: i32, out: *mut u64);
    fn dt_cuda_prefers_cudnn_attention(index: i32, out: *mut bool);
    fn dt_cuda_blas_workspace(out: *mut u64);
    fn dt_cuda_set_device(index: i32);
    fn dt_cuda_set_tf32(on: bool);
    fn dt_cuda_tf32(products: *mut bool, convolutions: *mut bool);
    fn dt_cuda_set_cudnn_benchmark(on: bool);
    fn dt_cuda_cudnn_benchmark(out: *mut bool);
    fn dt_rng_get_state(device: i32, out: *mut *mut c_void);
    fn dt_rng_set_state(device: i32, state: TensorPtr);
    fn dt_autocast_get(device: i32, enabled: *mut bool, dtype: *mut i32);
    fn dt_autocast_set(device: i32, enabled: bool, dtype: i32);
    fn dt_autocast_enter();
    fn dt_autocast_leave();
    #[cfg(test)]
    fn dt_throw_words(words: *const c_char);
    #[cfg(test)]
    fn dt_throw(what: i32);
}
unsafe extern "C" {
    pub(crate) fn dt_libtorch_version() -> *const c_char;
    pub(crate) fn dt_grad_mode_set(enabled: bool) -> bool;
    pub(crate) fn dt_kind_of_words(words: *const c_char) -> i32;
}

// stream.cpp
fallible! {
    fn dt_stream_current(device: i32, out: *mut DtStream);
    fn dt_stream_from_pool(device: i32, high_priority: bool, out: *mut DtStream);
    fn dt_stream_exchange(stream: DtStream, before: *mut DtStream);
    fn dt_stream_native(stream: DtStream, out: *mut *mut c_void);
    fn dt_stream_synchronize(stream: DtStream);
    fn dt_stream_keep(stream: DtStream, tensor: TensorPtr);
    fn dt_event_new(timed: bool, out: *mut *mut EventHandle);
    fn dt_event_elapsed(from: *const EventHandle, to: *const EventHandle, out: *mut f64);
    fn dt_event_record(event: *mut EventHandle, stream: DtStream);
    fn dt_event_block(event: *const EventHandle, stream: DtStream);
    fn dt_event_query(event: *const EventHandle, out: *mut bool);
    fn dt_event_synchronize(event: *const EventHandle);
}
unsafe extern "C" {
    pub(crate) fn dt_event_free(event: *mut EventHandle);
}

// blob.cpp
fallible! {
    fn dt_tensor_copy_to(tensor: TensorPtr, to: *mut c_void, bytes: i64);
    fn dt_host_register(data: *mut c_void, bytes: u64);
    fn dt_host_unregister(data: *mut c_void);
    fn dt_tensor_pinned(data: *const c_void, count: i64, dtype: i32, out: *mut *mut c_void);
    fn dt_tensor_over(
        data: *mut c_void, count: i64, dtype: i32, owner: *mut c_void, drop: extern "C" fn(*mut c_void),
        out: *mut *mut c_void
    );
}

// tensor.cpp
fallible! {
    fn dt_tensor_set_data(target: TensorPtr, source: TensorPtr);
    fn dt_tensor_set_grad(target: TensorPtr, source: TensorPtr);
    fn dt_fused_adam(
        parameter: TensorPtr, grad: TensorPtr, exp_avg: TensorPtr, exp_avg_sq: TensorPtr, step: TensorPtr,
        grad_scale: TensorPtr, found_inf: TensorPtr, options: DtAdam
    );
    fn dt_fused_sgd(
        parameter: TensorPtr, grad: TensorPtr, momentum_buffer: TensorPtr, grad_scale: TensorPtr,
        found_inf: TensorPtr, options: DtSgd
    );
    fn dt_unscale(grads: *const TensorPtr, count: usize, found_inf: TensorPtr, inv_scale: TensorPtr);
}

/// A Rust closure for the boundary: `call` returns 0, or anything else to make the operation fail; `release` frees it, once.
#[repr(C)]
pub(crate) struct DtCallback {
    pub(crate) context: *mut c_void,
    pub(crate) call: extern "C" fn(*mut c_void) -> i32,
    pub(crate) release: extern "C" fn(*mut c_void),
}

/// As [`DtCallback`], with an `at::Tensor*` to change in place.
#[repr(C)]
pub(crate) struct DtTensorCallback {
    pub(crate) context: *mut c_void,
    pub(crate) call: extern "C" fn(*mut c_void, *mut c_void, *mut c_void) -> i32,
    pub(crate) release: extern "C" fn(*mut c_void),
}

// jit.cpp
fallible! {
    fn dt_module_load(path: *const c_char, device: i32, out: *mut *mut c_void);
    fn dt_module_tensors(
        module: *mut c_void, parameters: bool, context: *mut c_void,
        each: extern "C" fn(*mut c_void, *const c_char, *mut c_void, u64)
    );
    fn dt_module_train(module: *mut c_void, on: bool);
    fn dt_module_forward(module: *mut c_void, inputs: *const TensorPtr, count: usize, out: *mut *mut c_void);
    fn dt_module_draws(module: *mut c_void, out: *mut bool);
    fn dt_module_fixed(
        module: *mut c_void, context: *mut c_void, each: extern "C" fn(*mut c_void, *const c_char, bool)
    );
}
unsafe extern "C" {
    pub(crate) fn dt_module_free(module: *mut c_void);
}

// hooks.cpp
fallible! {
    fn dt_gradient_hook_set(parameter: TensorPtr, callback: DtCallback);
    fn dt_gradient_hook_clear(parameter: TensorPtr);
    fn dt_self_adjoint(x: TensorPtr, callback: DtTensorCallback, out: *mut *mut c_void);
}
unsafe extern "C" {
    pub(crate) fn dt_reason_set(reason: *mut c_void, text: *const c_char, length: usize);
}

/// Keep in step with `DtUsage` in csrc/memory.cpp.
#[repr(C)]
pub(crate) struct DtUsage {
    pub(crate) allocated: i64,
    pub(crate) reserved: i64,
    pub(crate) peak: i64,
}

// memory.cpp
fallible! {
    fn dt_memory_account();
    fn dt_memory_usage(device: i32, out: *mut DtUsage);
    fn dt_memory_reset_peak(device: i32);
    fn dt_memory_empty_cache(device: i32);
    fn dt_memory_info(device: i32, free: *mut u64, total: *mut u64);
    fn dt_memory_configure(settings: *const c_char);
    fn dt_memory_charge(bytes: i64);
}
unsafe extern "C" {
    pub(crate) fn dt_memory_set_budget(bytes: i64);
    pub(crate) fn dt_memory_refuse(allocation: i64);
    pub(crate) fn dt_memory_refusal() -> i64;
}

/// A graph of a GPU's work; see csrc/graph.cpp.
#[repr(C)]
pub(crate) struct GraphHandle {
    _private: [u8; 0],
}

// graph.cpp
fallible! {
    fn dt_graph_pool(first: *mut u64, second: *mut u64);
    fn dt_graph_new(out: *mut *mut GraphHandle);
    fn dt_graph_begin(graph: *mut GraphHandle, first: u64, second: u64);
    fn dt_graph_end(graph: *mut GraphHandle);
    fn dt_graph_has_ended(graph: *const GraphHandle, out: *mut bool);
    fn dt_graph_stop_pool(host: bool, device: i32, first: u64, second: u64);
    fn dt_graph_release_pool(host: bool, device: i32, first: u64, second: u64);
    fn dt_graph_replay(graph: *mut GraphHandle);
    fn dt_graph_free(graph: *mut GraphHandle);
}

/// Keep in step with `DtOperations` in csrc/symbolic.cpp.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct DtOperations {
    pub(crate) kernels: u64,
    pub(crate) reads: u64,
}

// symbolic.cpp
fallible! {
    fn dt_count_enter(into: *mut DtOperations, out: *mut *mut c_void);
    fn dt_symbolic_enter(gpu: bool, cudnn_attention: bool, out: *mut *mut c_void);
}
unsafe extern "C" {
    pub(crate) fn dt_count_leave(mode: *mut c_void);
    pub(crate) fn dt_symbolic_leave(mode: *mut c_void);
    pub(crate) fn dt_symbolic_flops() -> f64;
}

/// A piece of a forward pass for the boundary; see csrc/recompute.cpp.
#[repr(C)]
pub(crate) struct DtSegment {
    pub(crate) context: *mut c_void,
    pub(crate) call: extern "C" fn(
        *mut c_void,
        inputs: *const TensorPtr,
        count: usize,
        again: bool,
        outputs: *mut c_void,
        reason: *mut c_void,
    ) -> i32,
    pub(crate) release: extern "C" fn(*mut c_void),
}

/// Keep in step with csrc/cross_entropy.cpp.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct DtHead {
    pub(crate) ignored: i64,
    pub(crate) rows: i64,
    pub(crate) multiple: i64,
}

// cross_entropy.cpp
fallible! {
    fn dt_head_loss(
        hidden: TensorPtr, table: TensorPtr, targets: TensorPtr, head: DtHead, out: *mut *mut c_void
    );
}

// recompute.cpp
fallible! {
    fn dt_recompute(
        inputs: *const TensorPtr, count: usize, segment: DtSegment, sink: *mut c_void,
        each: extern "C" fn(*mut c_void, *mut c_void)
    );
    fn dt_fingerprint(tensor: TensorPtr, by_loop: bool, out: *mut u64);
}
unsafe extern "C" {
    pub(crate) fn dt_output_push(outputs: *mut c_void, tensor: TensorPtr);
    pub(crate) fn dt_grad_enabled() -> bool;
}
