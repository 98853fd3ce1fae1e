//! Settings without effect, and why. A recipe that states one is an error; a saved recipe leaves them out.

use super::hints::quoted;
use super::{Amp, DataKind, ModelName, OptimName, Recipe, Resize, ScheduleName, Target, Task};

/// The dotted keys without effect, each once, with the reason.
#[derive(Default)]
struct WithoutEffect(Vec<(&'static str, String)>);

impl WithoutEffect {
    /// Adds keys, separated by spaces, if `condition`. A key keeps its first reason.
    fn add(&mut self, condition: bool, keys: &'static str, reason: impl Into<String>) {
        let reason = reason.into();
        for key in keys.split(' ').filter(|_| condition) {
            if self.0.iter().all(|(known, _)| *known != key) {
                self.0.push((key, reason.clone()));
            }
        }
    }
}

fn owners(words: &[&str]) -> String {
    quoted(words).replace(", ", " and ")
}

impl Recipe {
    pub(super) fn settings_without_effect(&self) -> Vec<(&'static str, String)> {
        let mut list = WithoutEffect::default();
        // The user's trainer decides the meaning of `[data]` and `[model]`.
        if self.task != Task::Custom {
            self.add_images(&mut list);
            self.add_samples(&mut list);
            self.add_model(&mut list);
        }
        self.add_optim(&mut list);
        list.add(!self.stage.is_empty(), "train.epochs train.steps", "each [[stage]] states its length");
        let amp = self.precision.amp;
        list.add(
            !matches!(amp, Amp::Fp16 | Amp::Auto),
            "precision.loss_scale",
            format!("only float16 needs a scaled loss, and precision.amp is {:?}", amp.as_str()),
        );
        // A user's network or trainer may turn autocast off for a part of its computation.
        let own = self.task == Task::Custom || self.model.file.is_some();
        list.add(
            matches!(amp, Amp::Bf16 | Amp::Fp16) && !own,
            "precision.tf32",
            format!("precision.amp = {:?} leaves no matrix product or convolution in float32", amp.as_str()),
        );
        list.add(self.task != Task::Custom, "custom", self.of_tasks("\"custom\""));
        list.0
    }

    fn add_images(&self, list: &mut WithoutEffect) {
        let generated = self.data.kind == DataKind::Generated;
        let (target, folders) = (self.target(), "data.train_masks data.test_masks");
        let files = "data.train data.test data.orientation data.cache";
        let sizes = "data.image_size data.resize data.channels data.mean data.std";
        let of_images = format!("it applies to images, and {}", self.reason());
        list.add(target == Some(Target::Tokens), files, &*of_images);
        list.add(target == Some(Target::Tokens), sizes, of_images);
        let only = |what| format!("it applies to {what}, and {}", self.reason());
        let of_pixels = target.is_some_and(Target::is_of_pixels);
        list.add(!of_pixels, folders, only("masks and maps"));
        list.add(!of_pixels, "data.ignore", only("masks and maps"));
        list.add(target != Some(Target::Mask), "data.masks", only("masks"));
        list.add(target != Some(Target::Map), "data.target_scale", only("maps"));
        let from_nowhere = "generated data has no files (data.kind is \"generated\")";
        list.add(generated, "data.root", from_nowhere);
        list.add(generated, files, from_nowhere);
        list.add(generated, folders, from_nowhere);
        list.add(generated, "data.masks data.target_scale", from_nowhere);
        list.add(generated && target == Some(Target::Map), "data.ignore", from_nowhere);
        list.add(generated, "data.resize", "generated images have the size data.image_size");
        let keeps = !generated && self.data.resize == Resize::None;
        list.add(keeps, "data.image_size", "images keep their own size (data.resize is \"none\")");
    }

    /// Formats "the task is "lm"", with the target if the task has several.
    fn reason(&self) -> String {
        let task = format!("the task is {:?}", self.task.as_str());
        match self.target().filter(|_| !self.task.targets().is_empty()) {
            Some(target) => format!("{task} with data.target = {:?}", target.as_str()),
            None => task,
        }
    }

    fn add_samples(&self, list: &mut WithoutEffect) {
        let generated = self.data.kind == DataKind::Generated;
        let (kind, target) = (self.data.kind.as_str(), self.target());
        let tokens = target == Some(Target::Tokens);
        let chooses = !self.task.targets().is_empty();
        list.add(!chooses, "data.target", self.of_tasks("\"regress\" and \"program\""));
        list.add(self.task != Task::Regress, "data.normalize_targets", self.of_tasks("\"regress\""));
        let of_texts = format!("it applies to texts, and {}", self.reason());
        list.add(!tokens, "data.tokenizer data.test_fraction", of_texts);
        let counted = "generated data has data.test_samples test samples (data.kind is \"generated\")";
        list.add(generated, "data.test_fraction", counted);
        list.add(tokens, "data.classes", "a language model's classes are the tokens of its text");
        let numbers = matches!(target, Some(Target::Vector | Target::Map));
        list.add(numbers, "data.classes", format!("it applies to classes, and {}", self.reason()));
        // The masks alone do not state the number of classes.
        let folders = "the class folders determine it (data.kind is \"folder\")";
        list.add(!generated && target != Some(Target::Mask), "data.classes", folders);
        let all = format!("all samples are used (data.kind is {kind:?})");
        list.add(!generated, "data.train_samples data.test_samples", all);
    }

    /// Formats that a setting applies only to tasks, in quotes.
    pub(super) fn of_tasks(&self, tasks: &str) -> String {
        format!("it applies to task = {tasks}, and the task is {:?}", self.task.as_str())
    }

    fn add_model(&self, list: &mut WithoutEffect) {
        let of_file = "the network is the program in model.file";
        let has_file = self.model.file.is_some();
        list.add(has_file, "model.name", of_file);
        let of_losses = self.of_tasks("\"regress\"");
        list.add(self.task.losses().is_empty(), "model.loss", of_losses);
        let of_programs = "it applies to an exported program in model.file, which is not set";
        let program = self.program().is_some();
        list.add(
            !program,
            "model.inputs model.output model.auxiliary model.libraries model.zero_weights",
            of_programs,
        );
        list.add(self.task == Task::Program, "model.auxiliary", "the program returns the loss itself");
        list.add(
            self.model.weights.is_none(),
            "model.weights_mode model.weights_rename",
            "it applies to the file in model.weights, which is not set",
        );
        let name = self.model.name.map_or("", ModelName::as_str);
        let network = match name {
            "" => of_file.into(),
            name => format!("the model is {name:?}"),
        };
        let sizes: [(&'static str, &[&str]); 4] = [
            ("model.width model.depth", &["vit", "unet", "gpt"]),
            ("model.heads", &["vit", "gpt"]),
            ("model.patch", &["vit"]),
            ("model.context", &["gpt"]),
        ];
        let tokens = program && self.target() == Some(Target::Tokens);
        for (keys, names) in sizes.into_iter().filter(|(keys, _)| !(tokens && *keys == "model.context")) {
            list.add(!names.contains(&name), keys, format!("it applies to {}; {network}", owners(names)));
        }
        let convolutions = name == "unet" || self.model.name.is_some_and(ModelName::is_resnet);
        let of_models =
            |what: &str| format!("it applies to models {what}, that is the ResNets and \"unet\"; {network}");
        // Whether a program has them is known when it is read.
        list.add(!convolutions && !program, "model.batchnorm", of_models("with BatchNorm"));
        list.add(!convolutions && !program, "model.memory_format", of_models("of convolutions"));
        let with_convolutions = format!("it applies to models with convolutions; {network}");
        list.add(name == "gpt", "model.cudnn_benchmark", with_convolutions);
    }

    fn add_optim(&self, list: &mut WithoutEffect) {
        let (optim, sgd) = (self.optim.name.as_str(), self.optim.name == OptimName::Sgd);
        let of_sgd = format!("it applies to optim.name = \"sgd\", and optim.name is {optim:?}");
        list.add(!sgd, "optim.momentum optim.nesterov", of_sgd);
        let of_adam = "it applies to \"adamw\" and \"adam\", and optim.name is \"sgd\"";
        list.add(sgd, "optim.betas optim.eps", of_adam);
        let name = self.optim.schedule.name;
        let course: [(&'static str, &[&str]); 4] = [
            ("optim.schedule.min_lr", &["linear", "cosine"]),
            ("optim.schedule.every optim.schedule.milestones", &["step"]),
            ("optim.schedule.gamma", &["step", "exponential"]),
            ("optim.schedule.rise optim.schedule.start_factor optim.schedule.final_factor", &["onecycle"]),
        ];
        for (keys, names) in course {
            let owners = owners(names);
            let reason = format!("it applies to {owners}, and optim.schedule.name is {:?}", name.as_str());
            list.add(!names.contains(&name.as_str()), keys, reason);
        }
        list.add(
            name == ScheduleName::Constant,
            "optim.schedule.per",
            "optim.schedule.name = \"constant\" changes the learning rate only in the warm-up, always by steps",
        );
    }
}
