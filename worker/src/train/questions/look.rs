//! The layouts of some data, for `dtrain new`.

use dtrain_common::exit::ExitStatus;
use dtrain_common::look::LookQuestion;

use super::print_answer;
use crate::setup::error::{Result, WorkerError};

/// Prints which layouts the data has, or why none fits.
pub(super) fn run(question: &LookQuestion) -> Result<ExitStatus> {
    let answer = dtrain_layout::look(question);
    print_answer(&serde_json::to_string(&answer).map_err(WorkerError::Question)?);
    Ok(ExitStatus::Success)
}
