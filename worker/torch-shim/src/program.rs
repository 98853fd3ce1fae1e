//! Calls of libtorch's operations by name, and the values between them: the parts of an interpreter of programs
//! that `torch.export` wrote. Arguments are prepared once; a call converts only what differs between calls.

use std::path::Path;

use tch::{Device, Tensor};

use crate::error::{ShimError, create, create_tensor, fetch, try_call};
use crate::ffi::{
    self, Borrowed, BorrowedList, CallHandle, DtArgument, DtArguments, DtResults, FrameHandle, Owned, Text,
};
use crate::tensor::device_index;

/// A value in an argument.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Operand {
    /// No tensor.
    None,
    /// The value with this number in the frame.
    Slot(usize),
    /// The tensor with this number in the list of [`Call::new`].
    Fixed(usize),
}

/// A number in an argument.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Whole {
    /// A constant.
    Number(i64),
    /// The value with this number in the frame.
    Slot(usize),
}

/// The value of an argument.
#[derive(Debug, Clone, PartialEq)]
pub enum Argument {
    /// No value.
    None,
    /// A tensor, or a number or a truth value of the frame.
    Value(Operand),
    /// Tensors.
    Values(Vec<Operand>),
    /// A whole number; also an enumeration's value in libtorch's numbering.
    Int(Whole),
    /// Whole numbers.
    Ints(Vec<Whole>),
    /// A real number.
    Float(f64),
    /// Real numbers.
    Floats(Vec<f64>),
    /// A truth value.
    Bool(bool),
    /// Truth values.
    Bools(Vec<bool>),
    /// A text.
    Text(String),
    /// The device of the model.
    Device,
}

/// The numbers of an argument, as they cross the boundary.
#[derive(Default)]
struct Encoded {
    tag: i32,
    numbers: Vec<i64>,
    slots: Vec<i64>,
    reals: Vec<f64>,
}

/// The fixed tensors of one call, among all.
struct Fixed<'a> {
    all: &'a [Tensor],
    used: Vec<Borrowed<'a>>,
}

impl Fixed<'_> {
    /// Returns the number of an operand at the boundary.
    fn code(&mut self, operand: Operand) -> Result<i64, ShimError> {
        Ok(match operand {
            Operand::None => -1,
            Operand::Slot(slot) => slot as i64,
            Operand::Fixed(number) => {
                let unknown =
                    || ShimError::invalid("prepare a call", format!("there is no fixed tensor {number}"));
                self.used.push(self.all.get(number).ok_or_else(unknown)?.into());
                -1 - self.used.len() as i64
            }
        })
    }
}

impl Encoded {
    fn of(argument: &Argument, fixed: &mut Fixed<'_>) -> Result<Self, ShimError> {
        let mut operands = |tag, operands: &[Operand]| {
            let slots = operands.iter().map(|operand| fixed.code(*operand)).collect::<Result<_, _>>()?;
            Ok(Self { tag, slots, numbers: vec![0; operands.len()], ..Self::default() })
        };
        let wholes = |tag, wholes: &[Whole]| Self {
            tag,
            slots: wholes
                .iter()
                .map(|whole| if let Whole::Slot(slot) = whole { *slot as i64 } else { -1 })
                .collect(),
            numbers: wholes
                .iter()
                .map(|whole| if let Whole::Number(number) = whole { *number } else { 0 })
                .collect(),
            ..Self::default()
        };
        let bools = |tag, bools: &[bool]| Self {
            tag,
            numbers: bools.iter().map(|&value| i64::from(value)).collect(),
            ..Self::default()
        };
        let reals = |tag, reals: &[f64]| Self { tag, reals: reals.to_vec(), ..Self::default() };
        Ok(match argument {
            Argument::None => Self::default(),
            Argument::Value(operand) => return operands(1, &[*operand]),
            Argument::Values(list) => return operands(2, list),
            Argument::Int(whole) => wholes(3, &[*whole]),
            Argument::Ints(list) => wholes(4, list),
            Argument::Float(real) => reals(5, &[*real]),
            Argument::Floats(list) => reals(6, list),
            Argument::Bool(value) => bools(7, &[*value]),
            Argument::Bools(list) => bools(8, list),
            Argument::Text(_) => Self { tag: 9, ..Self::default() },
            Argument::Device => Self { tag: 10, ..Self::default() },
        })
    }

    fn count(&self) -> usize {
        self.numbers.len().max(self.reals.len())
    }
}

fn or_null<T>(values: &[T]) -> *const T {
    if values.is_empty() { std::ptr::null() } else { values.as_ptr() }
}

/// Where a call puts one of its results.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Output {
    /// A single value; None if nothing uses it.
    One(Option<usize>),
    /// The elements of a list of tensors.
    Many(Vec<Option<usize>>),
}

impl Output {
    /// Returns the values that the result sets.
    pub fn slots(&self) -> Vec<usize> {
        match self {
            Self::One(slot) => slot.iter().copied().collect(),
            Self::Many(slots) => slots.iter().flatten().copied().collect(),
        }
    }
}

/// The values of one run of a program, by number.
#[derive(Debug)]
pub struct Frame(Owned<FrameHandle>);

// SAFETY: a frame owns reference-counted values, and its methods take `&mut self` to change them.
unsafe impl Send for Frame {}
// SAFETY: as above; `&self` only copies values, whose counts are atomic.
unsafe impl Sync for Frame {}

impl Frame {
    /// Creates a frame for `values` values, which are all unset.
    pub fn new(values: usize) -> Result<Self, ShimError> {
        create("create a frame", |out, error| ffi::dt_frame_new(values, out, error)).map(Self)
    }

    /// Sets a value.
    pub fn set(&mut self, slot: usize, tensor: &Tensor) -> Result<(), ShimError> {
        try_call("set a value", |error| ffi::dt_frame_set(&mut self.0, slot, tensor.into(), error))
    }

    /// Returns a value, which must be a tensor.
    pub fn get(&self, slot: usize) -> Result<Tensor, ShimError> {
        create_tensor("read a value", |out, error| ffi::dt_frame_get(&self.0, slot, out, error))
    }

    /// Copies values of any type from another frame.
    pub fn copy_from(&mut self, other: &Self, slots: &[i64]) -> Result<(), ShimError> {
        try_call("copy values", |error| ffi::dt_frame_copy(&mut self.0, &other.0, slots.into(), error))
    }

    /// Drops values.
    pub fn clear(&mut self, slots: &[i64]) -> Result<(), ShimError> {
        try_call("drop values", |error| ffi::dt_frame_clear(&mut self.0, slots.into(), error))
    }
}

/// The name of an operation: `aten::conv2d` and its overload, which may be empty, or Python's name of an operation
/// on numbers, such as `_operator.mul`.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Operation {
    /// The name with its namespace.
    pub name: String,
    /// The overload.
    pub overload: String,
}

/// Traits of an operation.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Traits {
    /// Whether it may draw random numbers.
    pub draws: bool,
    /// Whether it writes to the argument in question.
    pub writes: bool,
    /// Whether its only result is that argument.
    pub returns_it: bool,
    /// Whether a result may share the argument's memory, by the schema. Some operations do without saying so.
    pub shares: bool,
    /// Whether autograd has no kernel for it, so that gradients end there without an error.
    pub ends_gradients: bool,
}

impl Operation {
    /// Returns its traits, for the argument of this name. An unknown operation or argument has no traits.
    pub fn traits(&self, argument: &str) -> Result<Traits, ShimError> {
        let (name, overload) = (Text::from(&self.name), Text::from(&self.overload));
        let bits = fetch("look up an operation", |bits, error| {
            ffi::dt_operation_traits(name, overload, argument.into(), bits, error)
        })?;
        let has = |bit: i32| bits & bit != 0;
        Ok(Traits {
            draws: has(1),
            writes: has(2),
            returns_it: has(4),
            shares: has(8),
            ends_gradients: has(16),
        })
    }
}

/// Returns the schemas of all operations that libtorch knows, for tests that go over them.
pub fn schemas() -> Result<Vec<String>, ShimError> {
    let text = fetch("list the operations", |text, error| ffi::dt_operation_schemas(text, error))?;
    Ok(String::from_utf8_lossy(&text).lines().map(str::to_owned).collect())
}

/// A call with prepared arguments.
#[derive(Debug)]
pub struct Call(Owned<CallHandle>);

// SAFETY: a call never changes after its construction; its tensors and lists have atomic counts, and kernels copy
// lists before they change them.
unsafe impl Send for Call {}

impl Call {
    /// Prepares a call of `operation` with named arguments; a builtin takes them in their order. Missing arguments
    /// have the schema's defaults. `fixed` are the tensors of [`Operand::Fixed`], and `device` is that of
    /// [`Argument::Device`]. The call drops the values `frees` of the frame when it has its arguments.
    ///
    /// # Errors
    /// `NotImplemented` for an unknown operation, otherwise arguments that do not fit it.
    pub fn new(
        operation: &Operation,
        arguments: &[(impl AsRef<str>, Argument)],
        fixed: &[Tensor],
        device: Device,
        outputs: &[Output],
        frees: &[i64],
    ) -> Result<Self, ShimError> {
        let op = "prepare a call";
        let device = device_index(op, device)?;
        let mut fixed = Fixed { all: fixed, used: Vec::new() };
        let encoded = arguments.iter().map(|(_, argument)| Encoded::of(argument, &mut fixed));
        let encoded: Vec<Encoded> = encoded.collect::<Result<_, _>>()?;
        let list = arguments.iter().zip(&encoded).map(|((name, argument), encoded)| DtArgument {
            name: name.as_ref().into(),
            tag: encoded.tag,
            text: if let Argument::Text(text) = argument { text.as_str() } else { "" }.into(),
            numbers: or_null(&encoded.numbers),
            slots: or_null(&encoded.slots),
            reals: or_null(&encoded.reals),
            count: encoded.count(),
        });
        let list: Vec<DtArgument<'_>> = list.collect();
        let (mut counts, mut slots) = (Vec::new(), Vec::new());
        let code = |slot: &Option<usize>| slot.map_or(-1, |slot| slot as i64);
        for output in outputs {
            match output {
                Output::One(slot) => {
                    counts.push(-1);
                    slots.push(code(slot));
                }
                Output::Many(many) => {
                    counts.push(many.len() as i64);
                    slots.extend(many.iter().map(code));
                }
            }
        }
        let results = DtResults { counts: (&*counts).into(), slots: (&*slots).into(), frees: frees.into() };
        create(op, |out, error| {
            let (name, overload) = ((&operation.name).into(), (&operation.overload).into());
            let arguments = DtArguments { data: list.as_ptr(), count: list.len() };
            // SAFETY: the pointers of the arguments refer to `encoded` and `arguments`, which live until the return.
            unsafe {
                ffi::dt_call_new(
                    name,
                    overload,
                    arguments,
                    BorrowedList::new(&fixed.used),
                    device,
                    results,
                    out,
                    error,
                )
            }
        })
        .map(Self)
    }

    /// Calls the operation with values of `frame`, and puts its results there. The calling thread's gradient mode and
    /// autocast apply.
    pub fn run(&self, frame: &mut Frame) -> Result<(), ShimError> {
        try_call("call an operation", |error| ffi::dt_call_run(&self.0, &mut frame.0, error))
    }
}

/// Loads a shared library whose initialisers register operations. It stays loaded.
pub fn load_library(path: &Path) -> Result<(), ShimError> {
    use std::os::unix::ffi::OsStrExt;
    let bytes = path.as_os_str().as_bytes();
    try_call("load a library", |error| ffi::dt_library_load(bytes.into(), error))
}

#[cfg(test)]
mod tests;
