//! The place of a rank on its node, as the starter tells it, or as the ranks tell each other.

use dtrain_job::Tasks;
use std::fs;

/// The place of one rank. Nodes are numbered from 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) local_rank: usize,
    pub(super) local_size: usize,
    pub(super) node: usize,
    pub(super) nodes: usize,
}

impl Place {
    /// Returns what the starter tells of one of `size` ranks; `None` if it does not tell all.
    pub(super) fn told(tasks: &Tasks, size: usize) -> Option<Self> {
        let value = |number: Option<dtrain_job::Number>| number.map(|number| number.value);
        let all = [tasks.local_rank, tasks.local_size, tasks.node, tasks.nodes].map(value);
        match all {
            [Some(local_rank), Some(local_size), Some(node), Some(nodes)] => {
                Some(Self { local_rank, local_size, node, nodes })
            }
            [Some(local_rank), Some(local_size), ..] if local_size == size => {
                Some(Self { local_rank, local_size, node: 0, nodes: 1 })
            }
            _ => None,
        }
    }

    /// Returns the place of `rank` among all ranks. The nodes have the order of their first ranks.
    pub(super) fn among(all: &[Introduction], rank: usize) -> Option<Self> {
        let own = &all.get(rank)?.host;
        let mut hosts: Vec<&str> = Vec::new();
        for Introduction { host, .. } in all {
            if !hosts.contains(&host.as_str()) {
                hosts.push(host);
            }
        }
        let on_node = |ranks: &[Introduction]| ranks.iter().filter(|one| one.host == *own).count();
        Some(Self {
            local_rank: on_node(&all[..rank]),
            local_size: on_node(all),
            node: hosts.iter().position(|host| host == own)?,
            nodes: hosts.len(),
        })
    }
}

/// What a rank tells the others.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Introduction {
    pub(super) host: String,
    /// The cores that it may use, as the kernel writes them; empty if unknown.
    pub(super) cores: String,
    /// Of rank 0: where the ranks meet.
    pub(super) listens_at: Option<(String, u16)>,
}

impl Introduction {
    /// Returns that of this process.
    pub(super) fn new(listens_at: Option<(String, u16)>) -> Self {
        let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
        let cores = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"));
        // A long list of cores does not fit, and is the same for all ranks of a node only if it is cut alike.
        let cores = cores.unwrap_or_default().trim().chars().take(100).collect();
        Self { host: dtrain_common::host::name(), cores, listens_at }
    }

    pub(super) fn to_text(&self) -> String {
        let listens_at = self.listens_at.as_ref();
        let listens_at =
            listens_at.map_or_else(String::new, |(address, port)| format!("\n{address}\n{port}"));
        format!("{}\n{}{listens_at}", self.host, self.cores)
    }

    /// Reads a text; `None` if it is not of this form.
    pub(super) fn from_text(text: &str) -> Option<Self> {
        let mut lines = text.split('\n');
        let (host, cores) = (lines.next()?.to_owned(), lines.next()?.to_owned());
        let listens_at = match (lines.next(), lines.next(), lines.next()) {
            (None, ..) => None,
            (Some(address), Some(port), None) => Some((address.to_owned(), port.parse().ok()?)),
            _ => return None,
        };
        Some(Self { host, cores, listens_at })
    }
}

/// Returns the number of ranks that share the cores of `rank`, with itself.
pub(super) fn sharing(all: &[Introduction], rank: usize) -> Option<usize> {
    let own = all.get(rank).filter(|own| !own.cores.is_empty())?;
    Some(all.iter().filter(|one| (&one.host, &one.cores) == (&own.host, &own.cores)).count())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use proptest::prelude::*;

    fn on(hosts: &[String]) -> Vec<Introduction> {
        let one =
            |host: &String| Introduction { host: host.clone(), cores: "0-3".to_owned(), listens_at: None };
        hosts.iter().map(one).collect()
    }

    #[test]
    fn ranks_may_be_dealt_in_any_order() {
        let all = on(&["b", "a", "b", "a", "b"].map(str::to_owned));
        let places: Vec<Place> = (0..5).map(|rank| Place::among(&all, rank).unwrap()).collect();
        let of = |rank: usize| (places[rank].node, places[rank].local_rank, places[rank].local_size);
        assert_eq!(
            (0..5).map(of).collect::<Vec<_>>(),
            [(0, 0, 3), (1, 0, 2), (0, 1, 3), (1, 1, 2), (0, 2, 3)]
        );
        assert!(places.iter().all(|place| place.nodes == 2));
    }

    #[test]
    fn ranks_with_cores_of_their_own_share_none() {
        let mut all = on(&["a", "a", "b"].map(str::to_owned));
        assert_eq!([0, 1, 2].map(|rank| sharing(&all, rank)), [Some(2), Some(2), Some(1)]);
        all[1].cores = "1".to_owned();
        assert_eq!(sharing(&all, 0), Some(1));
        all[1].cores.clear();
        assert_eq!(sharing(&all, 1), None);
    }

    #[test]
    fn other_texts_are_refused() {
        for text in ["", "host", "host\n0\naddress", "host\n0\naddress\n70000", "host\n0\naddress\n7\nmore"] {
            assert_eq!(Introduction::from_text(text), None, "{text:?}");
        }
    }

    #[test]
    fn an_introduction_fits_into_a_value_of_pmi() {
        let address = Some(("x".repeat(64), 65_535));
        assert!(Introduction { host: "h".repeat(64), ..Introduction::new(address) }.to_text().len() <= 500);
    }

    proptest! {
        #[test]
        fn places_fill_every_node(hosts in prop::collection::vec("[abc]", 1..20)) {
            let all = on(&hosts);
            let mut seen = std::collections::BTreeSet::new();
            for rank in 0..all.len() {
                let place = Place::among(&all, rank).unwrap();
                prop_assert!(place.local_rank < place.local_size && place.node < place.nodes);
                prop_assert!(seen.insert((place.node, place.local_rank)));
            }
            prop_assert_eq!(Place::among(&all, 0).unwrap().node, 0);
            prop_assert_eq!(Place::among(&all, all.len()), None);
        }

        #[test]
        fn introductions_survive(host in "[^\n]*", cores in "[0-9,-]*", at in prop::option::of(("[^\n]*", any::<u16>()))) {
            let one = Introduction { host, cores, listens_at: at };
            prop_assert_eq!(Introduction::from_text(&one.to_text()), Some(one));
        }

        #[test]
        fn any_text_is_read_or_refused(text: String) {
            let _ = Introduction::from_text(&text);
        }
    }
}
