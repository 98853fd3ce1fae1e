//! The parameters that Muon updates: weight matrices of hidden layers. Embeddings, the output layer, norms and biases are for AdamW
//! (Jordan et al. 2024).

use dtrain_common::text::{counted, grouped};
use dtrain_recipe::OptimGroup;

use super::groups::{GroupError, ParameterInfo};
use super::layers::are_listed;
use crate::state::{Group, Slot, Table};

/// Returns for each parameter whether Muon updates it. `rule_of` is the rule of each, whose `muon` decides; otherwise it is a matrix of two
/// dimensions, or of four with `convolutions`, that is neither an embedding by its name nor the output layer.
pub(crate) fn matrices(
    parameters: &[ParameterInfo<'_>],
    rule_of: &[Option<&OptimGroup>],
    convolutions: bool,
) -> Result<Vec<bool>, GroupError> {
    let output = output_layer(parameters);
    let is_matrix = |(row, (parameter, rule)): (usize, (&ParameterInfo<'_>, &Option<&OptimGroup>))| {
        let ParameterInfo { name, dims } = *parameter;
        match rule.and_then(|rule| rule.muon) {
            Some(true) if dims < 2 => Err(GroupError::NoMatrix { name: name.to_owned(), dims }),
            Some(stated) => Ok(stated),
            None => {
                let fits = dims == 2 || dims == 4 && convolutions;
                Ok(fits && !is_embedding(name) && output != Some(row))
            }
        }
    };
    let all: Vec<bool> =
        parameters.iter().zip(rule_of).enumerate().map(is_matrix).collect::<Result<_, _>>()?;
    for rule in rule_of.iter().flatten().filter(|rule| rule.betas.is_some() || rule.eps.is_some()) {
        let mut own = rule_of.iter().zip(&all).filter(|(of, _)| of.is_some_and(|of| std::ptr::eq(of, *rule)));
        if own.all(|(_, is_matrix)| *is_matrix) {
            return Err(GroupError::NoAdamw { globs: rule.patterns.clone() });
        }
    }
    Ok(all)
}

/// Returns whether the name of a parameter says that it is an embedding: of tokens, positions or patches.
fn is_embedding(name: &str) -> bool {
    let is =
        |part: &str| part.contains("embed") || part.contains("position") || ["wte", "wpe"].contains(&part);
    name.split('.').any(is)
}

/// Returns the last parameter of at least two dimensions. None if it belongs to a numbered layer, as in a language model whose output
/// layer is its embedding.
fn output_layer(parameters: &[ParameterInfo<'_>]) -> Option<usize> {
    let last = parameters.iter().rposition(|parameter| parameter.dims >= 2)?;
    let names: Vec<&str> = parameters.iter().map(|parameter| parameter.name).collect();
    (!are_listed(&names)[last]).then_some(last)
}

/// Returns how many tensors each rule updates, in words; None without matrices.
pub(crate) fn describe(table: &Table) -> Option<String> {
    let slots = table.slots();
    let of = |is_matrix: bool| {
        let blocks = table.blocks();
        let fits = move |block: usize| match blocks[block].group {
            Group::Matrices(_) => is_matrix,
            group => group.is_trained() && !is_matrix,
        };
        slots.iter().filter(move |(block, _)| fits(*block)).map(|(_, slot)| *slot).collect::<Vec<&Slot>>()
    };
    let elements = |slots: &[&Slot]| grouped(slots.iter().map(|slot| slot.len() as u64).sum());
    let (matrices, others) = (of(true), of(false));
    if matrices.is_empty() {
        return None;
    }
    let large: Vec<&str> =
        others.iter().filter(|slot| slot.shape.len() >= 2).map(|slot| slot.name.as_str()).collect();
    let among = match large.as_slice() {
        [] => String::new(),
        names if names.len() <= 4 => format!(", among them {}", names.join(", ")),
        names => format!(
            ", among them {} and {} more of two or more dimensions",
            names[..3].join(", "),
            names.len() - 3
        ),
    };
    Some(format!(
        "Muon updates {} {} of {} parameters; AdamW updates {} of {}{among}",
        matrices.len(),
        if matrices.len() == 1 { "matrix" } else { "matrices" },
        elements(&matrices),
        counted(others.len(), "other tensor"),
        elements(&others),
    ))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    fn chosen(parameters: &[(&'static str, usize)], convolutions: bool) -> Vec<&'static str> {
        let infos: Vec<_> = parameters.iter().map(|&(name, dims)| ParameterInfo { name, dims }).collect();
        let found = matrices(&infos, &vec![None; infos.len()], convolutions).unwrap();
        parameters.iter().zip(found).filter(|(_, found)| *found).map(|((name, _), _)| *name).collect()
    }

    #[test]
    fn hidden_matrices_are_found_by_shape_and_name() {
        let vit = [
            ("cls_token", 3),
            ("pos_embed", 2),
            ("patch_embed.proj.weight", 4),
            ("blocks.0.attn.qkv.weight", 2),
            ("blocks.0.attn.qkv.bias", 1),
            ("blocks.1.mlp.fc1.weight", 2),
            ("blocks.1.relative_position_bias_table", 2),
            ("norm.weight", 1),
            ("head.weight", 2),
            ("head.bias", 1),
        ];
        let hidden = ["blocks.0.attn.qkv.weight", "blocks.1.mlp.fc1.weight"];
        assert_eq!(chosen(&vit, false), hidden);
        assert_eq!(chosen(&vit, true), hidden);
        // The output layer is the embedding.
        let tied = [
            ("wte.weight", 2),
            ("wpe.weight", 2),
            ("h.0.mlp.c_fc.weight", 2),
            ("h.1.mlp.c_fc.weight", 2),
            ("ln_f.weight", 1),
        ];
        assert_eq!(chosen(&tied, false), ["h.0.mlp.c_fc.weight", "h.1.mlp.c_fc.weight"]);
        let resnet = [
            ("conv1.weight", 4),
            ("layer1.0.conv1.weight", 4),
            ("layer1.1.conv1.weight", 4),
            ("fc.weight", 2),
        ];
        assert!(chosen(&resnet, false).is_empty());
        assert_eq!(chosen(&resnet, true), ["conv1.weight", "layer1.0.conv1.weight", "layer1.1.conv1.weight"]);
        assert_eq!(
            chosen(&[("0.weight", 2), ("0.bias", 1), ("2.weight", 2), ("2.bias", 1)], false),
            ["0.weight"]
        );
    }

    #[test]
    fn a_group_says_otherwise() {
        let infos = [("a.weight", 2), ("conv.weight", 4), ("a.bias", 1), ("head.weight", 2)]
            .map(|(name, dims)| ParameterInfo { name, dims });
        let rule = |muon| OptimGroup {
            patterns: Vec::new(),
            lr_factor: 1.0,
            weight_decay: None,
            betas: None,
            eps: None,
            muon,
            clip_adaptive: None,
        };
        let [yes, no, silent] = [Some(true), Some(false), None].map(rule);
        let rules = [Some(&no), Some(&yes), Some(&silent), Some(&yes)];
        assert_eq!(matrices(&infos, &rules, false).unwrap(), [false, true, false, true]);
        let error = matrices(&infos, &[None, None, Some(&yes), None], false).unwrap_err().to_string();
        assert!(error.contains("\"a.bias\" has 1 dimension") && error.contains("remove muon"), "{error}");
        let of_adamw = OptimGroup { betas: Some([0.9, 0.99]), ..rule(None) };
        assert!(matrices(&infos[..3], &[Some(&of_adamw), None, Some(&of_adamw)], false).is_ok());
        let error = matrices(&infos[..2], &[Some(&of_adamw), None], false).unwrap_err().to_string();
        assert!(error.contains("Muon updates all its parameters"), "{error}");
    }
}
