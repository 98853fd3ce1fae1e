//! What a saved model needs of its samples.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use super::Sets;

impl Sets {
    /// Returns what a saved model needs: `own` with the names of the classes of other fields, which number them, the colours of the
    /// classes of masks, and the vocabulary of texts.
    pub(in crate::tasks) fn extra(&self, own: Value) -> Value {
        let classes = self.other_classes.iter().chain(&self.mask_classes);
        let by_field =
            [("classes", classes.collect::<BTreeMap<_, _>>()), ("colors", self.colors.iter().collect())];
        let stated = by_field.into_iter().filter(|(_, fields)| !fields.is_empty());
        let mut all: Map<_, _> = stated.map(|(key, fields)| (key.to_owned(), json!(fields))).collect();
        if let Some(vocabulary) = &self.vocabulary {
            all.insert("vocabulary".to_owned(), json!(vocabulary));
        }
        if all.is_empty() {
            return own;
        }
        if let Value::Object(own) = own {
            all.extend(own);
        }
        Value::Object(all)
    }
}
