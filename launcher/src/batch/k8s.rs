//! Submission to Kubernetes, where a second job of the same name would change nothing or replace what a running one uses.

use super::submit::run;
use anyhow::{Context, bail};
use dtrain_batch::{JobSpec, k8s_jobs, k8s_secret};
use serde_json::Value;

/// Deletes the ended Jobs of an earlier submission, with their Services and secret, which may remain alone.
///
/// # Errors
///
/// A Job of such a name has not ended.
pub(super) fn make_room(spec: &JobSpec) -> anyhow::Result<()> {
    let names = k8s_jobs(spec);
    let mut get = vec!["kubectl", "get", "jobs.batch", "--ignore-not-found", "--output=json"];
    get.extend(names.iter().map(String::as_str));
    let answer = run("k8s", &get, "")?;
    if let Some(name) = first_active(&answer).context("cannot read the answer of kubectl get")? {
        bail!(
            "the job {name} of an earlier submission has not ended; wait for it, delete it by `kubectl delete job {name}`, or \
             give another --name"
        );
    }
    let secret = k8s_secret(spec).map(|name| format!("secrets/{name}"));
    let jobs = names.iter().flat_map(|name| [format!("jobs.batch/{name}"), format!("services/{name}")]);
    let all: Vec<String> = jobs.chain(secret).collect();
    let mut delete = vec!["kubectl", "delete", "--ignore-not-found"];
    delete.extend(all.iter().map(String::as_str));
    run("k8s", &delete, "").map(drop)
}

/// Returns the name of the first Job that has not ended; `answer` is an object, a list, or empty.
fn first_active(answer: &str) -> anyhow::Result<Option<String>> {
    if answer.trim().is_empty() {
        return Ok(None);
    }
    let answer: Value = serde_json::from_str(answer)?;
    let jobs = answer["items"].as_array().cloned().unwrap_or_else(|| vec![answer]);
    let active = jobs.iter().find(|job| !has_ended(job));
    Ok(active.map(|job| job["metadata"]["name"].as_str().unwrap_or_default().to_owned()))
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
        for (answer, active) in [
            (String::new(), None),
            (job("a", ended), None),
            (job("a", failed), None),
            (job("a", "{}"), Some("a")),
            (job("a", suspended), Some("a")),
            (format!("{{\"items\":[{},{}]}}", job("a-0", ended), job("a-1", r#"{"active":1}"#)), Some("a-1")),
        ] {
            assert_eq!(first_active(&answer).unwrap().as_deref(), active, "{answer}");
        }
        assert!(first_active("kubectl").is_err());
    }
}
