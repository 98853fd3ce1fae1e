//! The first steps at which the results of two runs differ.

use super::reading::{Kind, Quantity, Reading};
use super::run::Run;
use super::size::{noise, relative};
use std::collections::{BTreeMap, BTreeSet};

/// A quantity that differs.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Difference {
    pub(super) kind: Kind,
    pub(super) name: String,
    /// The first step at which it differs, and the values there.
    pub(super) step: u64,
    pub(super) values: [Reading; 2],
    /// The size of that difference; `None` of texts.
    pub(super) relative: Option<f64>,
    /// The largest, and its step.
    pub(super) largest: Option<(f64, u64)>,
    /// The number of steps at which it differs.
    pub(super) count: u64,
}

/// What two runs computed in their common steps.
#[derive(Debug, Default)]
pub(super) struct Compared {
    /// First and last common step, and their number.
    pub(super) steps: (u64, u64, u64),
    /// In the order in which one follows from the others.
    pub(super) differences: Vec<Difference>,
    /// The largest difference that the tolerance allowed.
    pub(super) allowed: f64,
    /// Whether gradient norms differ by no more than the order of a sum.
    pub(super) has_noise: bool,
    pub(super) evaluations: usize,
    /// The numbers of samples whose content differs, where one of a step does.
    pub(super) changed_samples: BTreeSet<u32>,
    /// Whether further samples differ, where several of a step do.
    pub(super) has_more_changed: bool,
    /// Whether both runs have hashes of their samples in all common steps.
    pub(super) has_hashes: bool,
}

/// Compares the steps of two runs; `None` without a common one.
pub(super) fn compare(a: &Run, b: &Run, tolerance: f64) -> Option<Compared> {
    let mut compared = Compared { has_hashes: true, ..Compared::default() };
    let mut found = BTreeMap::<Quantity, Difference>::new();
    for (&step, mine) in &a.steps {
        let Some(theirs) = b.steps.get(&step) else { continue };
        let (first, _, count) = compared.steps;
        compared.steps = (if count == 0 { step } else { first }, step, count + 1);
        compared.add(step, &mine.readings, &theirs.readings, tolerance, &mut found);
        compared.has_hashes &= !mine.numbers.is_empty() && !theirs.numbers.is_empty();
        if mine.numbers != theirs.numbers && found.keys().all(|(kind, _)| *kind != Kind::Order) {
            let sample = mine.changed_sample(theirs);
            compared.has_more_changed |= sample.is_none();
            compared.changed_samples.extend(sample);
        }
    }
    if compared.steps.2 == 0 {
        return None;
    }
    for mine in &a.evaluations {
        let theirs = b.evaluations.iter().find(|theirs| (theirs.step, &theirs.set) == (mine.step, &mine.set));
        if let Some(theirs) = theirs {
            compared.evaluations += 1;
            compared.add(mine.step, &mine.readings, &theirs.readings, tolerance, &mut found);
        }
    }
    compared.differences = without_consequences(found.into_values().collect());
    Some(compared)
}

impl Compared {
    fn add(
        &mut self,
        step: u64,
        mine: &[(Quantity, Reading)],
        theirs: &[(Quantity, Reading)],
        tolerance: f64,
        found: &mut BTreeMap<Quantity, Difference>,
    ) {
        for (quantity, a) in mine {
            // Values that one run did not record are not known.
            let Some((_, b)) = theirs.iter().find(|(other, _)| other == quantity) else { continue };
            let size = match (a, b) {
                (Reading::Number(a), Reading::Number(b)) => Some(relative(*a, *b)),
                _ if a == b => continue,
                _ => None,
            };
            if let Some(size) = size.filter(|size| *size <= tolerance.max(noise(quantity.0))) {
                match size <= tolerance {
                    true => self.allowed = self.allowed.max(size),
                    false => self.has_noise = true,
                }
                continue;
            }
            let (kind, name) = quantity.clone();
            let difference = found.entry(quantity.clone()).or_insert_with(|| Difference {
                kind,
                name,
                step,
                values: [a.clone(), b.clone()],
                relative: size,
                largest: None,
                count: 0,
            });
            difference.count += 1;
            if let Some(size) =
                size.filter(|size| difference.largest.is_none_or(|(largest, _)| *size > largest))
            {
                difference.largest = Some((size, step));
            }
        }
    }

    pub(super) fn first(&self) -> Option<&Difference> {
        self.differences.first()
    }
}

/// Sorts differences by step and kind, and leaves out those of samples which follow from others: other samples have other content.
fn without_consequences(mut found: Vec<Difference>) -> Vec<Difference> {
    found.sort_by_key(|one| (one.step, one.kind));
    let first = |kind: Kind| found.iter().find(|one| one.kind == kind).map_or(u64::MAX, |one| one.step);
    let (plan, order) = (first(Kind::Plan), first(Kind::Order));
    found.retain(|one| match one.kind {
        Kind::Order => one.step < plan,
        Kind::Content => one.step < plan.min(order),
        _ => true,
    });
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn difference(kind: Kind, step: u64) -> Difference {
        let values = [Reading::Number(1.0), Reading::Number(2.0)];
        Difference { kind, name: format!("{kind:?}"), step, values, relative: None, largest: None, count: 1 }
    }

    #[test]
    fn other_samples_have_other_content() {
        let kinds = |found: &[(Kind, u64)]| {
            let found = found.iter().map(|(kind, step)| difference(*kind, *step)).collect();
            without_consequences(found).into_iter().map(|one| one.kind).collect::<Vec<_>>()
        };
        use Kind::{Content, Loss, Order, Plan};
        assert_eq!(kinds(&[(Loss, 2), (Content, 2), (Order, 2)]), [Order, Loss]);
        assert_eq!(kinds(&[(Loss, 2), (Content, 1), (Order, 2)]), [Content, Order, Loss]);
        assert_eq!(kinds(&[(Order, 1), (Plan, 1), (Content, 1)]), [Plan]);
    }

    #[test]
    fn a_tolerance_allows_numbers_and_no_texts() {
        let (mut compared, mut found) = (Compared::default(), BTreeMap::new());
        let loss = |value| vec![((Kind::Loss, "loss".to_owned()), Reading::Number(value))];
        let order = |value: &str| vec![((Kind::Order, "order".to_owned()), Reading::Text(value.to_owned()))];
        compared.add(1, &loss(1.0), &loss(1.0 + 1e-7), 1e-6, &mut found);
        compared.add(1, &loss(f64::NAN), &loss(f64::NAN), 0.0, &mut found);
        compared.add(1, &order("a"), &order("a"), 0.0, &mut found);
        compared.add(1, &order("a"), &[], 0.0, &mut found);
        let norm = |value| vec![((Kind::Gradient, "norm".to_owned()), Reading::Number(value))];
        compared.add(1, &norm(1.0), &norm(1.0 + 4e-16), 0.0, &mut found);
        assert!(found.is_empty() && compared.allowed > 9e-8 && compared.allowed < 1e-6);
        compared.add(2, &loss(1.0), &loss(1.0 + 1e-5), 1e-6, &mut found);
        compared.add(3, &loss(1.0), &loss(f64::NAN), 1e-6, &mut found);
        compared.add(3, &order("a"), &order("b"), 0.5, &mut found);
        let found: Vec<_> =
            found.into_values().map(|one| (one.kind, one.step, one.count, one.largest)).collect();
        assert_eq!(found, [(Kind::Order, 3, 1, None), (Kind::Loss, 2, 2, Some((f64::INFINITY, 3)))]);
    }
}
