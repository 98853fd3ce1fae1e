//! Operations that differ between training and evaluation: dropout and normalisations.

use dtrain_torch_shim::program::{Argument, Operand, Whole};

/// Arguments that state whether an operation trains.
const FLAGS: [(&str, &str); 18] = [
    ("aten::batch_norm", "training"),
    ("aten::native_batch_norm", "training"),
    ("aten::_native_batch_norm_legit", "training"),
    ("aten::_native_batch_norm_legit_functional", "training"),
    ("aten::instance_norm", "use_input_stats"),
    ("aten::dropout", "train"),
    ("aten::dropout_", "train"),
    ("aten::native_dropout", "train"),
    ("aten::feature_dropout", "train"),
    ("aten::feature_dropout_", "train"),
    ("aten::alpha_dropout", "train"),
    ("aten::feature_alpha_dropout", "train"),
    ("aten::rrelu", "training"),
    ("aten::rrelu_", "training"),
    ("aten::lstm", "train"),
    ("aten::gru", "train"),
    ("aten::rnn_tanh", "train"),
    ("aten::rnn_relu", "train"),
];

type Arguments = [(String, Argument)];

/// Returns the argument of this name.
pub(super) fn given<'a>(arguments: &'a Arguments, wanted: &str) -> Option<&'a Argument> {
    arguments.iter().find(|(name, _)| name == wanted).map(|(_, argument)| argument)
}

/// Returns whether an operation trains; None for those without such an argument.
pub(super) fn trains(operation: &str, arguments: &Arguments) -> Option<bool> {
    let (_, flag) = FLAGS.iter().find(|(name, _)| *name == operation)?;
    match given(arguments, flag) {
        Some(Argument::Bool(trains)) => Some(*trains),
        _ => None,
    }
}

/// Returns whether a normalisation has running statistics.
pub(super) fn has_statistics(arguments: &Arguments) -> bool {
    matches!(given(arguments, "running_mean"), Some(Argument::Value(Operand::Fixed(_) | Operand::Slot(_))))
}

/// Normalisations that move running statistics although their schemas mark no write, with the argument that states
/// whether they do.
const MOVING: [(&str, &str); 4] = [
    ("aten::batch_norm", "training"),
    ("aten::native_batch_norm", "training"),
    ("aten::_batch_norm_impl_index", "training"),
    ("aten::instance_norm", "use_input_stats"),
];

/// Returns the running statistics that an operation moves although its schema marks no write.
pub(super) fn moved_statistics<'a>(
    operation: &str,
    arguments: &'a Arguments,
) -> impl Iterator<Item = &'a Operand> + Clone {
    let flag = MOVING.iter().find(|(name, _)| *name == operation).map(|(_, flag)| given(arguments, flag));
    let moves = flag.is_some_and(|flag| flag != Some(&Argument::Bool(false)));
    let statistics = ["running_mean", "running_var"].into_iter().filter(move |_| moves);
    statistics.filter_map(|name| match given(arguments, name) {
        Some(Argument::Value(operand @ (Operand::Fixed(_) | Operand::Slot(_)))) => Some(operand),
        _ => None,
    })
}

/// Returns whether an operation is a batch normalisation by the batch's statistics.
pub(super) fn is_training_norm(operation: &str, arguments: &Arguments) -> bool {
    let names =
        ["aten::batch_norm", "aten::_native_batch_norm_legit", "aten::_native_batch_norm_legit_functional"];
    names.contains(&operation) && given(arguments, "training") == Some(&Argument::Bool(true))
}

/// Changes the arguments of an operation in training to those in evaluation. Normalisations without running
/// statistics do not differ.
pub(super) fn evaluate(operation: &str, arguments: &mut Arguments) {
    let is_norm = operation.ends_with("_norm") || operation.contains("batch_norm");
    if is_norm && !has_statistics(arguments) {
        return;
    }
    for (name, argument) in arguments {
        if FLAGS.contains(&(operation, name)) {
            *argument = Argument::Bool(false);
        } else if operation == "aten::scaled_dot_product_attention" && name == "dropout_p" {
            *argument = Argument::Float(0.0);
        }
    }
}

/// Returns whether the arguments keep an operation from drawing random numbers.
pub(super) fn is_deterministic(operation: &str, arguments: &Arguments) -> bool {
    let is_off = |name: &str| match given(arguments, name) {
        Some(Argument::Bool(on)) => !on,
        Some(Argument::Float(probability)) => *probability == 0.0,
        Some(Argument::Int(Whole::Number(probability))) => *probability == 0,
        _ => false,
    };
    match operation {
        "aten::scaled_dot_product_attention" => {
            given(arguments, "dropout_p").is_none() || is_off("dropout_p")
        }
        "aten::lstm" | "aten::gru" | "aten::rnn_tanh" | "aten::rnn_relu" => {
            is_off("dropout") || is_off("train")
        }
        _ => ["p", "dropout_p", "train", "training"].into_iter().any(is_off),
    }
}
