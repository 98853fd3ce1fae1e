//! The benchmarks: their cases, the columns of their tables, and the figures and ratios with goals.

use clap::ValueEnum;

use super::case::{Case, DTRAIN, GPTS, Mode, Network, Transport};
use super::checkpoint;
use super::figures::Metric;
use super::launch::{Launcher, Workload};
use super::table::{Comparison, Table, Target};
use crate::report::Goal;

/// A benchmark, as the command line names it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
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
    /// Returns its name on the command line.
    pub(super) fn name(self) -> String {
        self.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default()
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
    // The figures, each with the most that dtrain's may be.
    let figures = match workload {
        Workload::NoOp(_) => vec![(Metric::WallMs, Some(50.0)), (Metric::LauncherPeakBytes, Some(20e6))],
        Workload::Death => vec![(Metric::DeathMs, None), (Metric::DeathP99Ms, Some(10.0))],
        Workload::Restart => vec![(Metric::RestartMs, Some(100.0))],
        Workload::RemoteRestart => vec![(Metric::DeathMs, Some(100.0)), (Metric::RestartMs, Some(300.0))],
        Workload::LostAgent => vec![(Metric::NoticedMs, Some(1000.0))],
        Workload::Agents(_) => vec![(Metric::StartedMs, Some(500.0))],
        Workload::Lines => {
            vec![(Metric::WallMs, None), (Metric::LauncherPeakBytes, None), (Metric::LinesLost, Some(0.0))]
        }
    };
    let metrics: Vec<Metric> = figures.iter().map(|(metric, _)| *metric).collect();
    let (cases, comparisons) = match workload {
        Workload::Lines => (
            vec![ours, torchrun, alone],
            vec![
                ratio(ours, torchrun, Metric::WallMs, Some(Goal::AtMost(1.0))),
                ratio(ours, alone, Metric::WallMs, None),
                ratio(torchrun, alone, Metric::WallMs, None),
            ],
        ),
        _ => {
            // Times of deaths are compared by their medians only.
            let compared = metrics.iter().filter(|metric| **metric != Metric::DeathP99Ms);
            let beside = |metric: &Metric| ratio(ours, torchrun, *metric, None);
            (vec![ours, torchrun], compared.map(beside).collect())
        }
    };
    let target = |(metric, most): (Metric, Option<f64>)| {
        Some(Target { case: ours, metric, goal: Goal::AtMost(most?) })
    };
    let targets = figures.into_iter().filter_map(target).collect();
    Table { title: workload.title(), cases, metrics, unit: "", comparisons, targets }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn compared_cases_and_metrics_are_measured_and_shown() {
        for benchmark in Benchmark::value_variants() {
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
