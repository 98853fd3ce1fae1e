//! Kernels: their registration by programs, and their launches.

use std::cell::RefCell;
use std::collections::HashMap;
use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{LazyLock, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use cudarc::runtime::sys::{cudaFuncAttributes, cudaLaunchConfig_st, dim3};
use serde_json::{Value, json};

use crate::check::Use;
use crate::counts::{self, Kind};
use crate::device::{self, Device};
use crate::faults::{self, Fate};
use crate::ffi::{Outcome, give, text_of};
use crate::frame::api;
use crate::kernels::{Args, Form};
use crate::machine::{Capability, MACHINE};
use crate::memory::{self, Place, View};
use crate::op::{Op, new_handle};
use crate::{capture, codes, messages, stream};

/// A kernel of a program.
pub(crate) struct Kernel {
    name: String,
    launches: AtomicU64,
    form: OnceLock<Form>,
}

impl Kernel {
    fn form(&self) -> &Form {
        self.form.get_or_init(|| Form::of(&demangle(&self.name)))
    }
}

/// A variable of a program, and its memory on each device.
struct Variable {
    size: usize,
    memory: HashMap<usize, usize>,
}

static KERNELS: LazyLock<Mutex<HashMap<usize, &'static Kernel>>> = LazyLock::new(Mutex::default);
static VARIABLES: LazyLock<Mutex<HashMap<usize, Variable>>> = LazyLock::new(Mutex::default);

unsafe extern "C" {
    fn __cxa_demangle(
        name: *const c_char,
        to: *mut c_char,
        size: *mut usize,
        status: *mut c_int,
    ) -> *mut c_char;
}

/// Returns the name as C++ code has it.
fn demangle(name: &str) -> String {
    let Ok(mangled) = std::ffi::CString::new(name) else { return name.to_owned() };
    let mut status = 0;
    // SAFETY: the function allocates the result, which is freed here and nowhere else.
    unsafe {
        let text = __cxa_demangle(mangled.as_ptr(), std::ptr::null_mut(), std::ptr::null_mut(), &mut status);
        if status != 0 || text.is_null() {
            return name.to_owned();
        }
        let readable = CStr::from_ptr(text).to_string_lossy().into_owned();
        libc::free(text.cast());
        readable
    }
}

pub(crate) fn kernel_of(host: *const c_void) -> Outcome<&'static Kernel> {
    let kernels = KERNELS.lock().unwrap_or_else(PoisonError::into_inner);
    kernels.get(&host.addr()).copied().ok_or(codes::INVALID_FUNCTION)
}

/// Returns the names of the launched kernels, their launches, and whether they compute.
fn names() -> Value {
    let kernels = KERNELS.lock().unwrap_or_else(PoisonError::into_inner);
    let mut rows: Vec<_> =
        kernels.values().filter(|kernel| kernel.launches.load(Ordering::Relaxed) > 0).collect();
    rows.sort_by_key(|kernel| std::cmp::Reverse(kernel.launches.load(Ordering::Relaxed)));
    let row = |kernel: &&&Kernel| {
        let name: String = kernel.form().readable.chars().take(300).collect();
        json!({"launches": kernel.launches.load(Ordering::Relaxed), "computes": kernel.form().program.is_some(), "name": name})
    };
    rows.iter().map(row).collect()
}

/// Reports pointers that a kernel or fill of a device cannot use: the next call finds an illegal address.
pub(crate) fn check_pointers(device: &Device, what: &str, uses: &[Use]) {
    for used in uses {
        let why = match memory::find(used.at) {
            Some(found) if found.is_on_device() && !device.reaches(found.device) => {
                format!("memory of GPU {} without peer access", found.device)
            }
            None if memory::is_freed(used.at) => "freed memory".to_owned(),
            _ => continue,
        };
        let what: String = demangle(what).chars().take(160).collect();
        messages::report(&format!(
            "illegal address: {what} on GPU {} uses {:#x}, {why}",
            device.ordinal, used.at
        ));
        counts::note("[illegal address]");
        device.fail(codes::ILLEGAL_ADDRESS);
    }
}

/// Puts a kernel on a stream: its fault, if its number has one, is found by the next call.
pub(crate) fn put(op: Op, handle: *mut c_void) -> Outcome {
    let stream = stream::of(handle)?;
    let device = stream.device();
    let Capability(major, minor) = device.unit().gpu().compute_capability;
    if (major, minor) < (7, 5) {
        return Err(codes::NO_IMAGE);
    }
    check_pointers(device, &op.name, &op.uses);
    let fate = if capture::is_capturing(&stream) { Fate::Runs } else { faults::next_kernels(1) };
    match fate {
        Fate::Runs => stream.put(with_time(op)),
        Fate::Fails(code) => {
            device.fail(code);
            Ok(())
        }
        Fate::NeverEnds => {
            stream.put(Op { work: std::sync::Arc::new(|| faults::never_end()), ..op.blocking() })
        }
    }
}

/// Gives an operation the time of a kernel.
fn with_time(op: Op) -> Op {
    if MACHINE.kernel_ns == 0 {
        return op;
    }
    let (work, time) = (op.work.clone(), Duration::from_nanos(MACHINE.kernel_ns));
    let work = std::sync::Arc::new(move || {
        work();
        std::thread::sleep(time);
    });
    Op { work, ..op.blocking() }
}

/// Puts a library's kernel, which computes nothing, on a stream.
pub(crate) fn put_named(name: &'static str, stream: *mut c_void, uses: Vec<Use>) -> Outcome {
    put(Op::new(name, Kind::Kernel, || ()).using(uses), stream)
}

/// The size of a launch.
pub(crate) struct Shape {
    pub(crate) grid: dim3,
    pub(crate) block: dim3,
    pub(crate) shared: usize,
}

impl Shape {
    fn check(&self) -> Outcome {
        let Self { grid, block, shared } = self;
        let threads = u64::from(block.x) * u64::from(block.y) * u64::from(block.z);
        let blocks_fit = grid.x <= i32::MAX as u32 && grid.y <= 65535 && grid.z <= 65535;
        if !(1..=1024).contains(&threads) || !blocks_fit || [grid.x, grid.y, grid.z].contains(&0) {
            return Err(codes::INVALID_CONFIGURATION);
        }
        if *shared > 227 << 10 { Err(codes::INVALID_VALUE) } else { Ok(()) }
    }
}

pub(crate) fn start(kernel: &'static Kernel, shape: Shape, args: &Args, handle: *mut c_void) -> Outcome {
    let stream = stream::of(handle)?;
    stream.device().open()?;
    if stream.device != device::current()?.ordinal {
        return Err(codes::INVALID_HANDLE);
    }
    shape.check()?;
    kernel.launches.fetch_add(1, Ordering::Relaxed);
    let form = kernel.form();
    if messages::is_tracing() {
        messages::trace(&format!("  kernel {:.200} stream {:#x}", form.readable, stream.id));
    }
    let mut op = Op::new(&kernel.name, Kind::Kernel, || ());
    let computation = form.compute(args);
    op.uses = computation.uses;
    if let Some(work) = computation.work {
        op.work = work;
    }
    put(op, handle)
}

thread_local! {
    static CONFIGURATIONS: RefCell<Vec<(dim3, dim3, usize, usize)>> = const { RefCell::new(Vec::new()) };
}

#[unsafe(no_mangle)]
extern "C" fn __cudaRegisterFatBinary(_binary: *mut c_void) -> *mut c_void {
    counts::add_section("kernel_names", names);
    std::ptr::without_provenance_mut(new_handle())
}
#[unsafe(no_mangle)]
extern "C" fn __cudaRegisterFatBinaryEnd(_module: *mut c_void) {}
#[unsafe(no_mangle)]
extern "C" fn __cudaUnregisterFatBinary(_module: *mut c_void) {}
#[unsafe(no_mangle)]
extern "C" fn __cudaInitModule(_module: *mut c_void) -> c_char {
    1
}

#[unsafe(no_mangle)]
unsafe extern "C" fn __cudaRegisterFunction(
    _module: *mut c_void,
    host: *const c_void,
    _device_function: *mut c_char,
    name: *const c_char,
    _limit: c_int,
    _tid: *mut c_void,
    _bid: *mut c_void,
    _block: *mut c_void,
    _grid: *mut c_void,
    _size: *mut c_int,
) {
    // SAFETY: the compiler's registration code passes a constant text.
    register(host.addr(), unsafe { text_of(name) }.into_owned());
}

fn register(number: usize, name: String) {
    let kernel = Box::leak(Box::new(Kernel { name, launches: AtomicU64::new(0), form: OnceLock::new() }));
    KERNELS.lock().unwrap_or_else(PoisonError::into_inner).insert(number, kernel);
}

/// Adds a kernel that a program compiled. Returns its number.
pub(crate) fn add_kernel(name: String) -> usize {
    let number = new_handle();
    register(number, name);
    number
}

#[unsafe(no_mangle)]
extern "C" fn __cudaRegisterVar(
    _module: *mut c_void,
    host: *const c_void,
    _address: *mut c_char,
    _name: *const c_char,
    _external: c_int,
    size: usize,
    _constant: c_int,
    _global: c_int,
) {
    let variable = Variable { size, memory: HashMap::new() };
    VARIABLES.lock().unwrap_or_else(PoisonError::into_inner).insert(host.addr(), variable);
}

#[unsafe(no_mangle)]
extern "C" fn __cudaPushCallConfiguration(
    grid: dim3,
    block: dim3,
    shared: usize,
    stream: *mut c_void,
) -> c_uint {
    CONFIGURATIONS.with_borrow_mut(|all| all.push((grid, block, shared, stream.addr())));
    0
}

fn address_of(symbol: *const c_void) -> Outcome<View> {
    let device = device::current()?.ordinal;
    let mut variables = VARIABLES.lock().unwrap_or_else(PoisonError::into_inner);
    let variable = variables.get_mut(&symbol.addr()).ok_or(codes::INVALID_SYMBOL)?;
    if !variable.memory.contains_key(&device) {
        variable.memory.insert(device, memory::allocate(variable.size, Place::Device)?);
    }
    View::of_device(variable.memory[&device], variable.size).ok_or(codes::INVALID_SYMBOL)
}

api! { runtime:
    fn __cudaPopCallConfiguration(grid: *mut dim3, block: *mut dim3, shared: *mut usize, stream: *mut *mut c_void) {
        let last = CONFIGURATIONS.with_borrow_mut(Vec::pop).ok_or(codes::MISSING_CONFIGURATION)?;
        give(grid, last.0)?;
        give(block, last.1)?;
        give(shared, last.2)?;
        give(stream, std::ptr::without_provenance_mut(last.3))
    }
    fn __cudaGetKernel(to: *mut *const c_void, host: *const c_void) {
        kernel_of(host)?;
        give(to, host)
    }
    fn __cudaLaunchKernel(
        kernel: *const c_void, grid: dim3, block: dim3, args: *const *const c_void, shared: usize,
        stream: *mut c_void,
    ) {
        start(kernel_of(kernel)?, Shape { grid, block, shared }, &Args::new(args, grid.y), stream)
    }
    fn cudaLaunchKernel(
        kernel: *const c_void, grid: dim3, block: dim3, args: *const *const c_void, shared: usize,
        stream: *mut c_void,
    ) {
        start(kernel_of(kernel)?, Shape { grid, block, shared }, &Args::new(args, grid.y), stream)
    }
    fn cudaLaunchCooperativeKernel(
        kernel: *const c_void, grid: dim3, block: dim3, args: *const *const c_void, shared: usize,
        stream: *mut c_void,
    ) {
        start(kernel_of(kernel)?, Shape { grid, block, shared }, &Args::new(args, grid.y), stream)
    }
    fn cudaLaunchKernelExC(
        configuration: *const cudaLaunchConfig_st, kernel: *const c_void, args: *const *const c_void,
    ) {
        let c = &*configuration;
        let shape = Shape { grid: c.gridDim, block: c.blockDim, shared: c.dynamicSmemBytes };
        start(kernel_of(kernel)?, shape, &Args::new(args, c.gridDim.y), c.stream.cast())
    }
    fn cudaFuncGetAttributes(to: *mut cudaFuncAttributes, kernel: *const c_void) {
        kernel_of(kernel)?;
        let Capability(major, minor) = device::current()?.unit().gpu().compute_capability;
        to.write_bytes(0, 1);
        let to = &mut *to;
        to.maxThreadsPerBlock = 1024;
        to.numRegs = 32;
        (to.ptxVersion, to.binaryVersion) = (major * 10 + minor, major * 10 + minor);
        to.maxDynamicSharedSizeBytes = 48 << 10;
        Ok(())
    }
    fn cudaFuncSetAttribute(kernel: *const c_void, _attribute: c_int, _value: c_int) {
        kernel_of(kernel).map(|_| ())
    }
    fn cudaOccupancyMaxActiveBlocksPerMultiprocessor(
        to: *mut c_int, _kernel: *const c_void, threads: c_int, _shared: usize,
    ) {
        give(to, (2048 / threads.max(1)).clamp(1, 32))
    }
    fn cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(
        to: *mut c_int, _kernel: *const c_void, threads: c_int, _shared: usize, _flags: c_uint,
    ) {
        give(to, (2048 / threads.max(1)).clamp(1, 32))
    }
    fn cudaGetSymbolAddress(to: *mut *mut c_void, symbol: *const c_void) {
        give(to, std::ptr::with_exposed_provenance_mut(address_of(symbol)?.at))
    }
    fn cudaMemcpyToSymbol(
        symbol: *const c_void, from: *const c_void, size: usize, offset: usize, _kind: c_int,
    ) {
        let variable = address_of(symbol)?;
        if offset + size > variable.size {
            return Err(codes::INVALID_VALUE);
        }
        let to = View { at: variable.at + offset, size };
        to.copy_from(View::trusted(from.expose_provenance(), size));
        counts::count(Kind::Copy, 1);
        Ok(())
    }
}
