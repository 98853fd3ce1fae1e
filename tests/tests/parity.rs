//! The small ResNets against torchvision's, on the CPU.

use dtrain_tests::parity::resnets;

#[test]
fn the_formula_is_the_same_in_both_languages() {
    resnets::the_formula_is_the_same_in_both_languages();
}

#[test]
fn names_shapes_types_and_order_are_torchvisions() {
    resnets::names_shapes_types_and_order_are_torchvisions();
}

#[test]
fn evaluation_gives_torchvisions_logits() {
    resnets::evaluation_gives_torchvisions_logits();
}

#[test]
fn a_training_pass_gives_torchvisions_logits_gradients_and_statistics() {
    resnets::a_training_pass_gives_torchvisions_logits_gradients_and_statistics();
}
