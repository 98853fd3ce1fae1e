//! The perplexity of a language model.

/// Returns the perplexity, exp(loss), and the loss in bits, from a loss in nats.
pub fn metrics(loss: f64) -> [f64; 2] {
    [loss.exp(), loss / std::f64::consts::LN_2]
}
