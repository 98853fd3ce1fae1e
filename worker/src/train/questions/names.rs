//! For `dtrain diff`: the names of training samples.

use dtrain_common::exit::ExitStatus;
use dtrain_common::question::NamesQuestion;

use super::{Subject, print_answer};
use crate::planning::{SymbolicPredictor, Target};
use crate::setup::error::{Result, WorkerError};
use crate::tasks::BuildTask;

pub(super) fn run<T: BuildTask + 'static>(
    subject: Subject<'_>,
    question: &NamesQuestion,
) -> Result<ExitStatus> {
    let mut symbolic = SymbolicPredictor::<T>::new(subject.request, &subject.survey, 0, Target::Cpu);
    let (facts, _) = symbolic.facts_and_plan()?;
    // A place of several members has the numbers of single samples.
    let groups = facts.train.groups().filter(|_| facts.sampling().width() > 1);
    let set = groups.map_or(&*facts.train, |groups| groups.singles());
    let names: Vec<Option<String>> = question
        .samples
        .iter()
        .map(|sample| *sample as usize)
        .map(|sample| (sample < set.len()).then(|| set.describe(sample)))
        .collect();
    print_answer(&format!("{}\n", serde_json::to_string(&names).map_err(WorkerError::Question)?));
    Ok(ExitStatus::Success)
}
