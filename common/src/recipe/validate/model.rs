//! Conditions between the settings of `[model]`, and between `[model]` and `[data]`.

use super::super::hints::quoted;
use super::data::image_size;
use super::{Checks, Task};
use crate::recipe::ModelName;

impl Checks<'_> {
    pub(super) fn model_pairing(&mut self) {
        let takes = |name: &&str| match self.recipe.task {
            Task::Classify => !["unet", "gpt"].contains(name),
            Task::Segment => *name == "unet",
            Task::Lm => *name == "gpt",
            // A file holds the network.
            Task::Regress | Task::Program | Task::Custom => true,
        };
        self.file_format();
        self.losses();
        if let Some(name) = self.recipe.model.name.map(ModelName::as_str)
            && self.recipe.model.file.is_none()
            && !takes(&name)
        {
            let networks: Vec<_> = ModelName::NAMES.iter().copied().filter(takes).collect();
            let task = self.recipe.task.as_str();
            self.add("model.name", format!("task = {task:?} takes {}, not {name:?}", quoted(&networks)));
        }
    }

    /// Checks that the ending of the file, which states its format, matches the task.
    fn file_format(&mut self) {
        let Some(file) = &self.recipe.model.file else { return };
        let exported = file.extension().is_some_and(|ending| ending.eq_ignore_ascii_case("pt2"));
        if !exported && self.recipe.task != Task::Custom {
            let (name, task) = (file.file_name().unwrap_or_default().to_string_lossy(), self.recipe.task);
            let message = format!(
                "{name:?} does not end in .pt2, and task = \"{task}\" takes an exported program; write one with `dtrain import`"
            );
            self.add("model.file", message);
        }
    }

    /// Checks that the task takes the loss of the recipe and those of its stages.
    fn losses(&mut self) {
        let takes = self.recipe.task.losses();
        if takes.is_empty() {
            return;
        }
        let stages = self.recipe.stage.iter().enumerate();
        let stages =
            stages.filter_map(|(number, stage)| Some((format!("stage[{number}].loss"), stage.loss?)));
        for (key, loss) in [("model.loss".to_owned(), self.recipe.model.loss)].into_iter().chain(stages) {
            if !takes.contains(&loss) {
                let words: Vec<&str> = takes.iter().map(|loss| loss.as_str()).collect();
                let (task, words) = (self.recipe.task, quoted(&words));
                self.add(&key, format!("task = \"{task}\" takes {words}, not \"{loss}\""));
            }
        }
    }

    pub(super) fn model(&mut self) {
        let model = &self.recipe.model;
        let file = match self.recipe.task {
            Task::Regress | Task::Program => Some("name a file that `dtrain import` wrote"),
            _ => None,
        };
        if let (Some(remedy), None) = (file, &model.file) {
            self.add("model.file", format!("missing; {remedy}"));
        }
        if let Some(output) = &model.output
            && model.auxiliary.contains_key(output)
        {
            let message = format!("{output:?} is also in model.auxiliary; remove it from one of the two");
            self.add("model.output", message);
        }
        let is_a = |name| model.name == Some(name);
        if let (Some(width), Some(heads)) = (model.width, model.heads)
            && (is_a(ModelName::Vit) || is_a(ModelName::Gpt))
            && !width.is_multiple_of(heads)
        {
            let above = width.next_multiple_of(heads);
            let message = format!(
                "a width of {width} is not divisible by {heads} heads; set model.width = {above}, or model.heads to a divisor \
                 of {width}"
            );
            self.add(self.first_given(["model.width", "model.heads"]), message);
        }
        match (model.patch, model.depth) {
            (Some(patch), _) if is_a(ModelName::Vit) => self.patch(patch),
            (_, Some(depth)) if is_a(ModelName::Unet) => self.levels(depth),
            _ => {}
        }
    }

    /// Returns which of two conflicting keys to report: the first that the recipe states.
    fn first_given(&self, [first, second]: [&'static str; 2]) -> &'static str {
        if self.is_stated(first) || !self.is_stated(second) { first } else { second }
    }

    fn patch(&mut self, patch: usize) {
        match image_size(self.recipe) {
            None => self.add(
                "data.resize",
                "\"vit\" needs images of a known size; set data.resize = \"crop\" or \"stretch\" and data.image_size",
            ),
            Some(size) if !size.is_multiple_of(patch) => {
                let above = size.next_multiple_of(patch);
                let message = format!(
                    "images of {size} pixels do not divide into patches of {patch}; set data.image_size = {above}, or \
                     model.patch to a divisor of {size}"
                );
                self.add(self.first_given(["model.patch", "data.image_size"]), message);
            }
            Some(_) => {}
        }
    }

    /// Checks the depth: with every level the U-Net's width doubles and the image's size halves.
    fn levels(&mut self, depth: usize) {
        /// Beyond it, a single convolution exceeds any memory or the image is smaller than a pixel.
        const DEEPEST: usize = 8;
        if depth > DEEPEST {
            let message = format!(
                "a U-Net of {depth} levels doubles its width {depth} times; set model.depth to at most {DEEPEST}"
            );
            self.add("model.depth", message);
        } else if let Some(size) = image_size(self.recipe)
            && size >> depth == 0
        {
            let least = 1_usize << depth;
            let message = format!(
                "images of {size} pixels cannot be halved {depth} times; set data.image_size to at least {least}, or lower \
                 model.depth"
            );
            self.add(self.first_given(["model.depth", "data.image_size"]), message);
        }
    }
}
