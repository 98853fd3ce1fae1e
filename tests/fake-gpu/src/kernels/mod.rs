//! Kernels that compute on the host: the small arithmetic by which steps are decided. All others compute nothing.
//!
//! A kernel is known by its C++ name, which has the types of its parameters.

mod elementwise;
mod functor;
mod others;
mod reduce;
mod values;

use std::ffi::c_void;

use crate::check::Use;
use crate::counts;
use crate::machine::MACHINE;
use crate::memory::View;
use crate::op::Work;

/// The most bytes of a kernel's parameters.
const MOST: usize = 32 << 10;

/// The parameters of a launch.
pub(crate) struct Args {
    list: *const *const c_void,
    /// The height of the grid.
    rows: usize,
}

impl Args {
    /// # Safety
    /// The list has a pointer to each of the kernel's parameters.
    pub(crate) unsafe fn new(list: *const *const c_void, rows: u32) -> Self {
        Self { list, rows: rows as usize }
    }

    /// Returns the bytes of a parameter that the kernel's name shows to exist.
    fn parameter(&self, index: usize) -> View {
        // SAFETY: the list has the parameter, and reads stay in the type that the kernel's name tells.
        unsafe { View::trusted((*self.list.add(index)).expose_provenance(), MOST) }
    }
}

/// What a launch computes, and the memory that it uses.
#[derive(Default)]
pub(crate) struct Computation {
    pub(crate) uses: Vec<Use>,
    pub(crate) work: Option<Work>,
}

/// Makes the computation of a launch. The error is how the arguments differ from what the name tells.
type Program = Box<dyn Fn(&Args) -> Result<Computation, String> + Send + Sync>;

/// What a kernel's name tells.
pub(crate) struct Form {
    pub(crate) readable: String,
    pub(crate) program: Option<Program>,
    /// The indices of the parameters that are pointers, and whether the kernel may write there.
    pointers: Vec<(usize, bool)>,
}

impl Form {
    pub(crate) fn of(readable: &str) -> Self {
        let name = readable.strip_prefix("void ").unwrap_or(readable);
        Self { readable: readable.to_owned(), program: program_of(name), pointers: pointers_of(readable) }
    }

    pub(crate) fn compute(&self, args: &Args) -> Computation {
        let mut computation = match &self.program {
            None => Computation::default(),
            Some(program) => program(args).unwrap_or_else(|why| {
                counts::note("[kernel with unknown arguments]");
                counts::report_once(&format!("kernel {:.200}: {why}", self.readable));
                Computation::default()
            }),
        };
        for (index, writes) in &self.pointers {
            let at = usize::from_ne_bytes(args.parameter(*index).read(0));
            if at != 0 {
                computation.uses.push(Use { at, size: 1, writes: *writes });
            }
        }
        computation
    }
}

fn program_of(name: &str) -> Option<Program> {
    let native = name.strip_prefix("at::native::")?;
    if let Some(rest) = native.strip_prefix("vectorized_elementwise_kernel<") {
        return elementwise::contiguous(rest.split_once(", ")?.1);
    }
    if let Some(rest) = native.strip_prefix("unrolled_elementwise_kernel<") {
        return elementwise::unrolled(rest);
    }
    if native.starts_with("elementwise_kernel<") {
        return elementwise::strided(native);
    }
    if native.starts_with("reduce_kernel<") {
        return reduce::program(native);
    }
    others::program(native)
}

/// Returns whether a kernel of this number of elements computes nothing: the values of a network are not computed.
fn is_large(elements: usize) -> bool {
    elements as u64 > MACHINE.compute.0
}

/// Returns the parameters that are pointers.
fn pointers_of(readable: &str) -> Vec<(usize, bool)> {
    let text = readable.trim_end();
    let Some(text) = text.strip_suffix(')') else { return Vec::new() };
    let mut depth = 0;
    let open = text.char_indices().rev().find(|(_, c)| {
        depth += i32::from(*c == ')') - i32::from(*c == '(');
        depth < 0
    });
    let Some((open, _)) = open else { return Vec::new() };
    let parameters = split(&text[open + 1..]);
    let pointer = |(index, parameter): (usize, &&str)| {
        let target = parameter.strip_suffix('*')?;
        Some((index, !target.trim_end().ends_with("const")))
    };
    parameters.iter().enumerate().filter_map(pointer).collect()
}

/// Splits at commas outside of brackets.
fn split(text: &str) -> Vec<&str> {
    let (mut parts, mut depth, mut start) = (Vec::new(), 0, 0);
    for (index, c) in text.char_indices() {
        match c {
            '<' | '(' | '{' | '[' => depth += 1,
            '>' | ')' | '}' | ']' => depth -= 1,
            ',' if depth == 0 => {
                parts.push(text[start..index].trim());
                start = index + 1;
            }
            _ => {}
        }
    }
    parts.push(text[start..].trim());
    parts
}

/// Returns the text between the first bracket of the kind and its partner.
fn inside(text: &str, bracket: char) -> Option<&str> {
    let partner = match bracket {
        '<' => '>',
        '(' => ')',
        _ => '}',
    };
    let open = text.find(bracket)?;
    let mut depth = 0;
    for (index, c) in text[open..].char_indices() {
        depth += i32::from(c == bracket) - i32::from(c == partner);
        if depth == 0 {
            return Some(&text[open + 1..open + index]);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_tell_pointers_and_parts() {
        let name = "void f<at::X<int, float>, {lambda(int)#1}>(float*, int, long const*, g<int*>)";
        assert_eq!(pointers_of(name), [(0, true), (2, false)]);
        assert_eq!(pointers_of("f()"), []);
        assert_eq!(split("a<b, c>, d(e, f), g"), ["a<b, c>", "d(e, f)", "g"]);
        assert_eq!(inside("f<a<b>, c>(d)", '<'), Some("a<b>, c"));
    }
}
