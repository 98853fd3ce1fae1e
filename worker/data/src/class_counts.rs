//! Statistics of masks: the pixels of each class, and the ignored pixels.

/// Pixels by class, of the decoded masks.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ClassCounts {
    /// By class, up to the highest class that occurs.
    counts: Vec<u64>,
    /// Pixels of no class.
    pub ignored: u64,
    /// Number of decoded masks.
    pub masks: usize,
}

impl ClassCounts {
    /// Counts the classes of one mask. Pixels of the value `ignore` belong to no class.
    pub(super) fn count(&mut self, values: &[u16], ignore: i64) {
        self.masks += 1;
        for run in values.chunk_by(|a, b| a == b) {
            let pixels = run.len() as u64;
            if i64::from(run[0]) == ignore {
                self.ignored += pixels;
                continue;
            }
            let class = usize::from(run[0]);
            if self.counts.len() <= class {
                self.counts.resize(class + 1, 0);
            }
            self.counts[class] += pixels;
        }
    }

    pub(super) fn add(&mut self, other: &Self) {
        if self.counts.len() < other.counts.len() {
            self.counts.resize(other.counts.len(), 0);
        }
        for (own, others) in self.counts.iter_mut().zip(&other.counts) {
            *own += others;
        }
        self.ignored += other.ignored;
        self.masks += other.masks;
    }

    /// Returns the number of classes that occur.
    pub fn classes(&self) -> usize {
        self.occurring().count()
    }

    /// Returns the classes that occur and their pixels, by number.
    pub fn occurring(&self) -> impl Iterator<Item = (usize, u64)> {
        self.counts.iter().copied().enumerate().filter(|(_, pixels)| *pixels > 0)
    }

    /// Returns those of the `classes` classes that do not occur.
    pub fn missing(&self, classes: usize) -> Vec<usize> {
        let pixels = |class| self.counts.get(class).copied().unwrap_or(0);
        (0..classes).filter(|&class| pixels(class) == 0).collect()
    }

    /// Returns the share of `pixels` in all pixels; 0 if there are no pixels.
    pub fn share(&self, pixels: u64) -> f64 {
        let all = self.ignored + self.counts.iter().sum::<u64>();
        pixels as f64 / (all.max(1)) as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pixels_are_counted_by_class_and_ignored_pixels_separately() {
        let mut class_counts = ClassCounts::default();
        class_counts.count(&[0, 0, 255, 3, 3, 3, 0, 255], 255);
        class_counts.count(&[], 255);
        let mut other = ClassCounts::default();
        other.count(&[5, 5], 255);
        class_counts.add(&other);
        assert_eq!(class_counts.occurring().collect::<Vec<_>>(), [(0, 3), (3, 3), (5, 2)]);
        assert_eq!((class_counts.masks, class_counts.classes(), class_counts.ignored), (3, 3, 2));
        assert_eq!(class_counts.missing(7), [1, 2, 4, 6]);
        assert_eq!(class_counts.share(class_counts.ignored), 0.2);
        assert_eq!(ClassCounts::default().share(0), 0.0);
    }

    #[test]
    fn the_ignored_value_is_not_a_class() {
        let mut class_counts = ClassCounts::default();
        class_counts.count(&[0, 1, 1], 1);
        assert_eq!((class_counts.classes(), class_counts.ignored), (1, 2));
    }
}
