#![allow(clippy::unwrap_used)]
use super::*;
use crate::course::BatchNorms;
use crate::setup::batch_norms;

fn recipe(file: &str, loss: &str) -> Recipe {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/parity/reference");
    let text = format!(
        "task = \"torchscript\"\n[data]\nkind = \"generated\"\nclasses = 4\nimage_size = 16\ntrain_samples = 6\n\
         test_samples = 6\n[model]\nfile = {:?}\nloss = \"{loss}\"\n[train]\nsteps = 1\n",
        folder.join(file)
    );
    Recipe::parse("test", &text, &[]).unwrap()
}

fn build(recipe: &Recipe) -> Result<(Registry, TorchScript), TaskError> {
    let mut registry = Registry::new(Device::Cpu);
    let context = BuildContext { registry: &mut registry, local_ranks: 1 };
    let task = TorchScript::build(recipe, None, context)?;
    Ok((registry, task))
}

/// Returns images and classes; the second image is unreadable.
fn batch() -> Batch {
    tch::manual_seed(3);
    let images = Tensor::f_randn([4, 3, 16, 16], (Kind::Float, Device::Cpu)).unwrap();
    let _ = images.get(1).zero_();
    Batch {
        fields: vec![("image", images), ("label", Tensor::from_slice(&[2i64, 0, 3, 1]))],
        weights: Tensor::from_slice(&[1f32, 0.0, 1.0, 1.0]),
        weight: 3.0,
        blank: false,
    }
}

#[test]
fn the_registry_has_the_module_s_tensors() {
    let (registry, task) = build(&recipe("autoencoder.pt", "mse")).unwrap();
    let names: Vec<&str> = registry.state().iter().map(|entry| entry.name()).collect();
    let expected = ["encode.weight", "encode.bias", "first.weight", "decode.weight", "decode.bias", "keep"];
    assert_eq!(names, expected, "one name for a tied weight, and a buffer of truth values");
    assert_eq!(registry.tied(), [("second.weight".to_owned(), "first.weight".to_owned())]);
    let batch = batch();
    let before = task.loss(&batch, Mode::Evaluate).unwrap();
    // The table replaces data in this way.
    let mut bias = registry.get("decode.bias").unwrap().tensor().shallow_clone();
    bias.f_set_data(&Tensor::from_slice(&[5f32, 5.0, 5.0])).unwrap();
    let after = task.loss(&batch, Mode::Evaluate).unwrap();
    assert!(after.sum.double_value(&[]) > before.sum.double_value(&[]) + 10.0);
    after.sum.backward();
    assert!(bias.grad().abs().min().double_value(&[]) > 0.0);
    let warning = task.micro_batch_warning().unwrap();
    assert!(warning.contains("random") && !warning.contains("BatchNorm"), "{warning}");
    let net = recipe("net.pt", "cross-entropy");
    let (registry, _) = build(&net).unwrap();
    assert_eq!(batch_norms(&registry, &net), BatchNorms::InModule, "its advice is not model.batchnorm");
}

#[test]
fn losses_exclude_unreadable_samples() {
    for (file, loss) in [
        ("net.pt", "cross-entropy"),
        ("net.pt", "mse"),
        ("with-loss.pt", "module"),
        ("autoencoder.pt", "mse"),
    ] {
        let (_, task) = build(&recipe(file, loss)).unwrap();
        let batch = batch();
        let Loss { sum, weight, sums } = task.loss(&batch, Mode::Evaluate).unwrap();
        assert_eq!(weight.double_value(&[]), 3.0);
        let (images, labels) = (batch.field("image").unwrap(), batch.field("label").unwrap());
        let forward = |inputs: &[&Tensor]| task.module.borrow().forward(inputs).unwrap();
        let losses = match (file, loss) {
            ("net.pt", "cross-entropy") => {
                let logits = forward(&[images]);
                assert_eq!(sums.size(), [1]);
                logits.cross_entropy_loss::<Tensor>(labels, None, Reduction::None, -100, 0.0)
            }
            ("net.pt", _) => {
                let target = labels.one_hot(4).to_kind(Kind::Float);
                (forward(&[images]) - target).square().mean_dim(1, false, Kind::Float)
            }
            ("with-loss.pt", _) => forward(&[images, labels]),
            _ => {
                let difference = forward(&[images]) - images;
                difference.square().mean_dim([1i64, 2, 3].as_slice(), false, Kind::Float)
            }
        };
        let expected = [0, 2, 3].map(|sample| losses.double_value(&[sample])).iter().sum::<f64>();
        let got = sum.double_value(&[]);
        assert!((got - expected).abs() < 1e-5, "{file} {loss}: {got}, {expected}");
        assert_eq!(sums.size(), [task.sums() as i64]);
    }
}

#[test]
fn unfit_modules_are_errors_before_the_run() {
    for (file, loss, words) in [
        ("no-parameters.pt", "mse", "no parameters"),
        ("two-outputs.pt", "mse", "Tuple"),
        ("autoencoder.pt", "cross-entropy", "[1, 3, 16, 16]"),
        ("net.pt", "module", "forward(image, label)"),
        ("with-loss.pt", "cross-entropy", "forward(image)"),
        ("torchscript.json", "mse", "torch.jit.script(model).save"),
        (
            "traced-training.pt",
            "cross-entropy",
            "batch_norm is fixed in training mode, dropout is fixed in training mode, as torch.jit.trace does",
        ),
        ("traced-evaluation.pt", "cross-entropy", "evaluation mode"),
    ] {
        let error = build(&recipe(file, loss)).err().unwrap().to_string();
        assert!(error.contains(file) && error.contains(words), "{error}");
        assert_eq!(error.lines().count(), 1, "{error}");
        eprintln!("{error}");
    }
    let mut many = recipe("net.pt", "cross-entropy");
    many.data.classes = 5;
    let error = build(&many).err().unwrap().to_string();
    assert!(error.contains("5 classes") && error.contains("[1, 4]"), "{error}");
}
