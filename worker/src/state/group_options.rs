//! The options of an optimizer group.

/// Options of one optimizer group.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct GroupOptions {
    /// The factor of the learning rate.
    pub lr_factor: f64,
    /// Weight decay.
    pub weight_decay: f64,
    /// The decay rates of the moments, if they are not the recipe's.
    pub betas: Option<[f64; 2]>,
    /// The number added to the denominator, if it is not the recipe's.
    pub eps: Option<f64>,
    /// Whether its parameters are updated as whole matrices.
    pub is_matrix: bool,
    /// Whether its gradients are clipped adaptively, if the optimizer does that.
    pub clip_adaptive: bool,
}

impl GroupOptions {
    /// Returns options with the recipe's learning rate and this weight decay.
    pub fn plain(weight_decay: f64) -> Self {
        Self { lr_factor: 1.0, weight_decay, betas: None, eps: None, is_matrix: false, clip_adaptive: true }
    }
}
