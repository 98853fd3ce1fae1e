//! Random operations of programs.

use dtrain_torch_shim::rng::BySample;

use super::*;

#[test]
fn a_dropout_draws_by_sample() {
    let mut registry = Registry::new(Device::Cpu);
    registry.is_batch_grouped = true;
    let program = Exported::load(&reference("plain.pt2"), &mut registry).unwrap();
    assert!(program.draws_random_numbers() && program.draws_by_micro_batch().is_empty());
    registry.groups().set(Some(2));
    let image = Tensor::randn([6, 3, 8, 8], (Kind::Float, Device::Cpu));
    let run = |key, first: i64, count: i64| {
        let _samples = BySample::enter(key, &(first as usize..(first + count) as usize)).unwrap();
        registry.groups().begin_micro_batch(count as usize);
        tch::no_grad(|| program.run(&[&image.narrow(0, first, count)], true)).unwrap().remove(0)
    };
    let (whole, parts) = (run(5, 0, 6), Tensor::cat(&[run(5, 0, 2), run(5, 2, 4)], 0));
    assert!((&whole - parts).abs().max().double_value(&[]) < 1e-6);
    let other = run(6, 0, 6);
    assert!((whole - other).abs().max().double_value(&[]) > 1e-3);
    for case in ["classifier", "numbers", "regions", "functional", "text"] {
        assert!(!load(case).0.draws_random_numbers(), "{case}");
    }
}

#[test]
fn other_draws_are_named() {
    let file = |change: fn(&mut Value)| {
        let (program, _) = load_bytes(&edit_node("plain", "aten.dropout", change).bytes()).unwrap();
        assert!(program.draws_random_numbers());
        program.draws_by_micro_batch().to_vec()
    };
    let named = file(|node| node["target"] = json!("torch.ops.aten.alpha_dropout.default"));
    assert_eq!(named.len(), 1);
    assert!(named[0].starts_with("alpha_dropout in `dropout`"), "{named:?}");
}
