//! A recipe in the making.

use crate::tasks::Task;
use dtrain_common::look::{Layout, Setting};
use std::path::{Path, PathBuf};
use toml::{Table, Value};

/// The network of a recipe.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Network {
    /// The built-in one that fits task, data and machine.
    Usual,
    /// A built-in one.
    Named(String),
    /// An imported model.
    File { path: PathBuf, is_pretrained: bool },
}

/// A recipe without sizes, or with them.
#[derive(Debug)]
pub(super) struct Draft {
    pub(super) task: &'static Task,
    pub(super) network: Network,
    /// The settings of `[data]` by the layout, and those of the sizes.
    pub(super) data: Vec<Setting>,
    pub(super) model: Vec<Setting>,
    /// The sections after the model.
    pub(super) train: Vec<Setting>,
    pub(super) optim: Vec<Setting>,
    /// The numbers that the model returns, if the layout states them.
    pub(super) outputs: usize,
}

pub(super) fn setting(key: &str, value: impl Into<Value>, about: &str) -> Setting {
    Setting { key: key.to_owned(), value: value.into().to_string(), about: about.to_owned() }
}

impl Draft {
    pub(super) fn new(task: &'static Task, network: Network) -> Self {
        let (data, model, train, optim) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        Self { task, network, data, model, train, optim, outputs: 0 }
    }

    /// Returns the file of the model, if there is one.
    pub(super) fn file(&self) -> Option<&Path> {
        match &self.network {
            Network::File { path, .. } => Some(path),
            Network::Usual | Network::Named(_) => None,
        }
    }

    /// Takes an imported model as the network.
    pub(super) fn use_file(&mut self, path: PathBuf, is_pretrained: bool) {
        self.network = Network::File { path, is_pretrained };
    }

    /// Takes generated data.
    pub(super) fn generated(&mut self) {
        self.data.push(setting(
            "kind",
            "generated",
            "drawn by dtrain; name your data after the task instead",
        ));
        if self.is_of_images() {
            self.data.push(setting("classes", 4, ""));
        }
        let samples = if self.is_of_images() { [400, 100] } else { [2000, 200] };
        self.data.push(setting("train_samples", samples[0], ""));
        self.data.push(setting("test_samples", samples[1], ""));
    }

    /// Takes the settings of a layout, and those of the model's import that a layout does not state.
    pub(super) fn of_layout(&mut self, layout: &Layout, model: Option<&Table>) {
        self.data.clone_from(&layout.settings);
        for root in
            self.data.iter_mut().filter(|setting| setting.key == "root" && setting.value.starts_with("\"/"))
        {
            root.about.clear();
        }
        self.outputs = layout.numbers;
        let Some(model) = model else { return };
        let section = |name: &str| model.get(name).and_then(Value::as_table).cloned().unwrap_or_default();
        let data = section("data");
        let wanted: &[&str] = match self.task.name {
            "program" => &["target", "pairs", "episodes"],
            _ => &["pairs"],
        };
        for key in wanted {
            if let (Some(value), false) = (data.get(*key), self.has(key)) {
                self.data.push(setting(key, value.clone(), "for the inputs of the model"));
            }
        }
        for (key, value) in section("model").into_iter().filter(|(key, _)| key != "file") {
            self.model.push(setting(&key, value, ""));
        }
    }

    /// Returns whether `[data]` states a key.
    pub(super) fn has(&self, key: &str) -> bool {
        self.data.iter().any(|setting| setting.key == key)
    }

    /// Returns whether a setting of `[data]` has this text as its value.
    pub(super) fn is(&self, key: &str, text: &str) -> bool {
        self.data.iter().any(|setting| setting.key == key && setting.value == format!("{text:?}"))
    }

    pub(super) fn is_generated(&self) -> bool {
        self.is("kind", "generated")
    }

    /// Returns whether the samples are images for a task of images.
    pub(super) fn is_of_images(&self) -> bool {
        self.task.name != "lm" && !self.has("tokenizer") && !self.has("vocabulary")
    }

    /// Returns whether the trainer can check the data: with a network.
    pub(super) fn can_be_checked(&self) -> bool {
        !self.is_generated() && (!self.task.needs_file || self.file().is_some())
    }

    /// Returns the least recipe with these data, which the trainer checks.
    pub(super) fn least(&self) -> String {
        let lines = |settings: &[Setting]| {
            settings
                .iter()
                .map(|setting| format!("{} = {}\n", setting.key, setting.value))
                .collect::<String>()
        };
        let size = match self.is_of_images() && self.file().is_none() {
            true => "image_size = 64\n",
            false => "",
        };
        let model = match (&self.network, self.task.name) {
            (Network::File { path, .. }, _) => {
                format!("file = {}\n{}", Value::from(path.to_string_lossy().as_ref()), lines(&self.model))
            }
            // The least network: only the data are asked for.
            (_, "lm") => "width = 16\ndepth = 1\nheads = 1\ncontext = 8\n".to_owned(),
            (_, "segment") => "width = 2\ndepth = 1\n".to_owned(),
            _ => "name = \"resnet18\"\n".to_owned(),
        };
        format!(
            "task = {:?}\n[data]\n{}{size}[model]\n{model}[train]\neffective_batch = 2\nsteps = 1\n",
            self.task.name,
            lines(&self.data)
        )
    }
}
