//! Compares the loss scaler with torch.amp.GradScaler over 10,000 steps with injected infinities and NaNs.
//! `tests/parity/README.md` describes the reference.

use super::device;
use crate::reference::{cases, expand, pairs};
use dtrain_test_kit::assert_values;
use dtrain_torch_shim::fused;
use dtrain_worker::{GradScaler, ScalerOptions};
use serde_json::Value;
use tch::Tensor;

fn scaler(settings: &Value) -> GradScaler {
    let number = |key: &str| settings[key].as_f64().unwrap();
    GradScaler::new(ScalerOptions {
        init: number("init_scale"),
        growth: number("growth_factor"),
        backoff: number("backoff_factor"),
        growth_interval: u32::try_from(settings["growth_interval"].as_u64().unwrap()).unwrap(),
    })
    .unwrap()
}

/// Returns which steps have an infinite or NaN gradient.
fn bad_steps(case: &Value, steps: usize) -> Vec<bool> {
    let mut bad = vec![false; steps];
    for range in case["bad"].as_array().unwrap() {
        let [first, last, stride] = serde_json::from_value(range.clone()).unwrap();
        (first..=last).step_by(stride).for_each(|step: usize| bad[step] = true);
    }
    bad
}

/// Returns whether the kernel that unscales the gradients finds infinities or NaNs: then the step is skipped.
fn found_inf(scaler: &GradScaler, gradient: f32, injected: f32) -> bool {
    let scaled = scaler.scale() as f32 * gradient;
    let grads = Tensor::from_slice(&[scaled, scaled * injected, scaled]).to_device(device());
    let found = Tensor::from(0f32).to_device(device());
    fused::unscale(&[&grads], &found, &Tensor::from(scaler.inverse()).to_device(device())).unwrap();
    let found = found.double_value(&[]) != 0.0;
    if !found {
        // Not finite if the scale is too small for a reciprocal: like torch, the kernel checks its inputs.
        let (got, wanted) = (grads.double_value(&[0]) as f32, scaled * scaler.inverse());
        assert_values!(got == wanted || got.is_nan() && wanted.is_nan(), "{got} against {wanted}");
    }
    found
}

/// Compares ten thousand steps with torch's.
///
/// # Panics
/// If they differ.
pub fn ten_thousand_steps_equal_torchs() {
    let mut least = f64::INFINITY;
    let mut most = 0f64;
    for (name, case) in cases(&super::reference("scaler.json")) {
        let steps = case["steps"].as_u64().unwrap() as usize;
        assert_eq!(steps, 10_000);
        let gradient = case["gradient"].as_f64().unwrap() as f32;
        let (scales, skipped) = (expand(&case["scales"], steps), expand(&case["skipped"], steps));
        let mut resets = pairs(&case["tracker_resets"]).into_iter().peekable();
        let mut tracker = 0;
        let mut scaler = scaler(&case["settings"]);
        for (step, bad) in bad_steps(&case, steps).into_iter().enumerate() {
            let injected = match (bad, step % 3) {
                (false, _) => 1.0,
                (true, 0) => f32::NAN,
                (true, _) => f32::INFINITY,
            };
            let found = found_inf(&scaler, gradient, injected);
            assert_values!(
                f64::from(u8::from(found)) == skipped[step],
                "{name}, step {step}: skipped is {found}"
            );
            scaler.update(found);
            tracker = match resets.next_if(|(at, _)| *at == step) {
                Some((_, value)) => value as u32,
                None => tracker + 1,
            };
            // Bit by bit: both are float32 numbers.
            let scale = scaler.scale();
            assert_values!(
                scale == scales[step],
                "{name}, step {step}: scale {scale}, wanted {}",
                scales[step]
            );
            let clean = scaler.state().clean_steps;
            assert_values!(clean == tracker, "{name}, step {step}: tracker {clean}, wanted {tracker}");
            // A resumed run continues in the same way.
            if step % 1000 == 500 {
                let state = scaler.state();
                scaler = self::scaler(&case["settings"]);
                scaler.restore(state).unwrap();
            }
            least = least.min(scaler.scale());
            most = most.max(scaler.scale());
        }
        assert!(resets.peek().is_none(), "{name}: resets were left over");
        assert_values!(scaler.is_exhausted() == (name == "to_zero"), "{name}: exhausted");
    }
    // The reference reaches both ends.
    assert_values!(least == 0.0 && most > 1e38, "{least:e} to {most:e}");
}
