//! Long lists of plain values, in memory that the processes of a machine share.
//!
//! A list is written once. As JSON it is a reference: the place of the memory and the hash of the content. Another
//! process of the machine maps the same memory; [`attach`] gets the content where that is impossible.

use std::convert::Infallible;
use std::fmt;
use std::io::{self, BufWriter, Write};
use std::marker::PhantomData;
use std::ops::Deref;
use std::sync::Arc;

use bytemuck::{AnyBitPattern, NoUninit};
use dtrain_shared_memory::{MemoryError, Sealed};
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::Value;

/// The key of a reference's place, which differs between processes although the data is the same.
pub const PLACE: &str = "packed";

/// A list of plain values. Clones share it.
pub struct Packed<T> {
    memory: Arc<Sealed>,
    hash: blake3::Hash,
    of: PhantomData<fn() -> T>,
}

/// The JSON of a list.
#[derive(Serialize, Deserialize)]
struct Reference {
    packed: String,
    bytes: u64,
    hash: String,
}

impl<T: AnyBitPattern + NoUninit> Packed<T> {
    /// Writes a list.
    pub fn write(values: impl IntoIterator<Item = T>) -> Result<Self, MemoryError> {
        let mut hash = blake3::Hasher::new().finalize();
        let memory = Sealed::create(|out| {
            let mut out = Hashing { out, hasher: blake3::Hasher::new() };
            let mut buffer = BufWriter::with_capacity(1 << 16, &mut out);
            values.into_iter().try_for_each(|value| buffer.write_all(bytemuck::bytes_of(&value)))?;
            buffer.flush()?;
            drop(buffer);
            hash = out.hasher.finalize();
            Ok(*hash.as_bytes())
        })?;
        Ok(Self { memory: Arc::new(memory), hash, of: PhantomData })
    }

    /// Returns the values of the list for which `is_kept`; the same memory if it is true for all.
    pub(super) fn kept(&self, is_kept: impl Fn(usize) -> bool) -> Result<Self, MemoryError> {
        match (0..self.len()).all(&is_kept) {
            true => Ok(self.clone()),
            false => Self::write((0..self.len()).filter(|&at| is_kept(at)).map(|at| self[at])),
        }
    }
}

impl<T: AnyBitPattern> Deref for Packed<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        bytemuck::cast_slice(self.memory.bytes())
    }
}

impl<T> Clone for Packed<T> {
    fn clone(&self) -> Self {
        Self { memory: Arc::clone(&self.memory), hash: self.hash, of: PhantomData }
    }
}

impl<T> PartialEq for Packed<T> {
    fn eq(&self, other: &Self) -> bool {
        self.hash == other.hash
    }
}

impl<T> Eq for Packed<T> {}

impl<T> fmt::Debug for Packed<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Packed({} bytes)", self.memory.bytes().len())
    }
}

impl<T> Serialize for Packed<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let bytes = self.memory.bytes().len() as u64;
        Reference { packed: self.memory.path(), bytes, hash: self.hash.to_hex().to_string() }
            .serialize(serializer)
    }
}

impl<'de, T> Deserialize<'de> for Packed<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let reference = Reference::deserialize(deserializer)?;
        let hash = blake3::Hash::from_hex(&reference.hash).map_err(D::Error::custom)?;
        let memory = Sealed::open(&reference.packed, hash.as_bytes()).map_err(D::Error::custom)?;
        if memory.bytes().len() as u64 != reference.bytes
            || !reference.bytes.is_multiple_of(size_of::<T>() as u64)
        {
            return Err(D::Error::custom("a packed list of another length"));
        }
        Ok(Self { memory: Arc::new(memory), hash, of: PhantomData })
    }
}

/// A writer that hashes what it writes.
struct Hashing<'a> {
    out: &'a mut dyn Write,
    hasher: blake3::Hasher,
}

impl Write for Hashing<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.out.write(bytes)?;
        self.hasher.update(&bytes[..written]);
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}

/// Returns the bytes of a list, by its hash and length.
pub type Fetch<'a, E> = dyn FnMut(&str, u64) -> Result<Vec<u8>, E> + 'a;

/// Returns the lists of which `value` has references, and lets the references name this process's descriptors:
/// they are valid as long as the lists live. `fetch` returns the bytes of a list that cannot be mapped, by its hash
/// and length.
pub fn attach<E: From<MemoryError>>(
    value: &mut Value,
    fetch: &mut Fetch<'_, E>,
) -> Result<Vec<Packed<u8>>, E> {
    let mut held = Vec::new();
    visit::<E>(value, &mut |value| {
        let Ok(reference) = Reference::deserialize(&*value) else { return Ok(()) };
        let list = match Packed::<u8>::deserialize(&*value) {
            Ok(list) => list,
            Err(_) => Packed::write(fetch(&reference.hash, reference.bytes)?)?,
        };
        value[PLACE] = Value::String(list.memory.path());
        held.push(list);
        Ok(())
    })?;
    Ok(held)
}

impl Packed<u8> {
    /// Returns the hash of the content, which identifies a list.
    pub fn name(&self) -> String {
        self.hash.to_hex().to_string()
    }
}

/// Lets references to the content of these lists name their memory.
pub fn prefer(value: &mut Value, lists: &[Packed<u8>]) {
    let mut own = |value: &mut Value| {
        let named = Reference::deserialize(&*value).ok().map(|reference| reference.hash);
        if let Some(list) = lists.iter().find(|list| named.as_ref() == Some(&list.name())) {
            value[PLACE] = Value::String(list.memory.path());
        }
        Ok::<_, Infallible>(())
    };
    let Ok(()) = visit(value, &mut own);
}

fn visit<E>(value: &mut Value, act: &mut dyn FnMut(&mut Value) -> Result<(), E>) -> Result<(), E> {
    match value {
        Value::Object(fields) if fields.contains_key(PLACE) => act(value),
        Value::Object(fields) => fields.values_mut().try_for_each(|value| visit(value, act)),
        Value::Array(values) => values.iter_mut().try_for_each(|value| visit(value, act)),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    #[test]
    fn a_reference_is_small_and_names_the_content() {
        let list = Packed::write(0..100_000u32).unwrap();
        let told = serde_json::to_string(&list).unwrap();
        assert!(told.len() < 200, "{told}");
        let other: Packed<u32> = serde_json::from_str(&told).unwrap();
        assert_eq!((other.len(), other[99_999]), (100_000, 99_999));
        assert_eq!(other, list);
        assert_eq!(other.memory.bytes().as_ptr() as usize % 4096, 0);
        // Lists of the same content have the same hash.
        let again = serde_json::to_value(Packed::write(0..100_000u32).unwrap()).unwrap();
        assert_eq!(again["hash"], serde_json::to_value(&list).unwrap()["hash"]);
        assert_ne!(Packed::write(0..99_999u32).unwrap(), list);
        drop((list, other));
        assert!(serde_json::from_str::<Packed<u32>>(&told).is_err(), "the memory is gone");
    }

    #[test]
    fn lists_that_cannot_be_mapped_are_fetched() {
        let list = Packed::write([1.5f32, -2.0]).unwrap();
        let mut value = json!({"name": "x", "parts": [serde_json::to_value(&list).unwrap(), 7]});
        let known = value["parts"][0]["hash"].as_str().unwrap().to_owned();
        let never = &mut |_: &str, _| -> Result<Vec<u8>, MemoryError> { panic!("it can be mapped") };
        let held = attach(&mut value, never).unwrap();
        drop(list);
        let list: Packed<f32> = serde_json::from_value(value["parts"][0].clone()).unwrap();
        assert_eq!(*list, [1.5, -2.0]);
        value["parts"][0][PLACE] = json!("/nowhere");
        let mut preferred = value.clone();
        prefer(&mut preferred, &held);
        let list_again: Packed<f32> = serde_json::from_value(preferred["parts"][0].clone()).unwrap();
        assert_eq!((list_again, &preferred["name"]), (list.clone(), &json!("x")));
        let bytes = bytemuck::cast_slice::<f32, u8>(&list).to_vec();
        let fetched = attach(&mut value, &mut |name: &str, length| {
            assert_eq!((name, length), (&*known, 8));
            Ok::<_, MemoryError>(bytes.clone())
        });
        let fetched = fetched.unwrap();
        assert_eq!((fetched.len(), fetched[0].name()), (1, held[0].name()));
        assert_eq!(*serde_json::from_value::<Packed<f32>>(value["parts"][0].clone()).unwrap(), [1.5, -2.0]);
    }

    proptest! {
        #[test]
        fn values_are_kept_by_place(values in proptest::collection::vec(any::<u64>(), 0..40), kept in proptest::collection::vec(any::<bool>(), 40)) {
            let list = Packed::write(values.iter().copied()).unwrap();
            prop_assert_eq!(&*list, &values[..]);
            let some = list.kept(|at| kept[at]).unwrap();
            let expected: Vec<u64> = values.iter().enumerate().filter(|(at, _)| kept[*at]).map(|(_, value)| *value).collect();
            prop_assert_eq!(&*some, &expected[..]);
        }
    }
}
