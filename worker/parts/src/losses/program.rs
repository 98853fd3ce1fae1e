//! A user's own loss, which a task runs itself: the settings alone compute nothing.

use dtrain_recipe::sample_losses::Program;

use super::of_samples::OfSamples;

impl OfSamples for Program {}
