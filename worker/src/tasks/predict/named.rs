//! Classes by name, and their probabilities.

use tch::{Kind, TchError, Tensor};

/// Returns the names of `outputs` classes: those of the data, then the numbers of the others.
pub(in crate::tasks) fn class_names(names: &[String], outputs: usize) -> Vec<String> {
    (0..outputs.max(names.len()))
        .map(|class| names.get(class).cloned().unwrap_or_else(|| class.to_string()))
        .collect()
}

/// Returns the probabilities of N x K x ... logits, float32.
pub(in crate::tasks) fn probabilities(logits: &Tensor) -> Result<Tensor, TchError> {
    logits.f_to_kind(Kind::Float)?.f_softmax(1, Kind::Float)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn classes_without_a_name_have_their_number() {
        assert_eq!(class_names(&["a".into()], 3), ["a", "1", "2"]);
        assert_eq!(class_names(&["a".into(), "b".into()], 0), ["a", "b"]);
    }

    #[test]
    fn probabilities_are_over_the_classes() {
        let logits = Tensor::from_slice(&[0f32, 0.0, 2f32.ln(), 0.0]).view([1, 2, 2]);
        let found = Vec::<f32>::try_from(probabilities(&logits).unwrap().view(-1)).unwrap();
        let near = found.iter().zip([1.0 / 3.0, 0.5, 2.0 / 3.0, 0.5]).all(|(a, b)| (a - b).abs() < 1e-6);
        assert!(near, "{found:?}");
    }
}
