//! Hands a script over to its batch system.

use super::k8s;
use super::system::{command, run};
use anyhow::Context;
use dtrain_batch::{JobSpec, Name, System, secret_manifest};
use std::fs::File;
use std::io::Read;

/// Bytes of a secret.
const SECRET_BYTES: usize = 32;

/// Submits the script, and prints the job's id and how to watch it.
pub(super) fn submit(system: System, spec: &JobSpec, script: &str) -> anyhow::Result<()> {
    if system == System::K8s {
        k8s::make_room(spec)?;
    }
    if let Some(secret) = secret_manifest(system, spec, &new_secret()?) {
        run(system.name(), command(system), &secret)?;
    }
    let answer = run(system.name(), command(system), script)?;
    let id = id(system, &spec.name, &answer).with_context(|| {
        format!("cannot find the job's id in the answer of {}: {answer:?}", command(system)[0])
    })?;
    crate::stdout::print(&format!("{id}\n")).context("cannot write to standard output")?;
    eprintln!("dtrain: submitted job {id}; watch it with `{}`", watch(system, spec, &id));
    Ok(())
}

/// Finds the job's id in the answer to a submission.
fn id(system: System, name: &Name, answer: &str) -> Option<String> {
    let last = answer.lines().map(str::trim).rfind(|line| !line.is_empty());
    let id = match system {
        // ID;CLUSTER
        System::Slurm => last?.split(';').next()?,
        System::Pbs | System::Flux => last?.split_whitespace().next_back()?,
        // Job <71> is submitted to queue <normal>.
        System::Lsf => answer.split_once("Job <")?.1.split_once('>')?.0,
        System::K8s => name.as_str(),
    };
    (!id.is_empty()).then(|| id.to_owned())
}

/// Returns the command that shows the job.
fn watch(system: System, spec: &JobSpec, id: &str) -> String {
    let name = spec.name.as_str();
    let is_array = spec.runs().is_some();
    match system {
        System::Slurm if is_array => format!("squeue --jobs={id}` and `tail -f {name}-{id}_0.out"),
        System::Slurm => format!("squeue --jobs={id}` and `tail -f {name}-{id}.out"),
        System::Pbs => format!("qstat -f '{id}'"),
        System::Lsf => format!("bjobs -l {id}` and `bpeek -f {id}"),
        System::Flux => format!("flux jobs {id}` and `tail -f {name}-{id}.out"),
        System::K8s => format!(
            "kubectl get pods --watch` and `kubectl logs -f job/{name}{}",
            if is_array { "-0" } else { "" }
        ),
    }
}

fn new_secret() -> anyhow::Result<String> {
    let mut bytes = [0; SECRET_BYTES];
    let mut random = File::open("/dev/urandom").context("cannot open /dev/urandom")?;
    random.read_exact(&mut bytes).context("cannot read /dev/urandom")?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_found_in_the_answers() -> anyhow::Result<()> {
        let name = "demo".parse()?;
        for (system, answer, found) in [
            (System::Slurm, "71\n", Some("71")),
            (System::Slurm, "71;cluster\n", Some("71")),
            (System::Pbs, "1234[].server\n", Some("1234[].server")),
            (System::Lsf, "Job <71> is submitted to queue <normal>.\n", Some("71")),
            (System::Flux, "f2Nbq9C\n", Some("f2Nbq9C")),
            (System::K8s, "job.batch/demo created\n", Some("demo")),
            (System::Slurm, "\n", None),
            (System::Lsf, "queued", None),
        ] {
            assert_eq!(id(system, &name, answer).as_deref(), found, "{answer:?}");
        }
        Ok(())
    }
}
