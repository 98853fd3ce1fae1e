//! `model.losses`: losses over all samples of a step, declared once for each.

use dtrain_common::recipe::kinds::{Kind, NAME, Range};

use super::named::named;

const ABOVE_ZERO: Kind = Kind::Number(Range::ABOVE_ZERO);

named! { $
/// A loss over all samples of a step. It reads outputs of the program and fields of the data by name.
StepLoss, STEP_LOSSES, each_step_loss, "model.losses":

/// The mean of two cross-entropies, of the right partner of each row on both sides (Radford et al. 2021, arXiv 2103.00020).
"clip" Clip {
    /// The factor of the loss in the sum of all.
    weight: f64 = 1.0, ABOVE_ZERO;
    /// The output with one vector for each sample; vectors are normalised.
    left: String = "image_embeds".to_owned(), NAME;
    /// The output with the vector of its partner.
    right: String = "text_embeds".to_owned(), NAME;
    /// The output, one number, by which cosines are multiplied: 1 / temperature.
    scale: String = "logit_scale".to_owned(), NAME;
}

/// The sum over all pairs of the sigmoid loss, for each sample (Zhai et al. 2023, arXiv 2303.15343).
"siglip" Siglip {
    /// The factor of the loss in the sum of all.
    weight: f64 = 1.0, ABOVE_ZERO;
    /// The output with one vector for each sample; vectors are normalised.
    left: String = "image_embeds".to_owned(), NAME;
    /// The output with the vector of its partner.
    right: String = "text_embeds".to_owned(), NAME;
    /// The output, one number, by which cosines are multiplied.
    scale: String = "logit_scale".to_owned(), NAME;
    /// The output, one number, which is added to all products.
    bias: String = "logit_bias".to_owned(), NAME;
}

/// The mean log-likelihood of the other samples of the same class (Khosla et al. 2020, arXiv 2004.11362, L_out). A
/// sample alone in its class has the loss 0.
"supcon" Supcon {
    /// The factor of the loss in the sum of all.
    weight: f64 = 1.0, ABOVE_ZERO;
    /// The output with one vector for each sample; vectors are normalised.
    vectors: String = "embeds".to_owned(), NAME;
    /// The field with the class of each sample.
    classes: String = "label".to_owned(), NAME;
    /// The divisor of cosines.
    temperature: f64 = 0.07, ABOVE_ZERO;
}

/// Experts x the sum over experts of (part of the chosen gates that are its) x (mean gate). With one choice per row it is that of
/// Fedus et al. 2021, arXiv 2101.03961. The least value is about 1.
"balance" Balance {
    /// The factor of the loss in the sum of all.
    weight: f64 = 0.01, ABOVE_ZERO;
    /// The output with a probability for each expert in its last dimension.
    gates: String = "gates".to_owned(), NAME;
    /// The experts that a row chooses, those with the largest gates.
    top: usize = 1, Kind::Whole(1, 1 << 20);
}
}

impl StepLoss {
    /// Returns the factor of the loss in the sum of all.
    pub fn weight(&self) -> f64 {
        each_step_loss!(self, it => it.weight)
    }

    /// Returns whether the loss compares samples with each other.
    fn compares(&self) -> bool {
        !matches!(self, Self::Balance(_))
    }
}

/// Returns why a list of losses cannot be computed in steps of `effective_batch` samples, with the number of the loss.
pub(super) fn problem(losses: &[StepLoss], effective_batch: usize) -> Option<(usize, &'static str)> {
    losses.iter().enumerate().find_map(|(at, loss)| {
        let problem = match loss {
            _ if losses[..at].contains(loss) => "the loss is there twice; remove one of the two",
            _ if effective_batch == 1 && loss.compares() => {
                "a step of one sample has no other to compare it with; raise train.effective_batch"
            }
            _ => return None,
        };
        Some((at, problem))
    })
}
