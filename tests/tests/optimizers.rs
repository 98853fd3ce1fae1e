//! The optimizers, the moving average and the schedule against torch's, on the CPU.

use dtrain_tests::parity::optimizers;

#[test]
fn updates_follow_torch() {
    optimizers::updates_follow_torch();
}

#[test]
fn the_moving_average_follows_torch() {
    optimizers::the_moving_average_follows_torch();
}

#[test]
fn the_schedule_follows_torch() {
    optimizers::the_schedule_follows_torch();
}
