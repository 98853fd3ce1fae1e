//! Vision transformers with timm's names, and GPTs with nanoGPT's.

use super::{Form, Piece, numbered, piece};

/// Returns the name in torchvision's `VisionTransformer`. Both order the rows of q, k and v alike.
pub(super) fn vit_torchvision(name: &str) -> Option<String> {
    if let Some(rest) = name.strip_prefix("blocks.") {
        let (block, layer) = numbered(rest)?;
        let (layer, kind) = layer.rsplit_once('.')?;
        let theirs = match layer {
            "norm1" => format!("ln_1.{kind}"),
            "norm2" => format!("ln_2.{kind}"),
            "attn.qkv" => format!("self_attention.in_proj_{kind}"),
            "attn.proj" => format!("self_attention.out_proj.{kind}"),
            "mlp.fc1" => format!("mlp.0.{kind}"),
            "mlp.fc2" => format!("mlp.3.{kind}"),
            _ => return None,
        };
        return Some(format!("encoder.layers.encoder_layer_{block}.{theirs}"));
    }
    let names = ["class_token", "encoder.pos_embedding", "conv_proj", "encoder.ln", "heads.head"];
    around(name, names)
}

/// Returns the tensors of `ViTForImageClassification` that timm's tensor becomes.
pub(super) fn vit_huggingface(name: &str) -> Option<Vec<Piece>> {
    let Some(rest) = name.strip_prefix("blocks.") else {
        let names = [
            "vit.embeddings.cls_token",
            "vit.embeddings.position_embeddings",
            "vit.embeddings.patch_embeddings.projection",
            "vit.layernorm",
            "classifier",
        ];
        return around(name, names).map(|name| vec![piece(name, Form::Same)]);
    };
    let (block, layer) = numbered(rest)?;
    let (layer, kind) = layer.rsplit_once('.')?;
    let place = format!("vit.encoder.layer.{block}");
    let theirs = match layer {
        "attn.qkv" => {
            let piece = |(third, part)| {
                let name = format!("{place}.attention.attention.{part}.{kind}");
                piece(name, Form::Third(third))
            };
            return Some((0_u8..).zip(["query", "key", "value"]).map(piece).collect());
        }
        "norm1" => "layernorm_before",
        "norm2" => "layernorm_after",
        "attn.proj" => "attention.output.dense",
        "mlp.fc1" => "intermediate.dense",
        "mlp.fc2" => "output.dense",
        _ => return None,
    };
    Some(vec![piece(format!("{place}.{theirs}.{kind}"), Form::Same)])
}

/// Renames tensors outside the blocks: class token, positions, patches, last normalisation, head.
fn around(name: &str, theirs: [&str; 5]) -> Option<String> {
    let [class, positions, patches, norm, head] = theirs;
    let (layer, kind) = match name {
        "cls_token" => return Some(class.into()),
        "pos_embed" => return Some(positions.into()),
        _ => name.rsplit_once('.')?,
    };
    let layer = match layer {
        "patch_embed.proj" => patches,
        "norm" => norm,
        "head" => head,
        _ => return None,
    };
    Some(format!("{layer}.{kind}"))
}

/// Returns `GPT2LMHeadModel`'s tensors. Its linear layers are input x output; the head is the token table.
pub(super) fn gpt_huggingface(name: &str) -> Option<Vec<Piece>> {
    const TOKENS: &str = "transformer.wte.weight";
    if name == TOKENS {
        let pieces = [TOKENS, "lm_head.weight"].map(|name| piece(name, Form::Same));
        return Some(pieces.into());
    }
    let inner = name.strip_prefix("transformer.")?;
    let form = match inner.strip_prefix("h.") {
        None => matches!(inner, "wpe.weight" | "ln_f.weight" | "ln_f.bias").then_some(Form::Same)?,
        Some(rest) => match numbered(rest)?.1.rsplit_once('.')? {
            ("ln_1" | "ln_2", "weight" | "bias") => Form::Same,
            ("attn.c_attn" | "attn.c_proj" | "mlp.c_fc" | "mlp.c_proj", "weight") => Form::Transposed,
            ("attn.c_attn" | "attn.c_proj" | "mlp.c_fc" | "mlp.c_proj", "bias") => Form::Same,
            _ => return None,
        },
    };
    Some(vec![piece(name, form)])
}
