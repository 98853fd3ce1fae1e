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
            Task::Torchscript | Task::Custom => true,
        };
        if let Some(name) = self.recipe.model.name.map(ModelName::as_str)
            && !takes(&name)
        {
            let networks: Vec<_> = ModelName::NAMES.iter().copied().filter(takes).collect();
            let task = self.recipe.task.as_str();
            self.add("model.name", format!("task = {task:?} takes {}, not {name:?}", quoted(&networks)));
        }
    }

    pub(super) fn model(&mut self) {
        let model = &self.recipe.model;
        if self.recipe.task == Task::Torchscript && model.file.is_none() {
            let message = "missing; name a file that save() of a torch.jit.script module wrote";
            self.add("model.file", message);
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
