//! The vision transformer, the GPT, the U-Net and the bottleneck ResNets against PyTorch, on the CPU.

use dtrain_tests::parity::models;

#[test]
fn names_shapes_types_and_order_are_pytorchs() {
    models::names_shapes_types_and_order_are_pytorchs();
}

#[test]
fn evaluation_gives_pytorchs_logits() {
    models::evaluation_gives_pytorchs_logits();
}

#[test]
fn a_training_pass_gives_pytorchs_logits_gradients_and_statistics() {
    models::a_training_pass_gives_pytorchs_logits_gradients_and_statistics();
}
