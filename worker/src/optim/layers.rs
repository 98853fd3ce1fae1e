//! Layers by the names of parameters, and their factors of the learning rate (Clark et al. 2020, arXiv 2003.10555).

use std::collections::{BTreeMap, BTreeSet};

/// Returns the factor of each parameter of these names, in the order of construction: 1 in the last layer, and `decay` times as much
/// in each layer before. All are 1 without a decay.
///
/// Layers are the members of lists of modules, such as `blocks.3`, `layer1.0` and `encoder_layer_3`; of stages that are lists of
/// blocks, such as `layers.0.blocks.1`, each block. The parameters before the first one, such as an embedding, are one
/// layer, and those after the last, such as a head, another; other parameters belong to the layer before them. For a vision
/// transformer these are the layers of timm's `layer_decay` and of BEiT.
///
/// # Errors
/// Why there are no layers.
pub(crate) fn layer_factors(names: &[&str], decay: Option<f64>) -> Result<Vec<f64>, &'static str> {
    let Some(decay) = decay else { return Ok(vec![1.0; names.len()]) };
    let lists = lists(names);
    let members: Vec<Option<&str>> = names.iter().map(|name| member(name, &lists)).collect();
    let mut known = Vec::new();
    members.iter().flatten().for_each(|member| {
        if !known.contains(member) {
            known.push(*member);
        }
    });
    let Some(last) = members.iter().rposition(Option::is_some) else {
        return Err(
            "the names of the parameters show no layers, which are numbered modules, such as blocks.3; remove it, and set the \
                    factors by [[optim.group]]",
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

/// Returns for each parameter of these names whether it belongs to a numbered layer.
pub(super) fn are_listed(names: &[&str]) -> Vec<bool> {
    let lists = lists(names);
    names.iter().map(|name| member(name, &lists).is_some()).collect()
}

/// A numbered part of a name.
struct Numbered<'a> {
    /// The name before the number.
    list: &'a str,
    number: &'a str,
    /// Where the part ends.
    end: usize,
}

/// Returns the numbered modules in a name. The number of a module without modules in it, as in `mlp.0.weight`, is none.
fn numbered(name: &str) -> impl Iterator<Item = Numbered<'_>> {
    let mut begin = 0;
    name.split('.').filter_map(move |part| {
        let end = begin + part.len();
        let digits = part.len() - part.trim_end_matches(|c: char| c.is_ascii_digit()).len();
        let is_listed = digits > 0 && (digits == part.len() || part[..part.len() - digits].ends_with('_'));
        let found = is_listed.then(|| Numbered {
            list: &name[..end - digits],
            number: &name[end - digits..end],
            end,
        });
        begin = end + 1;
        found.filter(|found| name[found.end..].matches('.').count() > 1)
    })
}

/// Returns the numbers of each list.
fn lists<'a>(names: &[&'a str]) -> BTreeMap<&'a str, BTreeSet<&'a str>> {
    let mut lists: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for found in names.iter().flat_map(|name| numbered(name)) {
        lists.entry(found.list).or_default().insert(found.number);
    }
    lists
}

/// Returns the name up to the first member of a list that has several: `blocks.3` of `blocks.3.mlp.0.weight`.
fn member<'a>(name: &'a str, lists: &BTreeMap<&str, BTreeSet<&str>>) -> Option<&'a str> {
    /// The lists of blocks in a stage.
    const BLOCKS: [&str; 4] = ["blocks", "layers", "layer", "block"];
    let mut all = numbered(name);
    let first = all.find(|found| lists.get(found.list).is_some_and(|numbers| numbers.len() > 1))?;
    let inner = all.next().filter(|inner| {
        let between = name[first.end..inner.end - inner.number.len()].trim_matches('.');
        BLOCKS.contains(&between)
    });
    Some(&name[..inner.map_or(first.end, |inner| inner.end)])
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    fn factors(names: &[&str]) -> Vec<f64> {
        layer_factors(names, Some(0.5)).unwrap()
    }

    #[test]
    fn layers_are_those_of_timm() {
        // timm 1.0: param_groups_layer_decay(vit_tiny_patch16_224 of depth 3, layer_decay=0.5).
        let names = [
            ("cls_token", 0.0625),
            ("pos_embed", 0.0625),
            ("patch_embed.proj.weight", 0.0625),
            ("blocks.0.norm1.weight", 0.125),
            ("blocks.0.mlp.fc1.weight", 0.125),
            ("blocks.1.attn.qkv.bias", 0.25),
            ("blocks.2.attn.qkv.bias", 0.5),
            ("norm.weight", 1.0),
            ("head.bias", 1.0),
        ];
        assert_eq!(factors(&names.map(|(name, _)| name)), names.map(|(_, factor)| factor));
        assert_eq!(layer_factors(&["a.0", "b"], None).unwrap(), [1.0, 1.0]);
    }

    #[test]
    fn lists_have_many_forms() {
        // torchvision's ViT, whose blocks contain lists.
        let names = [
            "class_token",
            "encoder.layers.encoder_layer_0.ln_1.weight",
            "encoder.layers.encoder_layer_0.mlp.0.weight",
            "encoder.layers.encoder_layer_0.mlp.3.weight",
            "encoder.layers.encoder_layer_1.mlp.0.weight",
            "heads.head.weight",
        ];
        assert_eq!(factors(&names), [0.125, 0.25, 0.25, 0.25, 0.5, 1.0]);
        // Stages of blocks, as in Swin and ConvNeXt; `stem.0` is no module of modules.
        let names = [
            "stem.0.weight",
            "stem.1.weight",
            "stages.0.blocks.0.conv.weight",
            "stages.0.blocks.1.conv.weight",
            "stages.1.downsample.0.weight",
            "stages.1.blocks.0.mlp.fc1.weight",
            "head.fc.weight",
        ];
        assert_eq!(factors(&names), [0.03125, 0.03125, 0.0625, 0.125, 0.25, 0.5, 1.0]);
        // Several lists, and a network that ends with one.
        let names = [
            "conv1.weight",
            "layer1.0.a.w",
            "layer1.1.a.w",
            "between.weight",
            "layer2.0.a.w",
            "layer2.1.a.w",
        ];
        assert_eq!(factors(&names), [0.0625, 0.125, 0.25, 0.25, 0.5, 1.0]);
        // The list around all.
        let names = ["0.embed.weight", "0.model.layer.0.a.w", "0.model.layer.1.a.w", "1.weight"];
        assert_eq!(factors(&names), [0.125, 0.25, 0.5, 1.0]);
        // Convolutions and their norms are no layers.
        for names in
            [&["0.weight", "2.weight"][..], &["inc.conv.0.weight", "inc.conv.1.weight"], &["a.weight"]]
        {
            assert!(layer_factors(names, Some(0.5)).is_err(), "{names:?}");
        }
    }
}
