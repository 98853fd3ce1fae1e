//! Environment variables with surprising effects.

use super::row::Row;
use dtrain_agent::io::interfaces::interfaces;
use dtrain_common::env::{
    FLAG_PREFIX, LOCAL_RANK, MASTER_ADDR, MASTER_PORT, OMP_NUM_THREADS, RANK, WORLD_SIZE,
};

/// Switches that slow NCCL down, and their effect.
const SLOW: [(&str, &str, &str); 5] = [
    ("NCCL_P2P_DISABLE", "1", "GPUs of one machine exchange through host memory"),
    ("NCCL_SHM_DISABLE", "1", "GPUs of one machine exchange through the network"),
    ("NCCL_IB_DISABLE", "1", "nodes exchange by TCP instead of InfiniBand"),
    ("CUDA_LAUNCH_BLOCKING", "1", "the CPU waits for every GPU kernel"),
    ("TORCH_DISTRIBUTED_DEBUG", "DETAIL", "PyTorch checks every collective"),
];
/// Names of interfaces.
const GLOO_INTERFACES: &str = "GLOO_SOCKET_IFNAME";
/// Beginnings of names of interfaces.
const NCCL_INTERFACES: &str = "NCCL_SOCKET_IFNAME";
/// Set by launchers for their workers.
const OF_A_LAUNCH: [&str; 5] = [RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR, MASTER_PORT];

/// The most characters of a value to show.
const SHOWN: usize = 40;

pub(super) fn check() -> Vec<Row> {
    let variables = std::env::vars_os()
        .map(|(name, value)| (name.to_string_lossy().into_owned(), value.to_string_lossy().into_owned()));
    let names = interfaces().unwrap_or_default().into_iter().map(|interface| interface.name);
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    judge(variables.collect(), &names.collect::<Vec<_>>(), cores)
}

fn judge(mut variables: Vec<(String, String)>, interfaces: &[String], cores: usize) -> Vec<Row> {
    const WHAT: &str = "environment";
    variables.sort();
    let value =
        |name: &str| variables.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str());
    let mut rows = Vec::new();
    for (name, bad, effect) in SLOW {
        if value(name) == Some(bad) {
            rows.push(Row::warn(
                WHAT,
                format!("{name}={bad}: {effect}"),
                format!("unset {name} unless needed"),
            ));
        }
    }
    for (name, read) in [(NCCL_INTERFACES, Pattern::nccl as fn(_) -> _), (GLOO_INTERFACES, Pattern::gloo)] {
        let Some(list) = value(name).filter(|list| !list.is_empty()) else { continue };
        let pattern: Pattern<'_> = read(list);
        let found = pattern.interfaces(interfaces);
        if found.is_empty() {
            let value = format!("{name}={list} names no interface of this machine");
            rows.push(Row::fail(WHAT, value, format!("unset it, or name one of {}", interfaces.join(", "))));
        } else if let Some((wanted, meant)) = pattern.ambiguous(interfaces) {
            let value = format!("{name}={list} is a prefix: {wanted} means {}", meant.join(" and "));
            rows.push(Row::warn(WHAT, value, format!("for {wanted} alone, set {name}=={wanted}")));
        }
    }
    let left_over: Vec<&str> = OF_A_LAUNCH.into_iter().filter(|name| value(name).is_some()).collect();
    if !left_over.is_empty() {
        let names = left_over.join(" ");
        let value = format!("{} set, as inside of a launch", left_over.join(", "));
        rows.push(Row::warn(
            WHAT,
            value,
            format!("dtrain launch sets its own; for other programs, run `unset {names}`"),
        ));
    }
    if let Some(threads) = value(OMP_NUM_THREADS).and_then(|threads| threads.parse::<usize>().ok())
        && threads != cores
    {
        rows.push(Row::warn(
            WHAT,
            format!("OMP_NUM_THREADS={threads}: each worker uses {threads} of {cores} CPU cores"),
            "unset it: dtrain gives each worker an equal share of the cores",
        ));
    }
    let flags: Vec<String> = variables
        .iter()
        .filter(|(name, _)| name.starts_with(FLAG_PREFIX))
        .map(|(name, value)| format!("{name}={}", shortened(value)))
        .collect();
    if !flags.is_empty() {
        let remedy = "unset them unless meant: each sets a flag of `dtrain launch`";
        rows.push(Row::warn(WHAT, flags.join(", "), remedy));
    }
    let shown = ["NCCL_", "GLOO_", "TORCH_", "LD_PRELOAD", "LD_LIBRARY_PATH"];
    let others = variables
        .iter()
        .filter(|(name, value)| !value.is_empty() && shown.iter().any(|prefix| name.starts_with(prefix)));
    let others: Vec<String> = others.map(|(name, value)| format!("{name}={}", shortened(value))).collect();
    if !others.is_empty() {
        rows.push(Row::ok(WHAT, others.join(", ")));
    } else if rows.is_empty() {
        rows.push(Row::ok(WHAT, "no variable with a surprising effect"));
    }
    rows
}

/// Cuts a value that does not fit on a line, such as a list of folders.
fn shortened(value: &str) -> String {
    match value.char_indices().nth(SHOWN) {
        Some((end, _)) => format!("{}...", &value[..end]),
        None => value.to_owned(),
    }
}

/// A list of interfaces.
struct Pattern<'a> {
    names: Vec<&'a str>,
    /// Whether the names are whole, not prefixes.
    is_exact: bool,
    /// Whether the names are those to leave out.
    is_excluding: bool,
}

impl<'a> Pattern<'a> {
    /// Reads a list as NCCL does: prefixes; `^` before names to leave out, then `=` before exact names.
    fn nccl(list: &'a str) -> Self {
        let (list, is_excluding) = list.strip_prefix('^').map_or((list, false), |list| (list, true));
        let (list, is_exact) = list.strip_prefix('=').map_or((list, false), |list| (list, true));
        // A port may follow the name.
        let names = list.split(',').filter_map(|name| name.split(':').next());
        Self { names: names.filter(|name| !name.is_empty()).collect(), is_exact, is_excluding }
    }

    /// Reads a list as Gloo does: exact names.
    fn gloo(list: &'a str) -> Self {
        Self { names: list.split(',').collect(), is_exact: true, is_excluding: false }
    }

    fn means(&self, name: &str, interface: &str) -> bool {
        if self.is_exact { interface == name } else { interface.starts_with(name) }
    }

    /// Returns the interfaces of this machine that the list allows.
    fn interfaces<'b>(&self, interfaces: &'b [String]) -> Vec<&'b str> {
        let allowed = |interface: &&'b str| {
            self.names.iter().any(|name| self.means(name, interface)) != self.is_excluding
        };
        interfaces.iter().map(String::as_str).filter(allowed).collect()
    }

    /// Returns the first name that is an interface and the beginning of others, with all of them.
    fn ambiguous<'b>(&self, interfaces: &'b [String]) -> Option<(&'a str, Vec<&'b str>)> {
        let names = self.names.iter().filter(|_| !self.is_exact && !self.is_excluding);
        names.filter(|name| interfaces.iter().any(|interface| interface == *name)).find_map(|name| {
            let meant = interfaces.iter().filter(|interface| self.means(name, interface));
            let meant: Vec<&str> = meant.map(String::as_str).collect();
            (meant.len() > 1).then_some((*name, meant))
        })
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::super::row::Level;
    use super::*;

    fn judged(variables: &[(&str, &str)]) -> Vec<Row> {
        let variables = variables.iter().map(|(name, value)| ((*name).into(), (*value).into()));
        judge(variables.collect(), &["eth0".into(), "lo".into()], 8)
    }

    #[test]
    fn variables_that_surprise_are_told_with_their_effect() {
        assert_eq!(
            judged(&[("PATH", "/bin")]),
            [Row::ok("environment", "no variable with a surprising effect")]
        );
        assert_eq!(judged(&[("OMP_NUM_THREADS", "8")]).len(), 1);
        assert!(!judged(&[("LD_LIBRARY_PATH", "")])[0].value.contains("LD_"));
        for (variable, level, text) in [
            (("NCCL_IB_DISABLE", "1"), Level::Warn, "TCP instead of InfiniBand"),
            (("GLOO_SOCKET_IFNAME", "ib0"), Level::Fail, "names no interface of this machine"),
            (("RANK", "0"), Level::Warn, "RANK set, as inside of a launch"),
            (("OMP_NUM_THREADS", "1"), Level::Warn, "uses 1 of 8 CPU cores"),
            (("PET_NNODES", "2"), Level::Warn, "PET_NNODES=2"),
            (("NCCL_DEBUG", "INFO"), Level::Ok, "NCCL_DEBUG=INFO"),
        ] {
            let row = &judged(&[variable])[0];
            assert!(row.level == level && row.value.contains(text), "{row:?}");
        }
    }

    #[test]
    fn a_long_list_of_folders_is_cut() {
        let row = &judged(&[("LD_LIBRARY_PATH", &"/é".repeat(99))])[0];
        assert!(row.value.ends_with("...") && row.value.chars().count() == 16 + 40 + 3, "{row:?}");
    }

    #[test]
    fn interface_lists_are_read_as_their_library_reads_them() {
        let interfaces = ["eth0".to_owned(), "eth1".to_owned(), "eth10".to_owned(), "ib0".to_owned()];
        for (list, nccl, gloo) in [
            ("eth", &["eth0", "eth1", "eth10"][..], &[][..]),
            ("eth1", &["eth1", "eth10"], &["eth1"]),
            ("=eth1", &["eth1"], &[]),
            ("=eth", &[], &[]),
            ("=eth10,ib0", &["eth10", "ib0"], &["ib0"]),
            ("^eth1", &["eth0", "ib0"], &[]),
            ("^=eth1,ib0", &["eth0", "eth10"], &["ib0"]),
            ("^docker", &["eth0", "eth1", "eth10", "ib0"], &[]),
            ("en,ib", &["ib0"], &[]),
            ("eth0:29,", &["eth0"], &[]),
            ("mlx", &[], &[]),
        ] {
            assert_eq!(Pattern::nccl(list).interfaces(&interfaces), nccl, "{list}");
            assert_eq!(Pattern::gloo(list).interfaces(&interfaces), gloo, "{list}");
        }
        let ambiguous = |list| Pattern::nccl(list).ambiguous(&interfaces);
        assert_eq!(ambiguous("ib0,eth1"), Some(("eth1", vec!["eth1", "eth10"])));
        for clear in ["eth", "eth0", "=eth1", "^eth1"] {
            assert_eq!(ambiguous(clear), None, "{clear}");
        }
    }

    #[test]
    fn a_prefix_that_is_an_interface_too_is_a_warning() {
        let variables = vec![("NCCL_SOCKET_IFNAME".to_owned(), "eth1".to_owned())];
        let rows = judge(variables, &["eth1".into(), "eth10".into()], 8);
        assert_eq!(rows[0].level, Level::Warn);
        assert_eq!(rows[0].value, "NCCL_SOCKET_IFNAME=eth1 is a prefix: eth1 means eth1 and eth10");
        assert_eq!(rows[0].remedy.as_deref(), Some("for eth1 alone, set NCCL_SOCKET_IFNAME==eth1"));
    }
}
