//! The loss scaler against torch.amp.GradScaler, on the CPU.

use dtrain_tests::parity::scaler;

#[test]
fn ten_thousand_steps_are_torchs() {
    scaler::ten_thousand_steps_are_torchs();
}
