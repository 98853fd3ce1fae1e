//! A user's own change, which a task runs on the images of a batch: the settings alone change nothing.

use dtrain_recipe::changes::Program;

use super::{Change, Drawn, Sizes};
use crate::rng::SampleRng;

impl Change for Program {
    fn draw(&self, _: &mut SampleRng, _: Sizes, _: &mut Drawn) {}
}
