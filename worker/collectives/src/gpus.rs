//! Whether the ranks' GPUs can reach each other by NCCL: what each rank has, what follows from all of it, and the attempt.

use std::time::Duration;

use tch::Device;
use thiserror::Error;

use super::nccl::{Invitation, Nccl, NcclError, NcclGroup, Seat, Version};
use super::shared::{Facts, broadcast};
use super::transport::Transport;
use super::{CollectiveError, GlooGroup, ProcessGroup};

/// Ranks with GPUs that cannot reach each other.
#[derive(Debug, Error)]
pub enum GpuError {
    /// Some ranks train on the CPU.
    #[error(
        "rank {gpu} trains on a GPU and rank {cpu} on the CPU: a GPU, its driver or libtorch's CUDA set is missing there; mend \
         that, or train on the CPU everywhere with --gpu-ids none"
    )]
    Mixed {
        /// A rank with a GPU.
        gpu: usize,
        /// One without.
        cpu: usize,
    },
    /// This rank has no NCCL.
    #[error("rank {rank}: {source}")]
    Nccl {
        /// This rank.
        rank: usize,
        /// What is the matter.
        source: NcclError,
    },
    /// Another rank has none.
    #[error("rank {0} cannot load NCCL, as its own message says; the others cannot go without it")]
    NcclElsewhere(usize),
    /// Versions of NCCL that are not the same need not understand each other, and may wait for each other for ever.
    #[error(
        "rank 0 has NCCL {first} and rank {rank} has {other}; install the same libtorch on all nodes (`cargo xtask setup --cuda`)"
    )]
    Versions {
        /// Rank 0's.
        first: Version,
        /// A rank with another.
        rank: usize,
        /// That one.
        other: Version,
    },
    /// Rank 0 could not open a group.
    #[error("rank 0 cannot open a group of NCCL's, as its own message says")]
    NotInvited,
    /// While connecting.
    #[error(transparent)]
    Group(#[from] CollectiveError),
}

/// This rank's GPU, and NCCL or the reason why not.
pub(super) struct Gpu(usize, Result<Nccl, NcclError>);

impl Gpu {
    /// Loads NCCL where it is needed.
    pub(super) fn of(device: Device, wish: Transport) -> Option<Self> {
        match (device, wish) {
            (Device::Cuda(gpu), Transport::Auto) => Some(Self(gpu, Nccl::load())),
            _ => None,
        }
    }

    /// Its NCCL's version as one number; 0 without.
    pub(super) fn version(&self) -> i32 {
        self.1.as_ref().map_or(0, |nccl| nccl.version().0)
    }
}

/// Connects the GPUs of all ranks where they are to be connected. `all` is what every rank has, by rank; `host` is a group of
/// the same ranks. Where the ranks do not go together it fails on all of them, with the cause on the one that has it.
pub(super) fn connect(
    own: Option<Gpu>,
    host: &GlooGroup,
    all: &[Facts],
    timeout: Duration,
) -> Result<Option<NcclGroup>, GpuError> {
    let (rank, size) = (host.rank(), host.size());
    let own = own.map(|Gpu(gpu, nccl)| Ok((gpu, nccl?))).transpose();
    let own = own.map_err(|source| GpuError::Nccl { rank, source })?;
    agreed(all)?;
    // Wishes that differ are told of by who asks for them, on every rank alike.
    let Some((gpu, nccl)) = own.filter(|_| all.iter().all(|facts| facts.wish == Transport::Auto)) else {
        return Ok(None);
    };
    let invitation = invite(host, &nccl)?;
    let seat = Seat { rank, size, timeout };
    Ok(Some(NcclGroup::connect(&nccl, &invitation, seat, gpu)?))
}

/// The same answer on every rank.
fn agreed(all: &[Facts]) -> Result<(), GpuError> {
    let Some(gpu) = all.iter().position(|facts| facts.gpu) else {
        return Ok(());
    };
    if let Some(cpu) = all.iter().position(|facts| !facts.gpu) {
        return Err(GpuError::Mixed { gpu, cpu });
    }
    if all.iter().any(|facts| facts.wish != Transport::Auto) {
        return Ok(());
    }
    if let Some(rank) = all.iter().position(|facts| facts.nccl == 0) {
        return Err(GpuError::NcclElsewhere(rank));
    }
    let first = all[0].nccl;
    match all.iter().position(|facts| facts.nccl != first) {
        Some(rank) => Err(GpuError::Versions { first: Version(first), rank, other: Version(all[rank].nccl) }),
        None => Ok(()),
    }
}

/// Rank 0 makes the invitation and sends it to all; zeros say that it could not.
fn invite(host: &GlooGroup, nccl: &Nccl) -> Result<Invitation, GpuError> {
    let rank = host.rank();
    let own = (rank == 0).then(|| nccl.invite());
    let mut invitation: Invitation = [0; 128];
    if let Some(Ok(made)) = &own {
        invitation = *made;
    }
    broadcast(host, &mut invitation)?;
    match own {
        Some(Err(source)) => Err(GpuError::Nccl { rank, source }),
        _ if invitation == [0; 128] => Err(GpuError::NotInvited),
        _ => Ok(invitation),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn facts(gpu: bool, nccl: i32) -> Facts {
        Facts::new(Transport::Auto, true, gpu, nccl)
    }

    #[test]
    fn ranks_that_go_together_agree() {
        assert!(agreed(&[]).is_ok());
        assert!(agreed(&[facts(false, 0); 3]).is_ok());
        assert!(agreed(&[facts(true, 22_809); 2]).is_ok());
        let staged = Facts { wish: Transport::Gloo, ..facts(true, 0) };
        assert!(agreed(&[staged; 2]).is_ok());
    }

    #[test]
    fn what_does_not_go_together_is_named() {
        let said = |all: &[Facts]| agreed(all).map_or_else(|error| error.to_string(), |()| "agreed".into());
        let text = said(&[facts(true, 22_809), facts(false, 0)]);
        assert!(text.contains("rank 0 trains on a GPU and rank 1 on the CPU"), "{text}");
        let text = said(&[facts(true, 22_809), facts(true, 22_703)]);
        assert!(text.contains("rank 0 has NCCL 2.28.9 and rank 1 has 2.27.3"), "{text}");
        let text = said(&[facts(true, 22_809), facts(true, 22_809), facts(true, 0)]);
        assert!(text.contains("rank 2 cannot load NCCL"), "{text}");
    }
}
