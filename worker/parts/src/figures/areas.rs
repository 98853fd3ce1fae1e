//! Mean intersection over union, and the accuracy of pixels.

use tch::{Kind, TchError, Tensor};

/// Counts the pixels of each class: [intersections, unions] of mask and prediction, 2 x classes, float64.
/// `predicted` and `target` are classes; only pixels with `counted` true count.
pub fn sums(predicted: &Tensor, target: &Tensor, counted: &Tensor, classes: i64) -> Result<Tensor, TchError> {
    let one = Tensor::f_ones([1], (Kind::Double, target.device()))?;
    let each = one.f_expand([target.numel() as i64], false)?;
    let count = |values: &Tensor, among: &Tensor| {
        // Ignored pixels have a separate bin, because selecting pixels would wait for the GPU.
        let bins = values.f_where_scalarother(among, classes)?.f_reshape([-1])?;
        Tensor::f_zeros([classes + 1], (Kind::Double, target.device()))?
            .f_scatter_add_(0, &bins, &each)?
            .f_narrow(0, 0, classes)
    };
    let right = counted.f_logical_and(&predicted.f_eq_tensor(target)?)?;
    let intersections = count(target, &right)?;
    let unions = count(target, counted)?.f_add(&count(predicted, counted)?)?.f_sub(&intersections)?;
    Tensor::f_cat(&[intersections, unions], 0)
}

/// Returns the mean intersection over union of the classes in mask or prediction, and the pixel accuracy, from the
/// [`sums`] of `pixels` pixels.
pub fn metrics(sums: &[f64], pixels: f64) -> [(&'static str, f64); 2] {
    let (intersections, unions) = sums.split_at(sums.len() / 2);
    let both = intersections.iter().zip(unions);
    let occurring = both.filter(|(_, union)| **union > 0.0);
    let ratios: Vec<f64> = occurring.map(|(both, either)| both / either).collect();
    let right: f64 = intersections.iter().sum();
    [("mean_iou", ratios.iter().sum::<f64>() / ratios.len() as f64), ("pixel_accuracy", right / pixels)]
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn areas_are_intersections_and_unions() -> Result<(), TchError> {
        let target = Tensor::from_slice(&[0i64, 0, 1, 1, 9, 2]).f_view([1, 2, 3])?;
        let predicted = Tensor::from_slice(&[0i64, 1, 1, 0, 2, 2]).f_view([1, 2, 3])?;
        let counted = target.f_ne(9)?;
        let found = sums(&predicted, &target, &counted, 4)?;
        assert_eq!(Vec::<f64>::try_from(found)?, [1.0, 1.0, 1.0, 0.0, 3.0, 3.0, 1.0, 0.0]);
        Ok(())
    }

    #[test]
    fn mean_iou_ignores_absent_classes() {
        let [(_, mean_iou), (_, accuracy)] = metrics(&[1.0, 1.0, 1.0, 0.0, 3.0, 3.0, 1.0, 0.0], 5.0);
        assert!((mean_iou - 5.0 / 9.0).abs() < 1e-12 && (accuracy - 0.6).abs() < 1e-12);
    }
}
