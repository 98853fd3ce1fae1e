//! cuDNN 9: handles, tensors, batch norm, and the backend's descriptors with one engine for each graph.

use std::collections::BTreeMap;
use std::ffi::{c_char, c_int, c_void};
use std::sync::{Mutex, PoisonError};

use cudarc::cudnn::sys::{
    cudnnBackendAttributeName_t as N, cudnnBackendAttributeType_t as T, cudnnStatus_t as S,
};

use crate::check::Use;
use crate::ffi::{Code, Outcome, give, give_text};
use crate::frame::api;
use crate::op::new_handle;
use crate::{device, launch};

const BAD_PARAM: Code = S::CUDNN_STATUS_BAD_PARAM as Code;
const NOT_INITIALIZED: Code = S::CUDNN_STATUS_NOT_INITIALIZED as Code;
const EXECUTION_FAILED: Code = S::CUDNN_STATUS_EXECUTION_FAILED as Code;

/// Major, minor and patch, as the pinned libtorch needs.
const VERSION: [c_int; 3] = [9, 19, 0];

/// Attributes whose values cudarc's types lack or that are compared here.
const WORKSPACE_OF_CONFIGURATION: c_int = 303;
const SHARED_MEMORY: c_int = 304;

/// An object of the backend: its attributes.
struct Attribute {
    count: i64,
    bytes: Vec<u8>,
}

enum Object {
    Handle { stream: usize },
    Tensor { kind: c_int, sizes: Vec<c_int>, strides: Vec<c_int> },
    Descriptor(BTreeMap<c_int, Attribute>),
    Other,
}

impl Object {
    /// Returns the stream of a handle.
    fn stream(&mut self) -> Option<&mut usize> {
        match self {
            Self::Handle { stream } => Some(stream),
            _ => None,
        }
    }

    /// Returns the attributes of a descriptor.
    fn attributes(&mut self) -> Option<&mut BTreeMap<c_int, Attribute>> {
        match self {
            Self::Descriptor(attributes) => Some(attributes),
            _ => None,
        }
    }
}

static OBJECTS: Mutex<BTreeMap<usize, Object>> = Mutex::new(BTreeMap::new());

fn create(to: *mut usize, object: Object) -> Outcome {
    let handle = new_handle();
    OBJECTS.lock().unwrap_or_else(PoisonError::into_inner).insert(handle, object);
    // SAFETY: the caller of the exported function vouches for `to`.
    unsafe { give(to, handle) }
}

fn destroy(handle: usize) -> Outcome {
    OBJECTS.lock().unwrap_or_else(PoisonError::into_inner).remove(&handle);
    Ok(())
}

fn with<R>(handle: usize, act: impl FnOnce(&mut Object) -> Option<R>) -> Outcome<R> {
    let mut objects = OBJECTS.lock().unwrap_or_else(PoisonError::into_inner);
    objects.get_mut(&handle).and_then(act).ok_or(BAD_PARAM)
}

fn run(name: &'static str, handle: usize, uses: Vec<Use>) -> Outcome {
    let stream = with(handle, |object| object.stream().copied())?;
    launch::put_named(name, std::ptr::without_provenance_mut(stream), uses).map_err(|_| EXECUTION_FAILED)
}

/// Returns the bytes of a value of a type.
fn size_of(kind: c_int) -> usize {
    let is = |other: T| kind == other as c_int;
    if is(T::CUDNN_TYPE_BOOLEAN) || is(T::CUDNN_TYPE_CHAR) {
        1
    } else if is(T::CUDNN_TYPE_FRACTION) {
        16
    } else {
        let eight = [
            T::CUDNN_TYPE_HANDLE,
            T::CUDNN_TYPE_INT64,
            T::CUDNN_TYPE_DOUBLE,
            T::CUDNN_TYPE_VOID_PTR,
            T::CUDNN_TYPE_BACKEND_DESCRIPTOR,
        ];
        if eight.into_iter().any(is) { 8 } else { 4 }
    }
}

/// Returns what an attribute is when nothing set it, as bytes: the engine and its needs.
fn computed(name: c_int) -> Option<Vec<u8>> {
    let is = |other: N| name == other as c_int;
    if is(N::CUDNN_ATTR_ENGINEHEUR_RESULTS) || is(N::CUDNN_ATTR_ENGINECFG_ENGINE) {
        Some(Vec::new()) // the caller's own descriptor stays
    } else if name == SHARED_MEMORY {
        Some((48_i32 << 10).to_ne_bytes().into())
    } else if is(N::CUDNN_ATTR_ENGINE_GLOBAL_INDEX) {
        Some(0_i64.to_ne_bytes().into())
    } else if is(N::CUDNN_ATTR_OPERATIONGRAPH_ENGINE_GLOBAL_COUNT) {
        Some(1_i64.to_ne_bytes().into())
    } else if name == WORKSPACE_OF_CONFIGURATION || is(N::CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE) {
        let workspace = device::current().map_or(0, |device| device.unit().gpu().cudnn_workspace.0);
        Some((workspace as i64).to_ne_bytes().into())
    } else if is(N::CUDNN_ATTR_EXECUTION_PLAN_JSON_REPRESENTATION) {
        Some(b"{}\0".into())
    } else {
        None
    }
}

/// Returns the tensors of a variant pack, whose direction is unknown: they are checked as read.
fn tensors(pack: usize) -> Vec<Use> {
    let name = N::CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS as c_int;
    let pointers = with(pack, |object| Some(object.attributes()?.get(&name)?.bytes.clone()));
    let words = pointers.unwrap_or_default();
    let words = words.chunks_exact(8).filter_map(|word| word.try_into().ok()).map(usize::from_ne_bytes);
    words.filter(|at| *at != 0).map(|at| Use::read(at, 1)).collect()
}

api! { library:
    fn cudnnGetProperty(kind: c_int, to: *mut c_int) {
        give(to, *usize::try_from(kind).ok().and_then(|index| VERSION.get(index)).ok_or(BAD_PARAM)?)
    }
    fn cudnnCreate(to: *mut usize) {
        device::current().and_then(|device| device.healthy().and_then(|()| device.open())).map_err(|_| NOT_INITIALIZED)?;
        create(to, Object::Handle { stream: 0 })
    }
    fn cudnnDestroy(handle: usize) { destroy(handle) }
    fn cudnnSetStream(handle: usize, to: usize) {
        with(handle, |object| object.stream().map(|stream| *stream = to))
    }
    fn cudnnGetStream(handle: usize, to: *mut usize) {
        give(to, with(handle, |object| object.stream().copied())?)
    }
    fn cudnnCreateTensorDescriptor(to: *mut usize) {
        create(to, Object::Tensor { kind: 0, sizes: Vec::new(), strides: Vec::new() })
    }
    fn cudnnDestroyTensorDescriptor(tensor: usize) { destroy(tensor) }
    fn cudnnCreateActivationDescriptor(to: *mut usize) { create(to, Object::Other) }
    fn cudnnDestroyActivationDescriptor(activation: usize) { destroy(activation) }
    fn cudnnSetTensorNdDescriptor(
        tensor: usize, kind: c_int, count: c_int, sizes: *const c_int, strides: *const c_int,
    ) {
        let count = count.max(0) as usize;
        let list = |from: *const c_int| std::slice::from_raw_parts(from, count).to_vec();
        let new = Object::Tensor { kind, sizes: list(sizes), strides: list(strides) };
        with(tensor, |object| {
            *object = new;
            Some(())
        })
    }
    fn cudnnGetTensorNdDescriptor(
        tensor: usize, most: c_int, kind: *mut c_int, count: *mut c_int, sizes: *mut c_int,
        strides: *mut c_int,
    ) {
        let (its_kind, its_sizes, its_strides) = with(tensor, |object| match object {
            Object::Tensor { kind, sizes, strides } => Some((*kind, sizes.clone(), strides.clone())),
            _ => None,
        })?;
        give(kind, its_kind)?;
        give(count, its_sizes.len() as c_int)?;
        for index in 0..its_sizes.len().min(most.max(0) as usize) {
            give(sizes.add(index), its_sizes[index])?;
            give(strides.add(index), its_strides[index])?;
        }
        Ok(())
    }
    fn cudnnGetBatchNormalizationForwardTrainingExWorkspaceSize(
        _handle: usize, _mode: c_int, _ops: c_int, _x: usize, _z: usize, _y: usize, _scale: usize,
        _activation: usize, to: *mut usize,
    ) {
        give(to, 0)
    }
    fn cudnnGetBatchNormalizationBackwardExWorkspaceSize(
        _handle: usize, _mode: c_int, _ops: c_int, _x: usize, _y: usize, _dy: usize, _dz: usize, _dx: usize,
        _scale: usize, _activation: usize, to: *mut usize,
    ) {
        give(to, 0)
    }
    fn cudnnGetBatchNormalizationTrainingExReserveSpaceSize(
        _handle: usize, _mode: c_int, _ops: c_int, _activation: usize, _x: usize, to: *mut usize,
    ) {
        give(to, 0)
    }
    fn cudnnBatchNormalizationForwardTrainingEx(handle: usize) {
        run("cudnnBatchNormalizationForwardTrainingEx", handle, Vec::new())
    }
    fn cudnnBatchNormalizationBackwardEx(handle: usize) {
        run("cudnnBatchNormalizationBackwardEx", handle, Vec::new())
    }
    fn cudnnBatchNormalizationForwardInference(handle: usize) {
        run("cudnnBatchNormalizationForwardInference", handle, Vec::new())
    }
    fn cudnnDropoutGetStatesSize(_handle: usize, to: *mut usize) { give(to, 1 << 20) }
    fn cudnnBackendCreateDescriptor(_kind: c_int, to: *mut usize) { create(to, Object::Descriptor(BTreeMap::new())) }
    fn cudnnBackendDestroyDescriptor(descriptor: usize) { destroy(descriptor) }
    fn cudnnBackendFinalize(_descriptor: usize) { Ok(()) }
    fn cudnnBackendSetAttribute(descriptor: usize, name: c_int, kind: c_int, count: i64, from: *const c_void) {
        let size = size_of(kind) * count.max(0) as usize;
        let bytes = if size == 0 { Vec::new() } else { std::slice::from_raw_parts(from.cast::<u8>(), size).to_vec() };
        with(descriptor, |object| {
            object.attributes()?.insert(name, Attribute { count, bytes });
            Some(())
        })
    }
    fn cudnnBackendGetAttribute(
        descriptor: usize, name: c_int, kind: c_int, most: i64, count: *mut i64, to: *mut c_void,
    ) {
        let unit = size_of(kind);
        let (its_count, bytes) = with(descriptor, |object| {
            let own = object.attributes()?.get(&name);
            Some(match (computed(name), own) {
                (Some(bytes), _) => ((bytes.len() / unit).max(1) as i64, bytes),
                (None, Some(found)) => (found.count, found.bytes.clone()),
                (None, None) => (0, Vec::new()),
            })
        })?;
        give(count, its_count)?;
        if !to.is_null() {
            let size = bytes.len().min(unit * most.max(0) as usize);
            std::ptr::copy_nonoverlapping(bytes.as_ptr(), to.cast(), size);
        }
        Ok(())
    }
    fn cudnnBackendExecute(handle: usize, _plan: usize, pack: usize) {
        run("cudnnBackendExecute", handle, tensors(pack))
    }
}

#[unsafe(no_mangle)]
extern "C" fn cudnnGetVersion() -> usize {
    let [major, minor, patch] = VERSION.map(|part| part as usize);
    major * 10_000 + minor * 100 + patch
}

#[unsafe(no_mangle)]
extern "C" fn cudnnGetCudartVersion() -> usize {
    13000
}

#[unsafe(no_mangle)]
extern "C" fn cudnnGetErrorString(code: Code) -> *const c_char {
    let name = match code {
        0 => c"CUDNN_STATUS_SUCCESS",
        BAD_PARAM => c"CUDNN_STATUS_BAD_PARAM",
        NOT_INITIALIZED => c"CUDNN_STATUS_NOT_INITIALIZED",
        3000 => c"CUDNN_STATUS_NOT_SUPPORTED",
        _ => c"CUDNN_STATUS_EXECUTION_FAILED",
    };
    name.as_ptr()
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cudnnGetLastErrorString(to: *mut c_char, size: usize) {
    // SAFETY: the caller's buffer has `size` bytes.
    let _ = unsafe { give_text(to, size, "") };
}
