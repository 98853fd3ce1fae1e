//! Where workers are that seem to hang, for the user.

use super::group::Group;
use crossbeam_channel::Sender;
use dtrain_agent::io::process::stacks;
use dtrain_agent::local::{Event, INSPECTION};
use std::fs;
use std::path::Path;

/// Writes down where the workers are that hang, for each beside its logs, or tells all where no logs are kept. A debugger takes
/// its time, so it is done on threads; the agent hears when it is done, with the number.
pub(super) fn inspect(group: &Group, ranks: &[usize], number: u32, notices: &Sender<String>) {
    let pids = group.pids();
    let hanging: Vec<_> = ranks
        .iter()
        .filter_map(|&rank| Some((rank, pids[rank]?, group.files.stacks_path(rank))))
        .collect();
    let (notices, events) = (notices.clone(), group.events.clone());
    let look = move || {
        std::thread::scope(|scope| {
            for (rank, pid, path) in &hanging {
                let notices = notices.clone();
                scope.spawn(move || {
                    // Fails only when the run is over.
                    let _ = notices.send(where_it_is(*rank, *pid, path.as_deref()));
                });
            }
        });
        let _ = events.send(Event::Inspected { number });
    };
    let thread = std::thread::Builder::new().name("inspect".to_owned());
    if thread.spawn(look).is_err() {
        let _ = group.events.send(Event::Inspected { number });
    }
}

fn where_it_is(rank: usize, pid: u32, path: Option<&Path>) -> String {
    let found = stacks::of(pid, INSPECTION);
    let indented: String = found.lines().map(|line| format!("\n    {line}")).collect();
    match path.map(|path| (path, fs::write(path, &found))) {
        Some((path, Ok(()))) => format!("dtrain: where rank {rank} is: {}", path.display()),
        Some((_, Err(error))) => format!("dtrain: where rank {rank} is (cannot be kept: {error}):{indented}"),
        None => format!("dtrain: where rank {rank} is:{indented}"),
    }
}
