//! TensorBoard's messages (tensorboard/compat/proto/*.proto, and api.proto and plugin_data.proto of its plugin hparams), as far as
//! they are written here.

use std::collections::BTreeMap;

use prost::{Message, Oneof};

/// A record of an event file.
#[derive(Clone, PartialEq, Message)]
pub(super) struct Event {
    #[prost(double, tag = "1")]
    pub(super) wall_time: f64,
    #[prost(int64, tag = "2")]
    pub(super) step: i64,
    #[prost(oneof = "What", tags = "3, 5, 7")]
    pub(super) what: Option<What>,
}

#[derive(Clone, PartialEq, Oneof)]
pub(super) enum What {
    #[prost(string, tag = "3")]
    Version(String),
    #[prost(message, tag = "5")]
    Summary(Summary),
    #[prost(message, tag = "7")]
    Session(SessionLog),
}

/// With status 1: what follows begins at the event's step, and what a reader has of it and later is void.
#[derive(Clone, PartialEq, Message)]
pub(super) struct SessionLog {
    #[prost(int32, tag = "1")]
    pub(super) status: i32,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Summary {
    #[prost(message, repeated, tag = "1")]
    pub(super) values: Vec<Value>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Value {
    #[prost(string, tag = "1")]
    pub(super) tag: String,
    #[prost(message, optional, tag = "9")]
    pub(super) metadata: Option<Metadata>,
    #[prost(oneof = "Content", tags = "2, 4, 8")]
    pub(super) content: Option<Content>,
}

#[derive(Clone, PartialEq, Oneof)]
pub(super) enum Content {
    #[prost(float, tag = "2")]
    Scalar(f32),
    #[prost(message, tag = "4")]
    Image(Image),
    #[prost(message, tag = "8")]
    Tensor(Tensor),
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Image {
    #[prost(int32, tag = "1")]
    pub(super) height: i32,
    #[prost(int32, tag = "2")]
    pub(super) width: i32,
    /// 3 for RGB.
    #[prost(int32, tag = "3")]
    pub(super) colorspace: i32,
    #[prost(bytes = "vec", tag = "4")]
    pub(super) png: Vec<u8>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Metadata {
    #[prost(message, optional, tag = "1")]
    pub(super) plugin: Option<Plugin>,
    /// 2 for tensors.
    #[prost(int32, tag = "4")]
    pub(super) data_class: i32,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Plugin {
    #[prost(string, tag = "1")]
    pub(super) name: String,
    #[prost(bytes = "vec", tag = "2")]
    pub(super) content: Vec<u8>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Tensor {
    /// 1 for float32, 7 for text.
    #[prost(int32, tag = "1")]
    pub(super) dtype: i32,
    #[prost(message, optional, tag = "2")]
    pub(super) shape: Option<Shape>,
    #[prost(bytes = "vec", repeated, tag = "8")]
    pub(super) texts: Vec<Vec<u8>>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Shape {
    #[prost(message, repeated, tag = "2")]
    pub(super) lengths: Vec<Length>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Length {
    #[prost(int64, tag = "1")]
    pub(super) size: i64,
}

/// The content of a value of the plugin hparams.
#[derive(Clone, PartialEq, Message)]
pub(super) struct HParams {
    #[prost(oneof = "Part", tags = "2, 3, 4")]
    pub(super) part: Option<Part>,
}

#[derive(Clone, PartialEq, Oneof)]
pub(super) enum Part {
    #[prost(message, tag = "2")]
    Experiment(Declared),
    #[prost(message, tag = "3")]
    Start(Start),
    #[prost(message, tag = "4")]
    End(End),
}

/// The settings and the figures that runs are compared by.
#[derive(Clone, PartialEq, Message)]
pub(super) struct Declared {
    #[prost(message, repeated, tag = "4")]
    pub(super) settings: Vec<Setting>,
    #[prost(message, repeated, tag = "5")]
    pub(super) figures: Vec<Figure>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Setting {
    #[prost(string, tag = "1")]
    pub(super) name: String,
    /// 1 for a text, 2 for true or false, 3 for a number.
    #[prost(int32, tag = "4")]
    pub(super) kind: i32,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Figure {
    #[prost(message, optional, tag = "1")]
    pub(super) name: Option<FigureName>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct FigureName {
    #[prost(string, tag = "2")]
    pub(super) tag: String,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Start {
    #[prost(btree_map = "string, message", tag = "1")]
    pub(super) settings: BTreeMap<String, Constant>,
    #[prost(double, tag = "5")]
    pub(super) time: f64,
}

/// google.protobuf.Value
#[derive(Clone, PartialEq, Message)]
pub(super) struct Constant {
    #[prost(oneof = "Kind", tags = "2, 3, 4")]
    pub(super) kind: Option<Kind>,
}

#[derive(Clone, PartialEq, Oneof)]
pub(super) enum Kind {
    #[prost(double, tag = "2")]
    Number(f64),
    #[prost(string, tag = "3")]
    Text(String),
    #[prost(bool, tag = "4")]
    Flag(bool),
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct End {
    /// 1 for success, 2 for a failure.
    #[prost(int32, tag = "1")]
    pub(super) status: i32,
    #[prost(double, tag = "2")]
    pub(super) time: f64,
}
