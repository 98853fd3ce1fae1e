//! Slurm's lists: hosts such as `a[01-03,7],b2`, and numbers such as `8(x4),2`.

/// The most hosts or numbers of one list.
pub const MOST: usize = 65_536;
/// The longest host name, in bytes.
pub const LONGEST_NAME: usize = 255;

/// Why a list cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HostlistError {
    #[error("expected {expected} at byte {at}")]
    Syntax { at: usize, expected: &'static str },
    #[error("more than {MOST} entries")]
    TooMany,
    #[error("a host name longer than {LONGEST_NAME} bytes")]
    TooLong,
}

type Result<T> = std::result::Result<T, HostlistError>;

/// A part of a host name.
enum Part<'a> {
    Text(&'a str),
    /// A pair of brackets: ranges with the least number of digits.
    Ranges(Vec<Range>),
}

struct Range {
    first: u64,
    last: u64,
    width: usize,
}

impl Range {
    fn count(&self) -> Option<usize> {
        usize::try_from(self.last - self.first).ok()?.checked_add(1)
    }
}

/// Returns the hosts of the list in its order, at most [`MOST`].
///
/// Each name may have several brackets, and text after them. `[08-10]` pads with zeros as its first number.
pub fn expand(text: &str) -> Result<Vec<String>> {
    list(text, |cursor, hosts| add(hosts, &cursor.name()?))
}

/// Returns the numbers of a list in which `8(x4)` stands for four times 8, at most [`MOST`].
pub fn counts(text: &str) -> Result<Vec<usize>> {
    list(text, |cursor, numbers| {
        let (value, _) = cursor.number()?;
        let value = usize::try_from(value).map_err(|_| HostlistError::TooMany)?;
        let times = match cursor.takes("(x") {
            true => {
                let (times, _) = cursor.number()?;
                cursor.expect(')', "a closing parenthesis")?;
                usize::try_from(times).map_err(|_| HostlistError::TooMany)?
            }
            false => 1,
        };
        if times > MOST - numbers.len() {
            return Err(HostlistError::TooMany);
        }
        numbers.extend(std::iter::repeat_n(value, times));
        Ok(())
    })
}

/// Reads items with commas between them; `add` reads one and adds its entries.
fn list<T>(text: &str, add: impl Fn(&mut Cursor<'_>, &mut Vec<T>) -> Result<()>) -> Result<Vec<T>> {
    let (mut cursor, mut entries) = (Cursor { text, at: 0 }, Vec::new());
    loop {
        add(&mut cursor, &mut entries)?;
        if cursor.is_done() {
            return Ok(entries);
        }
        cursor.expect(',', "a comma")?;
    }
}

/// Adds the names of one item; the number and the length of names are checked first.
fn add(hosts: &mut Vec<String>, parts: &[Part<'_>]) -> Result<()> {
    let (mut names, mut length) = (1_usize, 0_usize);
    for part in parts {
        match part {
            Part::Text(text) => length = length.saturating_add(text.len()),
            Part::Ranges(ranges) => {
                let count = ranges.iter().try_fold(0_usize, |sum, range| sum.checked_add(range.count()?));
                names = count.and_then(|count| names.checked_mul(count)).ok_or(HostlistError::TooMany)?;
                let digits = ranges.iter().map(|range| range.width.max(digits(range.last)));
                length = length.saturating_add(digits.max().unwrap_or(0));
            }
        }
    }
    if names > MOST - hosts.len() {
        return Err(HostlistError::TooMany);
    }
    if length > LONGEST_NAME {
        return Err(HostlistError::TooLong);
    }
    let mut item = vec![String::new()];
    for part in parts {
        match part {
            Part::Text(text) => item.iter_mut().for_each(|name| name.push_str(text)),
            Part::Ranges(ranges) => {
                let numbers = || {
                    ranges.iter().flat_map(|Range { first, last, width }| {
                        (*first..=*last).map(move |number| format!("{number:0width$}"))
                    })
                };
                item = item
                    .iter()
                    .flat_map(|name| numbers().map(move |number| format!("{name}{number}")))
                    .collect();
            }
        }
    }
    hosts.append(&mut item);
    Ok(())
}

fn digits(number: u64) -> usize {
    number.checked_ilog10().map_or(1, |log| log as usize + 1)
}

/// A place in a text.
struct Cursor<'a> {
    text: &'a str,
    at: usize,
}

impl<'a> Cursor<'a> {
    fn rest(&self) -> &'a str {
        self.text.get(self.at..).unwrap_or_default()
    }

    fn is_done(&self) -> bool {
        self.rest().is_empty()
    }

    fn takes(&mut self, word: &str) -> bool {
        let found = self.rest().starts_with(word);
        self.at += if found { word.len() } else { 0 };
        found
    }

    fn expect(&mut self, expected: char, name: &'static str) -> Result<()> {
        match self.takes(expected.encode_utf8(&mut [0; 4])) {
            true => Ok(()),
            false => Err(self.syntax(name)),
        }
    }

    fn syntax(&self, expected: &'static str) -> HostlistError {
        HostlistError::Syntax { at: self.at, expected }
    }

    /// Reads up to the first character for which `ends` holds.
    fn until(&mut self, ends: impl Fn(char) -> bool) -> &'a str {
        let rest = self.rest();
        let text = &rest[..rest.find(ends).unwrap_or(rest.len())];
        self.at += text.len();
        text
    }

    fn name(&mut self) -> Result<Vec<Part<'a>>> {
        let mut parts = Vec::new();
        loop {
            let text = self.until(|c| "[](),".contains(c) || c.is_whitespace() || c.is_control());
            if !text.is_empty() {
                parts.push(Part::Text(text));
            } else if self.takes("[") {
                parts.push(Part::Ranges(self.ranges()?));
            } else if parts.is_empty() {
                return Err(self.syntax("a host name"));
            } else {
                return Ok(parts);
            }
        }
    }

    fn ranges(&mut self) -> Result<Vec<Range>> {
        let mut ranges = Vec::new();
        loop {
            let (first, width) = self.number()?;
            let last = if self.takes("-") { self.number()?.0 } else { first };
            if last < first {
                return Err(self.syntax("a range that goes up"));
            }
            ranges.push(Range { first, last, width });
            if self.takes("]") {
                return Ok(ranges);
            }
            self.expect(',', "a comma or a closing bracket")?;
        }
    }

    /// Reads a number; also returns how many digits it has.
    fn number(&mut self) -> Result<(u64, usize)> {
        let start = self.at;
        let text = self.until(|c| !c.is_ascii_digit());
        match text.parse() {
            Ok(number) => Ok((number, text.len())),
            Err(_) => {
                self.at = start;
                Err(self.syntax("a whole number"))
            }
        }
    }
}

#[cfg(test)]
mod tests;
