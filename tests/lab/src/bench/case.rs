//! The cases of the benchmarks: networks, ways to train them, loaders, launches and checkpoints.

use super::checkpoint::CheckpointCase;
use super::launch::{Launcher, Workload};

/// A network that both sides train, with the batch of one rank.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Network {
    Resnet18,
    /// The fewer tokens a step has, the larger the share of the exchange.
    Gpt {
        windows: u64,
        /// Tokens per window.
        context: u64,
    },
}

/// Steps of the GPT: mostly arithmetic, a short one, and one in which PyTorch waits a third of the time.
pub(super) const GPTS: [Network; 3] = [
    Network::Gpt { windows: 4, context: 256 },
    Network::Gpt { windows: 1, context: 256 },
    Network::Gpt { windows: 1, context: 64 },
];

impl Network {
    /// Returns the name for files and JSON.
    pub(super) fn name(self) -> String {
        match self {
            Self::Resnet18 => "resnet18".to_owned(),
            Self::Gpt { windows, context } => format!("gpt-{windows}x{context}"),
        }
    }

    /// Returns the name for `train.py` and of the recipe in tests/bench.
    pub(super) fn model(self) -> &'static str {
        match self {
            Self::Resnet18 => "resnet18",
            Self::Gpt { .. } => "gpt",
        }
    }

    /// Returns the heading of its table.
    pub(super) fn title(self) -> String {
        match self {
            Self::Resnet18 => {
                "ResNet-18, 64 x 64 pixels, 16 images on each of 2 ranks, float32, AdamW".to_owned()
            }
            Self::Gpt { windows, context } => format!(
                "GPT of 10.8 million parameters, {windows} x {context} tokens on each of 2 ranks, float32, AdamW"
            ),
        }
    }

    /// Returns the samples of one step on one rank.
    pub(super) fn batch(self) -> u64 {
        match self {
            Self::Resnet18 => 16,
            Self::Gpt { windows, .. } => windows,
        }
    }

    /// Returns the units (images, tokens) in a sample.
    pub(super) fn per_sample(self) -> u64 {
        match self {
            Self::Resnet18 => 1,
            Self::Gpt { context, .. } => context,
        }
    }

    /// Returns the unit of the rate.
    pub(super) fn unit(self) -> &'static str {
        match self {
            Self::Resnet18 => "images/s",
            Self::Gpt { .. } => "tokens/s",
        }
    }

    /// Returns the steps of one run. The first steps touch memory and choose kernels, and are not counted.
    pub(super) fn steps(self) -> Steps {
        let long = matches!(self, Self::Gpt { windows: 2.., .. });
        let (skipped, counted) = if long { (3, 7) } else { (5, 15) };
        Steps { skipped, counted }
    }
}

/// The steps of one run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Steps {
    /// The first steps, which choose kernels and touch memory.
    pub(crate) skipped: usize,
    pub(crate) counted: usize,
}

impl Steps {
    pub(crate) fn all(self) -> usize {
        self.skipped + self.counted
    }
}

/// How dtrain's ranks exchange data: the values of `DTRAIN_TRANSPORT`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Transport {
    Shared,
    Gloo,
}

impl Transport {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Shared => "shared",
            Self::Gloo => "gloo",
        }
    }
}

/// How a network is trained, always by two processes at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Mode {
    /// dtrain, two ranks.
    Dtrain { transport: Transport, overlap: bool },
    /// PyTorch's DistributedDataParallel over Gloo, two ranks.
    Ddp,
    /// dtrain, two independent runs of one rank: the bound that free communication would reach.
    DtrainAlone,
    /// PyTorch, two independent processes.
    TorchAlone,
}

/// dtrain with default settings.
pub(super) const DTRAIN: Mode = Mode::Dtrain { transport: Transport::Shared, overlap: true };

/// A case that every round runs once.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Case {
    Train(Network, Mode),
    /// dtrain's loader, one thread.
    Loader,
    /// The same from the second epoch on, if all images fit into its cache.
    CachedLoader,
    /// torch's DataLoader with torchvision, one worker process.
    TorchLoader,
    /// A launch, or several launches of the same kind.
    Launch(Workload, Launcher),
    /// Checkpoints, or the disk that stores them.
    Checkpoint(CheckpointCase),
}

impl Case {
    /// Returns the name for files and JSON.
    pub(super) fn name(self) -> String {
        match self {
            Self::Train(network, mode) => format!("{}/{}", network.name(), mode.name()),
            Self::Loader => "loader/dtrain".to_owned(),
            Self::CachedLoader => "loader/dtrain-cached".to_owned(),
            Self::TorchLoader => "loader/torch".to_owned(),
            Self::Launch(workload, launcher) => format!("{}/{}", workload.name(), launcher.name()),
            Self::Checkpoint(case) => case.name(),
        }
    }

    /// Returns the name for people, in a table about its network.
    pub(super) fn title(self) -> &'static str {
        match self {
            Self::Train(_, mode) => mode.title(),
            Self::Loader => "dtrain, one thread, no cache",
            Self::CachedLoader => "dtrain, one thread, from the cache",
            Self::TorchLoader => "DataLoader with torchvision, one worker",
            Self::Launch(_, launcher) => launcher.title(),
            Self::Checkpoint(case) => case.title(),
        }
    }

    /// Returns the part. All rounds of one part run before those of the next part.
    pub(super) fn part(self) -> String {
        match self {
            Self::Train(network, _) => network.name(),
            Self::Loader | Self::CachedLoader | Self::TorchLoader => "loader".to_owned(),
            Self::Launch(workload, _) => workload.name(),
            Self::Checkpoint(case) => case.part(),
        }
    }
}

impl Mode {
    fn name(self) -> String {
        match self {
            Self::Dtrain { transport, overlap } => {
                let overlap = if overlap { "overlap" } else { "no-overlap" };
                format!("dtrain-{}-{overlap}", transport.name())
            }
            Self::Ddp => "ddp".to_owned(),
            Self::DtrainAlone => "dtrain-alone".to_owned(),
            Self::TorchAlone => "torch-alone".to_owned(),
        }
    }

    fn title(self) -> &'static str {
        match self {
            DTRAIN => "dtrain",
            Self::Dtrain { transport, overlap } => match (transport, overlap) {
                (Transport::Shared, _) => "dtrain, reduced after backward",
                (Transport::Gloo, true) => "dtrain over TCP",
                (Transport::Gloo, false) => "dtrain over TCP, reduced after backward",
            },
            Self::Ddp => "PyTorch DDP",
            Self::DtrainAlone => "dtrain, two processes without communication",
            Self::TorchAlone => "PyTorch, two processes without communication",
        }
    }
}
