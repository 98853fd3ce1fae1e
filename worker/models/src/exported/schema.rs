//! The JSON of an exported program, schema 8 of torch 2.6 and newer (`torch/_export/serde/schema.py`), as far as
//! training needs it. Other fields are ignored; unknown kinds of arguments are errors.

use std::collections::{BTreeMap, HashMap};

use serde::de::IgnoredAny;
use serde::{Deserialize, Deserializer};

use crate::pairs::pairs;

#[derive(Debug, Deserialize)]
pub(super) struct Version {
    pub schema_version: SchemaVersion,
    #[serde(default)]
    pub torch_version: String,
}

#[derive(Debug, Deserialize)]
pub(super) struct SchemaVersion {
    pub major: u64,
    pub minor: u64,
}

#[derive(Debug, Deserialize)]
pub(super) struct Document {
    pub graph_module: GraphModule,
    /// Ranges of symbols.
    #[serde(default)]
    pub range_constraints: BTreeMap<String, Range>,
    /// Conditions on sizes, since torch 2.9.
    pub guards_code: Option<Vec<String>>,
}

/// The values of a symbol.
#[derive(Debug, Deserialize)]
pub(super) struct Range {
    pub min_val: Option<i64>,
    pub max_val: Option<i64>,
}

#[derive(Debug, Deserialize)]
pub(super) struct GraphModule {
    pub graph: Graph,
    pub signature: Signature,
    #[serde(default)]
    pub module_call_graph: Vec<ModuleCall>,
}

#[derive(Debug, Default, Deserialize)]
pub(super) struct Graph {
    #[serde(default)]
    pub inputs: Vec<Value>,
    #[serde(default)]
    pub outputs: Vec<Value>,
    pub nodes: Vec<Node>,
    #[serde(default)]
    pub tensor_values: HashMap<String, TensorMeta>,
}

#[derive(Debug, Deserialize)]
pub(super) struct Node {
    pub target: String,
    #[serde(default)]
    pub inputs: Vec<NamedValue>,
    #[serde(default)]
    pub outputs: Vec<Value>,
    #[serde(default)]
    pub metadata: BTreeMap<String, String>,
}

#[derive(Debug, Deserialize)]
pub(super) struct NamedValue {
    #[serde(default)]
    pub name: String,
    pub arg: Value,
}

#[derive(Debug, Deserialize)]
pub(super) struct Name {
    pub name: String,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Whole {
    AsName(String),
    AsInt(i64),
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Real {
    AsName(String),
    AsFloat(Float),
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Truth {
    AsName(String),
    AsBool(bool),
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum MaybeTensor {
    AsTensor(Name),
    AsNone(IgnoredAny),
}

impl MaybeTensor {
    /// Returns the tensor's name; None without a tensor.
    pub(super) fn name(&self) -> Option<&str> {
        match self {
            Self::AsTensor(name) => Some(&name.name),
            Self::AsNone(_) => None,
        }
    }
}

/// A number that is written as text if it is infinite or not a number.
#[derive(Debug, Clone, Copy)]
pub(super) struct Float(pub f64);

impl<'de> Deserialize<'de> for Float {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum Either {
            Number(f64),
            Text(String),
        }
        match Either::deserialize(deserializer)? {
            Either::Number(number) => Ok(Self(number)),
            Either::Text(text) => match text.as_str() {
                "Infinity" => Ok(Self(f64::INFINITY)),
                "-Infinity" => Ok(Self(f64::NEG_INFINITY)),
                "NaN" => Ok(Self(f64::NAN)),
                _ => Err(serde::de::Error::custom(format!("`{text}` is not a number"))),
            },
        }
    }
}

/// An argument or a result, by the schema's names.
#[allow(clippy::enum_variant_names)]
#[derive(Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Value {
    AsNone(IgnoredAny),
    AsTensor(Name),
    AsTensors(Vec<Name>),
    AsOptionalTensor(MaybeTensor),
    AsOptionalTensors(Vec<MaybeTensor>),
    AsInt(i64),
    AsInts(Vec<i64>),
    AsFloat(Float),
    AsFloats(Vec<Float>),
    AsBool(bool),
    AsBools(Vec<bool>),
    AsString(String),
    AsSymInt(Whole),
    AsSymInts(Vec<Whole>),
    AsSymFloat(Real),
    AsSymBool(Truth),
    AsScalarType(i64),
    AsMemoryFormat(i64),
    AsLayout(i64),
    AsDevice(IgnoredAny),
    AsGraph { graph: Box<Graph> },
}

#[derive(Debug, Deserialize)]
pub(super) struct Signature {
    pub input_specs: Vec<InputSpec>,
    pub output_specs: Vec<OutputSpec>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum InputSpec {
    UserInput { arg: Value },
    Parameter { arg: Name, parameter_name: String },
    Buffer { arg: Name, buffer_name: String },
    TensorConstant { arg: Name, tensor_constant_name: String },
    ConstantInput(IgnoredAny),
    CustomObj { custom_obj_name: String },
    Token(IgnoredAny),
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum OutputSpec {
    UserOutput { arg: Value },
    LossOutput { arg: Name },
    BufferMutation { arg: Name, buffer_name: String },
    ParameterMutation { parameter_name: String },
    UserInputMutation { user_input_name: String },
    GradientToParameter(IgnoredAny),
    GradientToUserInput(IgnoredAny),
    Token(IgnoredAny),
}

#[derive(Debug, Deserialize)]
pub(super) struct ModuleCall {
    pub fqn: String,
    pub signature: Option<CallSignature>,
}

#[derive(Debug, Deserialize)]
pub(super) struct CallSignature {
    pub out_spec: String,
    pub forward_arg_names: Option<Vec<String>>,
}

#[derive(Debug, Clone, Deserialize)]
pub(super) struct TensorMeta {
    pub dtype: i64,
    pub sizes: Vec<Size>,
    #[serde(default)]
    pub requires_grad: bool,
    #[serde(default)]
    pub strides: Vec<Size>,
    pub storage_offset: Option<Size>,
}

/// A length, or an expression of the batch's.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Size {
    AsInt(i64),
    AsExpr(SizeExpression),
}

#[derive(Debug, Clone, Deserialize)]
pub(super) struct SizeExpression {
    #[serde(default)]
    expr_str: String,
}

impl SizeExpression {
    /// Returns the symbol if the expression is only one: `s77`, or `Symbol('s77', positive=True, integer=True)`.
    pub(super) fn symbol(&self) -> Option<&str> {
        let text = self.expr_str.as_str();
        let name = match text.strip_prefix("Symbol('") {
            Some(rest) => rest.split_once('\'').filter(|(_, rest)| !rest.contains('(')).map(|(name, _)| name),
            None => Some(text),
        };
        name.filter(|name| name.chars().all(|part| part.is_ascii_alphanumeric() || part == '_'))
    }

    /// Returns its symbols, also those of values that are known only in a run.
    pub(super) fn symbols(&self) -> impl Iterator<Item = &str> {
        self.names().filter(|name| !is_number(name) && !PRODUCT.contains(name))
    }

    /// Returns whether it is a product of symbols and whole numbers, such as `12*s77`.
    pub(super) fn is_product(&self) -> bool {
        let is_symbol = |name: &str| name.strip_prefix(['s', 'u']).is_some_and(is_number);
        let is_factor = |name: &str| PRODUCT.contains(&name) || is_symbol(name) || is_number(name);
        let has_others = self.expr_str.contains(['+', '-', '/', '%']) || self.expr_str.contains("**");
        self.names().all(is_factor) && !has_others
    }

    fn names(&self) -> impl Iterator<Item = &str> {
        self.expr_str
            .split(|part: char| !part.is_ascii_alphanumeric() && part != '_')
            .filter(|name| !name.is_empty())
    }
}

/// SymPy's words in a product of symbols.
const PRODUCT: [&str; 6] = ["Mul", "Integer", "Symbol", "positive", "integer", "True"];

fn is_number(name: &str) -> bool {
    name.bytes().all(|digit| digit.is_ascii_digit())
}

impl Size {
    pub(super) fn constant(&self) -> Option<i64> {
        match self {
            Self::AsInt(length) => Some(*length),
            Self::AsExpr(_) => None,
        }
    }
}

/// The list of weights or constants of an archive: names and files, in the order of `state_dict`.
#[derive(Debug, Default, Deserialize)]
pub(super) struct Payloads {
    #[serde(deserialize_with = "payloads")]
    pub config: Vec<(String, Payload)>,
}

#[derive(Debug, Clone, Deserialize)]
pub(super) struct Payload {
    pub path_name: String,
    pub is_param: bool,
    pub use_pickle: bool,
    pub tensor_meta: Option<TensorMeta>,
}

fn payloads<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<(String, Payload)>, D::Error> {
    pairs(deserializer, "an object")
}

/// What `dtrain import` adds to an archive.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Notes {
    pub inputs: Vec<String>,
    pub outputs: Vec<String>,
    pub evaluation_outputs: Vec<String>,
    pub guards: Option<Both<Vec<NotedGuard>>>,
    /// Whether the archive lacks large tensors, by `dtrain import --weights none`.
    pub without_weights: bool,
}

/// Results of the comparison with PyTorch at the end of an import.
#[derive(Debug, Default, Deserialize)]
pub(super) struct Checked {
    /// The smallest batches for which the programs were compared with the model.
    pub smallest: Option<Both<i64>>,
}

/// Something of each program.
#[derive(Debug, Deserialize)]
pub(super) struct Both<T> {
    pub train: T,
    pub evaluate: T,
}

/// A condition on sizes, and the place in the model's source that depends on it.
#[derive(Debug, Deserialize)]
pub(super) struct NotedGuard {
    pub guard: String,
    #[serde(default)]
    pub place: String,
}
