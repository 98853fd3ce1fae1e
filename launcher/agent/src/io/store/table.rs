//! The keys of a store, its queues, and the clients that wait for them: what each request does, without a socket.

use super::request::Refusal;
use std::collections::{HashMap, HashSet, VecDeque};

/// A connection.
pub(super) type Client = u64;

/// Bytes that keys, values and waits may take together.
const ROOM: usize = 512 << 20;
/// Bytes of an entry besides its key and value, about.
const ENTRY: usize = 128;

#[derive(Debug, Default)]
pub(super) struct Table {
    values: HashMap<Vec<u8>, Vec<u8>>,
    queues: HashMap<Vec<u8>, VecDeque<Vec<u8>>>,
    /// Who waits, the longest first, and the keys that are still missing.
    waiting: Vec<(Client, HashSet<Vec<u8>>)>,
    /// Bytes of values, queues and waits, about.
    held: usize,
}

/// Whatever takes room fails with [`Refusal::Full`] where there is none.
impl Table {
    /// Sets a value, and returns the clients that waited for it.
    pub(super) fn set(&mut self, key: &[u8], value: &[u8]) -> Result<Vec<Client>, Refusal> {
        self.put(key, value.to_vec())?;
        Ok(self.wake(key))
    }

    /// Empty for a key that is missing.
    pub(super) fn get(&self, key: &[u8]) -> &[u8] {
        self.values.get(key).map_or(&[], Vec::as_slice)
    }

    /// Sets a value if the present one is `expected`; a missing key is expected as an empty value. Returns
    /// the value that is there then, or for a missing key the expected one, as PyTorch does.
    pub(super) fn compare_set<'a>(
        &'a mut self,
        key: &[u8],
        expected: &'a [u8],
        value: &[u8],
    ) -> Result<(&'a [u8], Vec<Client>), Refusal> {
        if !self.values.contains_key(key) && !expected.is_empty() {
            return Ok((expected, Vec::new()));
        }
        let woken = if self.get(key) == expected { self.set(key, value)? } else { Vec::new() };
        Ok((self.get(key), woken))
    }

    /// Adds to the number at a key, 0 where it is missing, and returns the sum.
    pub(super) fn add(&mut self, key: &[u8], by: i64) -> Result<(i64, Vec<Client>), Refusal> {
        let sum = self.count(key, by)?;
        Ok((sum, self.wake(key)))
    }

    fn count(&mut self, key: &[u8], by: i64) -> Result<i64, Refusal> {
        let present = match self.values.get(key) {
            None => 0,
            Some(value) => leading_number(value).ok_or(Refusal::NotANumber)?,
        };
        let sum = present.wrapping_add(by);
        self.put(key, sum.to_string().into_bytes())?;
        Ok(sum)
    }

    pub(super) fn append(&mut self, key: &[u8], value: &[u8]) -> Result<Vec<Client>, Refusal> {
        let Some(present) = self.values.get_mut(key) else {
            return self.set(key, value);
        };
        take(&mut self.held, value.len())?;
        present.extend_from_slice(value);
        Ok(self.wake(key))
    }

    /// Whether the key was there.
    pub(super) fn delete(&mut self, key: &[u8]) -> bool {
        let removed = self.values.remove(key);
        self.held -= removed.as_ref().map_or(0, |value| size(key, value));
        removed.is_some()
    }

    /// All keys, without those of queues.
    pub(super) fn keys(&self) -> impl ExactSizeIterator<Item = &[u8]> {
        self.values.keys().map(Vec::as_slice)
    }

    fn has(&self, key: &[u8]) -> bool {
        self.values.contains_key(key) || self.queue_length(key) > 0
    }

    /// Whether all keys are there; a queue's key is while something is in it.
    pub(super) fn check(&self, keys: &[&[u8]]) -> bool {
        keys.iter().all(|key| self.has(key))
    }

    /// Whether all keys are there. Otherwise the client waits for the others, and no more for earlier ones.
    pub(super) fn wait(&mut self, client: Client, keys: &[&[u8]]) -> Result<bool, Refusal> {
        self.forget(client);
        let missing = keys.iter().filter(|key| !self.has(key));
        let missing: HashSet<Vec<u8>> = missing.map(|key| key.to_vec()).collect();
        let is_complete = missing.is_empty();
        if !is_complete {
            self.enlist(client, missing)?;
        }
        Ok(is_complete)
    }

    fn enlist(&mut self, client: Client, keys: HashSet<Vec<u8>>) -> Result<(), Refusal> {
        take(&mut self.held, waiting_size(&keys))?;
        self.waiting.push((client, keys));
        Ok(())
    }

    /// The client waits no more.
    pub(super) fn forget(&mut self, client: Client) {
        for (_, keys) in self.waiting.extract_if(.., |(other, _)| *other == client) {
            self.held -= waiting_size(&keys);
        }
    }

    /// Adds a value to a queue, and returns the one client that is to take it.
    pub(super) fn push(&mut self, key: &[u8], value: &[u8]) -> Result<Option<Client>, Refusal> {
        take(&mut self.held, size(key, value))?;
        let queue = self.queues.entry(key.to_vec()).or_default();
        queue.push_back(value.to_vec());
        let waits = |(_, keys): &mut (Client, HashSet<Vec<u8>>)| came(&mut self.held, keys, key);
        let first = self.waiting.iter_mut().position(waits);
        Ok(first.map(|place| self.waiting.remove(place).0))
    }

    /// How long a queue was, and its first value.
    pub(super) fn pop(&mut self, key: &[u8]) -> (usize, Option<Vec<u8>>) {
        let Some(queue) = self.queues.get_mut(key) else {
            return (0, None);
        };
        let length = queue.len();
        let value = queue.pop_front();
        if queue.is_empty() {
            self.queues.remove(key);
        }
        self.held -= value.as_ref().map_or(0, |value| size(key, value));
        (length, value)
    }

    pub(super) fn queue_length(&self, key: &[u8]) -> usize {
        self.queues.get(key).map_or(0, VecDeque::len)
    }

    /// Counts a client at a barrier of `world`. Returns the clients that waited there if it is the last; else
    /// it waits.
    pub(super) fn barrier(
        &mut self,
        client: Client,
        key: &[u8],
        world: i64,
    ) -> Result<Option<Vec<Client>>, Refusal> {
        if self.count(key, 1)? >= world {
            return Ok(Some(self.wake(key)));
        }
        self.forget(client);
        self.enlist(client, HashSet::from([key.to_vec()]))?;
        Ok(None)
    }

    fn put(&mut self, key: &[u8], value: Vec<u8>) -> Result<(), Refusal> {
        let before = self.values.get(key).map_or(0, |present| size(key, present));
        take(&mut self.held, size(key, &value))?;
        self.held -= before;
        self.values.insert(key.to_vec(), value);
        Ok(())
    }

    /// The key is there: returns the clients that wait for no other.
    fn wake(&mut self, key: &[u8]) -> Vec<Client> {
        let complete = |(_, keys): &mut (Client, HashSet<Vec<u8>>)| came(&mut self.held, keys, key);
        let woken = self.waiting.extract_if(.., complete);
        woken.map(|(client, _)| client).collect()
    }
}

fn size(key: &[u8], value: &[u8]) -> usize {
    key.len() + value.len() + ENTRY
}

fn waiting_size(keys: &HashSet<Vec<u8>>) -> usize {
    keys.iter().map(|key| size(key, &[])).sum()
}

/// Whether a client that waits for `keys` waits for none any more, now that this one is there.
fn came(held: &mut usize, keys: &mut HashSet<Vec<u8>>, key: &[u8]) -> bool {
    let is_awaited = keys.remove(key);
    if is_awaited {
        *held -= size(key, &[]);
    }
    is_awaited && keys.is_empty()
}

fn take(held: &mut usize, more: usize) -> Result<(), Refusal> {
    if *held + more > ROOM {
        return Err(Refusal::Full);
    }
    *held += more;
    Ok(())
}

/// The number at the start of a text, as C reads it.
fn leading_number(text: &[u8]) -> Option<i64> {
    let text = text.trim_ascii_start();
    let sign = usize::from(matches!(text, [b'+' | b'-', ..]));
    let end = sign + text[sign..].iter().take_while(|byte| byte.is_ascii_digit()).count();
    std::str::from_utf8(&text[..end]).ok()?.parse().ok()
}

#[cfg(test)]
mod tests;
