//! Fields of the manifest that the user sets: `--directive FIELD=VALUE`.

use crate::directive::Directive;
use serde_json::{Map, Value, json};

/// Lists that dtrain sets as a whole: another element would change what each node starts, or how the job starts again.
const WHOLE: [&str; 3] = ["command", "args", "rules"];

/// Why a field cannot be set.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Refused {
    /// dtrain sets it.
    Taken,
    /// The value begins as JSON. Kubernetes would refuse the text.
    NoJson(String),
}

/// Sets a field of a Job. Without a prefix it is one of the pod.
pub(crate) fn set(job: &mut Value, directive: &Directive) -> Result<(), Refused> {
    let Some((field, text)) = directive.field() else { return Err(Refused::Taken) };
    let value = match serde_json::from_str(text) {
        Ok(value) => value,
        Err(error) if text.starts_with(['[', '{']) => return Err(Refused::NoJson(error.to_string())),
        // Text needs no quotes.
        Err(_) => json!(text),
    };
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
fn merge(place: &mut Value, value: Value) -> Result<(), Refused> {
    match (place, value) {
        (Value::Object(known), Value::Object(more)) => {
            more.into_iter().try_for_each(|(name, value)| match WHOLE.contains(&name.as_str()) {
                true => Err(Refused::Taken),
                false => merge(known.entry(name).or_insert(Value::Null), value),
            })
        }
        (Value::Array(known), Value::Array(more)) => {
            known.extend(more);
            Ok(())
        }
        (place @ Value::Null, value) => {
            *place = value;
            Ok(())
        }
        _ => Err(Refused::Taken),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn job() -> Value {
        json!({
            "metadata": { "name": "a" },
            "spec": { "completions": 2, "podFailurePolicy": { "rules": [] }, "template": { "spec": {
                "containers": [{ "name": "dtrain", "env": [{ "name": "A", "value": "1" }] }],
                "nodeSelector": { "gpu": "a100" },
                "restartPolicy": "Never",
            } } },
        })
    }

    fn with(text: &str) -> Result<Value, Refused> {
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
        for text in [
            "restartPolicy=Always",
            "job.completions=3",
            "metadata.name=b",
            "nodeSelector.gpu=h100",
            "x",
            r#"container.command=["rm"]"#,
            r#"container.args=["--set","a=1"]"#,
            r#"job.podFailurePolicy={"rules":[]}"#,
        ] {
            assert_eq!(with(text), Err(Refused::Taken), "{text}");
        }
    }

    #[test]
    fn a_list_or_an_object_is_json_and_other_values_may_be_text() {
        for text in ["tolerations=[{key:gpu}]", "securityContext={runAsUser:1}", "tolerations=["] {
            assert!(matches!(with(text), Err(Refused::NoJson(_))), "{text}");
        }
        let zone = |text| with(text).unwrap()["spec"]["template"]["spec"]["nodeSelector"]["zone"].clone();
        assert_eq!([zone("nodeSelector.zone=1"), zone("nodeSelector.zone=\"1\"")], [json!(1), json!("1")]);
    }
}
