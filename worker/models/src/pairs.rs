//! Tables of JSON as pairs in the order of the file, also of equal names.

use std::fmt;
use std::marker::PhantomData;

use serde::de::{Deserialize, Deserializer, MapAccess, Visitor};

/// Reads a table. `expected` are the words for it in an error.
pub(super) fn pairs<'de, D: Deserializer<'de>, T: Deserialize<'de>>(
    deserializer: D,
    expected: &'static str,
) -> Result<Vec<(String, T)>, D::Error> {
    struct Pairs<T>(&'static str, PhantomData<T>);
    impl<'de, T: Deserialize<'de>> Visitor<'de> for Pairs<T> {
        type Value = Vec<(String, T)>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str(self.0)
        }

        fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
            let mut found = Vec::new();
            while let Some(pair) = map.next_entry()? {
                found.push(pair);
            }
            Ok(found)
        }
    }
    deserializer.deserialize_map(Pairs(expected, PhantomData))
}
