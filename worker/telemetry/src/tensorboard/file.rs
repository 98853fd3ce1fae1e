//! Event files: a record is the length of its message, the message, and a checksum of each (TFRecord).

use std::fs::{self, File};
use std::io::{self, BufReader, BufWriter, Read, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use dtrain_common::host;
use prost::Message;

use super::message::Event;

/// TensorBoard reads every file that has this in its name.
const PREFIX: &str = "events.out.tfevents.";
/// What tells dtrain's files from others.
const SUFFIX: &str = ".dtrain";
/// A longer message is not dtrain's.
const LONGEST: u64 = 1 << 30;

/// An event file that is written.
pub(super) struct EventFile(BufWriter<File>);

impl EventFile {
    /// Creates a file, whose name sorts after those of earlier times. `now`: since 1970.
    pub(super) fn create(folder: &Path, now: Duration) -> io::Result<Self> {
        let (seconds, millis) = (now.as_secs(), now.subsec_millis());
        let (host, process) = (host::name(), std::process::id());
        let name = format!("{PREFIX}{seconds:010}.{millis:03}.{host}.{process}{SUFFIX}");
        File::create(folder.join(name)).map(BufWriter::new).map(Self)
    }

    pub(super) fn write(&mut self, event: &Event) -> io::Result<()> {
        let message = event.encode_to_vec();
        let length = (message.len() as u64).to_le_bytes();
        for part in [&length[..], &checksum(&length), &message, &checksum(&message)] {
            self.0.write_all(part)?;
        }
        Ok(())
    }

    /// Makes what was written visible to readers.
    pub(super) fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

/// Returns the checksum of a part of a record.
fn checksum(bytes: &[u8]) -> [u8; 4] {
    crc32c::crc32c(bytes).rotate_right(15).wrapping_add(0xa282_ead8).to_le_bytes()
}

/// Passes the events of a file to `each`, up to the first that is not whole.
pub(super) fn read(path: &Path, mut each: impl FnMut(Event)) -> io::Result<()> {
    let mut file = BufReader::new(File::open(path)?);
    while let Some(event) = next(&mut file) {
        each(event);
    }
    Ok(())
}

fn next(file: &mut impl Read) -> Option<Event> {
    let length: [u8; 8] = take(file)?;
    let bytes = u64::from_le_bytes(length);
    if take(file)? != checksum(&length) || bytes > LONGEST {
        return None;
    }
    let mut message = vec![0; bytes as usize];
    file.read_exact(&mut message).ok()?;
    (take(file)? == checksum(&message)).then(|| Event::decode(&message[..]).ok())?
}

fn take<const N: usize>(file: &mut impl Read) -> Option<[u8; N]> {
    let mut bytes = [0; N];
    file.read_exact(&mut bytes).ok().map(|()| bytes)
}

/// Returns dtrain's event files in a folder, the oldest first.
pub(super) fn files(folder: &Path) -> io::Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let name = entry.file_name();
        let name = name.to_string_lossy();
        if name.starts_with(PREFIX) && name.ends_with(SUFFIX) {
            found.push(entry.path());
        }
    }
    found.sort_unstable();
    Ok(found)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::super::message::What;
    use super::*;

    fn event(step: i64) -> Event {
        Event { wall_time: 1.5, step, what: Some(What::Version("brain.Event:2".to_owned())) }
    }

    #[test]
    fn events_are_read_up_to_the_first_damaged_byte() {
        // By TensorBoard: masked_crc32c(b"123456789").
        assert_eq!(checksum(b"123456789"), 0xc78a_b0e5_u32.to_le_bytes());
        let folder = tempfile::tempdir().unwrap();
        let mut file = EventFile::create(folder.path(), Duration::from_millis(1_795_000_000_007)).unwrap();
        (1..=3).for_each(|step| file.write(&event(step)).unwrap());
        file.flush().unwrap();
        fs::write(folder.path().join("events.out.tfevents.1.torch.0"), "other").unwrap();
        let found = files(folder.path()).unwrap();
        let [path] = &found[..] else { panic!("{found:?}") };
        let name = path.file_name().unwrap().to_str().unwrap();
        assert!(name.starts_with("events.out.tfevents.1795000000.007."), "{name}");
        let whole = fs::read(path).unwrap();
        let record = whole.len() / 3;
        let steps = |bytes: &[u8]| {
            fs::write(path, bytes).unwrap();
            let mut steps = Vec::new();
            read(path, |event| steps.push(event.step)).unwrap();
            steps
        };
        for length in 0..=whole.len() {
            let expected: Vec<i64> = (1..=(length / record) as i64).collect();
            assert_eq!(steps(&whole[..length]), expected, "{length} bytes");
        }
        for at in 0..record {
            let mut damaged = whole.clone();
            damaged[record + at] ^= 1;
            assert_eq!(steps(&damaged), [1], "byte {at}");
        }
    }
}
