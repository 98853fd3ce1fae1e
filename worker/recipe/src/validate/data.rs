//! Conditions between the settings of `[data]`.

use std::collections::BTreeSet;

use dtrain_common::recipe::hints::quoted;
use dtrain_common::recipe::no_effect;

use super::{Checks, DataKind, Recipe, changes};
use crate::data_kind::Root;
use crate::{Augment, ColumnKind, Data, Documents, Resize, Sampler, Target, Tokenizer, Val, ValSet};

impl Checks<'_> {
    /// Checks that the task takes this kind of data and this augmentation.
    pub(super) fn data_pairing(&mut self) {
        let (task, data, target) = (self.recipe.task, &self.recipe.data, self.recipe.target());
        let targets: Vec<_> = task.facts().targets.iter().map(|target| target.as_str()).collect();
        if let Some(target) = data.target.map(Target::as_str)
            && task.chooses_target()
            && !targets.contains(&target)
        {
            let takes = quoted(&targets);
            self.add("data.target", format!("task = \"{task}\" takes {takes}, not {target:?}"));
            return;
        }
        let name = match target.filter(|target| task.states(*target)) {
            Some(target) => format!("\"{task}\" with data.target = \"{target}\""),
            None => format!("\"{task}\""),
        };
        let tokens = target == Some(Target::Tokens);
        let fits = |kind: DataKind| match kind.root() {
            Root::Nothing => target != Some(Target::Classes),
            Root::File | Root::Packs => true,
            Root::Text | Root::Tokens => tokens,
            Root::Sets => !tokens,
            Root::Lists => target == Some(Target::Class),
            Root::Annotated => target == Some(Target::Mask),
        };
        if !fits(data.kind) {
            let fitting = DataKind::ALL.iter().filter(|kind| fits(**kind));
            let names: Vec<_> = fitting.map(|kind| kind.as_str()).collect();
            let (takes, kind) = (quoted(&names), data.kind.as_str());
            self.add("data.kind", format!("task = {name} takes the kinds {takes}, not {kind:?}"));
        }
        let is_text = self.recipe.is_text();
        let takes = |augment: &str| augment == "none" || is_text == (augment == Augment::Shift.as_str());
        let augment = data.augment.as_str();
        if !takes(augment) {
            let words: Vec<_> = Augment::NAMES.iter().copied().filter(|name| takes(name)).collect();
            self.add("data.augment", format!("task = {name} takes {}, not {augment:?}", quoted(&words)));
        }
    }

    pub(super) fn data(&mut self) {
        let data = &self.recipe.data;
        let root = match data.kind.root() {
            Root::Sets => "name the folder that holds the train and test folders",
            Root::Lists => "name the folder that holds the lists of images",
            Root::Annotated => "name the folder that holds the images and their annotations",
            Root::File => "name the file of the table",
            Root::Tokens => "name a file of tokens (.bin), or a folder with one for each set",
            Root::Packs => "name the folder that holds the files of data.train and data.test",
            Root::Text | Root::Nothing => "name a text file (.txt) or a folder of them",
        };
        if data.root.is_none() && data.source.is_empty() && data.kind != DataKind::Generated {
            self.add("data.root", format!("missing; {root}, or set data.kind = \"generated\""));
        }
        let target = self.recipe.target();
        if !self.recipe.is_text() {
            self.channels();
        }
        if self.recipe.has_texts() && data.tokenizer == Tokenizer::Chars {
            let message = "missing; name the tokenizer.json of the texts, or set it to \"bytes\"";
            self.add("data.tokenizer", message);
        }
        self.changes();
        self.mix();
        if data.pairs && self.recipe.stage.is_empty() && self.recipe.train.effective_batch == 1 {
            self.add("data.pairs", "a step of one sample has no partner for it; raise train.effective_batch");
        }
        if let Some(episodes) = &data.episodes {
            /// The members of an epoch's episodes are a list in memory.
            const MOST_IMAGES: usize = 1 << 30;
            let images = episodes.n_way.saturating_mul(episodes.k_shot + episodes.n_query);
            let val = episodes.val.unwrap_or_default();
            for (key, count) in [("train", episodes.train), ("test", episodes.test), ("val", val)] {
                if images.saturating_mul(count) > MOST_IMAGES {
                    let message = format!(
                        "{count} episodes of {images} images each are more than {MOST_IMAGES} images; lower it"
                    );
                    self.add(&format!("data.episodes.{key}"), message);
                }
            }
            let message = "data.episodes decides the images of a sample; remove one of the two settings";
            if data.pairs {
                self.add("data.pairs", message);
            }
            if data.sampler != Sampler::Shuffled {
                self.add("data.sampler", message);
            }
        }
        for (number, alone) in self.recipe.by_source().iter().enumerate() {
            for (key, message) in alone.fields().err().unwrap_or_default() {
                let own = data.source.get(number).is_some_and(|source| !source.fields.is_empty());
                let key = if own { self.recipe.source_key(number, &key) } else { key };
                self.add(&key, message);
            }
        }
        self.sources();
        self.sets();
        if data.kind == DataKind::Tokens && data.vocabulary.is_none() && !data.tokenizer.is_file() {
            let message = "missing; state the number of tokens of the vocabulary, such as 50257 for GPT-2, or name its tokenizer.json in \
                           data.tokenizer";
            self.add("data.vocabulary", message);
        }
        self.lists();
        if self.recipe.has_documents() {
            self.documents();
        } else if data.sampler == Sampler::Buckets && target == Some(Target::Class) {
            let message =
                "\"buckets\" takes documents of a text by their length; use \"shuffled\" or \"balanced\"";
            self.add("data.sampler", message);
        }
        if data.kind.is_of_images() && self.recipe.has(ColumnKind::Mask) {
            self.masks();
        }
        for (number, alone) in self.recipe.by_source().iter().enumerate() {
            if alone.data.kind == DataKind::Folder && target.is_some_and(Target::is_of_pixels) {
                self.mask_folders(number, &alone.data);
            }
        }
    }

    /// Checks settings of documents. Samples of a step are taken by length, so all stages have the same step.
    fn documents(&mut self) {
        let data = &self.recipe.data;
        let (kind, is_index) = (data.kind, data.documents == Documents::Index);
        if is_index != (kind == DataKind::Tokens) {
            let (kind, takes) = (
                kind.as_str(),
                if is_index { "\"none\", \"files\" or \"lines\"" } else { "\"none\" or \"index\"" },
            );
            self.add(
                "data.documents",
                format!("data.kind = {kind:?} takes {takes}, not {:?}", data.documents.as_str()),
            );
        }
        if data.augment == Augment::Shift {
            let message = "windows of a text are shifted, and documents are no windows; remove the setting, or set data.documents \
                           = \"none\"";
            self.add("data.augment", message);
        }
        match data.sampler {
            Sampler::Shuffled => {}
            Sampler::Repeated => {
                self.add(
                    "data.sampler",
                    "documents have no random changes to repeat; use \"shuffled\" or \"buckets\"",
                );
            }
            Sampler::Buckets if data.pack => {
                let message = "\"buckets\" takes documents by their length, and packed samples are all nearly full; set data.pack \
                               = false, or use \"shuffled\"";
                self.add("data.sampler", message);
            }
            Sampler::Buckets if self.recipe.program().is_some() => {
                let message = "a program also computes the padding of short documents, so \"buckets\" saves no time; set data.pack = \
                               true, or use \"shuffled\"";
                self.add("data.sampler", message);
            }
            Sampler::Buckets => {
                let batch = self.recipe.train.effective_batch;
                let stages = self.recipe.stage.iter().enumerate();
                let others =
                    stages.filter(|(_, stage)| stage.effective_batch.is_some_and(|other| other != batch));
                for (number, _) in others {
                    let message = format!(
                        "data.sampler = \"buckets\" fills steps of train.effective_batch = {batch}; remove the setting, or set \
                         data.sampler = \"shuffled\""
                    );
                    self.add(&format!("stage[{number}].effective_batch"), message);
                }
            }
            _ => {
                self.add(
                    "data.sampler",
                    "documents have no classes to balance; use \"shuffled\" or \"buckets\"",
                );
            }
        }
    }

    /// Checks the sets besides the training samples.
    fn sets(&mut self) {
        let data = &self.recipe.data;
        let tokens = self.recipe.target() == Some(Target::Tokens);
        match &data.val {
            None => {}
            Some(Val::Part(_)) => {}
            // A table of texts has sets by their names.
            Some(Val::Set(ValSet::Named(_) | ValSet::Column(_))) if tokens && data.is_of_tables() => {}
            Some(Val::Set(_)) if tokens || data.kind == DataKind::Generated => {
                let what = if tokens { "a text" } else { "generated data" };
                self.add("data.val", format!("{what} has no folders; give a part, such as data.val = 0.1"));
            }
            Some(Val::Set(ValSet::Column(_))) if !data.is_of_tables() => {
                self.add("data.val", "only a table has columns; name a folder, or give a part such as 0.2");
            }
            Some(Val::Set(_)) => {}
        }
        if data.test_of_train().is_some() && (tokens || data.kind == DataKind::Generated) {
            let what = if tokens {
                "of texts; data.test_fraction is the part of a text"
            } else {
                "of generated data"
            };
            self.add("data.test", format!("there is no part {what}"));
        }
        let val = data.val.as_ref().and_then(Val::set);
        if let Some(key) = val.and_then(|name| self.set_with(name)) {
            self.add(
                "data.val",
                format!("it is the set of {key} too; name another, or give a part such as 0.2"),
            );
        }
        self.different_sets();
    }

    /// Checks that each of `data.tests` is another set than those before it.
    fn different_sets(&mut self) {
        let data = &self.recipe.data;
        let val = data.val.as_ref().and_then(Val::set);
        for (number, (name, set)) in data.tests.iter().enumerate() {
            let is_val = val == Some(set.as_str());
            let earlier = data.tests.iter().take(number).find(|(_, other)| *other == set);
            let same = || earlier.map(|(name, _)| format!("data.tests.{name}"));
            let other = self.set_with(set).or_else(|| is_val.then(|| "data.val".to_owned())).or_else(same);
            if let Some(other) = other {
                let message = format!("it is the set of {other} too; name another, or remove the entry");
                self.add(&format!("data.tests.{name}"), message);
            }
        }
    }

    /// Returns the key of the training or test set of a source that has this name.
    fn set_with(&self, name: &str) -> Option<String> {
        let sources = self.recipe.by_source();
        sources.iter().enumerate().find_map(|(number, alone)| {
            let sets = [("data.train", &alone.data.train), ("data.test", &alone.data.test)];
            let (key, _) = sets.into_iter().find(|(_, set)| *set == name)?;
            let source = self.recipe.data.source.get(number);
            let own = source.is_some_and(|source| match key {
                "data.train" => source.train.is_some(),
                _ => source.test.is_some(),
            });
            Some(if own { self.recipe.source_key(number, key) } else { key.to_owned() })
        })
    }

    fn sources(&mut self) {
        let recipe = self.recipe;
        let data = &recipe.data;
        let weighted = data.source.iter().filter(|source| source.weight.is_some()).count();
        let tokens = recipe.is_text();
        let pixels = recipe.target().is_some_and(Target::is_of_pixels);
        for (number, source) in data.source.iter().enumerate() {
            let mut add =
                |name: &str, message: &str| self.add(&format!("data.source[{number}].{name}"), message);
            if data.source[..number].iter().any(|other| data.of_source(other) == data.of_source(source)) {
                add("root", "the source is there twice; remove one of the two");
            }
            if source.weight.is_some() && data.source.len() == 1 {
                add("weight", "this setting has no effect: there is no other source; remove it");
            }
            if source.weight == Some(0.0) {
                add("weight", "no sample is taken with weight 0; raise it, or remove the source");
            }
            if (1..data.source.len()).contains(&weighted) && source.weight.is_none() {
                add("weight", "missing; state the weights of all sources, or of none");
            }
            let decides = match (data.sampler, &data.episodes) {
                (_, Some(_)) => Some("data.episodes"),
                (Sampler::Shuffled, None) => None,
                _ => Some("data.sampler"),
            };
            if let (Some(key), Some(_)) = (decides, source.weight) {
                add(
                    "weight",
                    &format!("{key} decides how often a sample is taken; remove one of the two settings"),
                );
            }
            if source.kind.is_some() && tokens {
                add("kind", "a source of texts has no kind; remove it");
            }
            let kind = data.kind_of(source);
            if kind.root() == Root::Lists && recipe.target() != Some(Target::Class) {
                add("kind", "its images have one class each, and the target is another; remove the source");
            }
            let masks = pixels && kind == DataKind::Folder;
            let files = masks || kind == DataKind::Coco;
            for (name, is_stated, applies, message) in [
                (
                    "fields",
                    !source.fields.is_empty(),
                    kind.has_columns(),
                    "it applies to a source with columns",
                ),
                ("train", source.train.is_some(), !tokens, "it applies to images"),
                ("test", source.test.is_some(), !tokens, "it applies to images"),
                (
                    "train_masks",
                    source.train_masks.is_some(),
                    files,
                    "it applies to folders of masks and maps, and to annotations",
                ),
                (
                    "test_masks",
                    source.test_masks.is_some(),
                    files,
                    "it applies to folders of masks and maps, and to annotations",
                ),
                ("pair", source.pair.is_some(), masks, "it applies to folders of masks and maps"),
            ] {
                if is_stated && !applies {
                    add(name, &format!("this setting has no effect: {message}; remove it"));
                }
            }
        }
    }

    /// Checks that each list is of a set.
    fn lists(&mut self) {
        let data = &self.recipe.data;
        let sets: BTreeSet<_> = self.recipe.by_source().iter().flat_map(|alone| alone.sets()).collect();
        for set in data.lists.keys().filter(|set| !sets.contains(*set)) {
            let sets: Vec<_> = sets.iter().map(String::as_str).collect();
            let message = format!("no set has this name; the sets are {}", quoted(&sets));
            self.add(&format!("data.lists.{set}"), message);
        }
    }

    fn changes(&mut self) {
        let data = &self.recipe.data;
        if let Some((at, message)) = changes::problem(data) {
            self.add(&format!("data.changes[{at}]"), message);
        }
        let own = data.changes.iter().position(|change| change.file().is_some());
        let facts = self.recipe.task.facts();
        if let Some(at) = own.filter(|_| facts.losses.is_empty() && !facts.returns_loss) {
            self.add(&format!("data.changes[{at}]"), no_effect(&self.recipe.of_losses()));
        }
        if !data.changes.is_empty() && self.draft.states("data.augment") && data.augment != Augment::None {
            self.add("data.augment", "data.changes lists the changes; remove one of the two settings");
        }
    }

    fn channels(&mut self) {
        let data = &self.recipe.data;
        let channels = data.channels;
        for (key, count) in [("data.mean", data.mean.len()), ("data.std", data.std.len())] {
            let or = match self.draft.states("data.channels") {
                true => String::new(),
                false => format!(", or set data.channels = {count}"),
            };
            if count != channels {
                let message = format!(
                    "the list has {count} numbers, but data.channels is {channels}; give one number for each channel{or}"
                );
                self.add(key, message);
            }
        }
        if data.kind == DataKind::Generated && channels != 3 {
            let message = format!("generated images have 3 channels, not {channels}; remove the setting");
            self.add("data.channels", message);
        }
    }

    fn mask_folders(&mut self, source: usize, data: &Data) {
        // With a pattern, names tell images and masks of one folder apart.
        if data.pair.is_some() {
            return;
        }
        for (images, masks, key) in [
            (data.train.as_str(), &data.train_masks, "data.train_masks"),
            (&data.test, &data.test_masks, "data.test_masks"),
            (data.val.as_ref().and_then(Val::set).unwrap_or_default(), &data.val_masks, "data.val_masks"),
        ] {
            if images == masks {
                let message =
                    format!("{masks:?} is the folder of the images; name the folder of the masks or maps");
                self.add(&self.recipe.source_key(source, key), message);
            }
        }
    }
}

/// Returns the size of the network's input, if the recipe states it.
pub(super) fn image_size(recipe: &Recipe) -> Option<usize> {
    let data = &recipe.data;
    let own = data.kind.is_of_images() && data.resize == Resize::None;
    (!own).then_some(data.image_size)
}
