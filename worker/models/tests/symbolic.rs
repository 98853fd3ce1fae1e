//! The memory of a large GPT, by symbolic tensors. Counting memory concerns the whole process.
#![allow(clippy::unwrap_used)]

use dtrain_models::{Gpt, GptConfig, Registry};
use dtrain_torch_shim::symbolic::{SimulatedGpu, Symbolic};
use tch::{Device, Kind, Reduction, Tensor};

#[test]
fn the_loss_needs_less_memory_than_all_logits() {
    let config = GptConfig { vocabulary: 50_257, context: 1024, width: 768, depth: 1, heads: 12 };
    let region = Symbolic::enter(Some(SimulatedGpu::LARGE)).unwrap();
    let peak = |loss: &dyn Fn(&Gpt, &Tensor) -> Tensor| {
        let model = Gpt::new(config, &mut Registry::new(Device::Cpu)).unwrap();
        let x = Tensor::zeros([8, 1024], (Kind::Int64, Device::Cpu));
        region.reset_peak().unwrap();
        loss(&model, &x).backward();
        region.usage().unwrap().peak
    };
    let whole = peak(&|model, x| {
        let logits = model.forward(x, true).unwrap().view([-1, 50_257]);
        logits.cross_entropy_loss(&x.view([-1]), None::<&Tensor>, Reduction::Sum, -100, 0.0)
    });
    let chunks = peak(&|model, x| model.loss(x, x, true).unwrap());
    let logits = 4 * 8 * 1024 * 50_257;
    assert!(chunks + 2 * logits < whole, "{chunks} in chunks, {whole} with all logits");
}
