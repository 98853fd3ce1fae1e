//! cuBLAS and cuBLASLt: handles, settings, and products that compute nothing.

use std::collections::BTreeMap;
use std::ffi::{c_int, c_void};
use std::sync::{Mutex, PoisonError};

use cudarc::cublas::sys::cublasStatus_t as S;
use cudarc::cublaslt::sys::cublasLtMatmulHeuristicResult_t;

use crate::check::Use;
use crate::counts::Kind;
use crate::ffi::{Code, Outcome, give};
use crate::frame::api;
use crate::memory::View;
use crate::op::{Op, new_handle};
use crate::{device, launch};

const NOT_INITIALIZED: Code = S::CUBLAS_STATUS_NOT_INITIALIZED as Code;
const INVALID_VALUE: Code = S::CUBLAS_STATUS_INVALID_VALUE as Code;
const EXECUTION_FAILED: Code = S::CUBLAS_STATUS_EXECUTION_FAILED as Code;

/// The version of cuBLAS in CUDA 13.0.
const VERSION: usize = 130_002;

/// Products of longer vectors are zero: only decisions are computed.
const MOST: c_int = 64;

#[derive(Clone, Copy, Default)]
struct Settings {
    stream: usize,
    math: c_int,
    pointers: c_int,
}

static HANDLES: Mutex<BTreeMap<usize, Settings>> = Mutex::new(BTreeMap::new());

fn with<R>(handle: *mut c_void, act: impl FnOnce(&mut Settings) -> R) -> Outcome<R> {
    let mut handles = HANDLES.lock().unwrap_or_else(PoisonError::into_inner);
    handles.get_mut(&handle.addr()).map(act).ok_or(NOT_INITIALIZED)
}

fn stream_of(handle: *mut c_void) -> Outcome<*mut c_void> {
    with(handle, |settings| std::ptr::without_provenance_mut(settings.stream))
}

/// Launches a function's kernel.
pub(crate) fn run(name: &'static str, handle: *mut c_void, uses: Vec<Use>) -> Outcome {
    launch::put_named(name, stream_of(handle)?, uses).map_err(|_| EXECUTION_FAILED)
}

/// Returns the memory of `c = a * b` by the matrices' beginnings.
fn product(a: *const c_void, b: *const c_void, c: *mut c_void) -> Vec<Use> {
    vec![Use::read(a.addr(), 1), Use::read(b.addr(), 1), Use::write(c.addr(), 1)]
}

api! { library:
    fn cublasCreate_v2(to: *mut *mut c_void) {
        device::current().and_then(|device| device.healthy().and_then(|()| device.open())).map_err(|_| NOT_INITIALIZED)?;
        let handle = new_handle();
        HANDLES.lock().unwrap_or_else(PoisonError::into_inner).insert(handle, Settings::default());
        give(to, std::ptr::without_provenance_mut(handle))
    }
    fn cublasDestroy_v2(handle: *mut c_void) {
        HANDLES.lock().unwrap_or_else(PoisonError::into_inner).remove(&handle.addr());
        Ok(())
    }
    fn cublasSetStream_v2(handle: *mut c_void, stream: *mut c_void) {
        with(handle, |settings| settings.stream = stream.addr())
    }
    fn cublasSetWorkspace_v2(_handle: *mut c_void, at: *mut c_void, size: usize) {
        View::of_device(at.addr(), size).map(|_| ()).ok_or(INVALID_VALUE)
    }
    fn cublasSetMathMode(handle: *mut c_void, mode: c_int) { with(handle, |settings| settings.math = mode) }
    fn cublasGetMathMode(handle: *mut c_void, mode: *mut c_int) { give(mode, with(handle, |settings| settings.math)?) }
    fn cublasSetPointerMode_v2(handle: *mut c_void, mode: c_int) { with(handle, |settings| settings.pointers = mode) }
    fn cublasGetPointerMode_v2(handle: *mut c_void, mode: *mut c_int) {
        give(mode, with(handle, |settings| settings.pointers)?)
    }
    fn cublasDdot_v2(
        handle: *mut c_void, n: c_int, x: *const f64, x_step: c_int, y: *const f64, y_step: c_int,
        to: *mut f64,
    ) {
        let n = if n > MOST { 0 } else { n.max(0) as usize };
        let vector = |at: *const f64, step: c_int| {
            let step = step.max(1) as usize;
            let size = if n == 0 { 0 } else { 8 * (step * (n - 1) + 1) };
            View::of_device(at.expose_provenance(), size).map(|view| (view, step)).ok_or(INVALID_VALUE)
        };
        let ((x, x_step), (y, y_step)) = (vector(x, x_step)?, vector(y, y_step)?);
        // The result is on the device or the host, as the pointer mode tells; both are the caller's.
        let to = View::trusted(to.expose_provenance(), 8);
        let work = move || {
            let value = |view: View, at: usize| f64::from_ne_bytes(view.read(8 * at));
            let sum: f64 = (0..n).map(|i| value(x, i * x_step) * value(y, i * y_step)).sum();
            to.write(0, sum.to_ne_bytes());
        };
        let uses = vec![Use::read(x.at, 1), Use::read(y.at, 1), Use::write(to.at, 8)];
        let op = Op::new("cublasDdot_v2", Kind::Kernel, work).using(uses);
        launch::put(op, stream_of(handle)?).map_err(|_| EXECUTION_FAILED)
    }
    fn cublasSgemm_v2(
        handle: *mut c_void, _ta: c_int, _tb: c_int, _m: c_int, _n: c_int, _k: c_int, _alpha: *const f32,
        a: *const c_void, _lda: c_int, b: *const c_void, _ldb: c_int, _beta: *const f32, c: *mut c_void,
        _ldc: c_int,
    ) {
        run("cublasSgemm_v2", handle, product(a, b, c))
    }
    fn cublasGemmEx(
        handle: *mut c_void, _ta: c_int, _tb: c_int, _m: c_int, _n: c_int, _k: c_int, _alpha: *const c_void,
        a: *const c_void, _ta_type: c_int, _lda: c_int, b: *const c_void, _tb_type: c_int, _ldb: c_int,
        _beta: *const c_void, c: *mut c_void, _tc_type: c_int, _ldc: c_int, _compute: c_int,
        _algorithm: c_int,
    ) {
        run("cublasGemmEx", handle, product(a, b, c))
    }
    fn cublasLtMatmulDescCreate(to: *mut usize, _compute: c_int, _scale: c_int) { give(to, new_handle()) }
    fn cublasLtMatmulDescDestroy(_description: usize) { Ok(()) }
    fn cublasLtMatmulDescSetAttribute(_description: usize, _attribute: c_int, _value: *const c_void, _size: usize) {
        Ok(())
    }
    fn cublasLtMatmulPreferenceCreate(to: *mut usize) { give(to, new_handle()) }
    fn cublasLtMatmulPreferenceDestroy(_preference: usize) { Ok(()) }
    fn cublasLtMatmulPreferenceSetAttribute(_it: usize, _attribute: c_int, _value: *const c_void, _size: usize) {
        Ok(())
    }
    fn cublasLtMatrixLayoutCreate(to: *mut usize, _type: c_int, _rows: u64, _columns: u64, _step: i64) {
        give(to, new_handle())
    }
    fn cublasLtMatrixLayoutDestroy(_layout: usize) { Ok(()) }
    fn cublasLtMatrixLayoutSetAttribute(_layout: usize, _attribute: c_int, _value: *const c_void, _size: usize) {
        Ok(())
    }
    fn cublasLtMatmulAlgoGetHeuristic(
        _handle: *mut c_void, _description: usize, _a: usize, _b: usize, _c: usize, _d: usize,
        _preference: usize, most: c_int, results: *mut cublasLtMatmulHeuristicResult_t, count: *mut c_int,
    ) {
        if most < 1 {
            return Err(INVALID_VALUE);
        }
        results.write_bytes(0, 1);
        (*results).wavesCount = 1.;
        give(count, 1)
    }
    fn cublasLtMatmul(
        _handle: *mut c_void, _description: usize, _alpha: *const c_void, a: *const c_void, _a_layout: usize,
        b: *const c_void, _b_layout: usize, _beta: *const c_void, _c: *const c_void, _c_layout: usize,
        d: *mut c_void, _d_layout: usize, _algorithm: *const c_void, workspace: *mut c_void, size: usize,
        stream: *mut c_void,
    ) {
        if size > 0 && View::of_device(workspace.addr(), size).is_none() {
            return Err(INVALID_VALUE);
        }
        launch::put_named("cublasLtMatmul", stream, product(a, b, d)).map_err(|_| EXECUTION_FAILED)
    }
}

#[unsafe(no_mangle)]
extern "C" fn cublasLtGetVersion() -> usize {
    VERSION
}
