//! NCCL between the ranks' GPUs: the facts of each rank, the decision, and the connection.

use std::time::Duration;

use dtrain_common::installation::install_own_cuda;
use tch::Device;

use super::nccl::{Nccl, NcclError, NcclGroup, RankConfig, UniqueId, Version};
use super::shared::{Facts, broadcast};
use super::transport::Transport;
use super::{ProcessGroup, RendezvousError};

/// This rank's GPU, and NCCL or its error.
pub(super) struct Gpu(usize, Result<Nccl, NcclError>);

impl Gpu {
    /// Loads NCCL if this rank needs it.
    pub(super) fn of(device: Device, preference: Transport) -> Option<Self> {
        match (device, preference) {
            (Device::Cuda(gpu), Transport::Auto | Transport::Mpi) => Some(Self(gpu, Nccl::load())),
            _ => None,
        }
    }

    /// Returns the NCCL version as one number, or 0 without NCCL.
    pub(super) fn version(&self) -> i32 {
        self.1.as_ref().map_or(0, |nccl| nccl.version().0)
    }
}

/// Checks that the ranks fit together and returns NCCL if they need it. `all` has the facts of every rank, by rank.
/// If they do not fit together, it fails on all of them; the rank with the cause returns the cause.
pub(super) fn check(
    own: Option<Gpu>,
    rank: usize,
    all: &[Facts],
) -> Result<Option<(usize, Nccl)>, RendezvousError> {
    let needs_nccl = |facts: &Facts| facts.preference == Transport::Auto;
    let own = match own.map(|Gpu(gpu, nccl)| Ok((gpu, nccl?))).transpose() {
        // MPI exchanges tensors of GPUs itself where there is no NCCL.
        Err(_) if !all.iter().any(needs_nccl) => None,
        own => own.map_err(|error| local_error(rank, &error))?,
    };
    check_facts(all).map_err(RendezvousError::Gpus)?;
    let same = |facts: &Facts| facts.preference == all[0].preference && facts.nccl == all[0].nccl;
    // Different choices of transport are reported by the caller, equally on all ranks.
    Ok(own.filter(|_| all.iter().all(same)))
}

/// Connects the GPUs of all ranks. NCCL's id goes by `host`, a group of the same ranks.
pub(super) fn connect(
    (gpu, nccl): (usize, Nccl),
    host: &dyn ProcessGroup,
    timeout: Duration,
) -> Result<NcclGroup, RendezvousError> {
    let (rank, size) = host.rank_and_size();
    let unique_id = share_unique_id(host, &nccl)?;
    let config = RankConfig { rank, size, timeout };
    Ok(NcclGroup::connect(&nccl, &unique_id, config, gpu, host.lost_peer())?)
}

fn local_error(rank: usize, error: &NcclError) -> RendezvousError {
    RendezvousError::Gpus(format!("rank {rank}: {error}"))
}

/// Checks that the facts of all ranks fit together. All ranks get the same result.
fn check_facts(all: &[Facts]) -> Result<(), String> {
    let Some(gpu) = all.iter().position(|facts| facts.gpu) else {
        return Ok(());
    };
    if let Some(cpu) = all.iter().position(|facts| !facts.gpu) {
        return Err(format!(
            "rank {gpu} trains on a GPU and rank {cpu} on the CPU: rank {cpu} has no GPU, no driver or no CUDA set of libtorch; \
             install them, or train on the CPU everywhere with --gpu-ids none"
        ));
    }
    if all.iter().any(|facts| facts.preference != Transport::Auto) {
        return Ok(());
    }
    if let Some(rank) = all.iter().position(|facts| facts.nccl == 0) {
        return Err(format!(
            "rank {rank} cannot load NCCL, which all ranks need; see the message of rank {rank}"
        ));
    }
    // Different versions may be incompatible, and may wait for each other forever.
    let first = all[0].nccl;
    match all.iter().position(|facts| facts.nccl != first) {
        Some(rank) => Err(format!(
            "rank 0 has NCCL {} and rank {rank} has {}; install the same libtorch on all nodes ({})",
            Version(first),
            Version(all[rank].nccl),
            install_own_cuda()
        )),
        None => Ok(()),
    }
}

/// Creates the unique id on rank 0 and sends it to all. Zeros mean that rank 0 failed.
fn share_unique_id(host: &dyn ProcessGroup, nccl: &Nccl) -> Result<UniqueId, RendezvousError> {
    let rank = host.rank();
    let own = (rank == 0).then(|| nccl.create_unique_id());
    let mut unique_id: UniqueId = [0; 128];
    if let Some(Ok(created)) = &own {
        unique_id = *created;
    }
    broadcast(host, &mut unique_id)?;
    match own {
        Some(Err(error)) => Err(local_error(rank, &error)),
        _ if unique_id == [0; 128] => {
            let reason = "rank 0 cannot create an NCCL group; see the message of rank 0";
            Err(RendezvousError::Gpus(reason.to_owned()))
        }
        _ => Ok(unique_id),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn facts(gpu: bool, nccl: i32) -> Facts {
        Facts::new(Transport::Auto, &dtrain_common::env::WorkerEnv::single(), gpu, nccl)
    }

    #[test]
    fn compatible_ranks_pass_the_check() {
        assert!(check_facts(&[]).is_ok());
        assert!(check_facts(&[facts(false, 0); 3]).is_ok());
        assert!(check_facts(&[facts(true, 22_809); 2]).is_ok());
        let staged = Facts { preference: Transport::Gloo, ..facts(true, 0) };
        assert!(check_facts(&[staged; 2]).is_ok());
    }

    #[test]
    fn incompatible_ranks_are_named() {
        let check =
            |all: &[Facts]| check_facts(all).map_or_else(|error| error.to_string(), |()| "agreed".into());
        let text = check(&[facts(true, 22_809), facts(false, 0)]);
        assert!(text.contains("rank 0 trains on a GPU and rank 1 on the CPU"), "{text}");
        let text = check(&[facts(true, 22_809), facts(true, 22_703)]);
        assert!(text.contains("rank 0 has NCCL 2.28.9 and rank 1 has 2.27.3"), "{text}");
        let text = check(&[facts(true, 22_809), facts(true, 22_809), facts(true, 0)]);
        assert!(text.contains("rank 2 cannot load NCCL"), "{text}");
    }
}
