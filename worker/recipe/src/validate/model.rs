//! Conditions between the settings of `[model]`, and between `[model]` and `[data]`.

use dtrain_common::recipe::hints::quoted;
use dtrain_common::recipe::no_effect;

use super::Checks;
use super::data::image_size;
use crate::{Loss, LossTerm, ModelName, figures, losses, sample_losses};

impl Checks<'_> {
    pub(super) fn model_pairing(&mut self) {
        self.file_format();
        self.losses();
        // Without a usual network, a file holds it.
        let target = self.recipe.task.facts().network.map(|usual| usual.facts().target);
        if let (Some(name), Some(target)) = (self.recipe.model.name, target)
            && self.recipe.model.file.is_none()
            && name.facts().target != target
        {
            let networks = ModelName::all(|network| network.target == target);
            let (task, name) = (self.recipe.task.as_str(), name.as_str());
            self.add("model.name", format!("task = {task:?} takes {}, not {name:?}", quoted(&networks)));
        }
    }

    /// Checks that the ending of the file, which states its format, matches the task.
    fn file_format(&mut self) {
        let Some(file) = &self.recipe.model.file else { return };
        let exported = file.extension().is_some_and(|ending| ending.eq_ignore_ascii_case("pt2"));
        if !exported && !self.recipe.task.facts().is_own {
            let (name, task) = (file.file_name().unwrap_or_default().to_string_lossy(), self.recipe.task);
            let message = format!(
                "{name:?} does not end in .pt2, and task = \"{task}\" takes an exported program; write one with `dtrain import`"
            );
            self.add("model.file", message);
        }
    }

    /// Checks that the task takes the losses of the recipe and those of its stages.
    fn losses(&mut self) {
        let (task, target) = (self.recipe.task, self.recipe.target());
        let takes = task.losses(target);
        let of_target = target.filter(|target| task.losses_differ() && task.states(*target));
        let of_target = of_target.map(|target| format!(" with data.target = {:?}", target.as_str()));
        let words = format!("task = \"{task}\"{} takes {}", of_target.unwrap_or_default(), quoted(takes));
        let stated = self.stated_losses();
        for (key, loss) in &stated {
            for term in loss.terms() {
                let name = term.name();
                if task.facts().returns_loss {
                    if !loss.is_of_named() {
                        let message = format!(
                            "task = \"{task}\" takes programs of your own, and losses of outputs and fields by name; set output \
                             and target of each, such as {{ {name} = {{ output = \"logits\", target = \"label\" }} }}"
                        );
                        self.add(key, message);
                        break;
                    }
                    if let Some(message) = term.program().and_then(|_| sample_losses::problem(term, None)) {
                        self.add(key, message);
                    }
                } else if takes.is_empty() {
                    return;
                } else if term.target.is_none() && !takes.contains(&name) {
                    self.add(key, format!("{words}, not {name:?}"));
                } else if let Some(message) =
                    sample_losses::problem(term, target.filter(|_| term.target.is_none()))
                {
                    self.add(key, message);
                }
            }
            self.outputs(key, loss);
        }
        self.ordinal(&stated);
    }

    /// Returns the losses of the recipe and those of its stages, with their keys.
    fn stated_losses(&self) -> Vec<(String, Loss)> {
        let of_all = (self.draft.states("model.loss") || !self.recipe.task.facts().returns_loss)
            .then(|| ("model.loss".to_owned(), self.recipe.model.loss.clone()));
        let stages = 0..self.recipe.stage.len();
        let stages = stages
            .filter_map(|number| Some((self.recipe.loss_key(number), self.recipe.loss_of_stage(number)?)));
        of_all.into_iter().chain(stages).collect()
    }

    /// Checks the outputs that the losses of a sum name.
    fn outputs(&mut self, key: &str, loss: &Loss) {
        let mut terms = loss.terms().iter();
        let problem = if !loss.has_named() {
            return;
        } else if self.recipe.program().is_none() {
            "`output` and `target` of a loss apply to an exported program in model.file, which is not set"
        } else if !self.recipe.task.facts().returns_loss && terms.all(|term| term.output.is_some()) {
            "each loss names an output, and the main output has no loss; leave out `output` of one loss"
        } else {
            return;
        };
        self.add(key, problem);
    }

    /// Checks that an ordinal loss is alone at the main output, and there in all stages.
    fn ordinal(&mut self, stated: &[(String, Loss)]) {
        let order = |loss: &Loss| loss.ordinal().map(|ordinal| ordinal.order.clone());
        let Some((_, first)) = stated.first() else { return };
        for (key, loss) in stated {
            let of_main = loss.terms().iter().filter(|term| term.output.is_none()).count();
            let is_of_other = |term: &&LossTerm| {
                term.name() == "ordinal"
                    && term.output.is_none()
                    && term.target.as_deref().is_some_and(|of| of != "label")
            };
            if loss.terms().iter().any(|term| is_of_other(&term)) {
                let message =
                    "`ordinal` of another field takes an output; name it in `output`, or leave out `target`";
                self.add(key, message);
            } else if loss.ordinal().is_some() && of_main > 1 {
                let message = "`ordinal` takes other outputs of the network than the other losses, one less than classes; name an \
                               output for each of the others, or leave them out";
                self.add(key, message);
            } else if order(loss) != order(first) {
                let message = "the main output has the loss `ordinal`, with the same order, in all stages or in none, because it has \
                               one number less than classes";
                self.add(key, message);
            }
        }
    }

    /// Rejects the losses of stages if the task has no choice.
    pub(super) fn losses_without_effect(&mut self) {
        let facts = self.recipe.task.facts();
        if facts.is_own || facts.returns_loss || !facts.losses.is_empty() {
            return;
        }
        let stages = self.recipe.stage.iter().enumerate();
        for (number, _) in stages.filter(|(_, stage)| stage.loss.is_some()) {
            self.add(&format!("stage[{number}].loss"), no_effect(&self.recipe.of_losses()));
        }
    }

    /// Checks the adapters, which a user's own task may have too.
    pub(super) fn adapters(&mut self) {
        if self.recipe.model.lora.as_ref().is_some_and(|lora| lora.patterns.is_empty()) {
            self.add(
                "model.lora.match",
                "missing; name the weights that get an adapter, such as \"*attn*.weight\"",
            );
        }
    }

    pub(super) fn model(&mut self) {
        let model = &self.recipe.model;
        if self.recipe.task.facts().network.is_none() && model.file.is_none() {
            self.add("model.file", "missing; name a file that `dtrain import` wrote");
        }
        let stages = self.recipe.stage.iter().filter_map(|stage| stage.effective_batch);
        let smallest = stages.chain([self.recipe.train.effective_batch]).min().unwrap_or(1);
        if let Some((at, message)) = losses::problem(&model.losses, smallest) {
            self.add(&format!("model.losses[{at}]"), message);
        }
        if let Some((at, message)) = figures::problem(&model.figures) {
            self.add(&format!("model.figures[{at}]"), message);
        }
        let stops = self.recipe.train.stop_early.as_ref().and_then(|stop| stop.figure.as_ref());
        let best = self.recipe.checkpoint.best.as_ref();
        for (key, by) in [("checkpoint.best", best), ("train.stop_early.figure", stops)] {
            if let Some(message) = by.and_then(|by| figures::contrary(by, &model.figures)) {
                self.add(key, message);
            }
        }
        if let Some(output) = &model.output
            && model.auxiliary.contains_key(output)
        {
            let message = format!("{output:?} is also in model.auxiliary; remove it from one of the two");
            self.add("model.output", message);
        }
        let Some((name, network)) = model.name.map(|name| (name.as_str(), name.facts())) else { return };
        if let (Some(width), Some(heads)) = (model.width, model.heads)
            && network.heads.is_some()
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
            (Some(patch), _) if network.patch.is_some() => self.patch(name, patch),
            (_, Some(depth)) if network.halves => self.levels(network.words, depth),
            _ => {}
        }
    }

    /// Returns which of two conflicting keys to report: the first that the recipe states.
    fn first_given(&self, [first, second]: [&'static str; 2]) -> &'static str {
        if self.draft.states(first) || !self.draft.states(second) { first } else { second }
    }

    fn patch(&mut self, name: &str, patch: usize) {
        match image_size(self.recipe) {
            None => self.add(
                "data.resize",
                format!(
                    "{name:?} needs images of a known size; set data.resize = \"crop\" or \"stretch\" and data.image_size"
                ),
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

    /// Checks the depth: with every level the width doubles and the image's size halves.
    fn levels(&mut self, network: &str, depth: usize) {
        /// Beyond it, a single convolution exceeds any memory or the image is smaller than a pixel.
        const DEEPEST: usize = 8;
        if depth > DEEPEST {
            let message = format!(
                "{network} of {depth} levels doubles its width {depth} times; set model.depth to at most {DEEPEST}"
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
