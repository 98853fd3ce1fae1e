//! `[[optim.group]]`, a list of sections.

use super::*;

#[test]
fn errors_of_groups_have_a_line_and_a_remedy() {
    let text = |group: &str| {
        format!("{SMALL}[[optim.group]]\nmatch = \"a\"\nlr_factor = 2\n[[optim.group]]\n{group}\n")
    };
    for (group, key, line, part) in [
        ("lr_factor = 2", "optim.group[1].match", 9, "missing; name the parameters by a glob"),
        (
            "match = \"b\"",
            "optim.group[1]",
            9,
            "this group has no effect: it sets none of lr_factor, weight_decay, betas, eps, muon and clip_adaptive",
        ),
        (
            "match = \"b\"\nlr_facto = 2",
            "optim.group[1].lr_facto",
            11,
            "did you mean `lr_factor`? [[optim.group]] takes match, lr_factor, weight_decay, betas, eps, muon, clip_adaptive",
        ),
        ("match = \"b\"\nlr_factor = -1", "optim.group[1].lr_factor", 11, "a number of at least 0"),
        ("match = \"b\"\nweight_decay = \"no\"", "optim.group[1].weight_decay", 11, "a number of at least 0"),
        ("lr_factor = 2\nmatch = []", "optim.group[1].match", 11, "a glob on the names of parameters"),
        ("match = [\"b\", 3]", "optim.group[1].match", 10, "or a list of them"),
        ("match = \" \"", "optim.group[1].match", 10, "or a list of them"),
        ("match = \"b\"\nlr_factor = 99999999999999999999", "optim.group[1].lr_factor", 11, "too large"),
    ] {
        let error = parse(&text(group), &[]).unwrap_err();
        assert_eq!((error.key(), error.line()), (Some(key), Some(line)), "{error}");
        assert!(error.message().contains(part), "{error}");
    }
    expect_set_error(SMALL, "optim.group=3", "expected sections [[optim.group]], got the whole number 3");
    expect_set_error(SMALL, "optim.group=[3]", "expected sections [[optim.group]], got the list [3]");
    expect_set_error(SMALL, "optim.match=x", "it belongs in one of [model.lora], [[optim.group]]");
}

#[test]
fn groups_can_be_set_from_the_command_line() {
    let recipe = small(&[
        "optim.group=[{ match = \"head.*\", lr_factor = 10 }, { match = [\"a\"], weight_decay = 0 }]",
    ]);
    assert_eq!(recipe.optim.group.len(), 2);
    assert_eq!(recipe.optim.group[0].patterns, ["head.*"]);
    assert_eq!((recipe.optim.group[1].lr_factor, recipe.optim.group[1].weight_decay), (1.0, Some(0.0)));
    let set = "optim.group=[{ match = \"a\", lr_factor = -1 }]";
    let error = parse(SMALL, &[set]).unwrap_err();
    assert_eq!(
        error.to_string(),
        format!(
            "--set {set}: optim.group[0].lr_factor: expected a number of at least 0, got the whole number -1"
        )
    );
    // A factor of 1 keeps parameters from a later group.
    small(&["optim.group=[{ match = \"a.b\", lr_factor = 1 }, { match = \"a.*\", lr_factor = 2 }]"]);
}
