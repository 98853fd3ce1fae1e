//! The keys and queues of a store and its waiting clients: the effect of each request, without sockets.

use super::request::ClientError;
use std::collections::{HashMap, HashSet, VecDeque};

/// The id of a connection.
pub(super) type Client = u64;

/// Bytes that keys, values and waits may take together.
const ROOM: usize = 512 << 20;
/// Approximate bytes of an entry besides its key and value.
const ENTRY: usize = 128;

#[derive(Debug, Default)]
pub(super) struct Table {
    values: HashMap<Vec<u8>, Vec<u8>>,
    queues: HashMap<Vec<u8>, VecDeque<Vec<u8>>>,
    /// The waiting clients, the longest wait first, with their missing keys.
    waiting: Vec<(Client, HashSet<Vec<u8>>)>,
    /// Approximate bytes of values, queues and waits.
    held: usize,
}

/// Requests that need memory fail with [`ClientError::Full`] at the limit.
impl Table {
    /// Sets a value, and returns the clients that waited for it.
    pub(super) fn set(&mut self, key: &[u8], value: &[u8]) -> Result<Vec<Client>, ClientError> {
        self.put(key, value.to_vec())?;
        Ok(self.wake(key))
    }

    /// Returns the value, empty for a missing key.
    pub(super) fn get(&self, key: &[u8]) -> &[u8] {
        self.values.get(key).map_or(&[], Vec::as_slice)
    }

    /// Sets a value if the present value is `expected`; a missing key has an empty value. Returns the value
    /// after that, or for a missing key the expected value, as PyTorch does.
    pub(super) fn compare_set<'a>(
        &'a mut self,
        key: &[u8],
        expected: &'a [u8],
        value: &[u8],
    ) -> Result<(&'a [u8], Vec<Client>), ClientError> {
        if !self.values.contains_key(key) && !expected.is_empty() {
            return Ok((expected, Vec::new()));
        }
        let woken = if self.get(key) == expected { self.set(key, value)? } else { Vec::new() };
        Ok((self.get(key), woken))
    }

    /// Adds to the number at a key (0 if missing), and returns the sum.
    pub(super) fn add(&mut self, key: &[u8], by: i64) -> Result<(i64, Vec<Client>), ClientError> {
        let sum = self.count(key, by)?;
        Ok((sum, self.wake(key)))
    }

    fn count(&mut self, key: &[u8], by: i64) -> Result<i64, ClientError> {
        let present = match self.values.get(key) {
            None => 0,
            Some(value) => leading_number(value).ok_or(ClientError::NotANumber)?,
        };
        let sum = present.wrapping_add(by);
        self.put(key, sum.to_string().into_bytes())?;
        Ok(sum)
    }

    pub(super) fn append(&mut self, key: &[u8], value: &[u8]) -> Result<Vec<Client>, ClientError> {
        let Some(present) = self.values.get_mut(key) else {
            return self.set(key, value);
        };
        take(&mut self.held, value.len())?;
        present.extend_from_slice(value);
        Ok(self.wake(key))
    }

    /// Deletes a key, and returns whether it existed.
    pub(super) fn delete(&mut self, key: &[u8]) -> bool {
        let removed = self.values.remove(key);
        self.held -= removed.as_ref().map_or(0, |value| size(key, value));
        removed.is_some()
    }

    /// Returns all keys, without those of queues.
    pub(super) fn keys(&self) -> impl ExactSizeIterator<Item = &[u8]> {
        self.values.keys().map(Vec::as_slice)
    }

    fn has(&self, key: &[u8]) -> bool {
        self.values.contains_key(key) || self.queue_length(key) > 0
    }

    /// Returns whether all keys exist; a queue's key exists while the queue is not empty.
    pub(super) fn check(&self, keys: &[&[u8]]) -> bool {
        keys.iter().all(|key| self.has(key))
    }

    /// Returns whether all keys exist. If not, the client waits for the missing keys instead of earlier ones.
    pub(super) fn wait(&mut self, client: Client, keys: &[&[u8]]) -> Result<bool, ClientError> {
        self.forget(client);
        let missing = keys.iter().filter(|key| !self.has(key));
        let missing: HashSet<Vec<u8>> = missing.map(|key| key.to_vec()).collect();
        let is_complete = missing.is_empty();
        if !is_complete {
            self.enlist(client, missing)?;
        }
        Ok(is_complete)
    }

    fn enlist(&mut self, client: Client, keys: HashSet<Vec<u8>>) -> Result<(), ClientError> {
        take(&mut self.held, waiting_size(&keys))?;
        self.waiting.push((client, keys));
        Ok(())
    }

    /// Ends the client's wait.
    pub(super) fn forget(&mut self, client: Client) {
        for (_, keys) in self.waiting.extract_if(.., |(other, _)| *other == client) {
            self.held -= waiting_size(&keys);
        }
    }

    /// Adds a value to a queue, and returns the client that gets it.
    pub(super) fn push(&mut self, key: &[u8], value: &[u8]) -> Result<Option<Client>, ClientError> {
        take(&mut self.held, size(key, value))?;
        let queue = self.queues.entry(key.to_vec()).or_default();
        queue.push_back(value.to_vec());
        let waits = |(_, keys): &mut (Client, HashSet<Vec<u8>>)| came(&mut self.held, keys, key);
        let first = self.waiting.iter_mut().position(waits);
        Ok(first.map(|place| self.waiting.remove(place).0))
    }

    /// Removes the first value of a queue. Returns the length before, and the value.
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

    /// Counts a client at a barrier of `world` clients. If it is the last, returns the clients that waited;
    /// else the client waits.
    pub(super) fn barrier(
        &mut self,
        client: Client,
        key: &[u8],
        world: i64,
    ) -> Result<Option<Vec<Client>>, ClientError> {
        if self.count(key, 1)? >= world {
            return Ok(Some(self.wake(key)));
        }
        self.forget(client);
        self.enlist(client, HashSet::from([key.to_vec()]))?;
        Ok(None)
    }

    fn put(&mut self, key: &[u8], value: Vec<u8>) -> Result<(), ClientError> {
        let before = self.values.get(key).map_or(0, |present| size(key, present));
        take(&mut self.held, size(key, &value))?;
        self.held -= before;
        self.values.insert(key.to_vec(), value);
        Ok(())
    }

    /// Returns the clients for which this key was the last missing one.
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

/// Removes this key from `keys`, and returns whether it was the last that the client waited for.
fn came(held: &mut usize, keys: &mut HashSet<Vec<u8>>, key: &[u8]) -> bool {
    let is_awaited = keys.remove(key);
    if is_awaited {
        *held -= size(key, &[]);
    }
    is_awaited && keys.is_empty()
}

fn take(held: &mut usize, more: usize) -> Result<(), ClientError> {
    if *held + more > ROOM {
        return Err(ClientError::Full);
    }
    *held += more;
    Ok(())
}

/// Parses the number at the start of a text, as C does.
fn leading_number(text: &[u8]) -> Option<i64> {
    let text = text.trim_ascii_start();
    let sign = usize::from(matches!(text, [b'+' | b'-', ..]));
    let end = sign + text[sign..].iter().take_while(|byte| byte.is_ascii_digit()).count();
    std::str::from_utf8(&text[..end]).ok()?.parse().ok()
}

#[cfg(test)]
mod tests;
