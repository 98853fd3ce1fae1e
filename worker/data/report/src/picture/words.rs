//! Targets in words: classes, numbers.

use std::collections::BTreeMap;

use dtrain_data::{Column, Field, Normalize};

/// The names of classes and numbers.
#[derive(Debug, Clone, Default)]
pub struct Names {
    /// The names of the classes of a field, by field.
    pub classes: BTreeMap<String, Vec<String>>,
    /// The names of the numbers of the field `targets`.
    pub numbers: Vec<String>,
    /// The value of pixels that do not count.
    pub ignore: Option<i64>,
    /// The mean and deviation of generated images.
    pub normalize: Normalize,
}

/// The beginnings of the names of fields of pairs and episodes.
const PREFIXES: [&str; 3] = ["pair_", "support_", "query_"];

/// Splits the name of a field of a pair or an episode.
pub(super) fn split(name: &str) -> (&str, &str) {
    let prefix = PREFIXES.iter().find(|prefix| name.starts_with(**prefix));
    prefix.map_or(("", name), |prefix| name.split_at(prefix.len()))
}

/// Numbers and classes of a sample that are written; further ones are only counted.
const MOST: usize = 8;

/// Writes the target of a member of a sample; tokens are drawn elsewhere.
pub(super) fn words(field: &Field, column: &Column, member: usize, names: &Names) -> Vec<String> {
    let (prefix, name) = split(&field.name);
    let of_class = names.classes.get(name);
    match column {
        Column::I64(values) => {
            let Some(class) = values.get(member).or(values.first()) else { return Vec::new() };
            // An episode numbers its own classes.
            let is_own = matches!(prefix, "support_" | "query_");
            let named =
                of_class.filter(|_| !is_own).and_then(|names| names.get(usize::try_from(*class).ok()?));
            match (named, name) {
                (Some(class), "label") => vec![class.clone()],
                (Some(class), other) => vec![format!("{other}: {class}")],
                (None, _) if is_own => vec![format!("{}: class {class}", prefix.trim_end_matches('_'))],
                (None, "label") => vec![format!("class {class}")],
                (None, other) => vec![format!("{other}: {class}")],
            }
        }
        Column::F32(values) => match of_class {
            // A set of classes: 1 for each that applies.
            Some(classes) => {
                let set: Vec<&str> = classes
                    .iter()
                    .zip(values)
                    .filter(|(_, value)| **value > 0.5)
                    .map(|(class, _)| class.as_str())
                    .collect();
                let text = if set.is_empty() { "none".to_owned() } else { set.join(", ") };
                vec![format!("{name}: {text}")]
            }
            None => numbers(name, values, names),
        },
        Column::Pixels(_) => Vec::new(),
    }
}

fn numbers(field: &str, values: &[f32], names: &Names) -> Vec<String> {
    let named = |(number, value): (usize, &f32)| {
        let name = names.numbers.get(number).filter(|_| names.numbers.len() == values.len());
        match name {
            Some(name) => format!("{name} {value:.4}"),
            None if values.len() == 1 => format!("{field} {value:.4}"),
            None => format!("{field}[{number}] {value:.4}"),
        }
    };
    let mut all: Vec<String> = values.iter().enumerate().take(MOST).map(named).collect();
    if values.len() > MOST {
        all.push(format!("and {} more", values.len() - MOST));
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets_have_their_names() {
        let mut names = Names { numbers: vec!["age".to_owned()], ..Names::default() };
        names.classes.insert("label".to_owned(), vec!["cat".to_owned(), "dog".to_owned()]);
        names.classes.insert("tags".to_owned(), vec!["red".to_owned(), "big".to_owned()]);
        let one = |field: Field, column| words(&field, &column, 0, &names).join("; ");
        assert_eq!(one(Field::i64("label", []), Column::I64(vec![1])), "dog");
        assert_eq!(one(Field::i64("label", []), Column::I64(vec![7])), "class 7");
        assert_eq!(one(Field::i64("pair_label", []), Column::I64(vec![0])), "cat");
        assert_eq!(one(Field::i64("query_label", [2]), Column::I64(vec![1, 0])), "query: class 1");
        assert_eq!(one(Field::f32("tags", [2]), Column::F32(vec![1.0, 0.0])), "tags: red");
        assert_eq!(one(Field::f32("tags", [2]), Column::F32(vec![0.0, 0.0])), "tags: none");
        assert_eq!(one(Field::f32("targets", [1]), Column::F32(vec![2.5])), "age 2.5000");
        assert_eq!(
            one(Field::f32("other", [2]), Column::F32(vec![1.0, 2.0])),
            "other[0] 1.0000; other[1] 2.0000"
        );
    }
}
