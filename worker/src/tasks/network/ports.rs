//! The outputs of a network, to which losses and figures are bound by name.

use std::path::Path;

use tch::{Device, Kind, Tensor};

use super::Network;
use crate::models::Port;
use crate::tasks::program_error::{ProgramError, Unfit};
use crate::tasks::{Mode, TaskError};

/// Returns an output of a network by number.
pub(in crate::tasks) type OutputAt<'a> = &'a dyn Fn(usize) -> Result<Tensor, TaskError>;

/// Returns the output of a built-in network, whose logits have this shape.
pub(in crate::tasks) fn logits(shape: Vec<Option<i64>>) -> [Port; 1] {
    [Port { name: "logits".to_owned(), kind: Kind::Float, shape }]
}

/// The outputs of a network.
#[derive(Clone, Copy)]
pub(in crate::tasks) struct Ports<'a> {
    pub(in crate::tasks) train: &'a [Port],
    pub(in crate::tasks) evaluate: &'a [Port],
    /// The numbers of the main output in training and in evaluation.
    pub(in crate::tasks) main: [usize; 2],
    /// The numbers of the outputs with the same loss in training, and their weights.
    pub(in crate::tasks) auxiliary: &'a [(usize, f64)],
    /// Whether the main output is taken by default: that of a program is its loss, or no more than what a loss takes.
    pub(in crate::tasks) takes_main: bool,
    /// The file of a program; None if the network is a built-in one.
    pub(in crate::tasks) file: Option<&'a Path>,
    pub(in crate::tasks) device: Device,
}

impl<'a> Ports<'a> {
    pub(in crate::tasks) fn of(network: &'a Network) -> Self {
        Self {
            train: network.ports(Mode::Train),
            evaluate: network.ports(Mode::Evaluate),
            main: [Mode::Train, Mode::Evaluate].map(|mode| network.main_at(mode)),
            auxiliary: &network.chosen(Mode::Train).auxiliary,
            takes_main: true,
            file: Some(&network.program.path),
            device: network.program.device,
        }
    }

    /// Returns the only output of a built-in network.
    pub(in crate::tasks) fn built(logits: &'a [Port; 1], device: Device) -> Self {
        Self {
            train: logits,
            evaluate: logits,
            main: [0, 0],
            auxiliary: &[],
            takes_main: true,
            file: None,
            device,
        }
    }

    /// Returns no outputs.
    pub(in crate::tasks) fn none(device: Device) -> Self {
        Self {
            train: &[],
            evaluate: &[],
            main: [0, 0],
            auxiliary: &[],
            takes_main: false,
            file: None,
            device,
        }
    }

    /// Returns all outputs of a mode.
    pub(in crate::tasks) fn all(&self, mode: Mode) -> &'a [Port] {
        match mode {
            Mode::Train => self.train,
            Mode::Evaluate => self.evaluate,
        }
    }

    /// Returns the number of the main output.
    pub(in crate::tasks) fn main_at(&self, mode: Mode) -> usize {
        match mode {
            Mode::Train => self.main[0],
            Mode::Evaluate => self.main[1],
        }
    }

    /// Returns an error that names the file of a program.
    pub(in crate::tasks) fn unfit(&self, unfit: Unfit) -> TaskError {
        match self.file {
            Some(path) => ProgramError::of(path, unfit).into(),
            None => TaskError::Network(Box::new(unfit)),
        }
    }
}
