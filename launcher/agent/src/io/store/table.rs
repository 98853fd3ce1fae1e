//! The keys of a store, its queues, and the clients that wait for them: what each request does, without a socket.

use super::request::Refusal;
use std::collections::{HashMap, HashSet, VecDeque};

/// A connection.
pub(super) type Client = u64;

/// What keys, values and waits may take together.
const ROOM: usize = 512 << 20;
/// What an entry takes besides its bytes, about.
const ENTRY: usize = 128;

/// All that a store holds.
#[derive(Debug, Default)]
pub(super) struct Table {
    values: HashMap<Vec<u8>, Vec<u8>>,
    queues: HashMap<Vec<u8>, VecDeque<Vec<u8>>>,
    /// Who waits for a key, the longest first.
    waiters: HashMap<Vec<u8>, Vec<Client>>,
    /// The keys that a client still waits for.
    awaited: HashMap<Client, HashSet<Vec<u8>>>,
    /// Bytes, about.
    held: usize,
}

impl Table {
    /// Sets a value, and answers who has waited for it.
    ///
    /// # Errors
    /// There is no room, as for all others that take some.
    pub(super) fn set(&mut self, key: &[u8], value: &[u8]) -> Result<Vec<Client>, Refusal> {
        self.put(key, value.to_vec())?;
        Ok(self.wake(key))
    }

    /// Of a key that is not there an empty value.
    pub(super) fn get(&self, key: &[u8]) -> &[u8] {
        self.values.get(key).map_or(&[], Vec::as_slice)
    }

    /// Sets a value where the present one is `expected`; a key that is not there is expected as an empty value. Answers the value
    /// that is there then, and of a key that is not there what was expected, as PyTorch does.
    pub(super) fn compare_set<'a>(
        &'a mut self,
        key: &[u8],
        expected: &'a [u8],
        value: &[u8],
    ) -> Result<(&'a [u8], Vec<Client>), Refusal> {
        let present = self.values.get(key).map(Vec::as_slice);
        if present.is_none() && !expected.is_empty() {
            return Ok((expected, Vec::new()));
        }
        let woken = match present.unwrap_or_default() == expected {
            true => self.set(key, value)?,
            false => Vec::new(),
        };
        Ok((self.get(key), woken))
    }

    /// Adds to the number at a key, and answers the sum. A key that is not there is 0.
    ///
    /// # Errors
    /// The value is no number.
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
        match self.values.get_mut(key) {
            None => return self.set(key, value),
            Some(present) => {
                take(&mut self.held, value.len())?;
                present.extend_from_slice(value);
            }
        }
        Ok(self.wake(key))
    }

    /// Whether the key was there.
    pub(super) fn delete(&mut self, key: &[u8]) -> bool {
        let removed = self.values.remove(key);
        if let Some(value) = &removed {
            self.held -= size(key, value);
        }
        removed.is_some()
    }

    /// All keys, without those of queues.
    pub(super) fn keys(&self) -> impl ExactSizeIterator<Item = &[u8]> {
        self.values.keys().map(Vec::as_slice)
    }

    fn has(&self, key: &[u8]) -> bool {
        self.values.contains_key(key) || self.queue_length(key) > 0
    }

    /// Whether all keys are there; a key of a queue is while something is in it.
    pub(super) fn check(&self, keys: &[&[u8]]) -> bool {
        keys.iter().all(|key| self.has(key))
    }

    /// Whether all keys are there. Otherwise the client is among those who have waited once the last has come. What it has waited for
    /// before is forgotten.
    pub(super) fn wait(&mut self, client: Client, keys: &[&[u8]]) -> Result<bool, Refusal> {
        self.forget(client);
        let missing: HashSet<Vec<u8>> = keys
            .iter()
            .filter(|key| !self.has(key))
            .map(|key| key.to_vec())
            .collect();
        if missing.is_empty() {
            return Ok(true);
        }
        self.enlist(client, missing)?;
        Ok(false)
    }

    fn enlist(&mut self, client: Client, keys: HashSet<Vec<u8>>) -> Result<(), Refusal> {
        take(&mut self.held, waiting_size(&keys))?;
        for key in &keys {
            self.waiters.entry(key.clone()).or_default().push(client);
        }
        self.awaited.insert(client, keys);
        Ok(())
    }

    /// The client waits for nothing any more.
    pub(super) fn forget(&mut self, client: Client) {
        let Some(keys) = self.awaited.remove(&client) else {
            return;
        };
        self.held -= waiting_size(&keys);
        for key in keys {
            self.unlist(client, &key);
        }
    }

    fn unlist(&mut self, client: Client, key: &[u8]) {
        if let Some(clients) = self.waiters.get_mut(key) {
            clients.retain(|other| *other != client);
            if clients.is_empty() {
                self.waiters.remove(key);
            }
        }
    }

    /// Puts a value at the end of a queue, and answers the one client that is to take it.
    pub(super) fn push(&mut self, key: &[u8], value: &[u8]) -> Result<Option<Client>, Refusal> {
        take(&mut self.held, size(key, value))?;
        self.queues
            .entry(key.to_vec())
            .or_default()
            .push_back(value.to_vec());
        let waiting = self.waiters.get(key).cloned().unwrap_or_default();
        Ok(waiting.into_iter().find(|client| self.came(*client, key)))
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
        if let Some(value) = &value {
            self.held -= size(key, value);
        }
        (length, value)
    }

    pub(super) fn queue_length(&self, key: &[u8]) -> usize {
        self.queues.get(key).map_or(0, VecDeque::len)
    }

    /// Counts a client at a barrier of `world`. Where it is the last, answers who has waited there; else it waits.
    ///
    /// # Errors
    /// The value at the key is no number.
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
        match self.values.get_mut(key) {
            Some(present) => *present = value,
            None => drop(self.values.insert(key.to_vec(), value)),
        }
        Ok(())
    }

    /// The key is there: those whose last one it was.
    fn wake(&mut self, key: &[u8]) -> Vec<Client> {
        let waiting = self.waiters.get(key).cloned().unwrap_or_default();
        waiting
            .into_iter()
            .filter(|client| self.came(*client, key))
            .collect()
    }

    /// Whether the client waits for nothing any more now that this key has come.
    fn came(&mut self, client: Client, key: &[u8]) -> bool {
        let is_last = self.awaited.get(&client).is_some_and(|keys| keys.len() == 1);
        if is_last {
            self.forget(client);
            return true;
        }
        if let Some(keys) = self.awaited.get_mut(&client) {
            keys.remove(key);
            self.held -= 2 * key.len() + ENTRY;
        }
        self.unlist(client, key);
        false
    }
}

fn size(key: &[u8], value: &[u8]) -> usize {
    key.len() + value.len() + ENTRY
}

/// Each key is in both directions.
fn waiting_size(keys: &HashSet<Vec<u8>>) -> usize {
    keys.iter().map(|key| 2 * key.len() + ENTRY).sum()
}

fn take(held: &mut usize, more: usize) -> Result<(), Refusal> {
    if *held + more > ROOM {
        return Err(Refusal::Full);
    }
    *held += more;
    Ok(())
}

/// The number with which a text begins, as C reads it.
fn leading_number(text: &[u8]) -> Option<i64> {
    let text = text.trim_ascii_start();
    let sign = usize::from(matches!(text, [b'+' | b'-', ..]));
    let digits = text[sign..]
        .iter()
        .take_while(|byte| byte.is_ascii_digit())
        .count();
    std::str::from_utf8(&text[..sign + digits]).ok()?.parse().ok()
}

#[cfg(test)]
mod tests;
