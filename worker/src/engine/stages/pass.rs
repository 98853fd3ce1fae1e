//! From one phase of a model to the next, in an order that needs little memory: what goes is freed before what comes is made.

use std::collections::BTreeMap;
use std::mem;

use tch::{Kind, TchError, Tensor};

use super::Stages;
use crate::collectives::{CollectiveError, Ranks};
use crate::engine::arena::{Arena, overlap};
use crate::engine::ema::Ema;
use crate::engine::error::TrainError;
use crate::engine::model::{Model, live};
use crate::engine::plan::Place;

/// What goes on from one phase to the next, beside the values of parameters and running statistics.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Keep {
    /// The optimizer's state of what stays trained.
    pub(super) state: bool,
    /// The moving average.
    pub(super) averages: bool,
}

/// What is kept of a phase that has ended.
#[derive(Debug, Default)]
pub(super) struct Carried {
    /// By parameter.
    state: BTreeMap<String, ParameterState>,
    averages: Option<Averages>,
}

#[derive(Debug)]
struct ParameterState {
    /// By the number of the moment, in the parameter's shape.
    moments: Vec<Tensor>,
    updates: u64,
}

#[derive(Debug)]
struct Averages {
    of_parameters: BTreeMap<String, Average>,
    /// Those of the running statistics, in their order.
    of_buffers: Vec<Tensor>,
}

/// The average of a parameter.
#[derive(Debug)]
struct Average {
    /// In the parameter's shape.
    shaped: Tensor,
    /// The flat tensor that holds it alone, where it rested before.
    alone: Option<Tensor>,
}

impl Model {
    /// Ends a phase: gradients, the optimizer's state and the arena are freed, but for what is kept. Every rank calls it, after
    /// its reducer has let go of the arena.
    pub(super) fn leave(&mut self, ranks: &Ranks, keep: Keep) -> Result<Carried, TrainError> {
        let mut carried = Carried::default();
        if keep.state {
            carried.state = self.state_by_name(ranks)?;
        }
        // An optimizer without state stands in until the next phase has its own.
        for moment in 0..self.optimizer.moments().len() {
            self.optimizer.replace(moment, Vec::new());
        }
        if let Some(ema) = &mut self.ema {
            let mut flats = ema.take().into_iter();
            let mut of_parameters = BTreeMap::new();
            for (buffer, flat) in self.arena.buffers().iter().zip(flats.by_ref()) {
                for slot in &buffer.slots {
                    let average = Average {
                        shaped: slot.view(&flat)?,
                        alone: None,
                    };
                    of_parameters.insert(slot.name.clone(), average);
                }
            }
            let of_buffers = flats.by_ref().take(self.buffers.flats().count()).collect();
            for (resting, flat) in self.resting.drain(..).zip(flats) {
                let average = Average {
                    shaped: resting.slot.view(&flat)?,
                    alone: Some(flat),
                };
                of_parameters.insert(resting.slot.name, average);
            }
            carried.averages = keep.averages.then_some(Averages {
                of_parameters,
                of_buffers,
            });
        }
        let nothing = Arena::new(std::iter::empty::<(&str, &Tensor)>())?;
        mem::replace(&mut self.arena, nothing).dissolve()?;
        Ok(carried)
    }

    fn state_by_name(&self, ranks: &Ranks) -> Result<BTreeMap<String, ParameterState>, TrainError> {
        let moments = self.optimizer_state(ranks)?;
        let mut state = BTreeMap::new();
        for (number, buffer) in self.arena.buffers().iter().enumerate() {
            for slot in &buffer.slots {
                let moments = moments
                    .iter()
                    .map(|(_, flats)| slot.view(&flats[number]))
                    .collect::<Result<_, _>>()?;
                let updates = self.optimizer.steps()[slot.parameter];
                state.insert(slot.name.clone(), ParameterState { moments, updates });
            }
        }
        Ok(state)
    }

    /// Begins a phase with what was kept of the one before. `allocate` gives memory of the group, as for [`Arena::share`].
    pub(super) fn enter(
        &mut self,
        stages: &Stages,
        place: Place,
        carried: Carried,
        allocate: impl FnMut(usize, Kind) -> Result<Option<Tensor>, CollectiveError>,
    ) -> Result<(), TrainError> {
        let Carried { state, averages } = carried;
        self.arena = stages.arena(place, &self.registry)?;
        self.arena.share(allocate)?;
        self.optimizer = stages.optimizer(place, &self.arena)?;
        self.take_state(state)?;
        self.resting = stages.resting(place, &self.registry)?;
        match (stages.ema, averages, &mut self.ema) {
            (_, Some(averages), Some(_)) => self.take_averages(averages),
            (Some(settings), None, Some(ema)) => {
                let values = live(&self.arena, &self.buffers, &self.resting);
                *ema = Ema::new(settings.decay, settings.warmup, values)?;
                Ok(())
            }
            _ => Ok(()),
        }
    }

    /// The state of what was trained before goes on; that of the others begins at zero.
    fn take_state(&mut self, mut state: BTreeMap<String, ParameterState>) -> Result<(), TrainError> {
        if state.is_empty() {
            return Ok(());
        }
        let mut steps = self.optimizer.steps().to_vec();
        for (number, buffer) in self.arena.buffers().iter().enumerate() {
            for slot in &buffer.slots {
                let Some(own) = state.remove(&slot.name) else {
                    continue;
                };
                steps[slot.parameter] = own.updates;
                for ((_, held), moment) in self.optimizer.moments().into_iter().zip(&own.moments) {
                    let flat = slot.flat(moment)?;
                    for (part, held) in self.arena.parts().iter().zip(held) {
                        if part.buffer == number
                            && let Some((mut to, from)) = overlap(slot, part, &flat, held)?
                        {
                            tch::no_grad(|| to.f_copy_(&from))?;
                        }
                    }
                }
            }
        }
        self.optimizer.resume(steps);
        Ok(())
    }

    /// The average goes on of what it was of; that of the others begins with their values.
    fn take_averages(&mut self, averages: Averages) -> Result<(), TrainError> {
        let Some(ema) = &mut self.ema else { return Ok(()) };
        let Averages {
            mut of_parameters,
            of_buffers,
        } = averages;
        let mut flats = Vec::new();
        for buffer in self.arena.buffers() {
            let mut flat = buffer.data.f_zeros_like()?;
            tch::no_grad(|| flat.f_copy_(&buffer.data))?;
            for slot in &buffer.slots {
                if let Some(average) = of_parameters.remove(&slot.name) {
                    tch::no_grad(|| slot.view(&flat)?.f_copy_(&average.shaped))?;
                }
            }
            flats.push(flat);
        }
        flats.extend(of_buffers);
        for resting in &self.resting {
            let name = &resting.slot.name;
            let average = of_parameters
                .remove(name)
                .ok_or_else(|| TchError::Convert(format!("there is no moving average of {name}")))?;
            // A copy does not hold on to the flat tensor of many that it lay in.
            flats.push(match average.alone {
                Some(flat) => flat,
                None => resting.slot.flat(&average.shaped)?,
            });
        }
        ema.move_to(flats);
        Ok(())
    }
}
