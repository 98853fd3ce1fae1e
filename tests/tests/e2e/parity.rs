//! Compares models, optimizers and the loss scaler with PyTorch and torchvision, on the CPU.
//! `tests/parity/README.md` describes the references.

use dtrain_tests::parity;

/// Makes a test of each comparison in a module; the GPU suite calls the same comparisons. A normal check leaves out one that
/// has a reason.
macro_rules! compared {
    ($($module:ident: $($name:ident $(($why:literal))?),+;)+) => {
        $(mod $module {
            $(#[test]
            fn $name() {
                $(if dtrain_test_kit::thorough::leaves_out($why) {
                    return;
                })?
                super::parity::$module::$name();
            })+
        })+
    };
}

compared! {
    models:
        names_shapes_types_and_order_are_pytorchs,
        evaluation_gives_pytorchs_logits,
        training_gives_pytorchs_logits_gradients_and_statistics;
    resnets:
        the_formula_is_the_same_in_both_languages,
        names_shapes_types_and_order_are_torchvisions,
        evaluation_gives_torchvisions_logits,
        training_gives_torchvisions_logits_gradients_and_statistics
            ("ddp: ResNet-18 has the same losses; models: ResNet-50 has the same gradients");
    optimizers:
        updates_follow_torch,
        muon_follows_torch,
        adaptive_clipping_follows_timm,
        the_moving_average_follows_torch,
        the_schedule_follows_torch;
    scaler:
        ten_thousand_steps_equal_torchs;
}
