//! Telling from the names of tensors what kind of network they belong to, for error messages.

/// What kind of network tensors of these names make up, in words.
pub(super) fn looks_like(names: &[&str]) -> String {
    if names.is_empty() {
        return "an empty file".to_owned();
    }
    if let Some(prefix) = wrapper_prefix(names) {
        let inner: Vec<&str> = names
            .iter()
            .filter_map(|name| name.strip_prefix(prefix))
            .collect();
        let inner = looks_like(&inner);
        return format!("{inner} whose names all begin with `{prefix}` (save it without that prefix)");
    }
    let mut blocks = [0usize; 4];
    for name in names {
        if let Some((stage, index)) = stage_and_block(name) {
            blocks[stage] = blocks[stage].max(index + 1);
        }
    }
    let bottleneck = names
        .iter()
        .any(|name| stage_and_block(name).is_some() && name.contains(".conv3."));
    let residual = match (blocks, bottleneck) {
        ([2, 2, 2, 2], false) => "a resnet18",
        ([3, 4, 6, 3], false) => "a resnet34",
        ([3, 4, 6, 3], true) => "a resnet50",
        ([3, 4, 23, 3], true) => "a resnet101",
        ([3, 8, 36, 3], true) => "a resnet152",
        _ if blocks.iter().all(|count| *count > 0) => {
            let counts = blocks.map(|count| count.to_string()).join("-");
            let kind = if bottleneck { "bottleneck" } else { "basic" };
            return format!("a residual network with {counts} {kind} blocks");
        }
        _ => "",
    };
    if !residual.is_empty() {
        return residual.to_owned();
    }
    const MARKS: [(&str, &str); 6] = [
        ("denseblock", "a densenet"),
        ("encoder_layer", "a vision transformer"),
        ("attn", "a transformer"),
        ("self_attn", "a transformer"),
        ("exp_avg", "the state of an optimizer"),
        (
            "classifier.",
            "a network of another family (VGG, MobileNet, EfficientNet or the like)",
        ),
    ];
    match MARKS
        .iter()
        .find(|(mark, _)| names.iter().any(|name| name.contains(mark)))
    {
        Some((_, kind)) => (*kind).to_owned(),
        None => "no network known to dtrain".to_owned(),
    }
}

/// The `module.` or the like that a wrapper has put before every name of a residual network.
fn wrapper_prefix<'a>(names: &[&'a str]) -> Option<&'a str> {
    let before_conv1 = names.iter().filter_map(|name| name.strip_suffix("conv1.weight"));
    let prefix = before_conv1
        .filter(|prefix| prefix.ends_with('.'))
        .min_by_key(|prefix| prefix.len())?;
    (!prefix.starts_with("layer") && names.iter().all(|name| name.starts_with(prefix))).then_some(prefix)
}

/// `layer2.3.conv1.weight` is in block 3 of stage 1 (counted from 0).
fn stage_and_block(name: &str) -> Option<(usize, usize)> {
    let mut parts = name.split('.');
    let stage: usize = parts.next()?.strip_prefix("layer")?.parse().ok()?;
    let block: usize = parts.next()?.parse().ok()?;
    // A block number beyond all reason is no residual network's.
    ((1..=4).contains(&stage) && block < 1000).then(|| (stage - 1, block))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn network(blocks: [usize; 4], convolutions: usize, prefix: &str) -> Vec<String> {
        let mut names = vec![format!("{prefix}conv1.weight")];
        for (stage, count) in blocks.into_iter().enumerate() {
            for block in 0..count {
                for conv in 1..=convolutions {
                    names.push(format!("{prefix}layer{}.{block}.conv{conv}.weight", stage + 1));
                }
            }
        }
        names.push(format!("{prefix}fc.weight"));
        names
    }

    fn guess(names: &[String]) -> String {
        looks_like(&names.iter().map(String::as_str).collect::<Vec<_>>())
    }

    #[test]
    fn networks_are_recognised_by_their_names() {
        assert_eq!(guess(&network([2, 2, 2, 2], 2, "")), "a resnet18");
        assert_eq!(guess(&network([3, 4, 6, 3], 2, "")), "a resnet34");
        assert_eq!(guess(&network([3, 4, 6, 3], 3, "")), "a resnet50");
        assert_eq!(guess(&network([3, 8, 36, 3], 3, "")), "a resnet152");
        assert_eq!(
            guess(&network([1, 2, 3, 4], 2, "")),
            "a residual network with 1-2-3-4 basic blocks"
        );
        assert!(
            guess(&network([2, 2, 2, 2], 2, "module."))
                .starts_with("a resnet18 whose names all begin with `module.`")
        );
        assert_eq!(
            guess(&["encoder.layers.encoder_layer_0.mlp.0.weight".to_owned()]),
            "a vision transformer"
        );
        assert_eq!(
            guess(&["layer1.99999999999999999999.x".to_owned()]),
            "no network known to dtrain"
        );
        assert_eq!(guess(&[]), "an empty file");
    }
}
