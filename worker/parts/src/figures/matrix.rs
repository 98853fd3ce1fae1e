//! The counts of each target and prediction, and Cohen's kappa: Cohen 1960, doi 10.1177/001316446002000104.

use dtrain_recipe::figures::Confusion;
use tch::{TchError, Tensor};

use super::elements::{self, Elements};
use super::{ByClasses, Figure, Made, Shape, Source, confusion};

/// The most classes: the counts of more are no longer readable, and large.
const MOST_CLASSES: usize = 1000;

impl Figure for Confusion {
    fn takes(&self) -> Vec<Source<'_>> {
        vec![Source::Output(self.output.as_deref()), Source::Classes(self.classes.as_deref())]
    }

    fn check(&self, shapes: &[Shape], classes: Option<usize>) -> Result<(), String> {
        confusion::check("confusion", shapes, classes, None)?;
        let logits = || elements::logits(shapes).flatten().map(|k| k as usize);
        match classes.or_else(logits) {
            Some(classes) if classes > MOST_CLASSES => Err(format!(
                "confusion counts at most {MOST_CLASSES} classes, and there are {classes}; use recall and precision"
            )),
            _ => Ok(()),
        }
    }

    fn made(&self) -> Made<'_> {
        Made::ByClasses(self)
    }
}

/// The sums have a row for each class of the targets, and in it a column for each predicted one; the last has those that the data lacks.
impl ByClasses for Confusion {
    fn add(&self, values: &[&Tensor], weights: &Tensor, classes: usize) -> Result<Tensor, TchError> {
        let Elements { logits, targets, counted } = Elements::of(values, weights)?;
        let columns = classes as i64 + 1;
        let predicted = logits.f_argmax(1, false)?.f_clamp_max(classes as i64)?;
        elements::count(
            &targets.f_mul_scalar(columns)?.f_add(&predicted)?,
            &counted,
            classes as i64 * columns,
        )
    }

    fn sums(&self, classes: usize) -> usize {
        classes * (classes + 1)
    }

    fn figure(&self, sums: &[f64]) -> f64 {
        let rows: Vec<_> = rows(sums).collect();
        let all: f64 = sums.iter().sum();
        let right: f64 = rows.iter().enumerate().map(|(class, row)| row[class]).sum();
        let column = |class: usize| rows.iter().map(|row| row[class]).sum::<f64>();
        let by_chance: f64 =
            rows.iter().enumerate().map(|(class, row)| row.iter().sum::<f64>() * column(class)).sum();
        let (observed, expected) = (right / all, by_chance / (all * all));
        (observed - expected) / (1.0 - expected)
    }

    /// Returns the part of the samples of each class that is right.
    fn by_class(&self, sums: &[f64]) -> Vec<f64> {
        rows(sums).enumerate().map(|(class, row)| row[class] / row.iter().sum::<f64>()).collect()
    }

    fn matrix(&self, sums: &[f64]) -> Option<Vec<Vec<f64>>> {
        Some(rows(sums).map(|row| row[..row.len() - 1].to_vec()).collect())
    }
}

fn rows(sums: &[f64]) -> impl Iterator<Item = &[f64]> {
    // K x (K + 1)
    let classes = ((4.0 * sums.len() as f64 + 1.0).sqrt() as usize - 1) / 2;
    sums.chunks_exact(classes + 1)
}
