//! Metrics in JSON, which has no NaN and no infinity: they are written as `null` and read back as NaN.

use std::collections::BTreeMap;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

pub(crate) fn serialize<S: Serializer>(map: &BTreeMap<String, f64>, to: S) -> Result<S::Ok, S::Error> {
    map.iter()
        .map(|(name, value)| (name, value.is_finite().then_some(*value)))
        .collect::<BTreeMap<_, _>>()
        .serialize(to)
}

pub(crate) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<BTreeMap<String, f64>, D::Error> {
    let map = BTreeMap::<String, Option<f64>>::deserialize(from)?;
    Ok(map.into_iter().map(|(name, value)| (name, value.unwrap_or(f64::NAN))).collect())
}
