//! The networks: small ones without batch normalisation, and those that are compared with PyTorch.

use dtrain_tests::formula;
use dtrain_worker::models::{Architecture, Classifier, Gpt, GptConfig, ModelError, Registry, Scope, build};
use tch::{Device, Kind as Dtype, Reduction, TchError, Tensor};

/// The kind of network.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Two convolutions and a linear layer.
    Conv,
    /// Linear layers: one never used, one for some samples, one for a few.
    Branches,
    /// A linear layer, and flags and counters of every dtype, which scale its input and change in training.
    Flags,
    /// A ResNet-18.
    ResNet18,
    /// A GPT of three blocks.
    Gpt,
}

impl Kind {
    /// Returns the kind named by `custom.net`.
    pub(crate) fn parse(name: &str) -> Option<Self> {
        let all = [Self::Conv, Self::Branches, Self::Flags, Self::ResNet18, Self::Gpt];
        all.into_iter().find(|kind| kind.name() == name)
    }

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Conv => "conv",
            Self::Branches => "branches",
            Self::Flags => "flags",
            Self::ResNet18 => "resnet18",
            Self::Gpt => "gpt",
        }
    }

    /// Returns the shape of one sample's input.
    pub(crate) fn input_shape(self) -> Vec<usize> {
        match self {
            Self::Conv => vec![1, 6, 6],
            Self::Branches | Self::Flags => vec![6],
            Self::ResNet18 => vec![3, 32, 32],
            Self::Gpt => vec![16],
        }
    }

    pub(crate) fn input_len(self) -> usize {
        self.input_shape().iter().product()
    }

    /// Returns the number of classes or tokens.
    pub(crate) fn classes(self) -> u64 {
        match self {
            Self::Conv => 5,
            Self::Branches | Self::Flags => 4,
            Self::ResNet18 => 10,
            Self::Gpt => 31,
        }
    }

    /// Returns the period after which samples repeat their contents, so that a network can learn.
    pub(crate) fn period(self) -> usize {
        match self {
            Self::Conv | Self::Branches | Self::Flags => usize::MAX,
            Self::ResNet18 => 64,
            Self::Gpt => 48,
        }
    }
}

/// A built network.
pub(crate) enum Net {
    Conv([Layer; 3]),
    Branches(Branches),
    Flags(Layer, Vec<Tensor>),
    ResNet18(Box<dyn Classifier>),
    Gpt(Gpt),
}

/// Weight and bias.
pub(crate) struct Layer {
    weight: Tensor,
    bias: Tensor,
}

impl Layer {
    fn new(mut scope: Scope<'_>, shape: &[i64]) -> Result<Self, ModelError> {
        let zeros = |shape: &[i64]| Tensor::f_zeros(shape, (Dtype::Float, Device::Cpu));
        Ok(Self {
            weight: scope.parameter("weight", &zeros(shape)?)?,
            bias: scope.parameter("bias", &zeros(&shape[..1])?)?,
        })
    }

    fn linear(&self, x: &Tensor) -> Result<Tensor, TchError> {
        x.f_linear(&self.weight, Some(&self.bias))
    }

    fn conv(&self, x: &Tensor, stride: i64) -> Result<Tensor, TchError> {
        x.f_conv2d(&self.weight, Some(&self.bias), [stride; 2], [1; 2], [1; 2], 1)
    }
}

pub(crate) struct Branches {
    trunk: Layer,
    /// Used for no sample.
    _never: Layer,
    some: Layer,
    few: Layer,
    head: Layer,
}

impl Net {
    /// Builds a network with the formula's weights; the last norm of every residual block is zero.
    pub(crate) fn new(kind: Kind, registry: &mut Registry) -> Result<Self, ModelError> {
        let mut root = registry.root();
        let mut layer = |name: &str, shape: &[i64]| Layer::new(root.sub(name), shape);
        let net = match kind {
            Kind::Conv => Self::Conv([
                layer("conv1", &[4, 1, 3, 3])?,
                layer("conv2", &[6, 4, 3, 3])?,
                layer("head", &[5, 54])?,
            ]),
            Kind::Branches => Self::Branches(Branches {
                trunk: layer("trunk", &[8, 6])?,
                _never: layer("never", &[8, 8])?,
                some: layer("some", &[8, 8])?,
                few: layer("few", &[8, 8])?,
                head: layer("head", &[4, 8])?,
            }),
            Kind::Flags => Self::Flags(layer("head", &[4, 6])?, flags(&mut registry.root())?),
            Kind::ResNet18 => Self::ResNet18(build(Architecture::ResNet18, 3, 10, registry)?),
            Kind::Gpt => {
                let config = GptConfig { vocabulary: 31, context: 20, width: 48, depth: 3, heads: 4 };
                Self::Gpt(Gpt::new(config, registry)?)
            }
        };
        for entry in registry.state().iter().filter(|entry| entry.tensor().is_floating_point()) {
            let shape = entry.tensor().size();
            let mut value = Tensor::f_from_slice(&formula::state_value(entry.name(), &shape))?
                .f_view(shape.as_slice())?
                // PyTorch's side begins with weights rounded to float32.
                .f_to_kind(Dtype::Float)?;
            if entry.name().ends_with("bn2.weight") {
                value = value.f_zeros_like()?;
            }
            tch::no_grad(|| entry.tensor().shallow_clone().f_copy_(&value))?;
        }
        Ok(net)
    }

    /// Returns the loss of every sample, N, from inputs `x` and targets; `numbers` are the samples' numbers.
    pub(crate) fn losses(
        &self,
        x: &Tensor,
        targets: &Tensor,
        numbers: &[i64],
        train: bool,
    ) -> Result<Tensor, ModelError> {
        let logits = match self {
            Self::Conv([conv1, conv2, head]) => {
                let x = conv1.conv(x, 1)?.f_gelu("none")?;
                let x = conv2.conv(&x, 2)?.f_gelu("none")?;
                head.linear(&x.f_flatten(1, -1)?)?
            }
            Self::Branches(branches) => return branches.losses(x, targets, numbers),
            Self::Flags(head, flags) => {
                let scale = scale_of(flags)?;
                if train {
                    flags.iter().try_for_each(change)?;
                }
                head.linear(&x.f_mul(&scale)?)?.f_gelu("none")?
            }
            Self::ResNet18(model) => model.forward(x, train)?,
            Self::Gpt(model) => {
                // The mean over a sample's tokens.
                let logits = model.forward(x, train)?.f_transpose(1, 2)?;
                return Ok(cross_entropy(&logits, targets)?.f_mean_dim(&[1i64][..], false, None)?);
            }
        };
        Ok(cross_entropy(&logits, targets)?)
    }
}

/// Registers a flag and counters.
fn flags(scope: &mut Scope<'_>) -> Result<Vec<Tensor>, ModelError> {
    let kinds = [
        ("flag", Dtype::Bool),
        ("uint8", Dtype::Uint8),
        ("int8", Dtype::Int8),
        ("int16", Dtype::Int16),
        ("int32", Dtype::Int),
        ("int64", Dtype::Int64),
    ];
    let buffer =
        |(name, kind): (&str, Dtype)| scope.buffer(name, &Tensor::f_zeros([3], (kind, Device::Cpu))?);
    kinds.into_iter().map(buffer).collect()
}

/// Returns a number that differs for all values of the flags.
fn scale_of(flags: &[Tensor]) -> Result<Tensor, TchError> {
    let sum = |flag: &Tensor| flag.f_sum(Dtype::Float);
    let sums = flags.iter().map(sum).collect::<Result<Vec<_>, _>>()?;
    Tensor::f_stack(&sums, 0)?.f_sum(Dtype::Float)?.f_mul_scalar(0.01)?.f_add_scalar(1)
}

/// Reverses a flag, or counts.
fn change(flag: &Tensor) -> Result<(), TchError> {
    let mut flag = flag.shallow_clone();
    match flag.kind() {
        Dtype::Bool => flag.f_logical_not_().map(drop),
        _ => flag.f_add_scalar_(1).map(drop),
    }
}

fn cross_entropy(logits: &Tensor, targets: &Tensor) -> Result<Tensor, TchError> {
    logits.f_cross_entropy_loss(targets, None::<Tensor>, Reduction::None, -100, 0.0)
}

impl Branches {
    /// Computes losses. A branch that no sample of the micro-batch uses is not in the graph.
    fn losses(&self, x: &Tensor, targets: &Tensor, numbers: &[i64]) -> Result<Tensor, ModelError> {
        let x = self.trunk.linear(x)?.f_tanh()?;
        let mut losses = Vec::new();
        for (row, &number) in numbers.iter().enumerate() {
            let mut x = x.f_narrow(0, row as i64, 1)?;
            for (takes, layer) in
                [(takes("some", number, 8), &self.some), (takes("few", number, 32), &self.few)]
            {
                if takes {
                    x = x.f_add(&layer.linear(&x)?.f_tanh()?)?;
                }
            }
            let target = targets.f_narrow(0, row as i64, 1)?;
            losses.push(cross_entropy(&self.head.linear(&x)?, &target)?);
        }
        Ok(Tensor::f_cat(&losses, 0)?)
    }
}

/// Returns whether the sample of this number uses the branch: about one in `one_in` samples does.
fn takes(branch: &str, number: i64, one_in: u64) -> bool {
    formula::words(&format!("branches.{branch}.{number}"), 1)[0].is_multiple_of(one_in)
}
