#![allow(clippy::unwrap_used)]
use tch::Kind;

use super::*;
use crate::autocast::Autocast;

fn file(name: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/parity/reference");
    folder.join(name)
}

fn load(name: &str) -> Module {
    Module::load(&file(name), Device::Cpu).unwrap()
}

fn images() -> Tensor {
    Tensor::f_randn([5, 3, 16, 16], (Kind::Float, Device::Cpu)).unwrap()
}

#[test]
fn a_module_lists_the_tensors_that_it_computes_with() {
    for name in ["net.pt", "net-from-cuda.pt"] {
        let module = load(name);
        let parameters = module.named_parameters().unwrap();
        let names: Vec<&str> = parameters.iter().map(|it| it.name.as_str()).collect();
        let expected =
            ["conv1.weight", "bn1.weight", "bn1.bias", "conv2.weight", "conv2.bias", "fc.weight", "fc.bias"];
        assert_eq!(names, expected, "{name}");
        let on_cpu = |it: &NamedTensor| it.tensor.device() == Device::Cpu && it.tensor.requires_grad();
        assert!(parameters.iter().all(on_cpu), "{name}");
        let buffers = module.named_buffers().unwrap();
        let names: Vec<&str> = buffers.iter().map(|it| it.name.as_str()).collect();
        assert_eq!(names, ["bn1.running_mean", "bn1.running_var", "bn1.num_batches_tracked"]);
        assert!(parameters.iter().chain(&buffers).all(|it| it.same_as.is_none()));

        // The module uses data that is set from outside.
        let x = images();
        let before = module.forward(&[&x]).unwrap();
        let bias = parameters.last().unwrap();
        let moved = Tensor::f_arange(4, (Kind::Float, Device::Cpu)).unwrap();
        crate::tensor::set_data(&bias.tensor, &moved).unwrap();
        let again = module.forward(&[&x]).unwrap();
        assert_eq!(before.size(), [5, 4]);
        assert!((again.get(0) - before.get(0)).abs().max().double_value(&[]) > 0.5);
        // Gradients arrive in the same tensor.
        again.sum(Kind::Float).backward();
        assert_eq!(Vec::<f32>::try_from(bias.tensor.grad()).unwrap(), [5.0; 4]);
    }
}

#[test]
fn training_mode_and_gradient_mode_are_respected() {
    let mut module = load("net.pt");
    let x = images();
    module.train(false).unwrap();
    let first = module.forward(&[&x]).unwrap();
    assert!(module.forward(&[&x]).unwrap().equal(&first));
    let mean = |module: &Module| module.named_buffers().unwrap()[0].tensor.copy();
    let before = mean(&module);
    module.train(true).unwrap();
    assert!(!module.forward(&[&x]).unwrap().equal(&first));
    assert!(!mean(&module).equal(&before));
    assert!(first.requires_grad());
    let without = tch::no_grad(|| module.forward(&[&x]).unwrap());
    assert!(!without.requires_grad());
}

#[test]
fn later_calls_give_the_same_result() {
    let module = load("net.pt");
    let x = images();
    let (mut outputs, mut gradients) = (Vec::new(), Vec::new());
    for _ in 0..5 {
        let output = module.forward(&[&x]).unwrap();
        let parameters: Vec<Tensor> =
            module.named_parameters().unwrap().into_iter().map(|it| it.tensor).collect();
        gradients.push(Tensor::run_backward(&[output.square().sum(Kind::Float)], &parameters, false, false));
        outputs.push(output);
    }
    for other in 1..5 {
        assert!(outputs[0].equal(&outputs[other]), "call {other}");
        let same = |(a, b): (&Tensor, &Tensor)| a.equal(b);
        assert!(std::iter::zip(&gradients[0], &gradients[other]).all(same), "call {other}");
    }
}

#[test]
fn autocast_applies_inside_a_module() {
    let module = load("net.pt");
    let x = images();
    let exact = module.forward(&[&x]).unwrap();
    let short = {
        let _region = Autocast::enter(Device::Cpu, Kind::BFloat16).unwrap();
        module.forward(&[&x]).unwrap()
    };
    assert_eq!((exact.kind(), short.kind()), (Kind::Float, Kind::BFloat16));
    let off = (&exact - short.to_kind(Kind::Float)).abs().max().double_value(&[]);
    let size = exact.abs().max().double_value(&[]);
    assert!(off > 0.0 && off < 0.03 * size, "{off} of {size}");
    short.to_kind(Kind::Float).sum(Kind::Float).backward();
    let parameters = module.named_parameters().unwrap();
    assert!(parameters.iter().all(|it| it.tensor.grad().kind() == Kind::Float));
    assert!(module.forward(&[&x]).unwrap().equal(&exact), "outside of the region");
}

#[test]
fn tied_weights_and_random_numbers_are_found() {
    let module = load("autoencoder.pt");
    let parameters = module.named_parameters().unwrap();
    let tied: Vec<_> = parameters
        .iter()
        .filter_map(|it| it.same_as.as_ref().map(|same| (it.name.as_str(), same.as_str())))
        .collect();
    assert_eq!(tied, [("second.weight", "first.weight")]);
    assert!(module.draws_random_numbers().unwrap());
    assert!(!load("net.pt").draws_random_numbers().unwrap());
    assert!(!load("with-loss.pt").draws_random_numbers().unwrap());
}

#[test]
fn operations_with_a_mode_fixed_by_a_trace_are_found() {
    let fixed = |name: &str| {
        let found = load(name).fixed_modes().unwrap();
        let names = found.into_iter().map(|it| (it.operation, it.training));
        names.collect::<Vec<_>>()
    };
    let of = |operation: &str, training| (operation.to_owned(), training);
    assert_eq!(fixed("traced-training.pt"), [of("batch_norm", true), of("dropout", true)]);
    assert_eq!(fixed("traced-evaluation.pt"), [of("batch_norm", false), of("dropout", false)]);
    // A trace within a script.
    assert_eq!(fixed("traced-within.pt"), [of("batch_norm", false), of("dropout", false)]);
    let attention = ["_native_multi_head_attention", "_transformer_encoder_layer_fwd"];
    assert_eq!(fixed("traced-attention.pt"), attention.map(|name| of(name, false)));
    // Nothing depends on the mode: layer norm, batch norm without running statistics, a dropout of 0.
    assert_eq!(fixed("traced-plain.pt"), []);
    for name in [
        "net.pt",
        "with-loss.pt",
        "autoencoder.pt",
        "two-outputs.pt",
        "attention.pt",
        // The author chose the mode.
        "always-dropping.pt",
    ] {
        assert_eq!(fixed(name), [], "{name}");
    }
}

#[test]
fn files_other_than_modules_are_errors_with_a_remedy() {
    let folder = std::env::temp_dir().join(format!("dtrain-jit-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let fails = |name: &str, bytes: &[u8]| {
        let path = folder.join(name);
        std::fs::write(&path, bytes).unwrap();
        let error = Module::load(&path, Device::Cpu).unwrap_err();
        assert!(matches!(error, LoadError::NotTorchScript { .. }), "{error:?}");
        let text = error.to_string();
        assert!(text.contains(name) && text.contains("torch.jit.script(model).save"), "{text}");
        assert_eq!(text.lines().count(), 1, "{text}");
    };
    fails("text.pt", b"not a module");
    fails("empty.pt", b"");
    let whole = std::fs::read(file("net.pt")).unwrap();
    fails("cut.pt", &whole[..whole.len() / 2]);
    std::fs::remove_dir_all(&folder).unwrap();
    let error = Module::load(&folder, Device::Cpu).unwrap_err();
    assert!(matches!(error, LoadError::Read { .. }), "{error:?}");
    let error = Module::load(&file(""), Device::Cpu).unwrap_err();
    assert!(matches!(error, LoadError::Read { .. }), "{error:?}");
}

#[test]
fn inputs_that_a_module_cannot_use_are_errors() {
    let module = load("net.pt");
    let wrong = Tensor::f_zeros([1, 7, 16, 16], (Kind::Float, Device::Cpu)).unwrap();
    let error = module.forward(&[&wrong]).unwrap_err();
    assert!(error.message.contains("channels"), "{error}");
    assert!(module.forward(&[]).is_err());
    assert!(module.forward(&[&wrong, &wrong]).is_err());
    let error = load("two-outputs.pt").forward(&[&images()]).unwrap_err();
    assert_eq!(error.kind, ErrorKind::InvalidArgument, "{error}");
    assert!(error.message.contains("Tuple"), "{error}");
    assert!(load("no-parameters.pt").named_parameters().unwrap().is_empty());
    let huge = Tensor::f_zeros([1, 3, 1, 1], (Kind::Float, Device::Cpu))
        .unwrap()
        .expand([1 << 20, 3, 1 << 14, 1 << 14], false);
    let error = module.forward(&[&huge]).unwrap_err();
    assert!(error.is_out_of_memory(), "{error}");
}
