//! The JSON Schema of recipes, from the keys that check them: for editors and other programs.

use serde_json::{Map, Value, json};

use super::kinds::{Key, Kind, Limit, Named, Range};

/// Returns the schema (JSON Schema, draft 2020-12) of recipes with these keys. `defaults` has the sections of a recipe that states
/// nothing.
pub fn schema(keys: &[Key], defaults: &Value) -> Value {
    let mut schema = section(keys, defaults);
    schema.extend(object(json!({
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "dtrain recipe",
        "required": ["task"],
    })));
    Value::Object(schema)
}

/// Returns the JSON Schema of a table with these keys, without defaults.
pub fn table_schema(keys: &[Key]) -> Value {
    Value::Object(section(keys, &Value::Null))
}

fn section(keys: &[Key], defaults: &Value) -> Map<String, Value> {
    let of = |key: &Key| {
        let default = defaults.get(key.name).unwrap_or(&Value::Null);
        let mut value = kind(&key.kind, default);
        value.insert("description".to_owned(), described(key).into());
        if !default.is_null() && !matches!(key.kind, Kind::Section(_) | Kind::Sections(..)) {
            value.insert("default".to_owned(), default.clone());
        }
        (key.name.to_owned(), Value::Object(value))
    };
    object(json!({
        "type": "object",
        "properties": keys.iter().map(of).collect::<Map<_, _>>(),
        "additionalProperties": false,
    }))
}

/// Returns the meaning of a key, and its kind in words if that is not a JSON type.
fn described(key: &Key) -> String {
    match key.kind {
        Kind::Other(words, ..) | Kind::Shaped(words, ..) => format!("{} Takes {words}.", key.about.trim()),
        _ => key.about.trim().to_owned(),
    }
}

fn kind(kind: &Kind, defaults: &Value) -> Map<String, Value> {
    let whole = |least: i64, most: i64| json!({"type": "integer", "minimum": least, "maximum": most});
    object(match *kind {
        Kind::Section(keys) => return section(keys, defaults),
        Kind::Sections(keys, required) => {
            let mut member = section(keys, &Value::Null);
            let names: Vec<_> = keys[..required].iter().map(|key| key.name).collect();
            member.insert("required".to_owned(), names.into());
            json!({"type": "array", "items": member})
        }
        Kind::Named(named) => {
            let member = |one: &Named| {
                let mut member = section(one.keys, &Value::Null);
                if let Some(Value::Object(keys)) = member.get_mut("properties") {
                    keys.insert("name".to_owned(), json!({"const": one.name}));
                }
                member.insert("required".to_owned(), json!(["name"]));
                member
            };
            json!({"type": "array", "items": {"oneOf": named.iter().map(member).collect::<Vec<_>>()}})
        }
        Kind::Free => json!({"type": "object"}),
        Kind::Choice(words, _) => json!({"enum": words}),
        Kind::Whole(least, most) => whole(least, most),
        Kind::AutoOrWhole(least, most) => json!({"anyOf": [{"const": "auto"}, whole(least, most)]}),
        Kind::Number(range) => Value::Object(number(range)),
        Kind::Numbers(least, most, range) => {
            json!({"type": "array", "items": number(range), "minItems": least, "maxItems": most})
        }
        Kind::Size(least) => {
            json!({"anyOf": [{"type": "string"}, {"type": "integer", "minimum": least}]})
        }
        Kind::Other(_, types, _) => json!({"type": types}),
        Kind::Shaped(_, shape, _) => shape(),
    })
}

fn number(range: Range) -> Map<String, Value> {
    let mut schema = object(json!({"type": "number"}));
    for (limit, at, before) in
        [(range.least, "minimum", "exclusiveMinimum"), (range.most, "maximum", "exclusiveMaximum")]
    {
        match limit {
            Limit::None => {}
            Limit::At(limit) => drop(schema.insert(at.to_owned(), limit.into())),
            Limit::Before(limit) => drop(schema.insert(before.to_owned(), limit.into())),
        }
    }
    schema
}

fn object(value: Value) -> Map<String, Value> {
    match value {
        Value::Object(map) => map,
        _ => Map::new(),
    }
}
