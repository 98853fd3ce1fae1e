//! Samples with the same content: in one set, in several sets, and with different classes.

use std::collections::HashMap;
use std::sync::Mutex;
use std::sync::PoisonError;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use dtrain_data::{CheckReport, Samples};
use serde::Serialize;

/// Pairs that are named; further ones are only counted.
const NAMED: usize = 3;

/// Samples whose images have the same bytes.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Duplicates {
    /// Samples of a set that repeat an earlier one of it.
    pub within: Vec<Repeated>,
    /// Samples of a set whose content is also in an earlier set.
    pub across: Vec<Repeated>,
    /// Samples whose class differs from that of the first sample of the same content.
    pub conflicts: Conflicts,
}

/// Samples of one set that repeat those of the same set or of another.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Repeated {
    pub set: String,
    /// The set of the samples that they repeat.
    pub of: String,
    pub samples: usize,
    /// The first pairs: a sample, and the one that it repeats.
    pub first: Vec<(String, String)>,
}

/// Samples of the same content and different classes.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Conflicts {
    pub samples: usize,
    /// The first pairs of samples, each with its class.
    pub first: Vec<[(String, String); 2]>,
}

/// A sample, by its set and its number there.
type Member = (usize, u32);

impl Duplicates {
    /// Finds the samples of the same content. Reads the files whose beginnings agree with another's, in `threads` threads.
    pub fn find(
        sets: &[(&Samples, &CheckReport)],
        threads: usize,
        progress: &mut dyn FnMut(usize, usize),
    ) -> Self {
        let suspects = suspects(sets);
        let contents = contents(sets, &suspects, threads, progress);
        let mut first_of: HashMap<[u8; 32], Vec<Member>> = HashMap::new();
        let mut found = Self::default();
        for (&member, content) in suspects.iter().zip(contents) {
            let Some(content) = content else { continue };
            let before = first_of.entry(content).or_default();
            // The first of each set: it is repeated.
            let earlier = before.iter().find(|(set, _)| *set != member.0);
            if let Some(&earlier) = earlier {
                repeat(&mut found.across, sets, member, earlier);
            }
            match before.iter().find(|(set, _)| *set == member.0) {
                Some(&same) => repeat(&mut found.within, sets, member, same),
                None => before.push(member),
            }
            if let Some(&first) = before.first().filter(|first| **first != member) {
                found.conflicts.add(sets, member, first);
            }
        }
        found
    }
}

/// Returns the usable samples whose beginning agrees with another's, by set and number.
fn suspects(sets: &[(&Samples, &CheckReport)]) -> Vec<Member> {
    let mut all: Vec<(u64, Member)> = Vec::new();
    for (set, (_, report)) in sets.iter().enumerate() {
        let is_bad =
            |sample: u32| report.bad.binary_search_by_key(&(sample as usize), |bad| bad.index).is_ok();
        let usable = report.tally.beginnings.iter().filter(|(_, sample)| !is_bad(*sample));
        all.extend(usable.map(|&(key, sample)| (key, (set, sample))));
    }
    all.sort_unstable();
    let groups = all.chunk_by(|a, b| a.0 == b.0).filter(|group| group.len() > 1);
    let mut suspects: Vec<Member> = groups.flatten().map(|(_, member)| *member).collect();
    suspects.sort_unstable();
    suspects
}

/// Returns the hash of each sample's content; None if it can no longer be read.
fn contents(
    sets: &[(&Samples, &CheckReport)],
    members: &[Member],
    threads: usize,
    progress: &mut dyn FnMut(usize, usize),
) -> Vec<Option<[u8; 32]>> {
    /// Samples between two reports.
    const PIECE: usize = 4096;
    let mut all = Vec::with_capacity(members.len());
    for piece in members.chunks(PIECE) {
        let (next, found) = (AtomicUsize::new(0), Mutex::new(vec![None; piece.len()]));
        let work = || {
            let mut memory = Vec::new();
            loop {
                let at = next.fetch_add(1, Ordering::Relaxed);
                let Some(&(set, sample)) = piece.get(at) else { break };
                let content = sets[set].0.content(sample as usize, &mut memory);
                found.lock().unwrap_or_else(PoisonError::into_inner)[at] = content;
            }
        };
        thread::scope(|scope| {
            // Without more threads, this one does all.
            (1..threads).for_each(|_| drop(thread::Builder::new().spawn_scoped(scope, work)));
            work();
        });
        all.append(&mut found.into_inner().unwrap_or_else(PoisonError::into_inner));
        progress(all.len(), members.len());
    }
    all
}

/// Counts `member`, which repeats `earlier`.
fn repeat(all: &mut Vec<Repeated>, sets: &[(&Samples, &CheckReport)], member: Member, earlier: Member) {
    let [set, of] = [member, earlier].map(|(set, _)| sets[set].0.set.as_str());
    let at = all.iter().position(|one| one.set == set && one.of == of).unwrap_or_else(|| {
        all.push(Repeated { set: set.to_owned(), of: of.to_owned(), samples: 0, first: Vec::new() });
        all.len() - 1
    });
    let repeated = &mut all[at];
    repeated.samples += 1;
    if repeated.first.len() < NAMED {
        repeated.first.push((describe(sets, member), describe(sets, earlier)));
    }
}

/// Describes a sample by its path below the folder of the data.
fn describe(sets: &[(&Samples, &CheckReport)], (set, sample): Member) -> String {
    let (samples, _) = sets[set];
    let (path, root) = (samples.describe(sample as usize), samples.root.display().to_string());
    let below = path.strip_prefix(&root).and_then(|below| below.strip_prefix('/'));
    below.filter(|_| !root.is_empty()).map_or(path.clone(), str::to_owned)
}

impl Conflicts {
    fn add(&mut self, sets: &[(&Samples, &CheckReport)], member: Member, first: Member) {
        let class = |(set, sample): Member| {
            let (names, numbers) = sets[set].0.classes();
            names.get(*numbers.get(sample as usize)? as usize).cloned()
        };
        let (Some(own), Some(other)) = (class(member), class(first)) else { return };
        if own != other {
            self.samples += 1;
            if self.first.len() < NAMED {
                self.first.push([(describe(sets, member), own), (describe(sets, first), other)]);
            }
        }
    }
}

#[cfg(test)]
mod tests;
