//! Batch scripts and manifests that start `dtrain launch` on the nodes of a job.
//!
//! [`JobSpec`] describes the job, [`JobSpec::check`] refuses what a batch system cannot do, and [`render`]
//! writes the script. All are pure: the crate reads no file and starts no program.
//! Invariant: no text of the user becomes a directive or shell code, except `--env-setup`.
#![deny(unsafe_code)]
#![expect(missing_docs, reason = "the names of most fields and variants say what they are")]

mod array;
mod check;
mod directive;
mod flux;
mod k8s;
mod launch;
mod lsf;
mod pbs;
mod remote;
mod script;
mod slurm;
mod spec;
mod taken;
mod text;
mod volume;

pub use array::{Array, ArrayError, ArrayFlag};
pub use check::SpecError;
pub use directive::{Directive, DirectiveError};
pub use k8s::MARK as K8S_MARK;
pub use spec::{Account, Extra, JobSpec, Setup, Size, System, Target, TimeLimit, Work};
pub use text::{Name, TextError, Value, Word};
pub use volume::{Volume, VolumeError};

/// Returns the script or manifest. The job must have passed [`JobSpec::check`] for this system.
pub fn render(system: System, spec: &JobSpec) -> String {
    match system {
        System::Slurm => slurm::render(spec),
        System::Pbs => pbs::render(spec),
        System::Lsf => lsf::render(spec),
        System::Flux => flux::render(spec),
        System::K8s => k8s::render(spec),
    }
}

/// Returns the objects of Kubernetes: Jobs, and those of a job of several nodes.
pub fn k8s_objects(spec: &JobSpec) -> Vec<String> {
    k8s::objects(spec)
}

/// Returns a manifest of Kubernetes with the secret of the rendezvous, which [`render`] only names. `None`: the
/// job needs no such manifest.
pub fn secret_manifest(system: System, spec: &JobSpec, value: &str) -> Option<String> {
    (system == System::K8s).then(|| k8s::secret_manifest(spec, value)).flatten()
}
