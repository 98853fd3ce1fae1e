//! Chooses the layout and the network that the user names.

use super::draft::Network;
use crate::cli::NewArgs;
use crate::tasks::Task;
use crate::trainer::schema_text;
use anyhow::{anyhow, bail};
use dtrain_common::look::Layout;
use dtrain_common::recipe::hints::nearest;
use serde_json::Value;
use std::path::Path;

/// Returns the layout: the only one, or that of this name.
pub(super) fn layout(layouts: Vec<Layout>, name: Option<&str>, data: &Path) -> anyhow::Result<Layout> {
    let names: Vec<&str> = layouts.iter().map(|layout| layout.name.as_str()).collect();
    let choices = || {
        let choices = layouts.iter().map(|layout| format!("--layout {} ({})", layout.name, layout.words));
        choices.collect::<Vec<_>>().join(" or ")
    };
    let at = match (name, names.as_slice()) {
        (Some(name), _) => {
            names.iter().position(|known| *known == name).ok_or_else(|| match nearest(name, &names) {
                Some(near) => anyhow!("{} has no layout `{name}`; did you mean `{near}`?", data.display()),
                None => anyhow!("{} has no layout `{name}`; it has {}", data.display(), names.join(", ")),
            })?
        }
        (None, [_]) => 0,
        (None, _) => bail!("{} has several layouts; choose {}", data.display(), choices()),
    };
    layouts.into_iter().nth(at).ok_or_else(|| anyhow!("{} has no layout", data.display()))
}

/// Returns the network that the user names.
pub(super) fn model(args: &NewArgs, task: &Task) -> anyhow::Result<Network> {
    match args.model.as_deref() {
        None if task.needs_file && args.like.is_none() => bail!(
            "{} trains an imported PyTorch model: name its file, as in `dtrain new {} DATA --model FILE.pt2`; \
             `dtrain import` makes it{}",
            task.name,
            task.name,
            if task.name == "regress" { ", and --like timm:NAME imports one that fits the data" } else { "" }
        ),
        None => Ok(Network::Usual),
        Some(name) if name.ends_with(".pt2") => {
            if !Path::new(name).is_file() {
                bail!("--model {name}: there is no such file; `dtrain import` makes it");
            }
            Ok(Network::File { path: name.into(), is_pretrained: false })
        }
        Some(name) => {
            let schema: Value = serde_json::from_str(&schema_text()?)?;
            let words = &schema["properties"]["model"]["properties"]["name"]["enum"];
            let known: Vec<&str> = words.as_array().into_iter().flatten().filter_map(Value::as_str).collect();
            if known.contains(&name) {
                return Ok(Network::Named(name.to_owned()));
            }
            match nearest(name, &known) {
                Some(near) => bail!("--model {name}: unknown network; did you mean {near}?"),
                None => bail!(
                    "--model {name}: unknown network; choose {}, or a file of `dtrain import` (.pt2)",
                    known.join(", ")
                ),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn several_layouts_are_a_choice() {
        let layouts =
            || vec![Layout::new("class-folders", "2 class folders"), Layout::new("table:a.csv", "a table")];
        let data = Path::new("data");
        let said = |name: Option<&str>| {
            layout(layouts(), name, data).map(|layout| layout.name).map_err(|error| error.to_string())
        };
        assert_eq!(
            said(None).unwrap_err(),
            "data has several layouts; choose --layout class-folders (2 class folders) or --layout table:a.csv (a table)"
        );
        assert_eq!(said(Some("table:a.csv")).unwrap(), "table:a.csv");
        assert_eq!(
            said(Some("class-folder")).unwrap_err(),
            "data has no layout `class-folder`; did you mean `class-folders`?"
        );
        assert_eq!(layout(vec![Layout::new("text", "")], None, data).unwrap().name, "text");
    }
}
