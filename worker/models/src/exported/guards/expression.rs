//! Conditions on sizes as `torch.export` writes them, such as `(L['x'].size()[0] % 2) == 1`: their value.
//!
//! A condition is a list of operations on a stack, so long ones need no deep recursion.

use std::cmp::Ordering;

/// A number or a truth of Python.
#[derive(Debug, Clone, Copy)]
pub(super) enum Value {
    Bool(bool),
    Int(i128),
    Real(f64),
    /// A division by 0, or a number that is too large.
    Unknown,
}

/// A comparison.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Comparison {
    Less,
    LessOrEqual,
    Greater,
    GreaterOrEqual,
    Equal,
    NotEqual,
}

/// An operation of two values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Binary {
    Add,
    Subtract,
    Multiply,
    Divide,
    FloorDivide,
    Remainder,
    Power,
    BitAnd,
    BitOr,
    Max,
    Min,
}

/// An operation of one value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Unary {
    Negative,
    Not,
    Invert,
    Absolute,
    Floor,
    Ceil,
    Truncate,
    Float,
    Root,
}

/// An operation on the stack.
#[derive(Debug, Clone)]
pub(super) enum Action {
    Push(Value),
    /// Pushes the length of this number.
    Length(usize),
    Unary(Unary),
    Binary(Binary),
    /// Compares neighbours of the upper values, of which there is one more than comparisons.
    Compare(Box<[Comparison]>),
    /// Joins this many values by `and`, else by `or`.
    All(usize),
    Any(usize),
}

/// A dimension of an input: the words for the input, such as `x` of `L['x']`, and the dimension's number.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Length {
    pub input: String,
    pub dim: usize,
}

/// A condition.
#[derive(Debug, Clone)]
pub(super) struct Expression {
    pub(super) actions: Vec<Action>,
    pub(super) lengths: Vec<Length>,
}

impl Expression {
    /// Returns whether the condition is true for these lengths, in the order of `self.lengths`; None if it cannot be
    /// computed for them.
    pub(super) fn holds(&self, lengths: &[i64]) -> Option<bool> {
        let mut stack = Vec::new();
        for action in &self.actions {
            let value = match action {
                Action::Push(value) => *value,
                Action::Length(number) => Value::Int((*lengths.get(*number)?).into()),
                Action::Unary(operation) => unary(*operation, stack.pop()?),
                Action::Binary(operation) => {
                    let right = stack.pop()?;
                    binary(*operation, stack.pop()?, right)
                }
                Action::Compare(comparisons) => {
                    let values = stack.split_off(stack.len().checked_sub(comparisons.len() + 1)?);
                    let pairs = values.windows(2).zip(&**comparisons);
                    joined(true, pairs.map(|(pair, comparison)| compare(*comparison, pair[0], pair[1])))
                }
                Action::All(count) | Action::Any(count) => {
                    let values = stack.split_off(stack.len().checked_sub(*count)?);
                    joined(matches!(action, Action::All(_)), values.into_iter().map(truth))
                }
            };
            stack.push(value);
        }
        truth(stack.pop()?)
    }
}

/// Joins truths by `and`, else by `or`. One that decides hides unknown ones.
fn joined(all: bool, truths: impl Iterator<Item = Option<bool>>) -> Value {
    let mut joined = Value::Bool(all);
    for truth in truths {
        match truth {
            Some(truth) if truth != all => return Value::Bool(truth),
            Some(_) => {}
            None => joined = Value::Unknown,
        }
    }
    joined
}

fn truth(value: Value) -> Option<bool> {
    match value {
        Value::Bool(truth) => Some(truth),
        Value::Int(number) => Some(number != 0),
        Value::Real(number) => Some(number != 0.0),
        Value::Unknown => None,
    }
}

fn whole(value: Value) -> Option<i128> {
    match value {
        Value::Bool(truth) => Some(truth.into()),
        Value::Int(number) => Some(number),
        Value::Real(_) | Value::Unknown => None,
    }
}

fn real(value: Value) -> Option<f64> {
    match value {
        Value::Real(number) => Some(number),
        other => whole(other).map(|number| number as f64),
    }
}

fn compare(comparison: Comparison, left: Value, right: Value) -> Option<bool> {
    let order = match (whole(left), whole(right)) {
        (Some(left), Some(right)) => left.cmp(&right),
        _ => real(left)?.partial_cmp(&real(right)?)?,
    };
    Some(match comparison {
        Comparison::Less => order == Ordering::Less,
        Comparison::LessOrEqual => order != Ordering::Greater,
        Comparison::Greater => order == Ordering::Greater,
        Comparison::GreaterOrEqual => order != Ordering::Less,
        Comparison::Equal => order == Ordering::Equal,
        Comparison::NotEqual => order != Ordering::Equal,
    })
}

fn unary(operation: Unary, value: Value) -> Value {
    let rounded = |round: fn(f64) -> f64| match whole(value) {
        Some(number) => Some(Value::Int(number)),
        None => real(value).map(round).and_then(to_whole),
    };
    let found = match operation {
        Unary::Not => truth(value).map(|truth| Value::Bool(!truth)),
        // sympy's `not`, of truths.
        Unary::Invert => match value {
            Value::Bool(truth) => Some(Value::Bool(!truth)),
            other => whole(other).map(|number| Value::Int(!number)),
        },
        Unary::Negative => match whole(value) {
            Some(number) => number.checked_neg().map(Value::Int),
            None => real(value).map(|number| Value::Real(-number)),
        },
        Unary::Absolute => match whole(value) {
            Some(number) => number.checked_abs().map(Value::Int),
            None => real(value).map(|number| Value::Real(number.abs())),
        },
        Unary::Floor => rounded(f64::floor),
        Unary::Ceil => rounded(f64::ceil),
        Unary::Truncate => rounded(f64::trunc),
        Unary::Float => real(value).map(Value::Real),
        Unary::Root => real(value).filter(|number| *number >= 0.0).map(|number| Value::Real(number.sqrt())),
    };
    found.unwrap_or(Value::Unknown)
}

fn to_whole(number: f64) -> Option<Value> {
    // Beyond, a float64 has no digits behind the point, and its use as a size is an error of PyTorch.
    (number.abs() < 2f64.powi(62)).then_some(Value::Int(number as i128))
}

fn binary(operation: Binary, left: Value, right: Value) -> Value {
    let found = match (whole(left), whole(right)) {
        (Some(one), Some(other)) => of_whole(operation, one, other, (left, right)),
        _ => real(left).zip(real(right)).and_then(|(one, other)| of_real(operation, one, other)),
    };
    found.unwrap_or(Value::Unknown)
}

fn of_whole(operation: Binary, left: i128, right: i128, values: (Value, Value)) -> Option<Value> {
    let bits = |truth: bool, number: i128| match values {
        (Value::Bool(_), Value::Bool(_)) => Value::Bool(truth),
        _ => Value::Int(number),
    };
    let number = match operation {
        Binary::Add => left.checked_add(right)?,
        Binary::Subtract => left.checked_sub(right)?,
        Binary::Multiply => left.checked_mul(right)?,
        Binary::Divide if right == 0 => return None,
        Binary::Divide => return Some(Value::Real(left as f64 / right as f64)),
        Binary::FloorDivide => {
            let (quotient, rest) = (left.checked_div(right)?, left.checked_rem(right)?);
            quotient - i128::from(rest != 0 && (rest < 0) != (right < 0))
        }
        Binary::Remainder => {
            let rest = left.checked_rem(right)?;
            if rest != 0 && (rest < 0) != (right < 0) { rest + right } else { rest }
        }
        Binary::Power if right < 0 => return of_real(operation, left as f64, right as f64),
        Binary::Power => left.checked_pow(u32::try_from(right).ok()?)?,
        Binary::BitAnd => return Some(bits(left & right != 0, left & right)),
        Binary::BitOr => return Some(bits(left | right != 0, left | right)),
        Binary::Max => left.max(right),
        Binary::Min => left.min(right),
    };
    Some(Value::Int(number))
}

fn of_real(operation: Binary, left: f64, right: f64) -> Option<Value> {
    let number = match operation {
        Binary::Add => left + right,
        Binary::Subtract => left - right,
        Binary::Multiply => left * right,
        Binary::Divide | Binary::FloorDivide | Binary::Remainder if right == 0.0 => return None,
        Binary::Divide => left / right,
        Binary::FloorDivide => (left / right).floor(),
        Binary::Remainder => left - right * (left / right).floor(),
        Binary::Power => left.powf(right),
        Binary::BitAnd | Binary::BitOr => return None,
        Binary::Max => left.max(right),
        Binary::Min => left.min(right),
    };
    number.is_finite().then_some(Value::Real(number))
}
