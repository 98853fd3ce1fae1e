//! What Slurm tells about the preemption of a job. One that leaves too little time for a checkpoint repeats all steps since
//! the newest one, so regular ones must be near to each other.

use crate::cli::{BatchArgs, RecipeArgs};
use dtrain_agent::io::process::output;
use dtrain_batch::{Account, JobSpec, System, Target, Value};
use dtrain_common::recipe::AnyRecipe;
use dtrain_common::time::{format_time, parse_clock};
use dtrain_job::hostlist;
use std::collections::HashSet;
use std::process::Command;
use std::time::Duration;

/// The interval of checkpoints in a job that may lose the time since the newest one.
const EVERY: &str = "checkpoint.every=10 min";
/// The time that a stop may take, in a job without a time limit.
const MARGIN: Duration = Duration::from_secs(120);
/// For programs of Slurm, whose controller may not answer.
const PATIENCE: Duration = Duration::from_secs(5);

/// Jobs with more important ones above them, which Slurm ends for these.
#[derive(Debug, PartialEq, Eq)]
struct Preemption {
    /// Such as `the partition low`.
    place: String,
    /// The time between the request and the end.
    grace: Duration,
}

/// Lets a training write checkpoints regularly if Slurm preempts its job without enough time for one, and the recipe does
/// not state their interval. Tells the user.
pub(super) fn choose_interval(args: &BatchArgs, spec: &mut JobSpec) -> anyhow::Result<()> {
    // The flags do not tell where such a job runs.
    if spec.directs(args.system, &["--partition", "--qos"]) {
        return Ok(());
    }
    let Target::Recipes { set, .. } = &mut spec.work.target else { return Ok(()) };
    let ask = |words: &[&str]| {
        let (program, args) = words.split_first()?;
        output(Command::new(program).args(args), PATIENCE)
    };
    let needed = spec.time.as_ref().and_then(|limit| limit.signal_before).unwrap_or(MARGIN);
    let preemption = (args.system == System::Slurm).then(|| Preemption::find(&spec.account, &ask)).flatten();
    let Some(Preemption { place, grace }) = preemption.filter(|found| found.grace < needed) else {
        return Ok(());
    };
    for RecipeArgs { recipe, set } in super::trainings(args) {
        // A recipe of an image is unknown here; the best checkpoint needs evaluations at spans.
        for key in ["checkpoint.every", "checkpoint.best"] {
            if AnyRecipe::states(&recipe, &set, key).unwrap_or(true) {
                return Ok(());
            }
        }
    }
    set.push(EVERY.parse()?);
    eprintln!(
        "dtrain: {place} preempts jobs {} before it kills them: added --set '{EVERY}', which evaluates the test set at the \
         end of each stage only; to choose yourself, state checkpoint.every",
        format_time(grace)
    );
    Ok(())
}

impl Preemption {
    /// Returns what may happen to a job of this account; `None`: nothing, or it is unknown.
    fn find(account: &Account, ask: &dyn Fn(&[&str]) -> Option<String>) -> Option<Self> {
        let config = ask(&["scontrol", "show", "config"])?;
        let setting = |name: &str| {
            let lines = config.lines().filter_map(|line| line.split_once('='));
            lines.map(|(key, value)| (key.trim(), value.trim())).find(|(key, _)| *key == name)
        };
        match setting("PreemptType")?.1 {
            "preempt/partition_prio" => {
                let partitions = ask(&["scontrol", "show", "partition", "--oneliner"])?;
                Self::by_partition(&partitions, account.partition.as_ref().map(Value::as_str))
            }
            "preempt/qos" => {
                let format = "format=Name,Preempt,PreemptMode,GraceTime";
                let table = ask(&["sacctmgr", "--noheader", "--parsable2", "show", "qos", format])?;
                Self::by_qos(&table, account.qos.as_ref()?.as_str(), setting("PreemptMode")?.1)
            }
            _ => None,
        }
    }

    /// Reads `scontrol show partition --oneliner`. `wanted`: a list, or the default partition.
    fn by_partition(table: &str, wanted: Option<&str>) -> Option<Self> {
        let field = |line: &'_ str, name: &str| -> Option<String> {
            let mut words = line.split_whitespace().filter_map(|word| word.split_once('='));
            words.find(|(key, _)| *key == name).map(|(_, value)| value.to_owned())
        };
        let tier = |line: &str| field(line, "PriorityTier").and_then(|tier| tier.parse::<u32>().ok());
        // `None`: all nodes, or unknown ones.
        let nodes = |line: &str| match field(line, "Nodes")?.as_str() {
            "ALL" => None,
            "(null)" => Some(HashSet::new()),
            list => Some(hostlist::expand(list).ok()?.into_iter().collect::<HashSet<_>>()),
        };
        let is_above = |other: &str, own: &str| {
            let meet = match (nodes(other), nodes(own)) {
                (Some(other), Some(own)) => !other.is_disjoint(&own),
                _ => true,
            };
            tier(other) > tier(own) && meet
        };
        let is_wanted = |line: &&str| match (wanted, field(line, "PartitionName")) {
            (Some(list), Some(name)) => list.split(',').any(|wanted| wanted == name),
            (None, _) => field(line, "Default").as_deref() == Some("YES"),
            (Some(_), None) => false,
        };
        let preempted = table.lines().filter(is_wanted).filter(|line| {
            tier(line).is_some()
                && table.lines().any(|other| is_above(other, line))
                && field(line, "PreemptMode").is_some_and(|mode| ends_jobs(&mode))
        });
        let found = preempted.filter_map(|line| {
            let grace = field(line, "GraceTime")?.parse().ok().map(Duration::from_secs)?;
            Some(Self { place: format!("the partition {}", field(line, "PartitionName")?), grace })
        });
        found.min_by_key(|found| found.grace)
    }

    /// Reads `sacctmgr show qos`: name, the QOS that it preempts, mode, and grace time.
    fn by_qos(table: &str, wanted: &str, usual_mode: &str) -> Option<Self> {
        let rows = || table.lines().map(|line| line.split('|').collect::<Vec<_>>());
        let is_preempted =
            rows().any(|row| row.get(1).is_some_and(|list| list.split(',').any(|of| of == wanted)));
        let own = rows().find(|row| row.first() == Some(&wanted)).filter(|_| is_preempted)?;
        let mode = own.get(2).filter(|mode| **mode != "cluster").copied().unwrap_or(usual_mode);
        let grace = own.get(3).and_then(|grace| parse_clock(grace)).unwrap_or_default();
        ends_jobs(mode).then(|| Self { place: format!("the QOS {wanted}"), grace })
    }
}

/// Returns whether this mode ends jobs, and does not only suspend them.
fn ends_jobs(mode: &str) -> bool {
    mode.split(',').any(|mode| ["REQUEUE", "CANCEL"].iter().any(|end| mode.eq_ignore_ascii_case(end)))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    const PARTITIONS: &str = "\
PartitionName=low AllowGroups=ALL Default=YES QoS=N/A GraceTime=30 PriorityTier=1 PreemptMode=REQUEUE MaxTime=UNLIMITED
PartitionName=abrupt Default=NO GraceTime=0 PriorityTier=1 PreemptMode=GANG,CANCEL
PartitionName=paused Default=NO GraceTime=0 PriorityTier=1 PreemptMode=GANG,SUSPEND
PartitionName=high Default=NO GraceTime=0 PriorityTier=10 PreemptMode=REQUEUE
";

    #[test]
    fn a_partition_below_another_one_is_preempted() {
        let found = |wanted| {
            Preemption::by_partition(PARTITIONS, wanted).map(|found| (found.place, found.grace.as_secs()))
        };
        let place = |name: &str, grace| Some((format!("the partition {name}"), grace));
        assert_eq!(found(None), place("low", 30));
        assert_eq!(found(Some("abrupt")), place("abrupt", 0));
        assert_eq!(found(Some("low,abrupt")), place("abrupt", 0));
        for none in ["paused", "high", "other"] {
            assert_eq!(found(Some(none)), None, "{none}");
        }
        assert_eq!(Preemption::by_partition("", None), None);
    }

    #[test]
    fn only_a_partition_with_common_nodes_preempts() {
        let table = |nodes: &str| {
            format!(
                "PartitionName=low Default=YES GraceTime=0 PriorityTier=1 PreemptMode=REQUEUE Nodes=n[0-3]\n\
                 PartitionName=high Default=NO GraceTime=0 PriorityTier=9 PreemptMode=OFF Nodes={nodes}\n"
            )
        };
        for (nodes, is_preempted) in
            [("n[3-5]", true), ("n[4-9],g1", false), ("ALL", true), ("(null)", false), ("n[3-", true)]
        {
            assert_eq!(Preemption::by_partition(&table(nodes), None).is_some(), is_preempted, "{nodes}");
        }
    }

    #[test]
    fn a_qos_that_another_one_names_is_preempted() {
        let table = "normal||cluster|00:00:00\nlow||cluster|00:05:00\nspare||requeue|\nhigh|low,spare|cluster|00:00:00\n";
        let found = |wanted, mode| Preemption::by_qos(table, wanted, mode).map(|found| found.grace.as_secs());
        assert_eq!(found("low", "CANCEL"), Some(300));
        assert_eq!(found("low", "SUSPEND,GANG"), None);
        assert_eq!(found("spare", "OFF"), Some(0));
        assert_eq!(found("high", "CANCEL"), None);
        assert_eq!(found("other", "CANCEL"), None);
    }

    #[test]
    fn a_cluster_without_preemption_is_asked_once() {
        let config = |kind: &str| {
            format!("Configuration data\nPreemptMode             = OFF\nPreemptType             = {kind}\n")
        };
        for kind in ["preempt/none", "(null)"] {
            let ask = |words: &[&str]| (words[2] == "config").then(|| config(kind));
            assert_eq!(Preemption::find(&Account::default(), &ask), None);
        }
        let ask = |words: &[&str]| match words[2] {
            "config" => Some(config("preempt/partition_prio")),
            _ => Some(PARTITIONS.to_owned()),
        };
        assert_eq!(Preemption::find(&Account::default(), &ask).unwrap().place, "the partition low");
    }
}
