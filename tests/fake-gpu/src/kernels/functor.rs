//! Functors of element-wise kernels: the operation by name, constants by the functor's bytes.

use super::values::Type;
use super::{inside, split};
use crate::memory::View;

/// Computes one element.
type Apply = Box<dyn Fn(&[f64]) -> f64 + Send + Sync>;

/// An operation on one element of each input.
pub(super) struct Operation {
    pub(super) inputs: Vec<Type>,
    pub(super) output: Type,
    pub(super) apply: Apply,
}

/// A functor's name: makes the operation of its bytes.
pub(super) struct Functor {
    pub(super) inputs: Vec<Type>,
    output: Type,
    make: Box<dyn Fn(View) -> Apply + Send + Sync>,
}

impl Functor {
    fn new<F>(
        inputs: Vec<Type>,
        output: Type,
        make: impl Fn(View) -> F + Send + Sync + 'static,
    ) -> Option<Self>
    where
        F: Fn(&[f64]) -> f64 + Send + Sync + 'static,
    {
        Some(Self { inputs, output, make: Box::new(move |bytes| Box::new(make(bytes))) })
    }

    pub(super) fn operation(&self, bytes: View) -> Operation {
        Operation { inputs: self.inputs.clone(), output: self.output, apply: (self.make)(bytes) }
    }

    /// Returns the functor of a C++ type, if its operation is known.
    pub(super) fn of(name: &str) -> Option<Self> {
        let name = name.strip_prefix("at::native::")?;
        let arguments = || split(inside(name, '<').unwrap_or_default());
        let first = || Type::named(arguments()[0]);
        match name.split(['<', '(', ':']).next()? {
            "FillFunctor" => {
                let t = first()?;
                Self::new(vec![], t, move |bytes| {
                    let value = t.load(bytes, 0);
                    move |_| value
                })
            }
            "CUDAFunctor_add" => {
                let t = first()?;
                Self::new(vec![t, t], t, move |bytes| {
                    let alpha = t.computed().load(bytes, 0);
                    move |x| x[0] + alpha * x[1]
                })
            }
            which @ ("CUDAFunctorOnSelf_add" | "CUDAFunctorOnOther_add") => {
                let (t, is_self) = (first()?, which == "CUDAFunctorOnSelf_add");
                Self::new(vec![t], t, move |bytes| {
                    let m = t.computed();
                    let (other, alpha) = (m.load(bytes, 0), m.load(bytes, m.size()));
                    move |x| if is_self { x[0] + other * alpha } else { other + alpha * x[0] }
                })
            }
            which @ ("AUnaryFunctor" | "BUnaryFunctor") => {
                let (is_first, a) = (which == "AUnaryFunctor", arguments());
                let [x, y, out, function] = a[..] else { return None };
                let (x, y, out) = (Type::named(x)?, Type::named(y)?, Type::named(out)?);
                let (scalar, input) = if is_first { (x.computed(), y) } else { (y.computed(), x) };
                let (binary, own) = binary(function)?;
                let at = own.next_multiple_of(scalar.size());
                Self::new(vec![input], out, move |bytes| {
                    let (apply, constant) = (binary(bytes), scalar.load(bytes, at));
                    move |x| if is_first { apply(constant, x[0]) } else { apply(x[0], constant) }
                })
            }
            "BinaryFunctor" => {
                let a = arguments();
                let [x, y, out, function] = a[..] else { return None };
                let (binary, _) = binary(function)?;
                Self::new(vec![Type::named(x)?, Type::named(y)?], Type::named(out)?, move |bytes| {
                    let apply = binary(bytes);
                    move |x| apply(x[0], x[1])
                })
            }
            "compare_scalar_kernel" => {
                let t = first()?;
                Self::new(vec![t], Type::Bool, move |bytes| {
                    let (apply, constant) = (comparison(bytes), t.load(bytes, t.size().max(4)));
                    move |x| apply(x[0], constant)
                })
            }
            "AbsFunctor" => Self::unary(first()?, first()?, f64::abs),
            function => Self::lambda(name, function),
        }
    }

    fn unary(input: Type, output: Type, apply: fn(f64) -> f64) -> Option<Self> {
        Self::new(vec![input], output, move |_| move |x| apply(x[0]))
    }

    /// The enclosing function names the operation, the last lambda the types.
    fn lambda(name: &str, function: &str) -> Option<Self> {
        let types = split(inside(&name[name.rfind("{lambda(")?..], '(')?);
        let types: Vec<Type> = types.into_iter().map(Type::named).collect::<Option<_>>()?;
        match (&types[..], function) {
            _ if name.contains("masked_fill_kernel(") && types.len() == 2 && types[1] == Type::Bool => {
                let t = types[0];
                Self::new(types, t, move |bytes| {
                    let value = t.load(bytes, 0);
                    move |x| if x[1] != 0. { value } else { x[0] }
                })
            }
            ([Type::Bool, t, _], _) if name.contains("where_kernel_impl(") => {
                let t = *t;
                Self::new(types, t, |_| |x| if x[0] != 0. { x[1] } else { x[2] })
            }
            ([t], "direct_copy_kernel_cuda") => Self::unary(*t, *t, |x| x),
            ([t], "bfloat16_copy_kernel_cuda") => Self::unary(*t, Type::Bf16, |x| x),
            ([t], "float16_copy_kernel_cuda") => Self::unary(*t, Type::F16, |x| x),
            ([t], "bfloat16tofloat32_copy_kernel_cuda" | "float16tofloat32_copy_kernel_cuda") => {
                Self::unary(*t, Type::F32, |x| x)
            }
            ([t], "reciprocal_kernel_cuda") => Self::unary(*t, *t, |x| 1. / x),
            ([t], "sqrt_kernel_cuda") => Self::unary(*t, *t, f64::sqrt),
            ([t], "neg_kernel_cuda") => Self::unary(*t, *t, |x| -x),
            ([t], "logical_not_kernel_cuda") => Self::unary(*t, Type::Bool, |x| f64::from(x == 0.)),
            _ => None,
        }
    }
}

type Binary = Box<dyn Fn(f64, f64) -> f64 + Send + Sync>;
type MakeBinary = fn(View) -> Binary;

/// Returns the operation of two values, and the bytes of its functor.
fn binary(name: &str) -> Option<(MakeBinary, usize)> {
    let known: [(&str, MakeBinary, usize); 4] = [
        ("MulFunctor", |_| Box::new(|a, b| a * b), 1),
        ("DivFunctor", |_| Box::new(|a, b| a / b), 1),
        (
            "CompareEqFunctor",
            |bytes| {
                let is_equal = i32::from_ne_bytes(bytes.read(0)) == 0;
                Box::new(move |a, b| f64::from((a == b) == is_equal))
            },
            4,
        ),
        ("CompareFunctor", comparison, 4),
    ];
    known.into_iter().find(|(known, ..)| name.contains(known)).map(|(_, make, size)| (make, size))
}

/// Returns the comparison whose number the bytes begin with: GE, GT, LE, LT.
fn comparison(bytes: View) -> Binary {
    match i32::from_ne_bytes(bytes.read(0)) {
        0 => Box::new(|a, b| f64::from(a >= b)),
        1 => Box::new(|a, b| f64::from(a > b)),
        2 => Box::new(|a, b| f64::from(a <= b)),
        _ => Box::new(|a, b| f64::from(a < b)),
    }
}
