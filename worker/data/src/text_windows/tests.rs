#![allow(clippy::unwrap_used)]

use std::collections::BTreeSet;

use proptest::prelude::*;

use super::super::dataset::{Column, load_one};
use super::super::rng::{Domain, keyed};
use super::super::vocabulary::{Tokens, Vocabulary};
use super::*;

/// Makes the tokens 0, 1, 2 ... as a text.
fn counting(tokens: usize) -> Corpus {
    Corpus {
        tokens: std::sync::Arc::new(Tokens::U16((0..tokens as u16).collect())),
        vocabulary: Vocabulary::Bytes,
    }
}

fn load(set: &TextWindows, index: usize, random: Option<u64>) -> (Vec<i64>, Vec<i64>) {
    let mut rng = random.map(|epoch| keyed(Domain::Augment, 1, epoch, index as u64));
    match &load_one(set, index, rng.as_mut()).unwrap()[..] {
        [Column::I64(tokens), Column::I64(targets)] => (tokens.clone(), targets.clone()),
        other => panic!("{other:?}"),
    }
}

#[test]
fn windows_follow_each_other_and_targets_are_one_ahead() {
    let set = TextWindows::new(counting(100), 0..100, Split::Train, 0.2, 10).unwrap();
    assert_eq!(set.len(), 7, "of 80 tokens the last has no successor");
    assert_eq!(load(&set, 0, None), ((0..10).collect(), (1..11).collect()));
    assert_eq!(load(&set, 6, None), ((60..70).collect(), (61..71).collect()));
    assert_eq!(set.describe(6), "tokens 60 to 69 of the text (training)");
    let test = TextWindows::new(counting(100), 0..100, Split::Test, 0.2, 10).unwrap();
    assert_eq!((test.len(), test.context()), (1, 10));
    assert_eq!(load(&test, 0, None), ((80..90).collect(), (81..91).collect()));
    assert_eq!(test.fields(), [Field::i64("tokens", [10]), Field::i64("targets", [10])]);
    assert_eq!(test.corpus().tokens.count(), 100);
}

#[test]
fn training_windows_shift_in_every_epoch() {
    let set = TextWindows::new(counting(1000), 0..1000, Split::Train, 0.1, 16).unwrap();
    let starts: BTreeSet<i64> = (0..400).map(|epoch| load(&set, 5, Some(epoch)).0[0]).collect();
    assert_eq!(starts, (80..96).collect());
    assert_eq!(load(&set, 5, Some(3)), load(&set, 5, Some(3)));
}

#[test]
fn short_texts_name_the_settings() {
    let text = |tokens, split| {
        TextWindows::new(counting(tokens), 0..tokens as u64, split, 0.5, 10)
            .map(|set| set.len().to_string())
            .unwrap_or_else(|error| error.to_string())
    };
    assert_eq!((text(22, Split::Train), text(22, Split::Test)), ("1".to_owned(), "1".to_owned()));
    let said = text(21, Split::Train);
    assert!(
        said.starts_with(
            "the training part of the text has 10 tokens, and one window of model.context = 10 needs 11;"
        ),
        "{said}"
    );
    let said = text(20, Split::Test);
    assert!(
        said.starts_with("the test part of the text has 10 tokens") && said.contains("data.test_fraction"),
        "{said}"
    );
    let said = text(20, Split::Val);
    assert!(said.starts_with("the validation part") && said.ends_with("change data.val"), "{said}");
}

proptest! {
    /// For all sizes, windows stay within their part, so that no test token is trained on.
    #[test]
    fn the_parts_do_not_touch(tokens in 30usize..400, context in 1usize..12, fraction in 0.3f64..0.7, epoch: u64) {
        let part = |split| TextWindows::new(counting(tokens), 0..tokens as u64, split, fraction, context);
        let (Ok(train), Ok(test)) = (part(Split::Train), part(Split::Test)) else {
            return Ok(());
        };
        let border = test.start as i64;
        for index in 0..train.len() {
            let (window, targets) = load(&train, index, Some(epoch));
            prop_assert!(targets[context - 1] < border);
            prop_assert_eq!(&window[1..], &targets[..context - 1]);
        }
        for index in 0..test.len() {
            let (window, targets) = load(&test, index, Some(epoch));
            prop_assert!(window[0] >= border && targets[context - 1] < tokens as i64);
        }
    }
}
