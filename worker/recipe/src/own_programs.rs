//! A user's own programs beside the network: changes, losses and figures.

use std::path::PathBuf;

use toml::Value;

use super::{Change, Figure, Loss, Recipe};

impl Recipe {
    /// Returns the files of a user's own programs, with their keys.
    pub fn own_programs(&self) -> Vec<(String, PathBuf)> {
        let changes = self.data.changes.iter().enumerate();
        let changes =
            changes.filter_map(|(at, change)| Some((format!("data.changes[{at}]"), change.file()?.clone())));
        let figures = self.model.figures.iter().enumerate();
        let figures =
            figures.filter_map(|(at, figure)| Some((format!("model.figures[{at}]"), figure.file()?.clone())));
        let stages = (0..self.stage.len())
            .filter_map(|number| Some((format!("stage[{number}].loss"), self.loss_of_stage(number)?)));
        let losses = [("model.loss".to_owned(), self.model.loss.clone())].into_iter().chain(stages);
        let losses = losses.filter_map(|(key, loss)| Some((key, loss.program()?.file.clone()?)));
        changes.chain(losses).chain(figures).collect()
    }

    /// Returns whether a stage has a loss of the user.
    pub fn has_own_loss(&self) -> bool {
        (0..self.stages()).any(|number| self.of_stage(number).model.loss.program().is_some())
    }

    /// Changes the path of each.
    pub(super) fn change_own_programs(&mut self, mut change: impl FnMut(&str, &mut PathBuf)) {
        let changes = self.data.changes.iter_mut().filter_map(Change::file_mut);
        changes.for_each(|path| change("data.changes", path));
        let figures = self.model.figures.iter_mut().filter_map(Figure::file_mut);
        figures.for_each(|path| change("model.figures", path));
        self.model.loss.file_mut().into_iter().for_each(|path| change("model.loss", path));
        for (number, stage) in self.stage.iter_mut().enumerate() {
            let Some(mut loss) = stage.loss.clone().and_then(|loss| Loss::try_from(loss).ok()) else {
                continue;
            };
            if let Some(path) = loss.file_mut() {
                change(&format!("stage[{number}].loss"), path);
                // A path that is no UTF-8 stays as it is, and is an error when the recipe is written.
                stage.loss = Value::try_from(loss).ok().or(stage.loss.take());
            }
        }
    }
}
