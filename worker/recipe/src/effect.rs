//! Settings of data and model without effect, and why.

use std::borrow::Cow;

use dtrain_common::recipe::hints::and;
use dtrain_common::recipe::{Amp, WithoutEffect};

use super::networks::WITH_BATCH_NORM;
use super::{
    Change, ColumnKind, DataKind, Masks, ModelName, Recipe, Resize, Sampler, Source, Target, Val,
    WeightsMode, tasks,
};

impl Recipe {
    pub(super) fn settings_without_effect(&self) -> Vec<(&'static str, String)> {
        let mut list = WithoutEffect::default();
        // The user's trainer decides the meaning of `[data]` and `[model]`.
        if !self.task.facts().is_own {
            self.add_images(&mut list);
            self.add_samples(&mut list);
            self.add_model(&mut list);
        }
        self.general.add_without_effect(&mut list);
        let amp = self.precision.amp;
        // A user's network or trainer may turn autocast off for a part of its computation.
        let own = self.task.facts().is_own || self.model.file.is_some();
        list.add(
            matches!(amp, Amp::Bf16 | Amp::Fp16) && !own,
            "precision.tf32",
            format!("precision.amp = {:?} leaves no matrix product or convolution in float32", amp.as_str()),
        );
        list.add(!self.task.facts().is_own, "custom", self.of_tasks(&tasks::owners(|facts| facts.is_own)));
        list.0
    }

    fn add_images(&self, list: &mut WithoutEffect) {
        let generated = self.data.kind == DataKind::Generated;
        let (target, folders) = (self.target(), "data.train_masks data.test_masks data.val_masks");
        let files = "data.train data.test data.tests data.orientation data.decode data.cache";
        let of_files = match self.data.kind {
            DataKind::Tokens => "data.tests data.orientation data.decode data.cache",
            _ => files,
        };
        let sizes =
            "data.image_size data.resize data.channels data.mean data.std data.changes data.interpolation";
        let of_images = format!("it applies to images, and {}", self.reason());
        list.add(self.is_text(), of_files, &*of_images);
        list.add(self.is_text(), sizes, of_images);
        let only = |what| format!("it applies to {what}, and {}", self.reason());
        let (masks, maps) = (self.has(ColumnKind::Mask), self.has(ColumnKind::Map));
        list.add(!target.is_some_and(Target::is_of_pixels), folders, only("masks and maps"));
        let val_folder = self.data.val.as_ref().and_then(Val::set).is_some();
        list.add(!val_folder, "data.val_masks", "it belongs to a folder of validation images in data.val");
        list.add(!masks && !maps, "data.ignore", only("masks and maps"));
        list.add(
            !masks,
            "data.masks data.mask_threshold data.mask_colors data.mask_tolerance",
            only("masks"),
        );
        let with = |word: Masks| format!("it applies to data.masks = {:?}", word.as_str());
        list.add(self.data.masks != Masks::Threshold, "data.mask_threshold", with(Masks::Threshold));
        list.add(
            self.data.masks != Masks::Colors,
            "data.mask_colors data.mask_tolerance",
            with(Masks::Colors),
        );
        list.add(!maps, "data.target_scale data.target_offset", only("maps"));
        let has_bands = self.data.channels != 3 && target != Some(Target::Tokens);
        list.add(
            !maps && !has_bands,
            "data.nodata",
            "it applies to maps, and to images with another data.channels than 3",
        );
        list.add(!has_bands, "data.fill", "it applies to images with another data.channels than 3");
        list.add(self.data.nodata.is_none(), "data.fill", "it replaces data.nodata, which is not set");
        let sources = self.by_source();
        let is_coco = |alone: &Cow<'_, Self>| alone.data.kind == DataKind::Coco;
        let (coco, drawn) = (sources.iter().any(is_coco), sources.iter().all(is_coco));
        let of_files = "data.masks data.mask_threshold data.mask_colors data.mask_tolerance";
        list.add(drawn, of_files, "the masks are drawn from annotations (data.kind is \"coco\")");
        list.add(!coco, "data.unannotated", "it applies to data.kind = \"coco\"");
        let named = coco || masks && self.data.masks == Masks::Colors;
        list.add(
            !named,
            "data.ignore_classes",
            "it applies to masks whose classes have names: data.masks = \"colors\" and data.kind = \"coco\"",
        );
        let pixels = target.is_some_and(Target::is_of_pixels);
        list.add(!pixels, "data.pair", only("masks and maps"));
        let has_folder = sources.iter().any(|alone| alone.data.kind == DataKind::Folder);
        list.add(!has_folder, "data.pair", "it applies to data.kind = \"folder\"");
        let has_table = sources.iter().any(|alone| alone.data.kind.has_columns());
        let table = self.data.is_of_tables();
        self.add_stated_by_sources(list);
        self.add_beside_part(list);
        list.add(
            !has_table,
            "data.fields",
            format!("it applies to data.kind = {}", DataKind::with_columns()),
        );
        let folders_of_tables = matches!(target, Some(Target::Vector | Target::Classes));
        let has_folder = sources.iter().any(|alone| alone.data.kind == DataKind::Folder);
        let separates = has_table || (has_folder && folders_of_tables);
        list.add(!separates, "data.separator", "it applies to CSV files, and the data has no CSV file");
        let lists = has_folder && target == Some(Target::Class);
        list.add(!lists, "data.lists", "it applies to folders of images with classes");
        let kind = self.data.kind.as_str();
        let named = format!("the columns in data.fields name the files (data.kind is {kind:?})");
        list.add(table, folders, named);
        let has_files =
            [ColumnKind::Image, ColumnKind::Mask, ColumnKind::Map].into_iter().any(|kind| self.has(kind));
        for keys in [sizes, "data.augment data.orientation data.decode data.cache data.crop_fraction"] {
            list.add(table && !has_files, keys, "no field in data.fields is an image, mask or map");
        }
        let from_nowhere = "generated data has no files (data.kind is \"generated\")";
        list.add(generated, "data.root data.source", from_nowhere);
        list.add(!self.data.source.is_empty(), "data.root", "each [[data.source]] has its own root");
        list.add(generated, files, from_nowhere);
        list.add(generated, folders, from_nowhere);
        list.add(
            generated,
            "data.masks data.target_scale data.target_offset data.nodata data.fill",
            from_nowhere,
        );
        list.add(generated && target == Some(Target::Map), "data.ignore", from_nowhere);
        list.add(generated, "data.resize", "generated images have the size data.image_size");
        list.add(generated, "data.interpolation", from_nowhere);
        let takes_parts = self.changes().iter().any(|change| matches!(change, Change::ResizedCrop(_)));
        let no_scaling = "images keep their own size (data.resize is \"none\")";
        list.add(
            self.data.resize == Resize::None && !takes_parts,
            "data.interpolation data.decode",
            no_scaling,
        );
        let fraction = "it applies to files with data.resize = \"crop\" or \"stretch\"";
        list.add(generated || self.data.resize == Resize::None, "data.crop_fraction", fraction);
        list.add(self.is_text(), "data.crop_fraction", fraction);
        let keeps = !generated && self.data.resize == Resize::None;
        list.add(keeps, "data.image_size", "images keep their own size (data.resize is \"none\")");
    }

    /// Adds the settings of a test set beside a part of the training samples.
    fn add_beside_part(&self, list: &mut WithoutEffect) {
        let is_part = self.data.test_of_train().is_some();
        list.add(is_part, "data.test_masks", "the test samples are a part of the training samples");
    }

    fn add_stated_by_sources(&self, list: &mut WithoutEffect) {
        let all = &self.data.source;
        let mut add = |key, is_stated: &dyn Fn(&Source) -> bool| {
            let stated = !all.is_empty() && all.iter().all(is_stated);
            list.add(stated, key, "each [[data.source]] states its own");
        };
        let is_table = |source: &Source| self.data.kind_of(source).has_columns();
        add("data.train", &|source| source.train.is_some());
        add("data.test", &|source| source.test.is_some());
        add("data.train_masks", &|source| source.train_masks.is_some() || is_table(source));
        add("data.test_masks", &|source| source.test_masks.is_some() || is_table(source));
        add("data.pair", &|source| source.pair.is_some());
        add("data.fields", &|source| !source.fields.is_empty() || !is_table(source));
        add("data.kind", &|source| source.kind.is_some());
    }

    /// Formats "the task is NAME", with the target if the task has several.
    fn reason(&self) -> String {
        let task = format!("the task is {:?}", self.task.as_str());
        match self.target().filter(|target| self.task.states(*target)) {
            Some(target) => format!("{task} with data.target = {:?}", target.as_str()),
            None => task,
        }
    }

    fn add_samples(&self, list: &mut WithoutEffect) {
        let generated = self.data.kind == DataKind::Generated;
        let (kind, target) = (self.data.kind.as_str(), self.target());
        let tokens = self.is_text();
        let choosing = tasks::owners(|facts| facts.targets.len() > 1);
        list.add(!self.task.chooses_target(), "data.target", self.of_tasks(&choosing));
        for (key, owners) in tasks::settings() {
            list.add(!self.task.facts().settings.contains(&key), key, self.of_tasks(&owners));
        }
        let of_classes = match self.data.kind.has_columns() && self.has(ColumnKind::Class) {
            true => {
                "it applies to the target; set data.target = \"class\", with its field `label`".to_owned()
            }
            false if tokens => {
                "it applies to classes and to documents, and data.documents is \"none\"".to_owned()
            }
            false => format!("it applies to classes, and {}", self.reason()),
        };
        let is_repeated = self.data.sampler == Sampler::Repeated;
        let takes_order = target == Some(Target::Class) || self.has_documents() || is_repeated && !tokens;
        list.add(!takes_order, "data.sampler", &*of_classes);
        list.add(!is_repeated, "data.copies", "it applies to data.sampler = \"repeated\"");
        let images = format!("it applies to classes of images, and {}", self.reason());
        list.add(target != Some(Target::Class), "data.episodes", images);
        list.add(self.data.val.is_none(), "data.episodes.val", "there is no data.val");
        let of_images = format!("it applies to images, and {}", self.reason());
        list.add(tokens, "data.pairs", &*of_images);
        list.add(tokens, "data.mix data.mix_by", of_images);
        let has_images = !self.data.is_of_tables() || self.has(ColumnKind::Image);
        list.add(!has_images, "data.mix data.mix_by", "no field in data.fields is an image");
        list.add(self.data.mix.is_empty(), "data.mix_by", "there is no data.mix");
        let network = "only a program in model.file has an input for a partner";
        list.add(self.program().is_none(), "data.pairs", network);
        let of_texts = format!("it applies to texts, and {}", self.reason());
        list.add(!tokens && !self.has_texts(), "data.tokenizer", &*of_texts);
        list.add(!tokens, "data.test_fraction data.documents data.pack", of_texts);
        list.add(
            !self.has_texts(),
            "data.repeat",
            "it applies to the texts of a table, and the data has no such texts",
        );
        let characters = "a generated text has characters or bytes (data.kind is \"generated\")";
        list.add(generated && self.data.tokenizer.is_file(), "data.tokenizer", characters);
        let is_numbers = self.data.kind == DataKind::Tokens;
        let of_numbers = format!("it applies to data.kind = \"tokens\", and data.kind is {kind:?}");
        list.add(!is_numbers, "data.dtype data.vocabulary", of_numbers);
        let has_tokenizer = self.data.tokenizer.is_file();
        let of_tokenizer = "the tokenizer's file determines it (data.tokenizer)";
        list.add(is_numbers && has_tokenizer, "data.vocabulary", of_tokenizer);
        let numbers =
            "a token file has numbers: name the tokenizer.json that made them, or state data.vocabulary";
        list.add(is_numbers && !has_tokenizer, "data.tokenizer", numbers);
        let of_documents = "it applies to documents, and data.documents is \"none\"";
        list.add(tokens && !generated && !self.has_documents(), "data.pack", of_documents);
        list.add(
            generated,
            "data.documents data.pack",
            "a generated text has no documents (data.kind is \"generated\")",
        );
        let counted = "generated data has data.test_samples test samples (data.kind is \"generated\")";
        list.add(generated, "data.test_fraction", counted);
        list.add(tokens, "data.classes", "a language model's classes are the tokens of its text");
        let numbers = matches!(target, Some(Target::Vector | Target::Map | Target::Classes));
        let masks = self.has(ColumnKind::Mask);
        let normalized = target == Some(Target::Classes);
        list.add(normalized, "data.normalize_targets", "classes are 0 and 1 (data.target is \"classes\")");
        list.add(numbers && !masks, "data.classes", format!("it applies to classes, and {}", self.reason()));
        if masks && !generated {
            let drawn = self.by_source().iter().all(|alone| alone.data.kind == DataKind::Coco);
            list.add(
                drawn,
                "data.classes",
                "the categories of the annotations determine it (data.kind is \"coco\")",
            );
            list.add(self.data.masks == Masks::Colors, "data.classes", "data.mask_colors determines it");
        }
        // The masks alone do not state the number of classes.
        let from = match self.data.kind {
            DataKind::Table => "table determines",
            kind if kind.has_columns() => "samples determine",
            _ => "class folders determine",
        };
        let files = format!("the {from} it (data.kind is {kind:?})");
        list.add(!generated && !masks, "data.classes", files);
        let all = format!("all samples are used (data.kind is {kind:?})");
        list.add(!generated, "data.train_samples data.test_samples", all);
    }

    /// Formats that a setting applies only to tasks, in quotes.
    pub(super) fn of_tasks(&self, tasks: &str) -> String {
        format!("it applies to task = {tasks}, and the task is {:?}", self.task.as_str())
    }

    /// Returns whether a saved recipe leaves out `model.loss`: the usual one of a task with a network, which once had no other.
    pub(super) fn leaves_loss_out(&self) -> bool {
        let usual = self.task.usual_loss(self.target());
        self.task.facts().network.is_some() && usual.as_ref() == Some(&self.model.loss)
    }

    /// Formats that a setting applies only to tasks with a choice of losses.
    pub(super) fn of_losses(&self) -> String {
        self.of_tasks(&tasks::owners(|facts| !facts.losses.is_empty() || facts.returns_loss))
    }

    fn add_model(&self, list: &mut WithoutEffect) {
        let of_file = "the network is the program in model.file";
        let has_file = self.model.file.is_some();
        list.add(has_file, "model.name", of_file);
        let facts = self.task.facts();
        let of_outputs = facts.returns_loss && self.model.loss.is_of_named();
        list.add(facts.losses.is_empty() && !of_outputs, "model.loss", self.of_losses());
        let of_programs = "it applies to an exported program in model.file, which is not set";
        let program = self.program().is_some();
        list.add(
            !program,
            "model.inputs model.output model.auxiliary model.libraries model.state model.zero_weights",
            of_programs,
        );
        let twice = "a step with model.losses is not captured";
        list.add(!self.model.losses.is_empty(), "model.compile", twice);
        let of_many_lengths = "batches of documents without data.pack, and of texts, have many lengths, and a graph repeats one";
        let trims = (self.has_documents() || self.has_texts()) && !self.data.pack && !program;
        list.add(trims, "model.compile", of_many_lengths);
        list.add(facts.returns_loss, "model.auxiliary", "the program returns the loss itself");
        list.add(
            self.model.weights.is_none(),
            "model.weights_mode model.weights_rename model.weights_new",
            "it applies to the file in model.weights, which is not set",
        );
        list.add(
            self.model.weights_mode == WeightsMode::Partial,
            "model.weights_new",
            "model.weights_mode = \"partial\" lets every tensor be new",
        );
        let network = match self.model.name {
            None => of_file.into(),
            Some(name) => format!("the model is {:?}", name.as_str()),
        };
        let named = self.model.name.map(ModelName::facts);
        const SETTINGS: [&str; 7] = [
            "model.width",
            "model.depth",
            "model.heads",
            "model.patch",
            "model.context",
            "model.dropout",
            "model.drop_path",
        ];
        let tokens = program && (self.target() == Some(Target::Tokens) || self.has_texts());
        for key in SETTINGS.into_iter().filter(|key| !(tokens && *key == "model.context")) {
            let owners = and(&ModelName::all(|network| network.takes(key)));
            let takes = named.is_some_and(|network| network.takes(key));
            list.add(!takes, key, format!("it applies to {owners}; {network}"));
        }
        let one_block = "one block has no stochastic depth, and model.depth is 1";
        list.add(self.model.depth == Some(1), "model.drop_path", one_block);
        let has_batch_norm = named.is_some_and(|network| network.has_batch_norm);
        let of_models =
            |what: &str| format!("it applies to models {what}, that is {WITH_BATCH_NORM}; {network}");
        // Whether a program has them is known when it is read.
        list.add(!has_batch_norm && !program, "model.batchnorm", of_models("with BatchNorm"));
        list.add(!has_batch_norm && !program, "model.memory_format", of_models("of convolutions"));
        let with_convolutions = format!("it applies to models with convolutions; {network}");
        list.add(named.is_some_and(|network| !network.convolves), "model.cudnn_benchmark", with_convolutions);
    }
}
