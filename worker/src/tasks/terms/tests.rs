#![allow(clippy::unwrap_used)]
use super::super::samples::{self, Survey};
use super::*;
use crate::data::CacheBudget;

const RECIPE: &str = "task = \"classify\"\n[data]\nkind = \"generated\"\nclasses = 3\ntrain_samples = 6\ntest_samples = 2\n\
                      image_size = 8\n[[stage]]\nname = \"a\"\nsteps = 1\n[[stage]]\nname = \"b\"\nsteps = 1\nloss = \"focal\"\n";

fn bind(loss: &str) -> Result<Terms, TaskError> {
    let recipe = Recipe::parse("test", RECIPE, &[format!("model.loss={loss}")]).unwrap();
    let sets = samples::sets(&recipe, Survey::Generated, CacheBudget::default(), || Ok(0)).unwrap();
    Terms::bind(&recipe, &sets, Device::Cpu)
}

#[test]
fn each_stage_has_its_loss() {
    let mut terms = bind("{ cross-entropy = { class_weights = [1, 2, 3] } }").unwrap();
    let weights = terms.current().terms[0].class_weights.as_ref().unwrap();
    assert_eq!(Vec::<f32>::try_from(weights).unwrap(), [0.5, 1.0, 1.5]);
    assert!(!terms.all(|loss| *loss == terms.current().stated));
    terms.begin(1);
    assert_eq!(terms.current().terms[0].settings.name(), "focal");
    assert!(terms.current().terms[0].class_weights.is_none());
}

#[test]
fn weights_that_do_not_fit_the_classes_name_the_key() {
    for (loss, part) in [
        (
            "{ cross-entropy = { class_weights = [1, 2] } }",
            "model.loss.cross-entropy.class_weights: expected a weight for each of the 3 classes, got 2",
        ),
        (
            "{ focal = { class_weights = { cat = 2 } } }",
            "model.loss.focal.class_weights: no class is named \"cat\"",
        ),
    ] {
        let error = bind(loss).map(drop).unwrap_err().to_string();
        assert!(error.contains(part), "{error}");
    }
}
