//! A node whose daemon is killed.

use dtrain_test_kit::slurm::Slurm;

use super::plan::Kind;
use super::training::{EVERY, Outcome, Reference, Training, end, wait};

/// Kills the daemon of `n1` while a training runs, and starts it again when Slurm has requeued the job. Slurm cannot
/// end the processes of that node; they must end all the same, because the leader has gone.
pub(super) fn kill(slurm: &Slurm, reference: &Reference) -> Outcome {
    let mut training = Training::submit(slurm, "daemon", "30 min", reference.steps);
    let id = training.id.clone();
    wait("a checkpoint", || training.newest_checkpoint() >= 2 * EVERY);
    slurm.kill_daemon(1);
    wait("Slurm to requeue the job", || {
        let job = slurm.job(&id);
        job.state == "PENDING" && job.restarts == 1
    });
    training.look_after_an_attempt(Kind::Daemon);
    slurm.restart_daemon(1);
    training.finish(&end(slurm, &id), reference)
}
