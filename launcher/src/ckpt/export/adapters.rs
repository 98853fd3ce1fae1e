//! Adapters as PEFT's folder: `adapter_model.safetensors` and `adapter_config.json`.

use super::outputs::Export;
use crate::ckpt::problem::failed;
use crate::cli::ExportArgs;
use crate::stdout::print;
use anyhow::{Context, bail};
use dtrain_common::exit::ExitStatus;
use dtrain_common::files::write_atomic;
use dtrain_common::manifest::{Base, Manifest};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::fs;
use std::process::ExitCode;

/// What PEFT puts before the names of a model.
const PREFIX: &str = "base_model.model.";
const WEIGHTS: &str = "adapter_model.safetensors";
const CONFIG: &str = "adapter_config.json";

pub(super) fn write(args: &ExportArgs, manifest: &Manifest, base: &Base) -> anyhow::Result<ExitCode> {
    let out = args.out.display();
    let lora = manifest.recipe.section("model").get("lora").map(serde_json::to_value).transpose()?;
    let Some(lora) = lora.filter(|_| !base.adapted.is_empty()) else {
        bail!("{} has no adapters; leave --adapters out", args.checkpoint.display());
    };
    if let Some(weight) = base.adapted.iter().find(|weight| !weight.ends_with(".weight")) {
        bail!("PEFT has no adapter of {weight:?}; export the whole model, without --adapters");
    }
    if args.out.extension().is_some_and(|ending| ending == "safetensors") {
        bail!("--adapters writes a folder; name one in place of {out}");
    }
    for name in [WEIGHTS, CONFIG] {
        if !args.force && args.out.join(name).exists() {
            bail!("{out} has {name} already; --force overwrites it");
        }
    }
    let mut export = Export::new(args)?;
    export.verify()?;
    let (layers, saved) = layers(&export, base);
    for output in &mut export.outputs {
        output.target.name.insert_str(0, PREFIX);
    }
    fs::create_dir_all(&args.out).with_context(|| format!("cannot create {out}")).map_err(failed)?;
    super::write(&export, &args.out.join(WEIGHTS), args.force)?;
    let text = serde_json::to_string_pretty(&config(&lora, base, &layers, &saved))? + "\n";
    write_atomic(&args.out.join(CONFIG), text.as_bytes())
        .with_context(|| format!("cannot write {out}/{CONFIG}"))
        .map_err(failed)?;
    print(&format!(
        "{out}: the adapters of {} layers after step {}, for peft.PeftModel.from_pretrained\n",
        layers.len(),
        manifest.step
    ))?;
    Ok(ExitStatus::Success.into())
}

/// Returns the layer of a tensor.
fn layer(name: &str) -> &str {
    name.rsplit_once('.').map_or(name, |(layer, _)| layer)
}

/// Returns the adapted layers, and the other layers whose tensors the checkpoint has.
fn layers(export: &Export, base: &Base) -> (Vec<String>, Vec<String>) {
    let adapted: Vec<String> = base.adapted.iter().map(|weight| layer(weight).to_owned()).collect();
    let is_adapter = |name: &str| adapted.iter().any(|layer| name.starts_with(&format!("{layer}.lora_")));
    let names = export.outputs.iter().map(|output| output.target.name.as_str());
    let saved: BTreeSet<String> =
        names.filter(|name| !is_adapter(name)).map(|name| layer(name).to_owned()).collect();
    (adapted, saved.into_iter().collect())
}

/// Returns what PEFT's `LoraConfig` needs.
fn config(lora: &Value, base: &Base, layers: &[String], saved: &[String]) -> Value {
    json!({
        "peft_type": "LORA",
        "base_model_name_or_path": Value::Null,
        "task_type": Value::Null,
        "r": lora["rank"],
        "lora_alpha": lora["alpha"],
        "lora_dropout": lora["dropout"],
        "target_modules": layers,
        "modules_to_save": if saved.is_empty() { Value::Null } else { json!(saved) },
        "fan_in_fan_out": !base.transposed.is_empty(),
        "bias": "none",
        "inference_mode": true,
        "init_lora_weights": true,
    })
}
