//! Runs one rank of several trainings, one after another: `training-rank LIST`.
//!
//! LIST is a JSON file, an array of [`Training`]s written by `dtrain_tests::trainings`. All train the task
//! [`task::Subject`] with the normal engine; one process loads libtorch once for all of them.

mod data;
mod nets;
mod task;

use std::error::Error;
use std::process::ExitCode;
use std::time::Duration;

use dtrain_common::env::WorkerEnv;
use dtrain_common::exit::ExitStatus;
use dtrain_common::run_dir::Resume;
use dtrain_tests::trainings::Training;
use dtrain_torch_shim::store::TcpStore;
use dtrain_worker::{Request, run_task};

const CONNECT_TIMEOUT: Duration = Duration::from_secs(60);

fn main() -> ExitCode {
    match train_all() {
        Ok(()) => dtrain_torch_shim::end_process(0),
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

fn train_all() -> Result<(), Box<dyn Error>> {
    let list = std::env::args().nth(1).ok_or("usage: training-rank LIST")?;
    let list = std::fs::read_to_string(&list).map_err(|error| format!("{list}: {error}"))?;
    let list: Vec<Training> = serde_json::from_str(&list)?;
    dtrain_torch_shim::quiet_logs();
    let env = WorkerEnv::from_process()?;
    // One store for all trainings: a rank that starts before its store takes half a second to find it.
    let _store = match (env.rank, env.world_size) {
        (0, 2..) => Some(TcpStore::serve((&env.master_addr, env.master_port), None, CONNECT_TIMEOUT)?),
        _ => None,
    };
    for (number, training) in list.into_iter().enumerate() {
        let name = training.run_dir.display().to_string();
        let env = WorkerEnv { use_agent_store: true, run_id: format!("training-{number}"), ..env.clone() };
        let request = Request {
            recipe: training.recipe.display().to_string(),
            overrides: training.sets,
            run_dir: Some(training.run_dir),
            resume: Resume::Auto,
            prepared: false,
            job: None,
        };
        match run_task::<task::Subject>(&request, &env) {
            Ok(ExitStatus::Success) => {}
            Ok(other) => return Err(format!("{name}: {}", other.describe()).into()),
            Err(error) => return Err(format!("{name}: {error}").into()),
        }
    }
    Ok(())
}
