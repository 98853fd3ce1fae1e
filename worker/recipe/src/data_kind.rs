//! `data.kind`: the kinds of sources, declared once for each.

use dtrain_common::choices;

use super::ColumnKind;

choices! {
    /// The source of the samples.
    DataKind {
        Folder = "folder": "A folder of images.",
        Generated = "generated": "Samples that dtrain generates, for trials without a download.",
        Text = "text": "A text file, or a folder of them.",
        Tokens = "tokens": "A file of token numbers, or a folder with one for each set.",
        Coco = "coco": "A folder of images, and masks that are drawn from annotations in COCO's format.",
        Table = "table": "A CSV table, or JSON lines, with a column for each field, such as the paths of images.",
        Cub = "cub": "A folder in the layout of CUB-200-2011, with images.txt and train_test_split.txt.",
        JsonList = "json-list": "A JSON file for each set, with lists of images and of their classes.",
        Shards = "shards": "Tar archives as WebDataset writes them: a sample is the members with one key.",
        Parquet = "parquet": "Parquet files with a row for each sample, and images in their cells.",
    }
}

/// What `data.root` names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Root {
    /// The folder that holds a folder for each set.
    Sets,
    /// The folder that holds a folder of images and a file of annotations for each set.
    Annotated,
    /// A file with a line for each sample.
    File,
    /// A folder with lists of images, each of which has a class.
    Lists,
    /// The folder that holds files with many samples each.
    Packs,
    /// A text, or a folder of texts.
    Text,
    /// A file of tokens, or a folder with a file for each set.
    Tokens,
    Nothing,
}

impl DataKind {
    /// Returns what `data.root` names.
    pub(super) fn root(self) -> Root {
        match self {
            Self::Folder => Root::Sets,
            Self::Coco => Root::Annotated,
            Self::Table => Root::File,
            Self::Cub | Self::JsonList => Root::Lists,
            Self::Shards | Self::Parquet => Root::Packs,
            Self::Text => Root::Text,
            Self::Tokens => Root::Tokens,
            Self::Generated => Root::Nothing,
        }
    }

    /// Returns whether `data.fields` names the fields of a sample.
    pub fn has_columns(self) -> bool {
        matches!(self.root(), Root::File | Root::Packs)
    }

    /// Returns the kinds with columns, in quotes.
    pub(super) fn with_columns() -> String {
        let kinds = Self::ALL.iter().filter(|kind| kind.has_columns());
        kinds.map(|kind| format!("{:?}", kind.as_str())).collect::<Vec<_>>().join(" or ")
    }

    /// Returns the column of a field of the task that no setting names.
    pub(super) fn usual_column(self, field: &str, kind: ColumnKind) -> String {
        match (self, kind) {
            (Self::Shards, ColumnKind::Image) => "jpg;jpeg;png;webp;tif;tiff;bmp;ppm;jp2;npy".to_owned(),
            (Self::Shards, ColumnKind::Class) => "cls".to_owned(),
            (Self::Shards, ColumnKind::Mask) => "seg.png;mask.png".to_owned(),
            _ => field.to_owned(),
        }
    }

    /// Returns whether the samples are pieces of a long text, as characters or as numbers of tokens.
    pub fn is_of_tokens(self) -> bool {
        matches!(self.root(), Root::Text | Root::Tokens)
    }

    /// Returns whether the samples are listed with their files of images.
    pub fn is_of_images(self) -> bool {
        matches!(self.root(), Root::Sets | Root::Annotated | Root::File | Root::Packs | Root::Lists)
    }
}

/// Does the same with the module of any kind whose samples are listed, and something else for the others.
#[macro_export]
macro_rules! each_source {
    ($kind:expr, $source:ident => $then:expr, else $other:expr) => {
        match $kind {
            $crate::DataKind::Folder => {
                use folders as $source;
                $then
            }
            $crate::DataKind::Coco => {
                use coco as $source;
                $then
            }
            $crate::DataKind::Table => {
                use table as $source;
                $then
            }
            $crate::DataKind::Shards => {
                use shards as $source;
                $then
            }
            $crate::DataKind::Parquet => {
                use parquet_files as $source;
                $then
            }
            $crate::DataKind::Cub => {
                use cub as $source;
                $then
            }
            $crate::DataKind::JsonList => {
                use json_list as $source;
                $then
            }
            $crate::DataKind::Text | $crate::DataKind::Tokens | $crate::DataKind::Generated => $other,
        }
    };
}
