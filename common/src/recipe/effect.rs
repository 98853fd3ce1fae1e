//! Which settings mean nothing in a recipe, and why. They are refused when they are stated and not written when the
//! recipe is saved.

use super::{Amp, DataKind, ModelName, OptimName, Recipe, Resize, ScheduleName, Task};

/// The dotted keys without effect, each once, with the reason in words.
#[derive(Default)]
pub(super) struct Idle(Vec<(&'static str, String)>);

impl Idle {
    pub(super) fn iter(&self) -> impl Iterator<Item = (&'static str, &str)> {
        self.0.iter().map(|(key, reason)| (*key, reason.as_str()))
    }

    /// Of several reasons the first stays.
    fn add(&mut self, idle: bool, keys: &[&'static str], reason: impl Into<String>) {
        if !idle {
            return;
        }
        let reason = reason.into();
        for key in keys {
            if self.0.iter().all(|(known, _)| known != key) {
                self.0.push((key, reason.clone()));
            }
        }
    }
}

impl Recipe {
    pub(super) fn idle(&self) -> Idle {
        let mut idle = Idle::default();
        // What data and model mean is for the user's own trainer to say.
        if self.task != Task::Custom {
            self.idle_images(&mut idle);
            self.idle_samples(&mut idle);
            self.idle_model(&mut idle);
        }
        self.idle_optim(&mut idle);
        idle.add(
            !self.stage.is_empty(),
            &["train.epochs", "train.steps"],
            "every [[stage]] says how long it is",
        );
        let scaled = matches!(self.precision.amp, Amp::Fp16 | Amp::Auto);
        idle.add(
            !scaled,
            &["precision.loss_scale"],
            format!(
                "only float16 needs a scaled loss and precision.amp is {:?}",
                self.precision.amp.as_str()
            ),
        );
        // A module or a trainer of the user's own may leave autocast for a part of what it computes.
        let own = matches!(self.task, Task::Custom | Task::Torchscript);
        idle.add(
            matches!(self.precision.amp, Amp::Bf16 | Amp::Fp16) && !own,
            &["precision.tf32"],
            format!(
                "no matrix product and no convolution is left in float32 where precision.amp is {:?}",
                self.precision.amp.as_str()
            ),
        );
        idle.add(
            self.task != Task::Custom,
            &["custom"],
            format!("it is for task = \"custom\" and this is {:?}", self.task.as_str()),
        );
        idle
    }

    /// What belongs to images and masks.
    fn idle_images(&self, idle: &mut Idle) {
        let generated = self.data.kind == DataKind::Generated;
        let masks = ["data.train_masks", "data.test_masks", "data.masks"];
        idle.add(
            self.task == Task::Lm,
            &[
                "data.train",
                "data.test",
                "data.image_size",
                "data.resize",
                "data.channels",
                "data.mean",
                "data.std",
                "data.cache",
            ],
            "it belongs to images and the task is \"lm\"",
        );
        let without_masks = format!(
            "it belongs to masks, which task = \"segment\" has, and this is {:?}",
            self.task.as_str()
        );
        idle.add(self.task != Task::Segment, &masks, &*without_masks);
        idle.add(self.task != Task::Segment, &["data.ignore"], &*without_masks);
        let from_nowhere = "generated data is read from nowhere (data.kind is \"generated\")";
        idle.add(
            generated,
            &["data.root", "data.train", "data.test", "data.cache"],
            from_nowhere,
        );
        idle.add(generated, &masks, from_nowhere);
        idle.add(
            generated,
            &["data.resize"],
            "generated images are drawn in the size of data.image_size",
        );
        idle.add(
            !generated && self.data.resize == Resize::None,
            &["data.image_size"],
            "images keep their own size (data.resize is \"none\")",
        );
    }

    /// What belongs to texts and to generated samples.
    fn idle_samples(&self, idle: &mut Idle) {
        let generated = self.data.kind == DataKind::Generated;
        idle.add(
            self.task != Task::Lm,
            &["data.tokenizer", "data.test_fraction"],
            format!(
                "it belongs to texts, which task = \"lm\" has, and this is {:?}",
                self.task.as_str()
            ),
        );
        idle.add(
            generated,
            &["data.test_fraction"],
            "the test set of generated data has data.test_samples (data.kind is \"generated\")",
        );
        idle.add(
            self.task == Task::Lm,
            &["data.classes"],
            "a language model's classes are the tokens of its text",
        );
        // Masks do not say how many classes there could be.
        idle.add(
            !generated && self.task != Task::Segment,
            &["data.classes"],
            "a folder's class folders are counted (data.kind is \"folder\")",
        );
        idle.add(
            !generated,
            &["data.train_samples", "data.test_samples"],
            format!(
                "all samples are used (data.kind is {:?})",
                self.data.kind.as_str()
            ),
        );
    }

    fn idle_model(&self, idle: &mut Idle) {
        let torchscript = self.task == Task::Torchscript;
        idle.add(
            torchscript,
            &["model.name"],
            "the network is the module in model.file (task is \"torchscript\")",
        );
        idle.add(
            !torchscript,
            &["model.file", "model.loss"],
            format!(
                "it is for task = \"torchscript\" and this is {:?}",
                self.task.as_str()
            ),
        );
        idle.add(
            self.model.weights.is_none(),
            &["model.weights_mode", "model.weights_rename"],
            "it says how the file in model.weights is read, and none is named",
        );
        let name = self.model.name;
        let network = match name {
            Some(name) => format!("the model is {:?}", name.as_str()),
            None => "the network is the module in model.file".into(),
        };
        let of = |names: &[ModelName]| name.is_some_and(|name| names.contains(&name));
        use ModelName::{Gpt, Unet, Vit};
        let mut sizes = |keys: &[&'static str], names: &[ModelName]| {
            let owners: Vec<_> = names.iter().map(|name| format!("{:?}", name.as_str())).collect();
            let owners = owners.join(" and ");
            idle.add(!of(names), keys, format!("it belongs to {owners}; {network}"));
        };
        sizes(&["model.width", "model.depth"], &[Vit, Unet, Gpt]);
        sizes(&["model.heads"], &[Vit, Gpt]);
        sizes(&["model.patch"], &[Vit]);
        sizes(&["model.context"], &[Gpt]);
        let convolutions = of(&[Unet]) || name.is_some_and(ModelName::is_resnet);
        idle.add(
            !convolutions,
            &["model.batchnorm"],
            format!("it belongs to models with BatchNorm, which are the ResNets and \"unet\"; {network}"),
        );
        idle.add(
            !convolutions,
            &["model.memory_format"],
            format!("it belongs to models of convolutions, which are the ResNets and \"unet\"; {network}"),
        );
        idle.add(
            of(&[Gpt]),
            &["model.cudnn_benchmark"],
            format!("it belongs to models with convolutions; {network}"),
        );
    }

    fn idle_optim(&self, idle: &mut Idle) {
        let name = self.optim.name;
        idle.add(
            name != OptimName::Sgd,
            &["optim.momentum", "optim.nesterov"],
            format!(
                "it belongs to optim.name = \"sgd\" and this is {:?}",
                name.as_str()
            ),
        );
        idle.add(
            name == OptimName::Sgd,
            &["optim.betas", "optim.eps"],
            "it belongs to \"adamw\" and \"adam\" and optim.name is \"sgd\"",
        );
        use ScheduleName::{Constant, Cosine, Exponential, Linear, OneCycle, Step};
        let name = self.optim.schedule.name;
        let mut course = |keys: &[&'static str], names: &[ScheduleName]| {
            let owners: Vec<_> = names.iter().map(|name| format!("{:?}", name.as_str())).collect();
            let owners = owners.join(" and ");
            let reason = format!(
                "it belongs to {owners} and optim.schedule.name is {:?}",
                name.as_str()
            );
            idle.add(!names.contains(&name), keys, reason);
        };
        course(&["optim.schedule.min_lr"], &[Linear, Cosine]);
        course(&["optim.schedule.every", "optim.schedule.milestones"], &[Step]);
        course(&["optim.schedule.gamma"], &[Step, Exponential]);
        course(
            &[
                "optim.schedule.rise",
                "optim.schedule.start_factor",
                "optim.schedule.final_factor",
            ],
            &[OneCycle],
        );
        idle.add(
            name == Constant,
            &["optim.schedule.per"],
            "the learning rate does not move after the warm-up, and the warm-up always goes by steps \
             (optim.schedule.name is \"constant\")",
        );
    }
}
