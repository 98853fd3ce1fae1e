//! The environment of a worker: torchrun's contract and dtrain's own variables.

use crate::plan::Devices;
use dtrain_common::env::{
    CUDA_VISIBLE_DEVICES, DTRAIN_COLLECTIVE_TIMEOUT, DTRAIN_HEARTBEAT_FILE, DTRAIN_LEASE, DTRAIN_LOG_FORMAT,
    DTRAIN_MEMORY_COPIES, DTRAIN_PROGRESS, DTRAIN_START_UNIX_NS, OMP_NUM_THREADS,
    TORCH_NCCL_ASYNC_ERROR_HANDLING, TORCHELASTIC_ERROR_FILE, TORCHELASTIC_SIGNALS_TO_HANDLE, WorkerEnv,
};
use dtrain_common::log_line::LogFormat;
use std::ffi::OsString;
use std::path::PathBuf;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Variables of Python.
const PYTHONFAULTHANDLER: &str = "PYTHONFAULTHANDLER";
const PYTHONUNBUFFERED: &str = "PYTHONUNBUFFERED";

/// Variables by which libraries choose the network interface, with the text before its name: NCCL takes a bare name for a
/// prefix, so `eth1` would also mean `eth10`.
const INTERFACES: [(&str, &str); 3] =
    [("GLOO_SOCKET_IFNAME", ""), ("NCCL_SOCKET_IFNAME", "="), ("TP_SOCKET_IFNAME", "")];

#[derive(Clone, Debug)]
pub(super) struct Shared {
    /// The variables of all workers of this node; `rank` is that of the first, and is replaced.
    pub(super) worker: WorkerEnv,
    pub(super) own_devices: Option<Vec<String>>,
    pub(super) omp_threads: usize,
    pub(super) start: SystemTime,
    pub(super) devices: Devices,
    pub(super) frames: bool,
    pub(super) format: LogFormat,
    pub(super) signals: String,
    /// The folder for copies of the state, if the recipe asks for them.
    pub(super) memory_copies: Option<PathBuf>,
    pub(super) collective_timeout: Option<Duration>,
    /// The network interface towards other nodes.
    pub(super) interface: Option<String>,
    pub(super) lease: Option<PathBuf>,
}

impl Shared {
    /// Returns all variables of one worker. `inherited` reads the launcher's environment.
    pub(super) fn vars(
        &self,
        index: usize,
        [error_file, heartbeat_file]: &[PathBuf; 2],
        inherited: impl Fn(&str) -> Option<OsString>,
    ) -> Vec<(&'static str, OsString)> {
        let local_rank = if self.own_devices.is_some() { 0 } else { index };
        let rank = self.worker.rank + index;
        let vars = WorkerEnv { rank, local_rank, ..self.worker.clone() }.vars().into_iter();
        let mut vars: Vec<(&'static str, OsString)> =
            vars.map(|(name, value)| (name, value.into())).collect();
        // Always set: in a launcher started by a launcher, the inherited value would be wrong.
        let wants_lines = inherited(DTRAIN_PROGRESS).is_some_and(|value| value == "lines");
        let progress = if self.frames && !wants_lines { "terminal" } else { "lines" };
        let since_epoch = self.start.duration_since(UNIX_EPOCH).unwrap_or_default();
        vars.extend([
            (TORCHELASTIC_ERROR_FILE, error_file.into()),
            (TORCHELASTIC_SIGNALS_TO_HANDLE, self.signals.clone().into()),
            (DTRAIN_HEARTBEAT_FILE, heartbeat_file.into()),
            (DTRAIN_START_UNIX_NS, since_epoch.as_nanos().to_string().into()),
            (DTRAIN_PROGRESS, progress.into()),
            (DTRAIN_LOG_FORMAT, self.format.word().into()),
        ]);
        let copies = self.memory_copies.as_ref();
        vars.extend(copies.map(|place| (DTRAIN_MEMORY_COPIES, place.into())));
        // Always set: the workers of a launcher in a launcher have no lease.
        vars.push((DTRAIN_LEASE, self.lease.as_ref().map_or_else(OsString::new, OsString::from)));
        let timeout = self.collective_timeout.map(|timeout| timeout.as_secs_f64());
        vars.extend(timeout.map(|seconds| (DTRAIN_COLLECTIVE_TIMEOUT, seconds.to_string().into())));
        let defaults = [
            (OMP_NUM_THREADS, self.omp_threads.to_string()),
            (TORCH_NCCL_ASYNC_ERROR_HANDLING, "1".into()),
            // Python prints every thread's stack when SIGABRT or a crash ends it.
            (PYTHONFAULTHANDLER, "1".into()),
            // Python's output is a pipe, which it would buffer; child processes inherit the setting.
            (PYTHONUNBUFFERED, "1".into()),
        ];
        let interface = self.interface.iter();
        let interfaces = interface
            .flat_map(|name| INTERFACES.map(|(variable, before)| (variable, format!("{before}{name}"))));
        let unset = defaults.into_iter().chain(interfaces).filter(|(name, _)| inherited(name).is_none());
        vars.extend(unset.map(|(name, value)| (name, value.into())));
        self.devices.set_vars(index, &mut vars, &inherited);
        if let Some(own) = self.own_devices.as_ref().and_then(|devices| devices.get(index)) {
            vars.retain(|(name, _)| *name != CUDA_VISIBLE_DEVICES);
            vars.push((CUDA_VISIBLE_DEVICES, own.into()));
        }
        vars
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;
    use std::collections::BTreeMap;
    use std::os::unix::ffi::OsStringExt;

    fn shared(frames: bool) -> Shared {
        Shared {
            worker: WorkerEnv {
                rank: 0,
                local_rank: 0,
                gpu: 0,
                group_rank: 0,
                role_name: "default".into(),
                world_size: 3,
                local_world_size: 3,
                group_world_size: 1,
                master_addr: "127.0.0.1".into(),
                master_port: 4711,
                restart_count: 2,
                max_restarts: 5,
                run_id: "r1".into(),
                use_agent_store: false,
                error_file: None,
            },
            own_devices: None,
            omp_threads: 2,
            start: UNIX_EPOCH + Duration::from_nanos(1_700_000_000_123_456_789),
            devices: Devices::Inherited,
            frames,
            format: LogFormat::Json,
            signals: "SIGTERM,SIGINT".into(),
            memory_copies: None,
            collective_timeout: Some(Duration::from_millis(1500)),
            interface: None,
            lease: None,
        }
    }

    fn vars(frames: bool, inherited: &[(&str, &str)]) -> BTreeMap<&'static str, String> {
        let get =
            |name: &str| inherited.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).into());
        let vars = shared(frames).vars(1, &["/run/error.json", "/tmp/beat"].map(PathBuf::from), get);
        let count = vars.len();
        let map: BTreeMap<_, _> =
            vars.into_iter().map(|(name, value)| (name, value.into_string().unwrap())).collect();
        assert_eq!(map.len(), count, "each variable once");
        map
    }

    #[test]
    fn the_users_own_settings_stay() {
        let vars_unset = vars(false, &[]);
        assert_eq!(vars_unset[OMP_NUM_THREADS], "2");
        assert_eq!(vars_unset[TORCH_NCCL_ASYNC_ERROR_HANDLING], "1");
        assert_eq!(vars_unset[PYTHONUNBUFFERED], "1");
        assert!(!vars(false, &[(PYTHONUNBUFFERED, "")]).contains_key(PYTHONUNBUFFERED));
        let set = vars(false, &[(OMP_NUM_THREADS, "7"), (TORCH_NCCL_ASYNC_ERROR_HANDLING, "0")]);
        assert!(!set.contains_key(OMP_NUM_THREADS) && !set.contains_key(TORCH_NCCL_ASYNC_ERROR_HANDLING));
    }

    #[test]
    fn an_interface_is_named_exactly_to_each_library() {
        let shared = Shared { interface: Some("eth1".into()), ..shared(false) };
        let files = ["/e", "/b"].map(PathBuf::from);
        let vars = BTreeMap::from_iter(shared.vars(0, &files, |_| None));
        assert_eq!(vars["NCCL_SOCKET_IFNAME"], "=eth1");
        assert_eq!(
            (&vars["GLOO_SOCKET_IFNAME"], &vars["TP_SOCKET_IFNAME"]),
            (&"eth1".into(), &"eth1".into())
        );
        let set = |name: &str| (name == "NCCL_SOCKET_IFNAME").then(|| "ib".into());
        assert!(!shared.vars(0, &files, set).iter().any(|(name, _)| *name == "NCCL_SOCKET_IFNAME"));
    }

    #[test]
    fn frames_are_for_terminals_and_for_those_who_want_them() {
        assert_eq!(vars(false, &[(DTRAIN_PROGRESS, "terminal")])[DTRAIN_PROGRESS], "lines");
        assert_eq!(vars(true, &[])[DTRAIN_PROGRESS], "terminal");
        assert_eq!(vars(true, &[(DTRAIN_PROGRESS, "lines")])[DTRAIN_PROGRESS], "lines");
    }

    #[test]
    fn the_start_is_in_nanoseconds() {
        assert_eq!(vars(false, &[])[DTRAIN_START_UNIX_NS], "1700000000123456789");
    }

    #[test]
    fn an_error_file_need_not_be_utf8() {
        let path = OsString::from_vec(b"/run/\xff/error.json".to_vec());
        let vars = shared(false).vars(0, &[PathBuf::from(&path), PathBuf::from("/tmp/beat")], |_| None);
        assert!(vars.contains(&(TORCHELASTIC_ERROR_FILE, path)));
    }

    #[test]
    fn a_worker_with_a_gpu_of_its_own_is_the_first_of_one() {
        let of = |devices: &[&str]| {
            let shared = Shared {
                own_devices: Some(devices.iter().map(|device| (*device).to_owned()).collect()),
                ..shared(false)
            };
            let vars = shared.vars(1, &["/e", "/b"].map(PathBuf::from), |_| None);
            BTreeMap::from_iter(vars)
        };
        let vars = of(&["4", "GPU-7"]);
        assert_eq!(vars[dtrain_common::env::LOCAL_RANK], "0");
        assert_eq!(vars[dtrain_common::env::RANK], "1");
        assert_eq!(vars[CUDA_VISIBLE_DEVICES], "GPU-7");
        let vars = of(&[]);
        assert_eq!(vars[dtrain_common::env::LOCAL_RANK], "0");
        assert!(!vars.contains_key(CUDA_VISIBLE_DEVICES));
    }
}
