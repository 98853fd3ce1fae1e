//! The flags of `dtrain import`.

use clap::{Args, ValueEnum};
use serde::Serialize;
use serde_json::{Number, Value};
use std::path::PathBuf;
use std::str::FromStr;

/// The libraries that a source may name before the colon.
const LIBRARIES: [&str; 3] = ["timm", "torchvision", "hf"];

#[derive(Debug, Args)]
pub(crate) struct ImportArgs {
    /// Model: `timm:NAME`, `torchvision:NAME`, `hf:NAME`, `hf:FOLDER` or `FILE.py:FUNCTION`.
    #[arg(value_name = "SOURCE")]
    pub(crate) source: Source,

    /// The file to write; its name ends in .pt2.
    #[arg(short, long, value_name = "FILE.pt2")]
    pub(crate) output: PathBuf,

    /// Number of classes [default: the model's].
    #[arg(long, value_name = "K", allow_negative_numbers = true, value_parser = positive())]
    pub(crate) classes: Option<u32>,

    /// Height and width of images: `S` or `HxW` [default: the model's].
    #[arg(long, value_name = "S|HxW")]
    pub(crate) image_size: Option<ImageSize>,

    /// Channels of images [default: the model's].
    #[arg(long, value_name = "C", allow_negative_numbers = true, value_parser = positive())]
    pub(crate) channels: Option<u32>,

    /// Inputs without the batch: `x=3x32x32`, `ids=int64:256`; comma-separated.
    #[arg(long, value_name = "SPEC", value_delimiter = ',')]
    pub(crate) inputs: Vec<InputSpec>,

    /// A dimension of any length beside the batch, such as `ids.1`; repeatable.
    #[arg(long, value_name = "NAME.DIM")]
    pub(crate) dynamic: Vec<DynamicDim>,

    /// Head of an `hf:` model [default: that of its config.json].
    #[arg(long, value_enum, value_name = "NAME", hide_possible_values = true)]
    pub(crate) head: Option<Head>,

    /// Argument for the model's builder: `drop_path_rate=0.1`; repeatable.
    #[arg(long = "arg", value_name = "NAME=VALUE")]
    pub(crate) args: Vec<BuilderArg>,

    /// Compare a smaller model with PyTorch: `num_hidden_layers=2`; repeatable.
    #[arg(long, value_name = "NAME=VALUE")]
    pub(crate) check_with: Vec<BuilderArg>,

    /// Shared library that registers operations of the model; repeatable.
    #[arg(long, value_name = "FILE.so")]
    pub(crate) library: Vec<String>,

    /// Use pretrained weights instead of random ones.
    #[arg(long)]
    pub(crate) pretrained: bool,

    /// `none`: leave out large tensors, for plans and fake GPUs.
    #[arg(
        long,
        value_enum,
        value_name = "none",
        hide_possible_values = true,
        conflicts_with = "pretrained",
        requires = "check_with"
    )]
    pub(crate) weights: Option<Weights>,

    /// The function is a loss: a number for each sample, of outputs and fields.
    #[arg(long, group = "role")]
    pub(crate) loss: bool,

    /// The function is a figure: numbers for each sample, whose sums make it.
    #[arg(long, group = "role")]
    pub(crate) figure: bool,

    /// The function is a change of images, by random numbers that it gets.
    #[arg(long, group = "role")]
    pub(crate) change: bool,

    /// Seed of random weights.
    #[arg(long, value_name = "N", default_value_t = 0, allow_negative_numbers = true)]
    pub(crate) seed: u32,

    /// Overwrite the file.
    #[arg(long)]
    pub(crate) force: bool,

    /// If the import fails, also print Python's traceback.
    #[arg(long)]
    pub(crate) traceback: bool,
}

impl ImportArgs {
    /// Returns what the function of a file is, if it is no model.
    pub(crate) fn role(&self) -> Option<&'static str> {
        let all = [(self.loss, "loss"), (self.figure, "figure"), (self.change, "change")];
        all.into_iter().find_map(|(is_it, role)| is_it.then_some(role))
    }

    /// Returns why a flag would have no effect.
    pub(crate) fn without_effect(&self) -> Option<String> {
        let library = self.source.library();
        if let Some(role) = self.role() {
            let flags = [
                (self.classes.is_some(), "--classes"),
                (self.image_size.is_some(), "--image-size"),
                (self.channels.is_some(), "--channels"),
                (self.head.is_some(), "--head"),
                (!self.check_with.is_empty(), "--check-with"),
                (self.pretrained, "--pretrained"),
            ];
            if library.is_some() {
                return Some(format!(
                    "--{role} applies to FILE.py:FUNCTION; leave it out, or name such a function"
                ));
            }
            if let Some((_, flag)) = flags.into_iter().find(|(is_given, _)| *is_given) {
                return Some(format!("{flag} applies to models, and not with --{role}; leave it out"));
            }
        }
        let takes_images = matches!(library, Some("timm" | "torchvision"));
        if self.head.is_some() && library != Some("hf") {
            return Some("--head applies to hf: models only; leave it out".to_owned());
        }
        if !self.inputs.is_empty() && takes_images {
            let flag = if library == Some("timm") { "--image-size and --channels" } else { "--image-size" };
            return Some(format!("--inputs applies to hf: models and files; use {flag}"));
        }
        None
    }
}

fn positive() -> clap::builder::RangedI64ValueParser<u32> {
    clap::value_parser!(u32).range(1..)
}

/// The model to import, such as `timm:resnet18`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Source(String);

impl Source {
    /// Returns the library that has the model; `None` for a file.
    fn library(&self) -> Option<&str> {
        let (library, _) = self.0.split_once(':')?;
        LIBRARIES.into_iter().find(|known| *known == library)
    }
}

impl FromStr for Source {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let is_known = match text.rsplit_once(':') {
            Some((file, function)) if file.ends_with(".py") => !function.is_empty(),
            _ => text
                .split_once(':')
                .is_some_and(|(library, name)| LIBRARIES.contains(&library) && !name.is_empty()),
        };
        if is_known {
            return Ok(Self(text.to_owned()));
        }
        Err(match text.ends_with(".py") {
            true => format!("name the function that returns the model, such as {text}:make_model"),
            false => "use timm:NAME, torchvision:NAME, hf:NAME, hf:FOLDER or FILE.py:FUNCTION".to_owned(),
        })
    }
}

/// Height and width. As one number or as two, as the user wrote it: a function of the user may take either.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(untagged)]
pub(crate) enum ImageSize {
    Square(u32),
    Sides(u32, u32),
}

impl FromStr for ImageSize {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match parse_sizes(text).as_deref() {
            Some([size]) => Ok(Self::Square(*size)),
            Some([height, width]) => Ok(Self::Sides(*height, *width)),
            _ => Err("use one number, such as 224, or height and width, such as 360x480".to_owned()),
        }
    }
}

/// One argument of the builder: a number, a truth value, a list or null as in JSON, else a text.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct BuilderArg {
    pub(crate) name: String,
    pub(crate) value: Value,
}

impl FromStr for BuilderArg {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let Some((name, text)) = text.split_once('=').filter(|(name, _)| !name.is_empty()) else {
            return Err("use NAME=VALUE, such as drop_path_rate=0.1".to_owned());
        };
        if matches!(text, "True" | "False" | "None") {
            return Err("use true, false or null".to_owned());
        }
        let number = || text.parse().ok().and_then(Number::from_f64).map(Value::Number);
        let parsed = serde_json::from_str(text);
        if text.starts_with(['[', '{']) && parsed.is_err() {
            return Err(format!(
                "{text} is no list of JSON; use a list such as [1, 2] or [\"a\", \"b\"], in quotes of the shell"
            ));
        }
        let value = parsed.ok().or_else(number).unwrap_or_else(|| text.into());
        Ok(Self { name: name.to_owned(), value })
    }
}

/// One input: its name, type, and shape without the batch.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct InputSpec {
    name: String,
    dtype: String,
    shape: Vec<u32>,
}

impl FromStr for InputSpec {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let parsed = text.split_once('=').and_then(|(name, rest)| {
            let (dtype, sizes) = match rest.split_once(':') {
                Some((dtype, sizes)) => (dtype, Some(sizes)),
                None if rest.starts_with(|first: char| first.is_ascii_digit()) => ("float32", Some(rest)),
                // One number per sample.
                None => (rest, None),
            };
            let shape = sizes.map_or(Some(Vec::new()), parse_sizes)?;
            let is_whole = !name.is_empty() && !dtype.is_empty();
            is_whole.then(|| Self { name: name.to_owned(), dtype: dtype.to_owned(), shape })
        });
        parsed.ok_or_else(|| "use NAME=SIZES for float32, such as x=3x32x32, or NAME=TYPE:SIZES".to_owned())
    }
}

/// A dimension of an input, counted from the batch, which is 0.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct DynamicDim {
    input: String,
    dim: u32,
}

impl FromStr for DynamicDim {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let parsed = text.rsplit_once('.').and_then(|(input, dim)| {
            let dim = dim.parse().ok().filter(|dim| *dim > 0)?;
            (!input.is_empty()).then(|| Self { input: input.to_owned(), dim })
        });
        parsed.ok_or_else(|| "use NAME.DIM, such as ids.1 for the length of texts; 0 is the batch".to_owned())
    }
}

fn parse_sizes(text: &str) -> Option<Vec<u32>> {
    let sizes = text.split('x').map(|size| size.parse().ok().filter(|size| *size > 0));
    sizes.collect()
}

/// The value of `--head`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Head {
    ImageClassification,
    Segmentation,
    TextClassification,
    TokenClassification,
    CausalLm,
    MaskedLm,
    ImageTextToText,
    None,
}

/// The value of `--weights`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Weights {
    None,
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::super::command::Cli;
    use super::*;
    use crate::cli::Command;
    use clap::Parser;

    #[test]
    fn sources_name_a_library_or_a_function() {
        for good in ["timm:resnet18", "hf:org/name", "hf:./folder", "a/b.py:make", "hf:a.py:b"] {
            assert_eq!(good.parse(), Ok(Source(good.to_owned())));
        }
        for bad in ["", "resnet18", "timm:", "keras:x", "model.py", "model.py:", ":make"] {
            assert!(bad.parse::<Source>().is_err(), "{bad}");
        }
        assert!("a.py".parse::<Source>().is_err_and(|error| error.contains("a.py:make_model")));
    }

    #[test]
    fn flags_without_effect_are_named() {
        let reason = |source: &str, flag: &str, value: &str| {
            let words = ["dtrain", "import", source, "-o", "m.pt2", flag, value];
            match Cli::try_parse_from(words).unwrap().command {
                Command::Import(args) => args.without_effect(),
                other => panic!("{other:?}"),
            }
        };
        for (source, flag, value) in [
            ("a.py:make", "--head", "none"),
            ("timm:x", "--head", "none"),
            ("torchvision:x", "--inputs", "x=3"),
        ] {
            assert!(
                reason(source, flag, value).unwrap().starts_with(&format!("{flag} applies to hf: models"))
            );
        }
        for (source, flag, value) in
            [("hf:x", "--head", "none"), ("hf:x", "--inputs", "x=3"), ("a.py:make", "--inputs", "x=3")]
        {
            assert_eq!(reason(source, flag, value), None);
        }
    }

    #[test]
    fn image_sizes_are_one_or_two_numbers() {
        assert_eq!("32".parse(), Ok(ImageSize::Square(32)));
        assert_eq!("360x480".parse(), Ok(ImageSize::Sides(360, 480)));
        for bad in ["", "0", "3x32x32", "32x", "-1", "a"] {
            assert!(bad.parse::<ImageSize>().is_err(), "{bad}");
        }
    }

    #[test]
    fn arguments_of_the_builder_have_a_type() {
        for (text, value) in [
            ("rate=0.1", Value::from(0.1)),
            ("rate=.1", Value::from(0.1)),
            ("blocks=3", Value::from(3)),
            ("bias=false", Value::from(false)),
            ("sizes=[1, 2]", vec![1, 2].into()),
            ("act=null", Value::Null),
            ("act=gelu", Value::from("gelu")),
            ("act=\"3\"", Value::from("3")),
            ("act=", Value::from("")),
        ] {
            let name = text.split('=').next().unwrap().to_owned();
            assert_eq!(text.parse(), Ok(BuilderArg { name, value }));
        }
        for bad in ["", "rate", "=3", "bias=True", "depths=[2, 2", "depths=[a, b]"] {
            assert!(bad.parse::<BuilderArg>().is_err(), "{bad}");
        }
    }

    #[test]
    fn dynamic_dimensions_follow_the_batch() {
        let dim = |input: &str, dim| Ok(DynamicDim { input: input.into(), dim });
        assert_eq!("ids.1".parse(), dim("ids", 1));
        assert_eq!("a.b.12".parse(), dim("a.b", 12));
        for bad in ["", "ids", "ids.", ".1", "ids.0", "ids.-1", "ids.x", "1"] {
            assert!(bad.parse::<DynamicDim>().is_err(), "{bad}");
        }
    }

    #[test]
    fn inputs_have_a_name_a_type_and_sizes() {
        let spec = |name: &str, dtype: &str, shape: &[u32]| {
            Ok(InputSpec { name: name.into(), dtype: dtype.into(), shape: shape.into() })
        };
        assert_eq!("x=3x32x32".parse(), spec("x", "float32", &[3, 32, 32]));
        assert_eq!("ids=int64:256".parse(), spec("ids", "int64", &[256]));
        assert_eq!("time=float32".parse(), spec("time", "float32", &[]));
        for bad in ["", "x", "x=", "=3", "x=0x3", "x=int64:", "x=3x", "x=:3"] {
            assert!(bad.parse::<InputSpec>().is_err(), "{bad}");
        }
    }
}
