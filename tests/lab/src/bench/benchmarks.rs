//! The benchmarks: their cases, the columns of their tables, and the figures and ratios with goals.

use super::case::{Case, DTRAIN, GPTS, Mode, Network, Transport};
use super::checkpoint;
use super::figures::Metric;
use super::launch::{Launcher, Workload};
use super::table::{Comparison, Table, Target};
use crate::report::Goal;

/// A benchmark, as the command line names it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, clap::ValueEnum)]
pub(super) enum Benchmark {
    /// Images per second of ResNet-18 in two processes, against DDP
    Resnet18,
    /// Tokens per second of a GPT in two processes, against DDP
    Gpt,
    /// Resident memory of a rank in both, against DDP
    Memory,
    /// JPEG images per second of one loading core, against torchvision
    Loader,
    /// Waits for communication, with and without overlap, by shared memory and TCP
    Overlap,
    /// Launcher: start, reaction to a death, restart, output, against torchrun
    Launch,
    /// Agents on one machine: start, reaction to a death, restart, against torchrun
    Cluster,
    /// Checkpoints of 1 GB during training, against torch.save and async_save
    Checkpoint,
}

impl Benchmark {
    pub(super) const ALL: [Self; 8] = [
        Self::Resnet18,
        Self::Gpt,
        Self::Memory,
        Self::Loader,
        Self::Overlap,
        Self::Launch,
        Self::Cluster,
        Self::Checkpoint,
    ];

    /// Returns its name on the command line.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Resnet18 => "resnet18",
            Self::Gpt => "gpt",
            Self::Memory => "memory",
            Self::Loader => "loader",
            Self::Overlap => "overlap",
            Self::Launch => "launch",
            Self::Cluster => "cluster",
            Self::Checkpoint => "checkpoint",
        }
    }

    pub(super) fn tables(self) -> Vec<Table> {
        match self {
            Self::Resnet18 => vec![speed(Network::Resnet18)],
            Self::Gpt => GPTS.map(speed).to_vec(),
            Self::Memory => vec![memory(Network::Resnet18), memory(GPTS[0])],
            Self::Loader => vec![loader()],
            Self::Overlap => vec![overlap(Network::Resnet18)],
            Self::Launch => {
                [Workload::NoOp(1), Workload::NoOp(8), Workload::Death, Workload::Restart, Workload::Lines]
                    .map(launch)
                    .to_vec()
            }
            Self::Cluster => {
                [Workload::RemoteRestart, Workload::LostAgent, Workload::Agents(16)].map(launch).to_vec()
            }
            Self::Checkpoint => checkpoint::tables(),
        }
    }

    /// Returns whether it contains a training or a loader, which need libtorch.
    pub(super) fn needs_libtorch(self) -> bool {
        !matches!(self, Self::Launch | Self::Cluster)
    }
}

fn speed(network: Network) -> Table {
    let [ours, ddp, ours_alone, torch_alone] =
        [DTRAIN, Mode::Ddp, Mode::DtrainAlone, Mode::TorchAlone].map(|mode| Case::Train(network, mode));
    let ratio = |over, under, goal| Comparison { over, under, metric: Metric::Rate, goal };
    Table {
        title: network.title(),
        cases: vec![ours, ddp, ours_alone, torch_alone],
        metrics: vec![Metric::Rate, Metric::StepMs],
        unit: network.unit(),
        comparisons: vec![
            ratio(ours, ddp, Some(Goal::AtLeast(1.2))),
            ratio(ours, ours_alone, Some(Goal::AtLeast(0.9))),
            ratio(ddp, torch_alone, None),
            ratio(ours_alone, torch_alone, None),
        ],
        targets: Vec::new(),
    }
}

fn memory(network: Network) -> Table {
    let [over, under] = [DTRAIN, Mode::Ddp].map(|mode| Case::Train(network, mode));
    let ratio = |metric, goal| Comparison { over, under, metric, goal };
    Table {
        title: format!("resident memory of a rank, {}", network.name()),
        cases: vec![over, under],
        metrics: vec![Metric::TrainingPeakBytes, Metric::OwnPeakBytes, Metric::RunPeakBytes],
        unit: network.unit(),
        comparisons: vec![
            ratio(Metric::TrainingPeakBytes, Some(Goal::AtMost(0.7))),
            ratio(Metric::OwnPeakBytes, Some(Goal::AtMost(0.7))),
            ratio(Metric::RunPeakBytes, None),
        ],
        targets: Vec::new(),
    }
}

fn loader() -> Table {
    let ratio = |over, metric, goal| Comparison { over, under: Case::TorchLoader, metric, goal };
    let goal = Some(Goal::AtLeast(3.0));
    Table {
        title: "JPEG files to normalised tensors of 224 x 224, one core loading".to_owned(),
        cases: vec![Case::Loader, Case::CachedLoader, Case::TorchLoader],
        metrics: vec![Metric::Rate, Metric::CpuRate],
        unit: "images/s",
        comparisons: vec![
            ratio(Case::Loader, Metric::Rate, goal),
            ratio(Case::Loader, Metric::CpuRate, goal),
            ratio(Case::CachedLoader, Metric::Rate, None),
            ratio(Case::CachedLoader, Metric::CpuRate, None),
        ],
        targets: Vec::new(),
    }
}

fn overlap(network: Network) -> Table {
    let ours = |transport, overlap| Case::Train(network, Mode::Dtrain { transport, overlap });
    let ddp = Case::Train(network, Mode::Ddp);
    let (shared, shared_after) = (ours(Transport::Shared, true), ours(Transport::Shared, false));
    let (tcp, tcp_after) = (ours(Transport::Gloo, true), ours(Transport::Gloo, false));
    let ratio = |over, under| Comparison { over, under, metric: Metric::StepMs, goal: None };
    Table {
        title: format!("waiting for communication, {}", network.name()),
        cases: vec![shared, shared_after, tcp, tcp_after, ddp],
        metrics: vec![Metric::StepMs, Metric::WaitMs, Metric::WaitShare],
        unit: network.unit(),
        comparisons: vec![ratio(shared, shared_after), ratio(tcp, tcp_after), ratio(tcp, ddp)],
        targets: Vec::new(),
    }
}

fn launch(workload: Workload) -> Table {
    let [ours, torchrun, alone] = [Launcher::Dtrain, Launcher::Torchrun, Launcher::Nobody]
        .map(|launcher| Case::Launch(workload, launcher));
    let ratio = |over, under, metric, goal| Comparison { over, under, metric, goal };
    let beside = |metric| ratio(ours, torchrun, metric, None);
    let target = |metric, most| Target { case: ours, metric, goal: Goal::AtMost(most) };
    let both = vec![ours, torchrun];
    let (cases, metrics, comparisons, targets) = match workload {
        Workload::NoOp(_) => (
            both,
            vec![Metric::WallMs, Metric::LauncherPeakBytes],
            vec![beside(Metric::WallMs), beside(Metric::LauncherPeakBytes)],
            vec![target(Metric::WallMs, 50.0), target(Metric::LauncherPeakBytes, 20e6)],
        ),
        Workload::Death => (
            both,
            vec![Metric::DeathMs, Metric::DeathP99Ms],
            vec![beside(Metric::DeathMs)],
            vec![target(Metric::DeathP99Ms, 10.0)],
        ),
        Workload::Restart => (
            both,
            vec![Metric::RestartMs],
            vec![beside(Metric::RestartMs)],
            vec![target(Metric::RestartMs, 100.0)],
        ),
        Workload::RemoteRestart => (
            both,
            vec![Metric::DeathMs, Metric::RestartMs],
            vec![beside(Metric::DeathMs), beside(Metric::RestartMs)],
            vec![target(Metric::DeathMs, 100.0), target(Metric::RestartMs, 300.0)],
        ),
        Workload::LostAgent => (
            both,
            vec![Metric::NoticedMs],
            vec![beside(Metric::NoticedMs)],
            vec![target(Metric::NoticedMs, 1000.0)],
        ),
        Workload::Agents(_) => (
            both,
            vec![Metric::StartedMs],
            vec![beside(Metric::StartedMs)],
            vec![target(Metric::StartedMs, 500.0)],
        ),
        Workload::Lines => (
            vec![ours, torchrun, alone],
            vec![Metric::WallMs, Metric::LauncherPeakBytes, Metric::LinesLost],
            vec![
                ratio(ours, torchrun, Metric::WallMs, Some(Goal::AtMost(1.0))),
                ratio(ours, alone, Metric::WallMs, None),
                ratio(torchrun, alone, Metric::WallMs, None),
            ],
            vec![target(Metric::LinesLost, 0.0)],
        ),
    };
    Table { title: workload.title(), cases, metrics, unit: "", comparisons, targets }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn compared_cases_and_metrics_are_measured_and_shown() {
        for benchmark in Benchmark::ALL {
            for table in benchmark.tables() {
                for comparison in &table.comparisons {
                    let cases = [comparison.over, comparison.under];
                    assert!(cases.iter().all(|case| table.cases.contains(case)), "{comparison:?}");
                    assert!(table.metrics.contains(&comparison.metric), "{comparison:?}");
                }
                for target in &table.targets {
                    assert!(table.cases.contains(&target.case), "{target:?}");
                    assert!(table.metrics.contains(&target.metric), "{target:?}");
                }
                let names: std::collections::BTreeSet<_> =
                    table.cases.iter().map(|case| case.title()).collect();
                assert_eq!(names.len(), table.cases.len(), "{}", table.title);
            }
        }
    }
}
