//! A node of a job that is lost.

use dtrain_test_kit::faults::Kind;
use dtrain_test_kit::slurm::Slurm;

use super::plan::NODE_KILLED;
use super::training::{EVERY, Outcome, Reference, Training, end, wait};

/// Kills the daemon of `n1` while a training runs, and starts it again when Slurm has requeued the job. Slurm cannot
/// end the processes of that node; they must end all the same, because the leader has gone.
pub(super) fn kill_daemon(slurm: &Slurm, reference: &Reference) -> Outcome {
    lose(slurm, reference, "daemon", Kind::Daemon, Slurm::kill_daemon)
}

/// Kills all of `n1` while a training runs. The run must end with a code after which the script requeues the job, which
/// starts again when the node is back.
pub(super) fn kill_node(slurm: &Slurm, reference: &Reference) -> Outcome {
    lose(slurm, reference, "node", NODE_KILLED, Slurm::kill_node)
}

fn lose(slurm: &Slurm, reference: &Reference, name: &str, kind: Kind, kill: fn(&Slurm, usize)) -> Outcome {
    let mut training = Training::submit(slurm, name, "30 min", reference.steps);
    let id = training.id.clone();
    wait("a checkpoint", || training.newest_checkpoint() >= 2 * EVERY);
    kill(slurm, 1);
    wait("the job to be requeued", || {
        let job = slurm.job(&id);
        job.state == "PENDING" && job.restarts == 1
    });
    training.look_after_an_attempt(kind);
    slurm.restart_daemon(1);
    training.finish(&end(slurm, &id), reference)
}
