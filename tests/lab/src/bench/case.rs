//! What is run: the networks, the ways in which one is trained, and what else there is.

use super::checkpoint::Saving;
use super::launch::{By, Job};

/// A network that both sides train, with the batch of one rank.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Network {
    Resnet18,
    /// The fewer tokens in a step, the more the exchange weighs in it.
    Gpt {
        windows: u64,
        /// Tokens of a window.
        context: u64,
    },
}

/// The GPT in a step that is mostly arithmetic, in a short one, and in one where PyTorch waits for a third of the time.
pub(super) const GPTS: [Network; 3] = [
    Network::Gpt { windows: 4, context: 256 },
    Network::Gpt { windows: 1, context: 256 },
    Network::Gpt { windows: 1, context: 64 },
];

impl Network {
    /// In file names and in the JSON.
    pub(super) fn name(self) -> String {
        match self {
            Self::Resnet18 => "resnet18".to_owned(),
            Self::Gpt { windows, context } => format!("gpt-{windows}x{context}"),
        }
    }

    /// For `train.py`, and of the recipe in tests/bench.
    pub(super) fn model(self) -> &'static str {
        match self {
            Self::Resnet18 => "resnet18",
            Self::Gpt { .. } => "gpt",
        }
    }

    /// The heading of its table.
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

    /// Samples of one step on one rank.
    pub(super) fn batch(self) -> u64 {
        match self {
            Self::Resnet18 => 16,
            Self::Gpt { windows, .. } => windows,
        }
    }

    /// The things that are counted in a sample.
    pub(super) fn per_sample(self) -> u64 {
        match self {
            Self::Resnet18 => 1,
            Self::Gpt { context, .. } => context,
        }
    }

    /// What the rate counts.
    pub(super) fn unit(self) -> &'static str {
        match self {
            Self::Resnet18 => "images/s",
            Self::Gpt { .. } => "tokens/s",
        }
    }

    /// Steps of one run: the first are not counted, in which memory is first touched and kernels are chosen.
    pub(super) fn steps(self) -> Steps {
        let long = matches!(self, Self::Gpt { windows: 2.., .. });
        let (skipped, counted) = if long { (3, 7) } else { (5, 15) };
        Steps { skipped, counted }
    }
}

/// The steps of one run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Steps {
    /// The first, in which kernels are chosen and memory is touched.
    pub(crate) skipped: usize,
    pub(crate) counted: usize,
}

impl Steps {
    pub(crate) fn all(self) -> usize {
        self.skipped + self.counted
    }
}

/// By which way dtrain's ranks exchange data; the words of `DTRAIN_TRANSPORT`.
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
pub(super) enum Way {
    /// dtrain, two ranks.
    Dtrain { transport: Transport, overlap: bool },
    /// PyTorch's DistributedDataParallel over Gloo, two ranks.
    Ddp,
    /// dtrain, two runs of one rank that know nothing of each other: what communication could at best cost nothing of.
    DtrainAlone,
    /// PyTorch, two processes that know nothing of each other.
    TorchAlone,
}

/// dtrain as it is without any setting.
pub(super) const DTRAIN: Way = Way::Dtrain { transport: Transport::Shared, overlap: true };

/// One thing that is run in every round.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Case {
    Train(Network, Way),
    /// dtrain's loader, one thread.
    Loader,
    /// The same from the second epoch on where all images fit into its cache.
    CachedLoader,
    /// torch's DataLoader with torchvision, one worker process.
    TorchLoader,
    /// A launch, or several of the same kind.
    Launch(Job, By),
    /// Checkpoints, or the disk that they go to.
    Checkpoint(Saving),
}

impl Case {
    /// In file names and in the JSON.
    pub(super) fn name(self) -> String {
        match self {
            Self::Train(network, way) => format!("{}/{}", network.name(), way.name()),
            Self::Loader => "loader/dtrain".to_owned(),
            Self::CachedLoader => "loader/dtrain-cached".to_owned(),
            Self::TorchLoader => "loader/torch".to_owned(),
            Self::Launch(job, by) => format!("{}/{}", job.name(), by.name()),
            Self::Checkpoint(saving) => saving.name(),
        }
    }

    /// For people, in a table about its network.
    pub(super) fn title(self) -> &'static str {
        match self {
            Self::Train(_, way) => way.title(),
            Self::Loader => "dtrain, one thread, nothing kept",
            Self::CachedLoader => "dtrain, one thread, from the second epoch on",
            Self::TorchLoader => "DataLoader with torchvision, one worker",
            Self::Launch(_, by) => by.title(),
            Self::Checkpoint(saving) => saving.title(),
        }
    }

    /// Cases of one part are run in turn, round after round, before those of the next.
    pub(super) fn part(self) -> String {
        match self {
            Self::Train(network, _) => network.name(),
            Self::Loader | Self::CachedLoader | Self::TorchLoader => "loader".to_owned(),
            Self::Launch(job, _) => job.name(),
            Self::Checkpoint(saving) => saving.part(),
        }
    }
}

impl Way {
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
