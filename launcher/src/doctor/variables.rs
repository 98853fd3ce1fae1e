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
/// Interface names by variable.
const INTERFACES: [&str; 2] = ["NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME"];
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
    for name in INTERFACES {
        let Some(list) = value(name).filter(|list| !list.is_empty()) else { continue };
        if !names_an_interface(list, interfaces) {
            let value = format!("{name}={list} names no interface of this machine");
            rows.push(Row::fail(WHAT, value, format!("unset it, or name one of {}", interfaces.join(", "))));
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

/// Reads a list as NCCL does: prefixes, `=` before exact names, `^` before names to leave out.
fn names_an_interface(list: &str, interfaces: &[String]) -> bool {
    let is_exact = list.starts_with('=');
    list.starts_with('^')
        || list.trim_start_matches('=').split(',').any(|wanted| {
            let wanted = wanted.split(':').next().unwrap_or_default();
            interfaces.iter().any(|name| if is_exact { name == wanted } else { name.starts_with(wanted) })
        })
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
    fn interface_lists_are_read_as_nccl_reads_them() {
        let interfaces = ["eth0".to_owned(), "ib0".to_owned()];
        for (list, found) in [
            ("eth", true),
            ("=eth", false),
            ("=eth0", true),
            ("^docker", true),
            ("en,ib", true),
            ("mlx", false),
        ] {
            assert_eq!(names_an_interface(list, &interfaces), found, "{list}");
        }
    }
}
