//! Layers by the names of parameters, and their factors of the learning rate (Clark et al. 2020, arXiv 2003.10555).

/// Returns the factor of each parameter of these names, in the order of construction: 1 in the last layer, and `decay` times as much
/// in each layer before. All are 1 without a decay.
///
/// Layers are the members of lists, such as `blocks.3` and `layer1.0`. What is before the first one, such as an embedding, is a layer
/// of its own, and so is what is after the last, such as a head; other parameters belong to the layer before them. For a vision
/// transformer these are the layers of timm's `layer_decay` and of BEiT.
///
/// # Errors
/// Why there are no layers.
pub(crate) fn layer_factors(names: &[&str], decay: Option<f64>) -> Result<Vec<f64>, &'static str> {
    let Some(decay) = decay else { return Ok(vec![1.0; names.len()]) };
    let members: Vec<Option<&str>> = names.iter().map(|name| member(name)).collect();
    let mut known = Vec::new();
    members.iter().flatten().for_each(|member| {
        if !known.contains(member) {
            known.push(*member);
        }
    });
    let Some(last) = members.iter().rposition(Option::is_some).filter(|_| known.len() > 1) else {
        return Err(
            "the names of the parameters show no layers, which are numbered, such as blocks.3; remove it, and set the factors \
                    by [[optim.group]]",
        );
    };
    // 0 is the layer before the first member.
    let (mut layers, mut layer) = (Vec::with_capacity(names.len()), 0);
    for (row, member) in members.iter().enumerate() {
        match member.and_then(|member| known.iter().position(|known| *known == member)) {
            Some(number) => layer = number + 1,
            None if row > last => layer = known.len() + 1,
            None => {}
        }
        layers.push(layer);
    }
    let most = layers.iter().copied().max().unwrap_or_default();
    Ok(layers.into_iter().map(|layer| decay.powi((most - layer) as i32)).collect())
}

/// Returns the name up to its first number: `blocks.3` of `blocks.3.mlp.0.weight`.
fn member(name: &str) -> Option<&str> {
    let is_number = |part: &str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
    let mut end = 0;
    for part in name.split('.') {
        if is_number(part) {
            return Some(&name[..end + part.len()]);
        }
        end += part.len() + 1;
    }
    None
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn layers_are_those_of_timm() {
        // timm 1.0: param_groups_layer_decay(vit_tiny_patch16_224 of depth 3, layer_decay=0.5).
        let names = [
            ("cls_token", 0.0625),
            ("pos_embed", 0.0625),
            ("patch_embed.proj.weight", 0.0625),
            ("blocks.0.norm1.weight", 0.125),
            ("blocks.0.mlp.0.weight", 0.125),
            ("blocks.1.attn.qkv.bias", 0.25),
            ("blocks.2.attn.qkv.bias", 0.5),
            ("norm.weight", 1.0),
            ("head.bias", 1.0),
        ];
        let factors = layer_factors(&names.map(|(name, _)| name), Some(0.5)).unwrap();
        assert_eq!(factors, names.map(|(_, factor)| factor));
        assert_eq!(layer_factors(&["a.0", "b"], None).unwrap(), [1.0, 1.0]);
    }

    #[test]
    fn several_lists_follow_each_other_and_a_network_may_end_with_one() {
        let names = ["conv1.weight", "layer1.0.a", "layer1.1.a", "between.weight", "layer2.0.a"];
        assert_eq!(layer_factors(&names, Some(0.5)).unwrap(), [0.125, 0.25, 0.5, 0.5, 1.0]);
        assert_eq!(layer_factors(&["0.weight", "2.weight"], Some(0.5)).unwrap(), [0.5, 1.0]);
        assert!(layer_factors(&["a.weight", "b.weight"], Some(0.5)).is_err());
    }
}
