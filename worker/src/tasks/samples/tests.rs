#![allow(clippy::unwrap_used)]

use super::super::SurveyContext;
use super::numbers::check_moments;
use super::*;
use crate::data::{Filter, load_one};

fn recipe(data: &str) -> Recipe {
    let text = format!(
        "task = \"regress\"\n[data]\nkind = \"generated\"\nimage_size = 16\ntrain_samples = 30\ntest_samples = 5\n{data}\n\
         [model]\nfile = \"/m.pt2\"\n[train]\nsteps = 1\n"
    );
    Recipe::parse("test", &text, &[]).unwrap()
}

#[test]
fn generated_targets_are_numbers_or_maps() {
    let made = |data| sets(&recipe(data), Survey::Generated, CacheBudget::default(), || Ok(1)).unwrap();
    let sets = made("normalize_targets = true");
    assert_eq!((sets.numbers.len(), sets.size), (2, (16, 16)));
    assert_eq!((sets.train.len(), sets.test.len()), (30, 5));
    let columns: Vec<_> = (0..30).map(|index| load_one(sets.train.as_ref(), index, None).unwrap()).collect();
    for (number, moments) in sets.moments.iter().enumerate() {
        let mean: f32 = columns.iter().map(|it| it[1].as_f32().unwrap()[number]).sum::<f32>() / 30.0;
        assert!((moments.mean - f64::from(mean)).abs() < 1e-5 && moments.deviation() > 0.0);
    }
    let maps = made("target = \"map\"");
    assert!(maps.numbers.is_empty() && maps.moments.is_empty());
    assert_eq!(maps.train.fields()[1], crate::data::Field::f32("map", [16, 16]));
}

#[test]
fn validation_text_is_a_part_of_the_training_text() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.txt");
    std::fs::write(&path, "abcdefghij".repeat(100)).unwrap();
    let lm = |data: &str| {
        let text = format!("task = \"lm\"\n[data]\n{data}\n[train]\nsteps = 1\n");
        Recipe::parse("test", &text, &[]).unwrap()
    };
    let lengths = |data: &str| {
        let recipe = lm(data);
        let survey = SurveyContext::with_log(|context| survey(&recipe, 1, context)).unwrap();
        let sets = sets(&recipe, survey, CacheBudget::default(), || Ok(9)).unwrap();
        (sets.train.len(), sets.val.as_ref().map(|val| val.len()), sets.test.len(), sets)
    };
    let file = format!("root = {path:?}\ntest_fraction = 0.5\n");
    let (train, val, test, _) = lengths(&file);
    assert_eq!((train, val, test), (55, None, 55));
    // A fifth of 500 tokens.
    let (train, val, test, _) = lengths(&(file + "val = 0.2"));
    assert_eq!((train, val, test), (44, Some(11), 55));
    let generated = "kind = \"generated\"\ntrain_samples = 40\ntest_samples = 6\n".to_owned();
    let (train, val, test, without) = lengths(&generated);
    assert_eq!((train, val, test), (40, None, 6));
    let (train, val, test, with) = lengths(&(generated + "val = 0.25"));
    assert_eq!((train, val, test), (40, Some(10), 6));
    let same = |one: &Arc<dyn Dataset>, other: &Arc<dyn Dataset>| {
        (0..one.len()).all(|at| {
            let [one, other] = [one, other]
                .map(|set| load_one(set.as_ref(), at, None).unwrap()[0].as_i64().unwrap().to_vec());
            one == other
        })
    };
    assert!(same(&without.train, &with.train) && same(&without.test, &with.test));
}

#[test]
fn equal_targets_cannot_be_normalised() {
    let moments = [Moments::of([1.0, 2.0].into_iter()), Moments::of([3.0, 3.0].into_iter())];
    let names = ["a", "b"].map(String::from);
    check_moments(&recipe(""), &names, &moments).unwrap();
    let normalised = recipe("normalize_targets = true");
    let text = check_moments(&normalised, &names, &moments).unwrap_err().to_string();
    assert!(text.contains("the training targets `b` are all 3, and data.normalize_targets"), "{text}");
    let text = check_moments(&normalised, &[], &moments[1..]).unwrap_err().to_string();
    assert!(text.contains("the training targets of the maps are all 3"), "{text}");
}

#[test]
fn images_are_prepared_as_the_recipe_states() {
    let text = "task = \"classify\"\n[data]\nroot = \"/d\"\ncrop_fraction = 0.875\ninterpolation = \"bicubic\"\nchanges = \
                [{ name = \"flip\" }]\n[train]\nsteps = 1\n";
    let recipe = Recipe::parse("test", text, &[]).unwrap();
    let (train, test) = files::options(&recipe, None, CacheBudget::default(), 0);
    for options in [&train, &test] {
        assert_eq!((options.crop_fraction, options.filter), (0.875, Filter::Bicubic));
    }
    assert!(format!("{:?}", train.changes).contains("Flip"), "{:?}", train.changes);
    assert!(!format!("{:?}", test.changes).contains("Flip"), "{:?}", test.changes);
}
