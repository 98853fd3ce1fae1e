//! Recognition of a network by the names of its tensors, for error messages.

/// A network that is not recognised.
pub(super) const UNKNOWN: &str = "an unknown network";

/// Describes the network whose tensors have these names.
pub(super) fn describe_network(names: &[&str]) -> String {
    if names.is_empty() {
        return "an empty file".to_owned();
    }
    if let Some(prefix) = wrapper_prefix(names) {
        let inner: Vec<&str> = names.iter().filter_map(|name| name.strip_prefix(prefix)).collect();
        let inner = describe_network(&inner);
        return format!("{inner} with the prefix `{prefix}` in all names");
    }
    if let Some(kind) = by_first_tensor(names) {
        return kind;
    }
    // Their stages have as many blocks as those of ResNets.
    if names.iter().any(|name| name.contains(".se_module.") || name.contains(".se.")) {
        return "a network with squeeze-and-excitation (SENet, SE-ResNet or the like)".to_owned();
    }
    let blocks = [1, 2, 3, 4].map(|stage| count_numbered(names, &format!("layer{stage}.")));
    let in_block = |name: &&str| name.starts_with("layer") && name.contains(".conv3.");
    let bottleneck = names.iter().any(in_block);
    const RESIDUAL: [([usize; 4], bool, &str); 5] = [
        ([2, 2, 2, 2], false, "a resnet18"),
        ([3, 4, 6, 3], false, "a resnet34"),
        ([3, 4, 6, 3], true, "a resnet50"),
        ([3, 4, 23, 3], true, "a resnet101"),
        ([3, 8, 36, 3], true, "a resnet152"),
    ];
    let known = RESIDUAL.iter().find(|known| (known.0, known.1) == (blocks, bottleneck));
    if let Some((.., kind)) = known {
        return (*kind).to_owned();
    }
    if blocks.iter().all(|count| *count > 0) {
        let counts = blocks.map(|count| count.to_string()).join("-");
        let kind = if bottleneck { "bottleneck" } else { "basic" };
        return format!("a residual network with {counts} {kind} blocks");
    }
    const MARKS: [(&str, &str); 6] = [
        ("denseblock", "a densenet"),
        ("encoder_layer", "a vision transformer"),
        ("attn", "a transformer"),
        ("self_attn", "a transformer"),
        ("exp_avg", "the state of an optimizer"),
        ("classifier.", "a network of another family (VGG, MobileNet, EfficientNet or the like)"),
    ];
    let marked = |(mark, _): &&(&str, &str)| names.iter().any(|name| name.contains(mark));
    let kind = MARKS.iter().find(marked).map(|(_, kind)| *kind);
    kind.unwrap_or(UNKNOWN).to_owned()
}

/// A tensor that only a vision transformer, a U-Net or a GPT has, in this order, at the root of its names.
const FIRST: [&str; 3] = ["cls_token", "inc.double_conv.0.weight", "transformer.wte.weight"];

/// Recognises a network with its size by one of these tensors.
fn by_first_tensor(names: &[&str]) -> Option<String> {
    let first = FIRST.into_iter().find(|first| names.contains(first));
    // GPT-2 from Hugging Face: the same blocks, but at the root or with transposed weights.
    if first.is_none() && names.contains(&"wte.weight") {
        let depth = count_numbered(names, "h.");
        return Some(format!(
            "a GPT of {depth} blocks with Hugging Face's names (prefix its names with `transformer.`, and transpose the \
             weights of its linear layers)"
        ));
    }
    Some(match first? {
        "cls_token" => match count_numbered(names, "blocks.") {
            0 => "a variant of a vision transformer".to_owned(),
            depth => format!("a vision transformer of {depth} blocks"),
        },
        "inc.double_conv.0.weight" => {
            let depth = (1..).take_while(|level| {
                let mark = format!("down{level}.");
                names.iter().any(|name| name.starts_with(&mark))
            });
            format!("a U-Net of {} levels", depth.count())
        }
        _ => format!("a GPT of {} blocks", count_numbered(names, "transformer.h.")),
    })
}

/// Returns one more than the largest number after `prefix`, or 0 if there is no number.
fn count_numbered(names: &[&str], prefix: &str) -> usize {
    let number = |name: &&str| name.strip_prefix(prefix)?.split('.').next()?.parse::<usize>().ok();
    names.iter().filter_map(number).max().map_or(0, |last| last.saturating_add(1))
}

/// Returns the prefix, such as `module.`, that a wrapper has added to all names of a network.
fn wrapper_prefix<'a>(names: &[&'a str]) -> Option<&'a str> {
    let before_first = names.iter().filter_map(|name| {
        let mut firsts = FIRST.iter().copied().chain(["conv1.weight"]);
        firsts.find_map(|first| name.strip_suffix(first))
    });
    let prefix = before_first.filter(|prefix| prefix.ends_with('.')).min_by_key(|prefix| prefix.len())?;
    (!prefix.starts_with("layer") && names.iter().all(|name| name.starts_with(prefix))).then_some(prefix)
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
        describe_network(&names.iter().map(String::as_str).collect::<Vec<_>>())
    }

    #[test]
    fn networks_are_recognised_by_their_names() {
        assert_eq!(guess(&network([2, 2, 2, 2], 2, "")), "a resnet18");
        assert_eq!(guess(&network([3, 4, 6, 3], 2, "")), "a resnet34");
        assert_eq!(guess(&network([3, 4, 6, 3], 3, "")), "a resnet50");
        assert_eq!(guess(&network([3, 8, 36, 3], 3, "")), "a resnet152");
        assert_eq!(guess(&network([1, 2, 3, 4], 2, "")), "a residual network with 1-2-3-4 basic blocks");
        assert!(
            guess(&network([2, 2, 2, 2], 2, "module."))
                .starts_with("a resnet18 with the prefix `module.` in all names")
        );
        assert_eq!(
            guess(&["encoder.layers.encoder_layer_0.mlp.0.weight".to_owned()]),
            "a vision transformer"
        );
        let squeezed =
            [network([3, 8, 36, 3], 3, ""), vec!["layer1.0.se_module.fc1.weight".to_owned()]].concat();
        assert!(
            guess(&squeezed).starts_with("a network with squeeze-and-excitation"),
            "{}",
            guess(&squeezed)
        );
        assert_eq!(guess(&["layer1.99999999999999999999.x".to_owned()]), "an unknown network");
        assert_eq!(guess(&[]), "an empty file");
    }

    #[test]
    fn transformers_and_unets_are_recognised_with_their_size() {
        let owned = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
        let gpt = ["transformer.wte.weight", "transformer.h.10.ln_1.bias", "lm_head.weight"];
        assert_eq!(guess(&owned(&gpt)), "a GPT of 11 blocks");
        let compiled: Vec<String> = gpt.iter().map(|name| format!("_orig_mod.{name}")).collect();
        assert_eq!(guess(&compiled), "a GPT of 11 blocks with the prefix `_orig_mod.` in all names");
        let bare = guess(&owned(&["wte.weight", "h.0.attn.c_attn.weight"]));
        assert!(bare.starts_with("a GPT of 1 blocks with Hugging Face's names"), "{bare}");
        let vit = ["cls_token", "pos_embed", "blocks.2.attn.qkv.weight"];
        assert_eq!(guess(&owned(&vit)), "a vision transformer of 3 blocks");
        assert_eq!(guess(&owned(&["cls_token", "layers.0.x"])), "a variant of a vision transformer");
        let unet = ["inc.double_conv.0.weight", "down1.maxpool_conv.1.double_conv.0.weight"];
        assert_eq!(guess(&owned(&unet)), "a U-Net of 1 levels");
    }
}
