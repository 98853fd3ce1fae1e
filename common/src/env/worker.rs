//! The environment of one worker: its rank and its launch.

use std::path::PathBuf;
use std::str::FromStr;

use super::{
    GROUP_RANK, GROUP_WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR, MASTER_PORT, RANK, ROLE_NAME,
    ROLE_RANK, ROLE_WORLD_SIZE, TORCHELASTIC_ERROR_FILE, TORCHELASTIC_MAX_RESTARTS,
    TORCHELASTIC_RESTART_COUNT, TORCHELASTIC_RUN_ID, TORCHELASTIC_USE_AGENT_STORE, WORLD_SIZE, of_process,
};

const ESSENTIAL: [&str; 4] = [RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT];

type Result<T, E = EnvError> = std::result::Result<T, E>;

/// An error in the environment of a worker.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum EnvError {
    #[error(
        "the environment variable {missing} is not set although {present} is; set RANK, WORLD_SIZE, MASTER_ADDR \
         and MASTER_PORT for a distributed start, or neither RANK nor WORLD_SIZE for a single process"
    )]
    Missing { missing: &'static str, present: &'static str },
    #[error("the environment variable {name} is {value:?}; expected {expected}")]
    Invalid { name: &'static str, value: String, expected: &'static str },
    #[error("the environment variable {0} is {1}; expected a number below {2} = {3}")]
    RankOutOfRange(&'static str, usize, &'static str, usize),
}

/// The rank and the launch of one worker, from its environment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WorkerEnv {
    pub rank: usize,
    pub local_rank: usize,
    /// Index of this worker's GPU among those that it sees: the local rank, unless a job shows each task its own.
    pub gpu: usize,
    /// Rank of this worker's node among the nodes.
    pub group_rank: usize,
    /// Name of the role, the same for all workers.
    pub role_name: String,
    pub world_size: usize,
    pub local_world_size: usize,
    /// Number of nodes.
    pub group_world_size: usize,
    pub master_addr: String,
    pub master_port: u16,
    pub restart_count: u32,
    pub max_restarts: u32,
    pub run_id: String,
    /// Whether the launcher serves the store; rank 0 then connects to it like every other rank.
    pub use_agent_store: bool,
    pub error_file: Option<PathBuf>,
}

impl WorkerEnv {
    /// Returns rank 0 of 1 on this machine, for a worker that was started without a launcher.
    pub fn single() -> Self {
        Self {
            rank: 0,
            local_rank: 0,
            gpu: 0,
            group_rank: 0,
            role_name: "default".into(),
            world_size: 1,
            local_world_size: 1,
            group_world_size: 1,
            master_addr: "127.0.0.1".into(),
            master_port: 29500,
            restart_count: 0,
            max_restarts: 0,
            run_id: "none".into(),
            use_agent_store: false,
            error_file: None,
        }
    }

    /// Returns [`WorkerEnv::single`] without RANK and WORLD_SIZE, else reads the contract through `get`.
    ///
    /// With either of them set, RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT are required. The other
    /// variables have defaults: the workers are divided among GROUP_WORLD_SIZE nodes (1 if unset) in rank
    /// order.
    pub fn from_lookup(get: impl Fn(&str) -> Option<String>) -> Result<Self> {
        if get(RANK).is_none() && get(WORLD_SIZE).is_none() {
            return Ok(Self::single());
        }
        let present = if get(RANK).is_some() { RANK } else { WORLD_SIZE };
        if let Some(missing) = ESSENTIAL.into_iter().find(|name| get(name).is_none()) {
            return Err(EnvError::Missing { missing, present });
        }
        let read = Reader(&get);
        let single = Self::single();
        let world_size = read.size(WORLD_SIZE, 1)?;
        let rank = read.rank(RANK, 0, WORLD_SIZE, world_size)?;
        let nodes = read.size(GROUP_WORLD_SIZE, 1)?;
        let local_size = read.size(LOCAL_WORLD_SIZE, world_size.div_ceil(nodes))?;
        let node = (rank / local_size).min(nodes - 1);
        let role_size = read.size(ROLE_WORLD_SIZE, world_size)?;
        read.rank(ROLE_RANK, rank.min(role_size - 1), ROLE_WORLD_SIZE, role_size)?;
        let local_rank = read.rank(LOCAL_RANK, rank % local_size, LOCAL_WORLD_SIZE, local_size)?;
        let error_file = get(TORCHELASTIC_ERROR_FILE).filter(|path| !path.is_empty());
        Ok(Self {
            rank,
            local_rank,
            gpu: local_rank,
            group_rank: read.rank(GROUP_RANK, node, GROUP_WORLD_SIZE, nodes)?,
            role_name: get(ROLE_NAME).unwrap_or(single.role_name),
            world_size,
            local_world_size: local_size,
            group_world_size: nodes,
            master_addr: read.value(MASTER_ADDR, String::new(), "a host name or an IP address", host)?,
            master_port: read.number(MASTER_PORT, single.master_port, "a port from 0 to 65535")?,
            restart_count: read.number(TORCHELASTIC_RESTART_COUNT, 0, WHOLE)?,
            max_restarts: read.number(TORCHELASTIC_MAX_RESTARTS, 0, WHOLE)?,
            run_id: get(TORCHELASTIC_RUN_ID).unwrap_or(single.run_id),
            use_agent_store: read.value(TORCHELASTIC_USE_AGENT_STORE, false, "True or False", flag)?,
            error_file: error_file.map(PathBuf::from),
        })
    }

    /// Calls [`WorkerEnv::from_lookup`] on the environment of this process.
    pub fn from_process() -> Result<Self> {
        let env = Self::from_lookup(of_process)?;
        // A path need not be UTF-8.
        let file = std::env::var_os(TORCHELASTIC_ERROR_FILE).map(PathBuf::from);
        Ok(Self { error_file: env.error_file.and(file), ..env })
    }

    /// Returns whether all workers are on one node.
    pub fn is_one_node(&self) -> bool {
        self.local_world_size == self.world_size
    }

    /// Returns every variable of the contract with its value. The launcher sets them.
    pub fn vars(&self) -> Vec<(&'static str, String)> {
        // Python's spelling: PyTorch compares with str(True).
        let agent_store = if self.use_agent_store { "True" } else { "False" };
        let mut vars = vec![
            (RANK, self.rank.to_string()),
            (LOCAL_RANK, self.local_rank.to_string()),
            (GROUP_RANK, self.group_rank.to_string()),
            (ROLE_RANK, self.rank.to_string()),
            (ROLE_NAME, self.role_name.clone()),
            (WORLD_SIZE, self.world_size.to_string()),
            (LOCAL_WORLD_SIZE, self.local_world_size.to_string()),
            (GROUP_WORLD_SIZE, self.group_world_size.to_string()),
            (ROLE_WORLD_SIZE, self.world_size.to_string()),
            (MASTER_ADDR, self.master_addr.clone()),
            (MASTER_PORT, self.master_port.to_string()),
            (TORCHELASTIC_RESTART_COUNT, self.restart_count.to_string()),
            (TORCHELASTIC_MAX_RESTARTS, self.max_restarts.to_string()),
            (TORCHELASTIC_RUN_ID, self.run_id.clone()),
            (TORCHELASTIC_USE_AGENT_STORE, agent_store.into()),
        ];
        if let Some(path) = &self.error_file {
            vars.push((TORCHELASTIC_ERROR_FILE, path.to_string_lossy().into_owned()));
        }
        vars
    }
}

const WHOLE: &str = "a whole number of at least 0";

struct Reader<'a>(&'a dyn Fn(&str) -> Option<String>);

impl Reader<'_> {
    /// Returns the variable as `read` reads it, or `default` if it is not set.
    fn value<T>(
        &self,
        name: &'static str,
        default: T,
        expected: &'static str,
        read: impl FnOnce(&str) -> Option<T>,
    ) -> Result<T> {
        let Some(value) = (self.0)(name) else { return Ok(default) };
        read(value.trim()).ok_or(EnvError::Invalid { name, value, expected })
    }

    fn number<T: FromStr>(&self, name: &'static str, default: T, expected: &'static str) -> Result<T> {
        self.value(name, default, expected, |value| value.parse().ok())
    }

    fn size(&self, name: &'static str, default: usize) -> Result<usize> {
        self.value(name, default, "a whole number of at least 1", |value| {
            value.parse().ok().filter(|size| *size > 0)
        })
    }

    fn rank(&self, name: &'static str, default: usize, of: &'static str, size: usize) -> Result<usize> {
        let rank = self.number(name, default, WHOLE)?;
        if rank < size { Ok(rank) } else { Err(EnvError::RankOutOfRange(name, rank, of, size)) }
    }
}

fn host(value: &str) -> Option<String> {
    let is_bad = |letter: char| letter.is_whitespace() || letter == char::REPLACEMENT_CHARACTER;
    (!value.is_empty() && !value.contains(is_bad)).then(|| value.to_owned())
}

fn flag(value: &str) -> Option<bool> {
    match value.to_ascii_lowercase().as_str() {
        "true" | "1" => Some(true),
        "false" | "0" | "" => Some(false),
        _ => None,
    }
}

#[cfg(test)]
mod tests;
