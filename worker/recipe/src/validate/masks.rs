//! Conditions between the settings of masks.

use dtrain_common::recipe::hints::nearest;

use super::Checks;
use crate::{DataKind, MaskColors, Masks};

impl Checks<'_> {
    pub(super) fn masks(&mut self) {
        let data = &self.recipe.data;
        let classes = data.classes;
        if self.recipe.by_source().iter().all(|alone| alone.data.kind == DataKind::Coco) {
            return;
        }
        match (data.masks, &data.mask_colors) {
            (Masks::Index, _) if !self.draft.states("data.classes") => self.add(
                "data.classes",
                "missing; state the number of classes in the masks, without data.ignore",
            ),
            (Masks::Binary | Masks::Threshold, _) if classes != 2 => self.add(
                "data.classes",
                format!(
                    "{} masks have 2 classes, not {classes}; remove the setting, or set data.masks = \"index\"",
                    data.masks
                ),
            ),
            (Masks::Colors, None) => self.add(
                "data.mask_colors",
                "missing; state the colours of the classes, such as { sky = \"#80C0FF\", road = \"#804080\" }",
            ),
            (Masks::Colors, Some(colors)) => self.colors(colors),
            _ => {}
        }
    }

    fn colors(&mut self, colors: &MaskColors) {
        let data = &self.recipe.data;
        if colors.list().is_empty() {
            // Loading could not read the file: the check of paths says why.
            return;
        }
        let classes = colors.classes(&[]);
        if let Some(unknown) = data.ignore_classes.iter().find(|name| !classes.contains(&name.as_str())) {
            let hint = nearest(unknown, &classes).map(|near| format!("; did you mean {near:?}?"));
            let message = format!("data.mask_colors has no class {unknown:?}{}", hint.unwrap_or_default());
            self.add("data.ignore_classes", message);
            return;
        }
        let left = classes.len() - data.ignore_classes.len();
        if left < 2 {
            let key = if data.ignore_classes.is_empty() { "data.mask_colors" } else { "data.ignore_classes" };
            self.add(
                key,
                format!("a model needs at least two classes to learn, and {left} are left; add classes"),
            );
        }
        let ignore = data.ignore.map_or(255, usize::from);
        if ignore < left && !self.recipe.ignores_maps() {
            let message = format!(
                "{ignore} is the number of a class, of {left} in data.mask_colors; set it to a larger number"
            );
            self.add("data.ignore", message);
        }
    }
}
