//! Fields of the manifest that the user sets: `--directive FIELD=VALUE`.

use crate::directive::Directive;
use serde_json::{Map, Value, json};

/// A field that cannot be set.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Taken;

/// Sets a field of a Job. Without a prefix it is one of the pod.
pub(crate) fn set(job: &mut Value, directive: &Directive) -> Result<(), Taken> {
    let Some((field, text)) = directive.field() else { return Err(Taken) };
    // Text needs no quotes.
    let value = serde_json::from_str(text).unwrap_or_else(|_| json!(text));
    let (place, field) = match field.split_once('.') {
        Some(("metadata", field)) => (&mut job["metadata"], field),
        Some(("job", field)) => (&mut job["spec"], field),
        Some(("container", field)) => (&mut job["spec"]["template"]["spec"]["containers"][0], field),
        _ => (&mut job["spec"]["template"]["spec"], field),
    };
    let mut nested = value;
    for part in field.rsplit('.') {
        nested = Value::Object(Map::from_iter([(part.to_owned(), nested)]));
    }
    merge(place, nested)
}

/// Adds a value: objects get more fields, and lists more elements. Another value does not replace one of dtrain.
fn merge(place: &mut Value, value: Value) -> Result<(), Taken> {
    match (place, value) {
        (Value::Object(known), Value::Object(more)) => more
            .into_iter()
            .try_for_each(|(name, value)| merge(known.entry(name).or_insert(Value::Null), value)),
        (Value::Array(known), Value::Array(more)) => {
            known.extend(more);
            Ok(())
        }
        (place @ Value::Null, value) => {
            *place = value;
            Ok(())
        }
        _ => Err(Taken),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn job() -> Value {
        json!({
            "metadata": { "name": "a" },
            "spec": { "completions": 2, "template": { "spec": {
                "containers": [{ "name": "dtrain", "env": [{ "name": "A", "value": "1" }] }],
                "nodeSelector": { "gpu": "a100" },
                "restartPolicy": "Never",
            } } },
        })
    }

    fn with(text: &str) -> Result<Value, Taken> {
        let mut job = job();
        set(&mut job, &text.parse().unwrap()).map(|()| job)
    }

    #[test]
    fn fields_are_added_at_their_places() {
        let pod = |job: Value| job["spec"]["template"]["spec"].clone();
        assert_eq!(pod(with("serviceAccountName=trainer").unwrap())["serviceAccountName"], "trainer");
        assert_eq!(
            with("job.ttlSecondsAfterFinished=3600").unwrap()["spec"]["ttlSecondsAfterFinished"],
            3600
        );
        assert_eq!(with(r#"metadata.labels={"a/b":"c"}"#).unwrap()["metadata"]["labels"]["a/b"], "c");
        let found = pod(with(r#"container.env=[{"name":"B","value":"2"}]"#).unwrap());
        assert_eq!(found["containers"][0]["env"].as_array().unwrap().len(), 2);
        let found = pod(with("nodeSelector.zone=b").unwrap());
        assert_eq!(found["nodeSelector"], json!({ "gpu": "a100", "zone": "b" }));
        assert_eq!(
            pod(with("securityContext.runAsUser=1000").unwrap())["securityContext"]["runAsUser"],
            1000
        );
    }

    #[test]
    fn fields_of_dtrain_stay() {
        for text in
            ["restartPolicy=Always", "job.completions=3", "metadata.name=b", "nodeSelector.gpu=h100", "x"]
        {
            assert_eq!(with(text), Err(Taken), "{text}");
        }
    }
}
