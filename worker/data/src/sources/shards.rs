//! Tar archives of samples, as WebDataset writes them: a sample is the members with one key.
//!
//! The key of `a/0001.seg.png` is `a/0001`, and its ending `seg.png`. Samples are in the order of the archives, and in an archive in
//! the order in which their keys come first.

use std::collections::{BTreeSet, HashMap};
use std::path::PathBuf;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use dtrain_recipe::{ColumnKind, FieldColumns};
use serde_json::Value;

use super::super::error::DataError;
use super::super::pack_problem::PackProblem;
use super::super::paths::Listing;
use super::super::regular::First;
use super::super::samples::{Files, Samples};
use super::super::stored::{Part, Parts, Stored};
use super::Request;
use super::json_lines;
use super::packs::{self, Pack};
use super::tar_index::{Member, TarIndex};

/// The longest text of a class or a number, or JSON that has them.
const LONGEST: u64 = 1 << 20;

pub(super) fn list(request: &Request<'_>) -> Result<Samples, DataError> {
    let names = packs::files(request.root, request.set, "tar")?;
    let shards = shards(request, &names)?;
    packs::samples(&Shards { request, shards }, request)
}

/// The samples of all archives.
struct Shards<'a> {
    request: &'a Request<'a>,
    shards: Vec<Shard>,
}

/// An archive.
struct Shard {
    /// Its path below the folder of the data.
    name: String,
    members: Vec<Member>,
    samples: Vec<Keyed>,
}

/// A sample: a key, and its members by ending.
struct Keyed {
    key: String,
    /// Endings in lower case, and the number of the member.
    members: Vec<(String, u32)>,
}

/// Reads the indexes of the archives, several at once.
fn shards(request: &Request<'_>, names: &[String]) -> Result<Vec<Shard>, DataError> {
    /// Archives between two reports.
    const REPORT_EVERY: usize = 100;
    let (next, done) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let found = Mutex::new(Vec::with_capacity(names.len()));
    let work = || {
        while let Some(name) = names.get(next.fetch_add(1, Ordering::Relaxed)) {
            let shard = Shard::open(request, name);
            let is_bad = shard.is_err();
            found.lock().unwrap_or_else(|error| error.into_inner()).push((name, shard));
            if is_bad {
                next.store(names.len(), Ordering::Relaxed);
            }
            let done = done.fetch_add(1, Ordering::Relaxed) + 1;
            if done.is_multiple_of(REPORT_EVERY) {
                tracing::info!("indexed {done} of {} archives", names.len());
            }
        }
    };
    let threads = thread::available_parallelism().map_or(1, usize::from).min(names.len());
    thread::scope(|scope| {
        // This thread works too, also if no other can be started.
        for _ in 1..threads {
            let _ = thread::Builder::new().name("index".to_owned()).spawn_scoped(scope, work);
        }
        work();
    });
    let mut found = found.into_inner().unwrap_or_else(|error| error.into_inner());
    let order: HashMap<&String, usize> = names.iter().zip(0..).collect();
    found.sort_by_key(|(name, _)| order[name]);
    found.into_iter().map(|(_, shard)| shard).collect()
}

impl Shard {
    fn open(request: &Request<'_>, name: &str) -> Result<Self, DataError> {
        let path = request.root.join(name);
        let members = TarIndex::of(&path)?.members;
        let samples = keyed(&members).map_err(|problem| DataError::pack(path, problem))?;
        Ok(Self { name: name.to_owned(), members, samples })
    }
}

/// Puts the members with one key together. Ignores members that WebDataset ignores, and hidden ones.
fn keyed(members: &[Member]) -> Result<Vec<Keyed>, PackProblem> {
    let mut samples: Vec<Keyed> = Vec::new();
    let mut places: HashMap<&str, usize> = HashMap::new();
    for (number, member) in (0u32..).zip(members) {
        let file = member.name.rsplit_once('/').map_or(member.name.as_str(), |(_, file)| file);
        let Some(dot) = file.find('.').filter(|dot| *dot > 0) else { continue };
        let is_note = member
            .name
            .split('/')
            .any(|part| part.len() > 4 && part.starts_with("__") && part.ends_with("__"));
        if is_note {
            continue;
        }
        let key = &member.name[..member.name.len() - file.len() + dot];
        let ending = file[dot + 1..].to_ascii_lowercase();
        let place = *places.entry(key).or_insert_with(|| {
            samples.push(Keyed { key: key.to_owned(), members: Vec::new() });
            samples.len() - 1
        });
        let sample = &mut samples[place];
        if sample.members.iter().any(|(known, _)| *known == ending) {
            return Err(PackProblem::Twice { key: key.to_owned(), ending });
        }
        sample.members.push((ending, number));
    }
    if samples.is_empty() { Err(PackProblem::NoSamples) } else { Ok(samples) }
}

impl Shards<'_> {
    fn problem(&self, shard: &Shard, problem: PackProblem) -> DataError {
        DataError::pack(self.request.root.join(&shard.name), problem)
    }

    /// Returns the member of each sample for a column: the one with any of the column's endings.
    fn members(&self, column: &str) -> Result<Vec<(&Shard, &Member)>, DataError> {
        let endings: Vec<String> = column.split(';').map(str::to_ascii_lowercase).collect();
        let all =
            || self.shards.iter().flat_map(|shard| shard.samples.iter().map(move |sample| (shard, sample)));
        let of = |sample: &Keyed| {
            let found = sample.members.iter().filter(|(ending, _)| endings.contains(ending));
            found.cloned().collect::<Vec<_>>()
        };
        if all().all(|(_, sample)| of(sample).is_empty()) {
            let there: BTreeSet<_> =
                all().flat_map(|(_, sample)| &sample.members).map(|(ending, _)| ending.clone()).collect();
            let field =
                self.request.fields.iter().find(|field| field.columns.iter().any(|known| known == column));
            let kind = field.map_or("image", |field| field.kind.as_str());
            let field = field.map_or_else(|| "image".to_owned(), |field| field.field.clone());
            let (ending, found) = (column.to_owned(), there.into_iter().collect());
            let place = self.request.root.join(self.request.set);
            return Err(DataError::pack(place, PackProblem::NoEnding { ending, field, kind, found }));
        }
        let mut members = Vec::new();
        for shard in &self.shards {
            let mut lonely = Vec::new();
            for sample in &shard.samples {
                match of(sample).as_slice() {
                    [(_, number)] => members.push((shard, &shard.members[*number as usize])),
                    [] => lonely.push(sample.key.clone()),
                    several => {
                        let found = several.iter().map(|(ending, _)| ending.clone()).collect();
                        let (key, endings) = (sample.key.clone(), column.to_owned());
                        return Err(self.problem(shard, PackProblem::Several { key, endings, found }));
                    }
                }
            }
            if !lonely.is_empty() {
                let (ending, keys) = (column.to_owned(), lonely);
                return Err(self.problem(shard, PackProblem::Lonely { ending, keys }));
            }
        }
        Ok(members)
    }

    /// Returns the text of a member.
    fn text(&self, shard: &Shard, member: &Member) -> Result<String, DataError> {
        if let Some(text) = &member.text {
            return Ok(text.clone());
        }
        let name = || member.name.clone();
        if member.length > LONGEST {
            let length = format!("{} bytes", member.length);
            return Err(self.problem(shard, PackProblem::LongText(name(), length)));
        }
        let part = Part::Range { start: member.start, length: member.length };
        let stored = Stored::new(self.request.root.join(&shard.name), &member.name, part);
        let read =
            stored.decode(First::Whole, &mut Vec::new(), |bytes| Ok::<_, std::io::Error>(bytes.to_vec()));
        let bytes = read.map_err(|error| self.problem(shard, PackProblem::Unreadable(error)))?;
        String::from_utf8(bytes).map_err(|_| self.problem(shard, PackProblem::NotText(name())))
    }
}

impl Pack for Shards<'_> {
    fn count(&self) -> usize {
        self.shards.iter().map(|shard| shard.samples.len()).sum()
    }

    fn files(&self, column: &str) -> Result<Files, DataError> {
        let members = self.members(column)?;
        let mut paths = Listing::default();
        let numbers: HashMap<&str, u32> =
            self.shards.iter().map(|shard| (shard.name.as_str(), paths.folder(&shard.name))).collect();
        members.iter().for_each(|(shard, member)| paths.add_in(numbers[shard.name.as_str()], &member.name));
        let parts =
            members.iter().map(|(_, member)| Part::Range { start: member.start, length: member.length });
        Ok(Files { parts: Some(Parts::write(parts)?), ..Files::new("", paths.pack()?) })
    }

    fn texts(&self, field: &FieldColumns, column: &str) -> Result<Vec<String>, DataError> {
        // Keys of JSON follow its ending: `json.label.name`.
        let (ending, keys) = match column.split_once("json.") {
            Some((before, keys)) if before.is_empty() || before.ends_with('.') => {
                (format!("{before}json"), Some(keys))
            }
            _ => (column.to_owned(), None),
        };
        let members = self.members(&ending)?;
        let text = |(shard, member): (&Shard, &Member)| {
            let text = self.text(shard, member)?;
            match keys {
                None => Ok(text.trim().to_owned()),
                Some(keys) => value_of(&text, keys, &member.name, field.kind)
                    .map_err(|problem| self.problem(shard, problem)),
            }
        };
        members.into_iter().map(text).collect()
    }

    fn place(&self, mut sample: usize) -> (PathBuf, String) {
        for shard in &self.shards {
            if let Some(found) = shard.samples.get(sample) {
                return (self.request.root.join(&shard.name), found.key.clone());
            }
            sample -= shard.samples.len();
        }
        (self.request.root.to_owned(), String::new())
    }

    fn class_names(&self, _: &str) -> Option<Vec<String>> {
        None
    }
}

/// Returns the text or number of `keys`, with dots between, in JSON; of a list of classes their names with `|` between them.
fn value_of(text: &str, keys: &str, member: &str, kind: ColumnKind) -> Result<String, PackProblem> {
    let whole: Value = serde_json::from_str(text)
        .map_err(|error| PackProblem::NotJson(member.to_owned(), error.to_string()))?;
    let found = keys.split('.').try_fold(&whole, |value, key| value.get(key));
    let plain = |value: &Value| match value {
        Value::String(text) => Some(text.clone()),
        Value::Number(number) => Some(number.to_string()),
        Value::Bool(is_so) => Some(u8::from(*is_so).to_string()),
        _ => None,
    };
    let written = match found {
        // Messages stay JSON.
        Some(chat) if kind == ColumnKind::Chat && !chat.is_string() => {
            Some(json_lines::ordered(text, keys).unwrap_or_else(|| chat.to_string()))
        }
        Some(Value::Array(values)) if kind != ColumnKind::Classes && values.len() != 1 => {
            let (member, key, count) = (member.to_owned(), keys.to_owned(), values.len());
            return Err(PackProblem::ManyValues { member, key, count, kind: kind.as_str() });
        }
        Some(Value::Array(values)) => {
            let texts = values.iter().map(plain).collect::<Option<Vec<_>>>();
            let bar = texts.iter().flatten().find(|text| text.contains('|'));
            if let (Some(text), ColumnKind::Classes) = (bar, kind) {
                return Err(PackProblem::Bar(member.to_owned(), text.clone(), keys.to_owned()));
            }
            texts.map(|texts| texts.join("|"))
        }
        other => other.and_then(plain),
    };
    written.ok_or_else(|| {
        let keys_of = whole.as_object().map(|all| all.keys().cloned().collect());
        PackProblem::NoKey {
            member: member.to_owned(),
            key: keys.to_owned(),
            keys: keys_of.unwrap_or_default(),
        }
    })
}

#[cfg(test)]
pub(crate) mod tests;
