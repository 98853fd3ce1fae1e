//! `model.loss`.

use dtrain_common::recipe::keys::Section;

use super::*;
use crate::sample_losses::{CrossEntropy, Dice, Focal, Mse, Ordinal, Quantile};

fn classes(sets: &[&str]) -> Result<Recipe, RecipeError> {
    parse(samples::CLASSES, sets)
}

/// Returns `model.loss` of the plain recipe, which is what manifests have.
fn saved(recipe: &Recipe) -> Option<toml::Value> {
    recipe.plain().unwrap().section("model").get("loss").cloned()
}

#[test]
fn a_word_a_factor_and_a_table_are_the_same_loss() {
    let word = small(&["model.loss=focal"]);
    assert_eq!(word.model.loss.terms(), [SampleLoss::Focal(Focal::default()).into()]);
    for text in ["{ focal = 1 }", "{ focal = {} }", "{ focal = { weight = 1.0, gamma = 2 } }"] {
        let recipe = small(&[&format!("model.loss={text}")]);
        assert_eq!(recipe, word);
        assert_eq!(saved(&recipe).unwrap().as_str(), Some("focal"));
    }
    round_trip(&word);
}

#[test]
fn a_table_keeps_every_setting_in_one_order() {
    let one = "{ dice = 0.5, cross-entropy = { smoothing = 0.1, class_weights = { sky = 2 } } }";
    let other = "{ cross-entropy = { class_weights = { sky = 2.0 }, smoothing = 0.1, weight = 1 }, dice = { weight = 0.5 } }";
    let [one, other] =
        [one, other].map(|text| parse(samples::SEGMENT, &[&format!("model.loss={text}")]).unwrap());
    let weights = ClassWeights::ByName([("sky".to_owned(), 2.0)].into());
    assert_eq!(
        one.model.loss.terms(),
        [
            SampleLoss::CrossEntropy(CrossEntropy {
                weight: 1.0,
                smoothing: 0.1,
                class_weights: Some(weights)
            })
            .into(),
            SampleLoss::Dice(Dice { weight: 0.5, smooth: 1.0 }).into(),
        ]
    );
    assert_eq!(one, other);
    assert_eq!(one.differences(&other), []);
    let at = |folder: &str| {
        let set =
            format!("model.loss={{ focal = 1, program = {{ file = \"{folder}/own.pt2\", weight = 2 }} }}");
        let stage =
            format!("stage=[{{ name = \"a\", steps = 1, loss = {{ program = \"{folder}/own.pt2\" }} }}]");
        parse(&SMALL.replace("[train]\nepochs = 1\n", ""), &[&set, &stage]).unwrap()
    };
    assert_eq!(at("/a").differences(&at("/b")), [], "a program may lie elsewhere");
    assert_eq!(
        saved(&one).unwrap().to_string(),
        "{ cross-entropy = { weight = 1.0, smoothing = 0.1, class_weights = { sky = 2.0 } }, dice = { weight = 0.5, smooth = 1.0 } }"
    );
    round_trip(&one);
    let weighted =
        parse(samples::SEGMENT, &["model.loss={ cross-entropy = { class_weights = [1, 2.5, 0] } }"]).unwrap();
    round_trip(&weighted);
    let plain = parse(samples::SEGMENT, &[]).unwrap();
    assert_eq!(plain.differences(&weighted).len(), 1);
    let set =
        parse(samples::SEGMENT, &["model.loss={ dice = 1, cross-entropy = 2 }", "model.loss.dice.smooth=3"]);
    assert!(set.unwrap_err().to_string().contains("has no keys"), "a factor has no settings");
    let set = ["model.loss={ dice = {}, cross-entropy = 2 }", "model.loss.dice.smooth=3"];
    let set = parse(samples::SEGMENT, &set).unwrap();
    assert_eq!(*set.model.loss.terms()[1], SampleLoss::Dice(Dice { weight: 1.0, smooth: 3.0 }));
}

/// Manifests and hashes of recipes without the key stay as they were.
#[test]
fn usual_losses_are_saved_as_before() {
    assert_eq!(saved(&small(&[])), None);
    assert_eq!(small(&["model.loss=cross-entropy"]), small(&[]));
    assert_eq!(saved(&parse(samples::SEGMENT, &[]).unwrap()), None);
    assert_eq!(saved(&classes(&[]).unwrap()), None);
    assert_eq!(classes(&[]).unwrap().model.loss, Loss::word("binary").unwrap());
    round_trip(&classes(&[]).unwrap());
    assert_eq!(saved(&parse(samples::LM, &[]).unwrap()), None);
    let regress = parse(samples::REGRESS, &["model.loss=mse"]).unwrap();
    assert_eq!(saved(&regress).unwrap().as_str(), Some("mse"));
    assert_eq!(regress.model.loss.terms(), [SampleLoss::Mse(Mse::default()).into()]);
    let custom = parse("task = \"custom\"\ntrain.steps = 1", &[]).unwrap();
    assert_eq!(saved(&custom).unwrap().as_str(), Some("cross-entropy"));
}

#[test]
fn wrong_losses_are_errors_in_one_sentence() {
    for (text, set, part) in [
        (SMALL, "model.loss=hinge", "expected one of \"cross-entropy\", \"focal\", \"binary\""),
        (SMALL, "model.loss=focl", "did you mean \"focal\"?"),
        (SMALL, "model.loss=3", "expected a loss such as \"focal\", or a table of losses"),
        (SMALL, "model.loss={}", "the table has no loss; name at least one"),
        (SMALL, "model.loss=program", "`program` needs the file of the loss"),
        (SMALL, "model.loss={ program = \"x.py\" }", "the file of a program ends in .pt2"),
        (
            SMALL,
            "model.loss={ program = { file = \"x.pt2\", output = \"aux\" } }",
            "`program` takes weight, file, inputs, not output",
        ),
        (SMALL, "model.loss={ hinge = 1 }", "expected one of \"cross-entropy\""),
        (SMALL, "model.loss={ focal = 0 }", "`focal`: expected a number above 0, got the whole number 0"),
        (SMALL, "model.loss={ focal = -0.5 }", "`focal`: expected a number above 0"),
        (SMALL, "model.loss={ focal = \"1\" }", "`focal`: expected its factor, or a table of its settings"),
        (SMALL, "model.loss={ focal = { weight = 0 } }", "`focal.weight`: expected a number above 0"),
        (
            SMALL,
            "model.loss={ focal = { smooth = 1 } }",
            "`focal` takes weight, gamma, alpha, class_weights, output, target, not smooth",
        ),
        (SMALL, "model.loss={ focal = { alpha = 0.5 } }", "set class_weights"),
        (
            SMALL,
            "model.loss={ cross-entropy = { smoothing = 1 } }",
            "`cross-entropy.smoothing`: expected a number of at least 0",
        ),
        (SMALL, "model.loss={ cross-entropy = { class_weights = [] } }", "expected a list with a weight"),
        (
            SMALL,
            "model.loss={ cross-entropy = { class_weights = [1, -1] } }",
            "expected a number of at least 0",
        ),
        (SMALL, "model.loss={ cross-entropy = { class_weights = { a = nan } } }", "`a`: expected a number"),
        (
            SMALL,
            "model.loss={ cross-entropy = 1, dice = 1 }",
            "task = \"classify\" takes \"cross-entropy\", \"focal\", \"ordinal\", \"program\", not \"dice\"",
        ),
        (
            samples::CLASSES,
            "model.loss=cross-entropy",
            "with data.target = \"classes\" takes \"binary\", \"focal\", \"program\", not",
        ),
        (samples::CLASSES, "model.loss={ focal = { class_weights = [1] } }", "set alpha, or take `binary`"),
        (
            samples::SEGMENT,
            "model.loss=mse",
            "takes \"cross-entropy\", \"focal\", \"dice\", \"jaccard\", \"tversky\", \"boundary\", \"program\", not",
        ),
        (
            samples::REGRESS,
            "model.loss=dice",
            "takes \"mse\", \"l1\", \"huber\", \"smooth-l1\", \"quantile\", \"program\", not \"dice\"",
        ),
        (
            samples::REGRESS,
            "model.loss={ quantile = { quantile = 1 } }",
            "`quantile.quantile`: expected a number above 0 and below 1",
        ),
        (samples::LM, "model.loss=focal", "\"classify\" and \"segment\" and \"regress\" and \"program\""),
        (SMALL, "model.loss={ ordinal = 1, focal = 1 }", "name an output for each of the others"),
        (
            SMALL,
            "model.loss={ focal = { output = \"aux\" } }",
            "exported program in model.file, which is not set",
        ),
        (SMALL, "model.loss=[]", "the table has no loss"),
        (
            SMALL,
            "model.loss=[{ name = \"focal\" }, { name = \"focal\", gamma = 1 }]",
            "`focal` is there twice",
        ),
        (SMALL, "model.loss=[{ gamma = 1 }]", "a table of the list has no name"),
        (SMALL, "model.loss=[\"focal\"]", "expected tables such as"),
        (samples::REGRESS, "model.loss={ mse = { output = \"depth\" } }", "leave out `output` of one loss"),
        (samples::PROGRAM, "model.loss=mse", "set output and target of each"),
        (samples::PROGRAM, "model.loss={ mse = { output = \"depth\" } }", "set output and target of each"),
    ] {
        expect_set_error(text, set, part);
    }
    let of_other = ["model.file=/m.pt2", "model.loss={ ordinal = { target = \"severity\" } }"];
    expect_error(SMALL, &of_other, "model.loss", "of another field takes an output");
}

#[test]
fn a_stage_takes_a_word_or_a_table() {
    let stage = |loss: &str| {
        let text = SMALL.replace("epochs = 1\n", "");
        parse(
            &format!("{text}[[stage]]\nname = \"a\"\nepochs = 1\nloss = {loss}\n"),
            &["model.loss={ focal = 2 }"],
        )
    };
    let recipe = stage("\"cross-entropy\"").unwrap();
    assert_eq!(recipe.of_stage(0).model.loss, Loss::default());
    assert_eq!(recipe.of_stage(1).model.loss.terms()[0].weight(), 2.0);
    round_trip(&recipe);
    let table = stage("{ focal = { gamma = 1 } }").unwrap();
    assert_eq!(table, stage("{ focal = { weight = 1, gamma = 1.0 } }").unwrap());
    assert_eq!(
        *table.of_stage(0).model.loss.terms()[0],
        SampleLoss::Focal(Focal { gamma: 1.0, ..Focal::default() })
    );
    round_trip(&table);
    let error = stage("{ focal = { gamma = -1 } }").unwrap_err();
    assert_eq!(error.key(), Some("stage[0].loss"));
    assert!(error.message().contains("`focal.gamma`: expected a number of at least 0"), "{error}");
    assert!(stage("3").unwrap_err().message().contains("expected a loss such as"));
    let error = stage("\"dice\"").unwrap_err();
    assert_eq!(error.key(), Some("stage[0].loss"));
    assert!(error.message().contains("takes \"cross-entropy\", \"focal\", \"ordinal\""), "{error}");
    assert!(stage("\"hinge\"").unwrap_err().message().contains("expected one of"));
}

#[test]
fn losses_of_outputs_are_a_table_or_a_list() {
    let text = |loss: &str| parse(samples::PROGRAM, &[&format!("model.loss={loss}")]).unwrap();
    let one = text("{ mse = { output = \"depth\", target = \"metres\", weight = 0.5 } }");
    let saved_one = "{ mse = { weight = 0.5, output = \"depth\", target = \"metres\" } }";
    assert_eq!(saved(&one).unwrap().to_string(), saved_one);
    assert_eq!(one, text("[{ name = \"mse\", target = \"metres\", weight = 0.5, output = \"depth\" }]"));
    round_trip(&one);
    let two = text(
        "[{ name = \"mse\", output = \"depth\", target = \"metres\" }, { name = \"focal\", output = \"shape\", target = \"shape\" }, \
         { name = \"focal\", output = \"color\", target = \"color\" }]",
    );
    assert_eq!(two.model.loss.to_string(), "focal of shape + focal of color + mse of depth");
    assert_eq!(saved(&two).unwrap().as_array().unwrap().len(), 3);
    round_trip(&two);
    assert_eq!(saved(&parse(samples::PROGRAM, &[]).unwrap()), None);
    assert_eq!(two.differences(&one).len(), 1);
}

#[test]
fn an_order_has_each_class_once() {
    let ranks = |order: &[&str], names: &[&str]| {
        let [order, names] =
            [order, names].map(|all| all.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>());
        Ordinal { order: Some(order), weight: 1.0 }
            .ranks(3, &names, "model.loss")
            .map_err(|error| error.to_string())
    };
    let names = ["high", "low", "middle"];
    assert_eq!(ranks(&["low", "middle", "high"], &names).unwrap(), Some(vec![2, 0, 1]));
    assert_eq!(Ordinal::default().ranks(3, &[], "model.loss").unwrap(), None);
    for (order, names, part) in [
        (&["low", "middle"][..], &names[..], "the class \"high\" is missing"),
        (&["low", "low", "middle"], &names, "the class \"low\" is there twice"),
        (&["low", "mid", "high"], &names, "no class is named \"mid\"; the classes are"),
        (&["low"], &[], "the classes have no names; leave out order"),
    ] {
        let error = ranks(order, names).unwrap_err();
        assert!(error.contains(part) && error.contains("model.loss.ordinal.order"), "{error}");
    }
}

#[test]
fn weights_of_classes_must_fit_the_classes() {
    let names = ["cat", "dog", "cow"].map(String::from);
    let by_name = |name: &str, weight| ClassWeights::ByName([(name.to_owned(), weight)].into());
    assert_eq!(ClassWeights::All(vec![1.0, 0.0, 2.0]).of(3, &names).unwrap(), [1.0, 0.0, 2.0]);
    assert_eq!(by_name("dog", 0.5).of(3, &names).unwrap(), [1.0, 0.5, 1.0]);
    for (weights, classes, names, part) in [
        (ClassWeights::All(vec![1.0; 2]), 3, &names[..], "a weight for each of the 3 classes, got 2"),
        (ClassWeights::All(vec![0.0; 2]), 2, &[], "above 0 for at least one class"),
        (
            by_name("dgo", 1.0),
            3,
            &names,
            "no class is named \"dgo\"; the classes are \"cat\", \"dog\", \"cow\"",
        ),
        (by_name("dog", 1.0), 3, &[], "the classes have no names; give a list"),
    ] {
        let error = weights.of(classes, names).unwrap_err();
        assert!(error.contains(part), "{error}");
    }
}

#[test]
fn weights_of_right_classes_have_a_mean_of_one() {
    let of = |text: &str| {
        let recipe = small(&[&format!("model.loss={text}")]);
        recipe.model.loss.terms()[0].class_weights(2, &[], "model.loss")
    };
    assert_eq!(of("focal").unwrap(), None);
    assert_eq!(of("{ focal = { class_weights = [1, 3] } }").unwrap(), Some(vec![0.5, 1.5]));
    let error = of("{ cross-entropy = { class_weights = [1, 3, 4] } }").unwrap_err();
    assert_eq!(error.key(), Some("model.loss.cross-entropy.class_weights"));
    let binary = classes(&["model.loss={ binary = { positive_weights = [1, 3] } }"]).unwrap();
    assert_eq!(
        binary.model.loss.terms()[0].class_weights(2, &[], "model.loss").unwrap(),
        Some(vec![1.0, 3.0])
    );
}

/// Every loss has a row in the reference, with rows of its settings, and some task takes it.
#[test]
fn the_reference_lists_every_loss() {
    let part = reference::docs_of("### `loss`");
    for loss in crate::sample_losses::ALL {
        assert!(part.contains(&format!("| `\"{}\"` |", loss.name)), "no row for {}", loss.name);
        for key in loss.keys {
            assert!(part.contains(&format!("| `{}` |", key.name)), "no row for {}", key.name);
        }
        let mut tasks = Task::NAMES.iter().filter_map(|name| Task::named(name));
        let takes = |task: Task| task.facts().losses.iter().any(|(_, names)| names.contains(&loss.name));
        assert!(tasks.any(takes), "no task takes {}", loss.name);
    }
    assert_eq!(Quantile::KEYS.len(), 2);
}
