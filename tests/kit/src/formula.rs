//! Numbers that Rust and Python both compute: the parity tests need no committed weights and inputs.
//!
//! The Python version is `tests/parity/formula.py`; `tests/parity/README.md` states the formula. Before the
//! rounding to float32, every operation is integer arithmetic modulo 2^64 or correctly rounded float64, so
//! that both versions agree bit by bit.

use crate::faults::Random;

/// Returns the 64-bit FNV-1a hash of the bytes of a name.
pub fn name_hash(name: &str) -> u64 {
    name.bytes().fold(0xCBF2_9CE4_8422_2325, |state, byte| {
        (state ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01B3)
    })
}

/// Returns the first `count` 64-bit words of a name's stream: splitmix64 seeded with the hash of the name.
pub fn words(name: &str, count: usize) -> Vec<u64> {
    stream(name, count).collect()
}

/// Returns `count` values in [-1, 1), evenly distributed: the upper 53 bits of each word.
pub fn unit(name: &str, count: usize) -> Vec<f64> {
    spread(name, count).collect()
}

fn stream(name: &str, count: usize) -> impl Iterator<Item = u64> {
    let mut random = Random::new(name_hash(name));
    (0..count).map(move |_| random.next())
}

fn spread(name: &str, count: usize) -> impl Iterator<Item = f64> {
    stream(name, count).map(|word| (word >> 11) as f64 * 2.0f64.powi(-52) - 1.0)
}

/// Name endings of tables of vectors.
const TABLES: [&str; 4] = ["pos_embed", "cls_token", "wte.weight", "wpe.weight"];

/// Returns the values of one floating-point entry of a network's state, of the shape `shape`.
///
/// Convolutions get the variance 1 / fan-in and fully connected layers a quarter of it. Normalisations stay
/// near the identity, with a positive variance. Tables of vectors (tokens, positions) get values below 1/2,
/// and a batch counter (`num_batches_tracked`) is zero.
pub fn state_value(name: &str, shape: &[i64]) -> Vec<f64> {
    let count = shape.iter().product::<i64>() as usize;
    let values = spread(name, count);
    if name.ends_with("num_batches_tracked") {
        vec![0.0; count]
    } else if TABLES.iter().any(|table| name.ends_with(table)) {
        values.map(|value| 0.5 * value).collect()
    } else if shape.len() > 1 {
        let fan_in = shape[1..].iter().product::<i64>() as f64;
        let scale = ((if shape.len() == 4 { 3.0 } else { 0.75 }) / fan_in).sqrt();
        values.map(|value| value * scale).collect()
    } else if name.ends_with("running_var") {
        values.map(|value| 1.0 + 0.5 * value).collect()
    } else if name.ends_with("weight") {
        values.map(|value| 0.75 + 0.25 * value).collect()
    } else {
        values.map(|value| 0.1 * value).collect()
    }
}

/// Returns input images, `count` x 3 x size x size, values in [-1.5, 1.5).
pub fn images(size: usize, count: usize) -> Vec<f32> {
    spread(&format!("images.{size}"), count * 3 * size * size).map(|value| (1.5 * value) as f32).collect()
}

/// Returns one class per image.
pub fn labels(size: usize, classes: u64, count: usize) -> Vec<i64> {
    stream(&format!("labels.{size}"), count).map(|word| (word % classes) as i64).collect()
}

/// Returns the gradient for the optimizers at one step.
///
/// Magnitudes vary over many powers of two with the index, and every eleventh element is zero, so that both
/// `eps` and the division by the second moment matter.
pub fn gradient(name: &str, step: usize, count: usize) -> Vec<f64> {
    spread(&format!("{name}.{step}"), count)
        .enumerate()
        .map(
            |(index, value)| {
                if index % 11 == 10 { 0.0 } else { value * 2.0f64.powi((index % 13) as i32 - 6) }
            },
        )
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hash_is_fnv_1a() {
        // Test vectors of the algorithm's authors.
        assert_eq!(name_hash(""), 0xcbf2_9ce4_8422_2325);
        assert_eq!(name_hash("a"), 0xaf63_dc4c_8601_ec8c);
        assert_eq!(name_hash("foobar"), 0x8594_4171_f739_67e8);
    }

    #[test]
    fn values_are_spread_over_the_interval() {
        let values = unit("spread", 10_000);
        assert!(values.iter().all(|value| (-1.0..1.0).contains(value)));
        let mean = values.iter().sum::<f64>() / 1e4;
        let variance = values.iter().map(|value| value * value).sum::<f64>() / 1e4;
        assert!(mean.abs() < 0.02 && (variance - 1.0 / 3.0).abs() < 0.01, "{mean} {variance}");
        assert!(spread("spread", 3).zip(spread("other", 3)).all(|(a, b)| a != b));
    }

    #[test]
    fn gradients_have_zeros_and_many_magnitudes() {
        let values = gradient("g", 0, 33);
        assert_eq!(values.iter().filter(|value| **value == 0.0).count(), 3);
        assert!(values[12].abs() <= 64.0 && values[13].abs() <= 2.0f64.powi(-6));
    }
}
