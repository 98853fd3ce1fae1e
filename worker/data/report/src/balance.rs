//! How often each class occurs.

use serde::Serialize;

/// Classes and how many images, samples or pixels each has.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Balance {
    /// By number; a class without a name has its number as its name.
    pub classes: Vec<(String, u64)>,
    /// Those of no class.
    pub of_none: u64,
}

impl Balance {
    /// Counts numbers of classes.
    pub(crate) fn count(names: &[String], numbers: impl Iterator<Item = u32>) -> Self {
        let mut counts = vec![0; names.len()];
        for number in numbers {
            if let Some(count) = counts.get_mut(number as usize) {
                *count += 1;
            }
        }
        Self { classes: names.iter().cloned().zip(counts).collect(), of_none: 0 }
    }

    /// Returns the classes that occur, the rarest first.
    pub(crate) fn occurring(&self) -> Vec<&(String, u64)> {
        let mut found: Vec<_> = self.classes.iter().filter(|(_, count)| *count > 0).collect();
        found.sort_by_key(|(_, count)| *count);
        found
    }

    /// Returns the names of the classes that do not occur.
    pub(crate) fn missing(&self) -> Vec<&str> {
        self.classes.iter().filter(|(_, count)| *count == 0).map(|(name, _)| name.as_str()).collect()
    }

    /// Returns the part of `count` in all.
    pub(crate) fn share(&self, count: u64) -> f64 {
        let all = self.of_none + self.classes.iter().map(|(_, count)| count).sum::<u64>();
        count as f64 / all.max(1) as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_are_counted_and_the_rarest_is_first() {
        let names = ["a", "b", "c"].map(str::to_owned);
        let balance = Balance::count(&names, [0, 0, 2, 9].into_iter());
        assert_eq!(balance.occurring(), [&("c".to_owned(), 1), &("a".to_owned(), 2)]);
        assert_eq!(balance.missing(), ["b"]);
        assert!((balance.share(1) - 1.0 / 3.0).abs() < 1e-9);
    }
}
