//! The boundaries within a training: one phase ends, another begins, and what begins is said.

use dtrain_common::recipe::Passage;
use dtrain_torch_shim::memory;

use crate::device;
use crate::engine::error::TrainError;
use crate::engine::plan::Place;
use crate::engine::status::{Status, Tally};
use crate::engine::trainer::Trainer;
use crate::memory::report;
use crate::metrics::StageRecord;
use crate::state::Keep;
use crate::tasks::StageView;

impl Trainer<'_> {
    /// Before every step: the phase of the next one begins, where it is not under way. Every rank comes to it after the same
    /// number of steps. Does nothing in a run without stages.
    pub(in crate::engine) fn enter_phase(&mut self) -> Result<(), TrainError> {
        let place = self.plan.place(self.done);
        let moves = place != self.phase;
        if moves {
            self.pass(place)?;
        }
        if moves || !self.announced {
            self.announced = true;
            self.announce(place)?;
        }
        Ok(())
    }

    fn pass(&mut self, place: Place) -> Result<(), TrainError> {
        self.settle_copy()?;
        self.graphs.restart();
        let new_stage = place.stage != self.phase.stage;
        if new_stage {
            self.model
                .recompute
                .set(self.plan.stages()[place.stage].recompute);
            self.begin_stage(place)?;
            if self.stages.stage(place).best == Passage::Restart {
                self.best.restart();
            }
        }
        // A boundary of stages is one of optimizers; within a stage the optimizer goes on.
        let keep = Keep {
            moments: !new_stage,
            average: !new_stage || self.stages.stage(place).ema == Passage::Continue,
        };
        self.reducer.release();
        // What is trained decides which sums backward takes.
        if let Some(sync) = &self.replay.sync {
            sync.forget();
        }
        self.model.leave(keep)?;
        memory::empty_cache(self.device)?;
        if new_stage {
            self.note_memory()?;
        }
        self.model.enter(&self.stages, place, &self.ranks)?;
        self.reducer.follow(&self.model.table)?;
        // A status has an element for every parameter, and one for each figure that the stage's task counts.
        let sums = self.model.task.sums();
        self.reducer.expect(Status::blank(sums, self.ranks.size()))?;
        self.tally = Tally::new(sums, self.device)?;
        self.phase = place;
        // The new layout is a guess until a backward pass has been seen.
        self.is_laid_out = false;
        if !new_stage {
            self.note_memory()?;
        }
        Ok(())
    }

    /// The task takes up the stage of `place`.
    pub(in crate::engine) fn begin_stage(&mut self, place: Place) -> Result<(), TrainError> {
        let Some(name) = &self.plan.stages()[place.stage].name else {
            return Ok(());
        };
        let view = StageView {
            name,
            number: place.stage,
            count: self.plan.stages().len(),
            recipe: &self.stages.stage(place).recipe,
        };
        Ok(self.model.task.begin_stage(&view)?)
    }

    fn note_memory(&self) -> Result<(), TrainError> {
        let memory = report(self.device)?;
        self.progress.note(memory.line(device::kind(self.device)));
        Ok(())
    }

    fn announce(&mut self, place: Place) -> Result<(), TrainError> {
        let stage = &self.plan.stages()[place.stage];
        let Some(name) = stage.name.clone() else {
            return Ok(());
        };
        let begins = self.plan.phase(place).steps.start;
        let parameters = self.model.registry.parameter_count() as u64;
        let trained = self.model.table.trained_elements();
        let rate = stage.schedule.peak;
        let title = format!(
            "stage {} of {}, {name:?}",
            place.stage + 1,
            self.plan.stages().len()
        );
        let from = match self.done {
            done if done == stage.steps.start => String::new(),
            done => format!(" from step {} on", done + 1),
        };
        let counts = format!("{} of {} parameters trained", count(trained), count(parameters));
        let note = if place.phase > 0 && self.done == begins {
            format!("{title}{from}: {counts}")
        } else {
            let (length, cut) = (stage.length, stage.partition);
            format!("{title}{from}: {length}, {counts}, effective batch {cut}, learning rate {rate:e}")
        };
        self.progress.note(note);
        if self.done != begins {
            return Ok(());
        }
        let record = StageRecord {
            step: begins + 1,
            number: place.stage + 1,
            name,
            phase: place.phase + 1,
            parameters,
            trained,
            effective_batch: stage.partition.effective_batch(),
            micro_batch: stage.partition.micro_batch(),
            grad_accum_steps: stage.partition.grad_accum_steps(),
            learning_rate: rate,
            optimizer_bytes: self.model.owners().optimizer,
            memory: report(self.device)?,
        };
        match &mut self.metrics {
            Some(metrics) => metrics.stage(&record).map_err(TrainError::Metrics),
            None => Ok(()),
        }
    }
}

/// A number of parameters for people: `18.5 M`.
fn count(parameters: u64) -> String {
    const UNITS: [(f64, &str); 3] = [(1e9, "G"), (1e6, "M"), (1e3, "k")];
    let number = parameters as f64;
    let unit = UNITS.iter().find(|(size, _)| number >= *size);
    unit.map_or_else(
        || parameters.to_string(),
        |(size, unit)| format!("{:.1} {unit}", number / size),
    )
}

#[cfg(test)]
mod tests {
    use super::count;

    #[test]
    fn parameters_are_counted_for_people() {
        let counted = [7, 1_500, 18_500_000, 27_349_999, 6_700_000_000].map(count);
        assert_eq!(counted, ["7", "1.5 k", "18.5 M", "27.3 M", "6.7 G"]);
    }
}
