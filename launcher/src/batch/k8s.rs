//! Submission to Kubernetes, where a second job of the same name would change nothing or replace what a running one uses.

use super::system::{CREATE, run};
use anyhow::{Context, bail};
use dtrain_batch::{JobSpec, K8S_MARK, Name, System, k8s_objects, render};
use serde_json::Value;

/// A name that no other job has, for a manifest that is only tried.
const TRIED: &str = "dtrain-tried";

/// Deletes what an earlier submission has left: its ended Jobs with their Services and secret, which may remain alone.
///
/// # Errors
///
/// An object of such a name is not dtrain's, a Job has not ended, or Kubernetes would not take the new ones. Nothing is
/// deleted then.
pub(super) fn make_room(spec: &JobSpec) -> anyhow::Result<()> {
    let names = k8s_objects(spec);
    let mut get = vec!["kubectl", "get", "--ignore-not-found", "--output=json"];
    get.extend(names.iter().map(String::as_str));
    let found = objects(&run("k8s", &get, "")?).context("cannot read the answer of kubectl get")?;
    if let Some(object) = found.iter().find(|object| !object.is_own) {
        bail!(
            "{0} exists, and `dtrain batch` has not made it; delete it by `kubectl delete {0}`, or give another --name",
            object.words()
        );
    }
    if let Some(Object { name, .. }) = found.iter().find(|object| object.is_active) {
        bail!(
            "the job {name} of an earlier submission has not ended; wait for it, delete it by `kubectl delete job {name}`, or \
             give another --name"
        );
    }
    if found.is_empty() {
        return Ok(());
    }
    let tried = JobSpec { name: TRIED.parse::<Name>()?, ..spec.clone() };
    run("k8s", &[&CREATE[..], &["--dry-run=server"]].concat(), &render(System::K8s, &tried))?;
    let words: Vec<_> = found.iter().map(Object::words).collect();
    let mut delete = vec!["kubectl", "delete", "--ignore-not-found"];
    delete.extend(words.iter().map(String::as_str));
    run("k8s", &delete, "").map(drop)
}

/// An object of Kubernetes.
#[derive(Debug, PartialEq, Eq)]
struct Object {
    /// Such as `job`.
    kind: String,
    name: String,
    /// Whether `dtrain batch` has made it.
    is_own: bool,
    /// It is a Job that has not ended.
    is_active: bool,
}

/// Reads an object, a list, or nothing.
fn objects(answer: &str) -> anyhow::Result<Vec<Object>> {
    if answer.trim().is_empty() {
        return Ok(Vec::new());
    }
    let answer: Value = serde_json::from_str(answer)?;
    let items = answer["items"].as_array().cloned().unwrap_or_else(|| vec![answer]);
    Ok(items.iter().map(Object::read).collect())
}

impl Object {
    fn read(object: &Value) -> Self {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let kind = text(&object["kind"]).to_lowercase();
        Self {
            is_active: kind == "job" && !has_ended(object),
            kind,
            name: text(&object["metadata"]["name"]),
            is_own: object["metadata"]["annotations"][K8S_MARK].is_string(),
        }
    }

    /// Returns the object as kubectl takes it. Other groups have Jobs too.
    fn words(&self) -> String {
        let kind = if self.kind == "job" { "jobs.batch" } else { &format!("{}s", self.kind) };
        format!("{kind}/{}", self.name)
    }
}

fn has_ended(job: &Value) -> bool {
    let conditions = job["status"]["conditions"].as_array();
    conditions.into_iter().flatten().any(|condition| {
        condition["status"] == "True" && ["Complete", "Failed"].iter().any(|end| condition["type"] == *end)
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn jobs_that_run_or_wait_are_active() {
        let job = |name: &str, status: &str| {
            format!("{{\"kind\":\"Job\",\"metadata\":{{\"name\":\"{name}\"}},\"status\":{status}}}")
        };
        let ended = r#"{"conditions":[{"type":"Complete","status":"True"}]}"#;
        let failed =
            r#"{"conditions":[{"type":"FailureTarget","status":"True"},{"type":"Failed","status":"True"}]}"#;
        let suspended =
            r#"{"conditions":[{"type":"Suspended","status":"True"},{"type":"Complete","status":"False"}]}"#;
        for (answer, expected) in [
            (String::new(), &[][..]),
            (job("a", ended), &[("a", false)]),
            (job("a", failed), &[("a", false)]),
            (job("a", "{}"), &[("a", true)]),
            (job("a", suspended), &[("a", true)]),
            (
                format!("{{\"items\":[{},{}]}}", job("a-0", ended), job("a-1", r#"{"active":1}"#)),
                &[("a-0", false), ("a-1", true)],
            ),
            (r#"{"kind":"Service","metadata":{"name":"a"}}"#.to_owned(), &[("a", false)]),
        ] {
            let found = objects(&answer).unwrap();
            let found: Vec<_> = found.iter().map(|object| (object.name.as_str(), object.is_active)).collect();
            assert_eq!(found, expected, "{answer}");
        }
        assert!(objects("kubectl").is_err());
    }

    #[test]
    fn the_annotation_tells_objects_of_dtrain() {
        let is_own = |annotations: &str| {
            let metadata = format!("{{\"name\":\"a\",\"annotations\":{annotations}}}");
            objects(&format!("{{\"kind\":\"Secret\",\"metadata\":{metadata}}}")).unwrap()[0].is_own
        };
        assert!(is_own(r#"{"dtrain/about":"Written by dtrain batch."}"#));
        assert!(!is_own(r#"{"a":"b"}"#) && !is_own("null"));
    }
}
