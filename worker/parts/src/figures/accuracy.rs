//! The part of the samples whose class is among the largest logits.

use dtrain_recipe::figures::Accuracy;
use tch::{Kind, TchError, Tensor};

use super::label_accuracy::{part, right, same_shape};
use super::{BySums, Figure, Made, Shape, Source, elements, means};

impl Figure for Accuracy {
    fn takes(&self) -> Vec<Source<'_>> {
        vec![Source::Output(self.output.as_deref()), Source::Classes(self.classes.as_deref())]
    }

    fn check(&self, shapes: &[Shape], known: Option<usize>) -> Result<(), String> {
        let (logits, classes) = (&shapes[0], &shapes[1]);
        let fits = logits.len() == classes.len() + 1
            && logits[0].is_none()
            && logits.iter().zip(classes).skip(1).all(|(a, b)| a.is_none() || b.is_none() || a == b);
        match (logits.last(), known) {
            _ if !fits => Err(format!(
                "accuracy takes logits, N x K for one class in `{}` or N x M x K for M classes; set output to them",
                self.classes.as_deref().unwrap_or_default()
            )),
            (Some(Some(k)), Some(known)) if *k < known as i64 => {
                Err(format!("accuracy takes a logit for each of the {known} classes; set output to them"))
            }
            (Some(Some(k)), _) if self.top > 1 && *k <= self.top as i64 => {
                Err(format!("every class is among the top {}; set top below {k}", self.top))
            }
            _ => Ok(()),
        }
    }

    fn check_sets(&self, shapes: &[Shape]) -> Result<(), String> {
        match self.top {
            1 => same_shape("accuracy", shapes),
            top => Err(format!("any number of classes are right or not as a whole; remove top = {top}")),
        }
    }

    fn made(&self) -> Made<'_> {
        Made::BySums(self)
    }
}

impl BySums for Accuracy {
    /// Returns the sums of the classes that are right, and of all that count: a sample has one, or M.
    fn add(&self, values: &[&Tensor], weights: &Tensor) -> Result<Tensor, TchError> {
        let (logits, classes) = (values[0].f_detach()?, values[1]);
        let right = match self.top {
            // Sets of classes: right if all of a sample are.
            _ if classes.kind() == Kind::Float => right(&logits, classes)?.f_all_dim(-1, false)?,
            1 => logits.f_argmax(-1, false)?.f_eq_tensor(classes)?,
            top => {
                let (_, largest) = logits.f_topk(top as i64, -1, true, false)?;
                largest.f_eq_tensor(&classes.f_unsqueeze(-1)?)?.f_any_dim(-1, false)?
            }
        };
        part(&right, &elements::counted(&classes_of(classes, &right)?, weights)?, self.interval)
    }

    fn sums(&self) -> usize {
        means::count(self.interval)
    }

    fn figure(&self, sums: &[f64]) -> f64 {
        means::only(sums).value()
    }

    fn further(&self, sums: &[f64]) -> Vec<f64> {
        means::further(sums, self.interval)
    }
}

/// Returns classes of the shape of what is right; of sets, which are right as a whole, any.
fn classes_of(classes: &Tensor, right: &Tensor) -> Result<Tensor, TchError> {
    if classes.kind() == Kind::Float { right.f_to_kind(Kind::Int64) } else { Ok(classes.shallow_clone()) }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn of(figure: &Accuracy, logits: &Tensor, classes: &Tensor, weights: &[f32]) -> f64 {
        let weights = Tensor::from_slice(weights);
        let sums = Vec::<f64>::try_from(figure.add(&[logits, classes], &weights).unwrap()).unwrap();
        figure.figure(&sums)
    }

    #[test]
    fn a_class_among_the_largest_logits_is_right() {
        let logits = Tensor::from_slice(&[3f32, 2.0, 1.0, 1.0, 2.0, 3.0, 2.0, 3.0, 1.0]).view([3, 3]);
        let classes = Tensor::from_slice(&[0i64, 1, 2]);
        let top = |top| Accuracy { top, ..Accuracy::default() };
        assert_eq!(of(&top(1), &logits, &classes, &[1.0; 3]), 1.0 / 3.0);
        assert_eq!(of(&top(2), &logits, &classes, &[1.0; 3]), 2.0 / 3.0);
        assert_eq!(of(&top(2), &logits, &classes, &[0.0, 1.0, 1.0]), 0.5, "an unreadable sample");
    }

    #[test]
    fn a_sample_of_several_classes_counts_by_its_part() {
        let logits = Tensor::from_slice(&[1f32, 0.0, 1.0, 0.0, 0.0, 1.0, 0.0, 1.0]).view([2, 2, 2]);
        let classes = Tensor::from_slice(&[0i64, 1, 1, 1]).view([2, 2]);
        assert_eq!(of(&Accuracy::default(), &logits, &classes, &[1.0; 2]), 0.75);
    }

    #[test]
    fn a_set_of_classes_is_right_as_a_whole() {
        let logits = Tensor::from_slice(&[1f32, -1.0, 2.0, -3.0]).view([2, 2]);
        let sets = Tensor::from_slice(&[1f32, 0.0, 1.0, 1.0]).view([2, 2]);
        assert_eq!(of(&Accuracy::default(), &logits, &sets, &[1.0; 2]), 0.5);
        let shapes = [vec![None, Some(2)], vec![None, Some(2)]];
        assert!(Accuracy::default().check_sets(&shapes).is_ok());
        assert!(
            Accuracy { top: 2, ..Accuracy::default() }
                .check_sets(&shapes)
                .unwrap_err()
                .contains("remove top = 2")
        );
    }

    #[test]
    fn shapes_must_fit_the_classes() {
        let check = |logits: &[Option<i64>], classes: &[Option<i64>]| {
            let figure = Accuracy { top: 5, ..Accuracy::default() };
            figure.check(&[logits.to_vec(), classes.to_vec()], None)
        };
        assert!(check(&[None, Some(6)], &[None]).is_ok());
        assert!(check(&[None, None, Some(6)], &[None, Some(7)]).is_ok());
        assert!(check(&[None, Some(8), Some(6)], &[None, Some(7)]).is_err());
        assert!(check(&[None], &[None]).unwrap_err().contains("takes logits, N x K"));
        assert!(check(&[None, Some(5)], &[None]).unwrap_err().contains("set top below 5"));
    }
}
