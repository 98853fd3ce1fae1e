//! A machine of fake GPUs: the public functions of CUDA's runtime and driver, cuBLAS, cuDNN, NCCL and NVML, as far as
//! the unmodified libtorch imports them.
//!
//! Memory, copies, streams, events, captures, graphs, waits and NCCL are real, on memory of the host. Kernels compute
//! nothing, except small arithmetic that decides about a training's course. Nothing of NVIDIA is linked or shipped.
//!
//! The package is a static library, which `fake-gpu` links once into `libfake-gpu.so` with its own version script. The
//! file's other names are links: libtorch finds all its libraries in one file.
//!
//! | Module | Contents |
//! |---|---|
//! | [`machine`], `units` | the machine's description; GPUs and MIG instances |
//! | `messages`, `counts` | messages and the trace; counts, steps and the timeline |
//! | `books` | memory in use, shared by the processes of a machine |
//! | `codes`, `ffi`, `frame` | the runtime's codes; the edge to C; what each call does before and after its body |
//! | `device`, `faults`, `check` | devices and contexts; faults; accesses without an order |
//! | `op`, `capture`, `stream`, `event`, `graph` | operations, captures, queues, events, graphs |
//! | `memory`, `copies`, `launch`, `properties` | the rest of CUDA's runtime |
//! | `kernels` | kernels that compute |
//! | `driver`, `vmm` | CUDA's driver; virtual memory |
//! | `blas`, `dnn`, `nccl`, `nvml`, `stubs` | the other libraries |
//! | [`layout`] | the folder of libraries that a program is started with |
//!
//! `unsafe` is only at the edge to C, and where operations touch the memory that a program gave them. No panic crosses
//! the edge: it ends the process with a message.

mod blas;
mod books;
mod capture;
mod check;
mod codes;
mod copies;
mod counts;
mod cupti;
mod device;
mod dnn;
mod driver;
mod event;
mod faults;
mod ffi;
mod frame;
mod graph;
mod kernels;
mod launch;
pub mod layout;
pub mod machine;
mod memory;
mod messages;
mod modules;
mod nccl;
mod nvml;
mod op;
mod properties;
mod stream;
mod stubs;
mod units;
mod vmm;
