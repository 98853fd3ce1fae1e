//! `data.fields`: the fields of a table's samples, and the columns that they are made of.

use dtrain_common::recipe::hints::and;

use super::{ColumnKind, Data, Recipe, Target};

/// A field of a table's samples.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FieldColumns {
    /// The name of the field.
    pub field: String,
    /// The kind of the cells.
    pub kind: ColumnKind,
    /// The names of the columns, at least one.
    pub columns: Vec<String>,
}

impl FieldColumns {
    /// Reads `KIND` or `KIND:COLUMN,COLUMN`. Without columns, the column has the name of the field.
    pub fn parse(field: &str, text: &str) -> Result<Self, String> {
        let (word, columns) = match text.split_once(':') {
            Some((word, columns)) => (word.trim(), columns.split(',').map(str::trim).collect()),
            None => (text.trim(), vec![field]),
        };
        let Some(kind) = ColumnKind::ALL.iter().copied().find(|kind| kind.as_str() == word) else {
            return Err(format!("{word:?} is no kind of field; the kinds are {}", and(ColumnKind::NAMES)));
        };
        if let Some(at) =
            (0..columns.len()).find(|&at| columns[at].is_empty() || columns[..at].contains(&columns[at]))
        {
            return Err(match columns[at] {
                "" => "a name of a column is empty; write KIND:COLUMN or KIND:COLUMN,COLUMN".to_owned(),
                column => format!("the column {column:?} is there twice; name it once"),
            });
        }
        let most = match kind {
            ColumnKind::Image | ColumnKind::Numbers => usize::MAX,
            ColumnKind::Text => 2,
            _ => 1,
        };
        if columns.len() > most {
            let takes = if most == 2 { "one column, or two" } else { "one column" };
            return Err(format!("a field of the kind {word:?} has {takes}, not {}", columns.len()));
        }
        Ok(Self { field: field.to_owned(), kind, columns: columns.into_iter().map(str::to_owned).collect() })
    }

    /// Writes what [`FieldColumns::parse`] reads.
    pub(super) fn text(&self) -> String {
        match self.columns.as_slice() {
            [column] if *column == self.field => self.kind.as_str().to_owned(),
            columns => format!("{}:{}", self.kind.as_str(), columns.join(",")),
        }
    }
}

impl Target {
    /// Returns the field of the target and its kind in a table.
    fn column(self) -> Option<(&'static str, ColumnKind)> {
        match self {
            Self::Class => Some(("label", ColumnKind::Class)),
            Self::Mask => Some(("mask", ColumnKind::Mask)),
            Self::Map => Some(("map", ColumnKind::Map)),
            Self::Vector => Some(("targets", ColumnKind::Numbers)),
            Self::Classes => Some(("label", ColumnKind::Classes)),
            Self::Tokens => Some(("tokens", ColumnKind::Text)),
        }
    }
}

impl Recipe {
    /// Returns whether the samples have a field of this kind, as the target or as another field of a table.
    pub fn has(&self, kind: ColumnKind) -> bool {
        let is_target =
            self.target().and_then(Target::column).is_some_and(|(_, of_target)| of_target == kind);
        let of_table = |(field, text): (&String, &String)| {
            FieldColumns::parse(field, text).is_ok_and(|columns| columns.kind == kind)
        };
        let of_source = |alone: &Data| alone.kind.has_columns() && alone.fields.iter().any(of_table);
        is_target || self.by_source().iter().any(|alone| of_source(&alone.data))
    }

    /// Returns whether `data.ignore` is a value of maps, else of masks: of the target or, if that is neither, of masks if
    /// there are any.
    pub fn ignores_maps(&self) -> bool {
        match self.target() {
            Some(Target::Map) => true,
            Some(Target::Mask) => false,
            _ => !self.has(ColumnKind::Mask),
        }
    }

    fn is_built_in(&self) -> bool {
        self.model.file.is_none() && self.task.facts().network.is_some()
    }

    /// Returns the fields of a table's samples: those of the task first, images before others. Without `data.fields`, they
    /// are the task's, each from the column of its name. Empty for other kinds of data.
    pub fn fields(&self) -> Result<Vec<FieldColumns>, Vec<(String, String)>> {
        if !self.data.kind.has_columns() {
            return Ok(Vec::new());
        }
        let facts = self.task.facts();
        // A user's trainer takes any fields.
        let is_text =
            |text: &String| FieldColumns::parse("", text).is_ok_and(|columns| columns.kind.is_text());
        let reads = self.target() == Some(Target::Tokens)
            || (self.model.file.is_some() && self.data.fields.values().any(is_text));
        let mut wanted: Vec<_> =
            (!facts.is_own && !reads).then_some(("image", ColumnKind::Image)).into_iter().collect();
        wanted.extend(self.target().and_then(Target::column));
        let (mut fields, mut problems) = (Vec::new(), Vec::new());
        for (field, text) in &self.data.fields {
            match FieldColumns::parse(field, text) {
                Ok(columns) => fields.push(columns),
                Err(problem) => problems.push((format!("data.fields.{field}"), problem)),
            }
        }
        for (field, kind) in &wanted {
            let named = fields.iter().find(|columns| columns.field == *field);
            let word = kind.as_str();
            match named {
                None if self.data.fields.is_empty() => {
                    fields.push(FieldColumns {
                        field: field.to_string(),
                        kind: *kind,
                        columns: vec![self.data.kind.usual_column(field, *kind)],
                    });
                }
                // A program may have no image.
                None if facts.returns_loss && *kind == ColumnKind::Image => {}
                None if problems.is_empty() => problems.push((
                    "data.fields".to_owned(),
                    format!("the task needs the field `{field}`; add {field} = \"{word}:COLUMN\""),
                )),
                // A chat is a text, too.
                Some(other) if other.kind != *kind && !(kind.is_text() && other.kind.is_text()) => problems
                    .push((
                        format!("data.fields.{field}"),
                        format!(
                            "the task takes the kind {word:?} for this field, not {:?}",
                            other.kind.as_str()
                        ),
                    )),
                Some(images)
                    if images.columns.len() > 1 && *kind == ColumnKind::Image && self.is_built_in() =>
                {
                    problems.push((
                        format!("data.fields.{field}"),
                        "the network takes one image for each sample; name one column, or set model.file to a program whose \
                         input is a list of images"
                            .to_owned(),
                    ));
                }
                _ => {}
            }
        }
        for text in fields.iter().filter(|columns| columns.kind.is_text()) {
            let mask = if text.field == "tokens" {
                "attention_mask".to_owned()
            } else {
                format!("{}_mask", text.field)
            };
            if fields.iter().any(|other| other.field == mask) {
                let message =
                    format!("this is the name of the mask of the text `{}`; rename the field", text.field);
                problems.push((format!("data.fields.{mask}"), message));
            }
        }
        let is_partner = |columns: &&FieldColumns| {
            let own = columns.field.strip_prefix("pair_");
            self.data.pairs && own.is_some_and(|own| fields.iter().any(|other| other.field == own))
        };
        problems.extend(fields.iter().filter(is_partner).map(|columns| {
            let message = "with data.pairs this is the name of the partner's field; rename the field";
            (format!("data.fields.{}", columns.field), message.to_owned())
        }));
        let is_mixed =
            |columns: &&FieldColumns| !self.data.mix.is_empty() && columns.field.starts_with("mix_");
        problems.extend(fields.iter().filter(is_mixed).map(|columns| {
            let message = "with data.mix these are names of the partner's fields; rename the field";
            (format!("data.fields.{}", columns.field), message.to_owned())
        }));
        let is_used = |columns: &&FieldColumns| wanted.iter().any(|(field, _)| columns.field == *field);
        let unused = fields.iter().filter(|columns| self.is_built_in() && !is_used(columns));
        problems.extend(unused.map(|columns| {
            let message = "the network has no input for this field; remove it, or set model.file to a program that takes it";
            (format!("data.fields.{}", columns.field), message.to_owned())
        }));
        let rank = |columns: &FieldColumns| {
            let of_task = wanted.iter().position(|(field, _)| columns.field == *field);
            (columns.kind != ColumnKind::Image, of_task.unwrap_or(wanted.len()), columns.field.clone())
        };
        fields.sort_by_key(rank);
        if problems.is_empty() { Ok(fields) } else { Err(problems) }
    }
}
