//! How many workers, and on which devices: what was asked for against what the machine has.

use super::devices::{Chosen, Devices, Machine};
use super::plan::Kind;
use crate::cli::Nproc;
use crate::cli_gpus::GpuIds;
use anyhow::bail;

/// What was asked for.
#[derive(Clone, Copy, Debug)]
pub(super) struct Asked<'a> {
    pub(super) kind: Kind,
    pub(super) nproc: Nproc,
    pub(super) gpu_ids: Option<&'a GpuIds>,
}

/// What is known of the machine without asking the driver.
#[derive(Clone, Copy, Debug)]
pub(super) struct Host {
    pub(super) cores: usize,
    /// GPUs of which the kernel knows, where it is known that all of them are visible.
    pub(super) listed_gpus: Option<usize>,
}

/// The workers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Size {
    pub(super) nproc: usize,
    pub(super) devices: Devices,
    /// Where they run, for the headline, after their number: ` on the CPU`; empty where that is theirs to choose.
    pub(super) place: String,
    /// A sentence where something is not what one might expect.
    pub(super) note: Option<String>,
}

/// The workers that were asked for. `look` asks the driver, where that is needed.
///
/// # Errors
/// A GPU is demanded that is not there, there are fewer than the workers of a recipe need, or the flags contradict each
/// other.
pub(super) fn size(asked: Asked<'_>, host: Host, look: impl FnOnce() -> Machine) -> anyhow::Result<Size> {
    match asked.gpu_ids {
        None => on_the_visible(asked, host, look),
        Some(none) if none.ids().is_empty() => on_the_cpu(asked.nproc, host),
        Some(ids) => on_the_chosen(asked.nproc, ids, host, look),
    }
}

/// The environment decides.
fn on_the_visible(asked: Asked<'_>, host: Host, look: impl FnOnce() -> Machine) -> anyhow::Result<Size> {
    let size = |nproc, place: String, note| {
        Ok(Size {
            nproc,
            devices: Devices::Inherited,
            place,
            note,
        })
    };
    // What a program does on the CPU, alone, or with a GPU for each worker needs no word, and no time for the driver.
    let own_affair = match (asked.kind, asked.nproc) {
        (Kind::Program, Nproc::Cpu) => Some(host.cores),
        (Kind::Program, Nproc::Count(count)) if count == 1 || host.listed_gpus >= Some(count) => Some(count),
        _ => None,
    };
    if let Some(count) = own_affair {
        return size(count, String::new(), None);
    }
    let machine = look();
    let (gpus, described) = (machine.count(), machine.described());
    let on_gpus = || format!(", {described} visible");
    let on_cpu = || " on the CPU".to_owned();
    match (asked.nproc, asked.kind) {
        (Nproc::Auto, _) if gpus == 0 => {
            let note = format!("{described}; starting 1 worker on the CPU");
            size(1, on_cpu(), Some(note))
        }
        (Nproc::Gpu, _) if gpus == 0 => {
            bail!("--nproc gpu: {described}; use --nproc N for N workers on the CPU")
        }
        (Nproc::Auto | Nproc::Gpu, _) => size(gpus, on_gpus(), None),
        (Nproc::Count(_) | Nproc::Cpu, kind) => {
            let count = match asked.nproc {
                Nproc::Count(count) => count,
                _ => host.cores,
            };
            match kind {
                Kind::Recipe if gpus == 0 => size(count, on_cpu(), None),
                // It may know of devices that are not NVIDIA's.
                Kind::Program if gpus == 0 => size(count, String::new(), None),
                _ if count <= gpus => size(count, on_gpus(), None),
                Kind::Recipe => {
                    let more = if machine.shows_an_instance() {
                        ", name as many MIG instances in --gpu-ids,"
                    } else {
                        ""
                    };
                    bail!(
                        "--nproc {}: there would be {count} workers, and what is visible is {described}; use --nproc \
                         {gpus}{more} or --gpu-ids none for workers on the CPU",
                        word(asked.nproc)
                    )
                }
                Kind::Program => {
                    let note = format!(
                        "there are more workers ({count}) than visible GPUs: what is visible is {described}, and \
                         LOCAL_RANK goes to {}",
                        count - 1
                    );
                    size(count, on_gpus(), Some(note))
                }
            }
        }
    }
}

/// `--gpu-ids none`.
fn on_the_cpu(nproc: Nproc, host: Host) -> anyhow::Result<Size> {
    let nproc = match nproc {
        Nproc::Auto => 1,
        Nproc::Cpu => host.cores,
        Nproc::Count(count) => count,
        Nproc::Gpu => bail!(
            "--nproc gpu and --gpu-ids none contradict each other; leave one out, or use --nproc N for N workers on the CPU"
        ),
    };
    Ok(Size {
        nproc,
        devices: Devices::Cpu,
        place: " on the CPU".into(),
        note: None,
    })
}

/// One worker on each of the GPUs that are named.
fn on_the_chosen(
    nproc: Nproc,
    ids: &GpuIds,
    host: Host,
    look: impl FnOnce() -> Machine,
) -> anyhow::Result<Size> {
    let named = ids.ids().len();
    let count = match nproc {
        Nproc::Auto | Nproc::Gpu => named,
        Nproc::Cpu => host.cores,
        Nproc::Count(count) => count,
    };
    if count != named {
        bail!(
            "--nproc {} asks for {count} worker{}, and --gpu-ids {ids} names {named} GPU{}; leave --nproc out for one worker \
             on each GPU that is named",
            word(nproc),
            plural(count),
            plural(named)
        );
    }
    let chosen: Chosen = look().choose(ids)?;
    Ok(Size {
        nproc: count,
        place: format!(" on {}", chosen.described()),
        devices: Devices::Chosen(chosen),
        note: None,
    })
}

/// The value of --nproc.
fn word(nproc: Nproc) -> String {
    match nproc {
        Nproc::Auto => "auto".into(),
        Nproc::Gpu => "gpu".into(),
        Nproc::Cpu => "cpu".into(),
        Nproc::Count(count) => count.to_string(),
    }
}

/// Cores that this process may use; 1 where the system does not tell.
pub(super) fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, std::num::NonZero::get)
}

/// The `s` of a number that is not one.
pub(super) fn plural(count: usize) -> &'static str {
    if count == 1 { "" } else { "s" }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::super::devices::fixtures::{divided, gpus, machine};
    use super::*;
    use dtrain_common::gpu::GpuError;

    const HOST: Host = Host {
        cores: 6,
        listed_gpus: None,
    };

    fn asked(kind: Kind, nproc: Nproc) -> Asked<'static> {
        Asked {
            kind,
            nproc,
            gpu_ids: None,
        }
    }

    fn no_driver() -> Machine {
        Machine {
            inventory: Err(GpuError::NoDriver),
            list: None,
            order: None,
        }
    }

    fn never() -> Machine {
        panic!("the driver was asked")
    }

    /// The number, the place and the note.
    fn visible(kind: Kind, nproc: Nproc, look: Machine) -> anyhow::Result<(usize, String, Option<String>)> {
        let size = size(asked(kind, nproc), HOST, || look)?;
        assert_eq!(size.devices, Devices::Inherited);
        Ok((size.nproc, size.place, size.note))
    }

    fn chosen(nproc: Nproc, ids: &str, look: impl FnOnce() -> Machine) -> anyhow::Result<Size> {
        let asked = Asked {
            gpu_ids: Some(&ids.parse().unwrap()),
            ..asked(Kind::Recipe, nproc)
        };
        size(asked, HOST, look)
    }

    #[test]
    fn auto_takes_the_visible_gpus() {
        for (nproc, list, count) in [
            (Nproc::Auto, None, 4),
            (Nproc::Auto, Some("1,3"), 2),
            (Nproc::Gpu, Some("0"), 1),
        ] {
            let (workers, place, note) = visible(Kind::Recipe, nproc, machine(gpus(4), list)).unwrap();
            assert_eq!((workers, note), (count, None));
            assert!(place.ends_with(" (NVIDIA T4) visible"), "{place}");
        }
    }

    #[test]
    fn without_a_gpu_auto_says_so_and_gpu_refuses() {
        for kind in [Kind::Recipe, Kind::Program] {
            let (count, place, note) = visible(kind, Nproc::Auto, no_driver()).unwrap();
            assert_eq!((count, place.as_str()), (1, " on the CPU"));
            assert!(note.unwrap().contains("1 worker on the CPU"));
            let error = visible(kind, Nproc::Gpu, no_driver()).unwrap_err();
            assert!(error.to_string().starts_with("--nproc gpu: "));
            let (count, _, note) = visible(kind, Nproc::Auto, machine(gpus(2), Some(""))).unwrap();
            assert_eq!(count, 1);
            assert!(
                note.unwrap()
                    .starts_with("CUDA_VISIBLE_DEVICES=\"\" hides the 2 GPUs")
            );
            assert!(visible(kind, Nproc::Gpu, machine(gpus(0), None)).is_err());
        }
    }

    #[test]
    fn a_programs_number_of_workers_needs_no_driver() {
        let four_listed = Host {
            listed_gpus: Some(4),
            ..HOST
        };
        for (nproc, count) in [(Nproc::Count(1), 1), (Nproc::Count(4), 4), (Nproc::Cpu, 6)] {
            let size = size(asked(Kind::Program, nproc), four_listed, never).unwrap();
            assert_eq!((size.nproc, size.place.as_str(), size.note), (count, "", None));
        }
    }

    #[test]
    fn more_workers_than_gpus_are_an_error_for_a_recipe() {
        let error = visible(Kind::Recipe, Nproc::Count(3), machine(gpus(4), Some("0,2"))).unwrap_err();
        assert_eq!(
            error.to_string(),
            "--nproc 3: there would be 3 workers, and what is visible is 2 GPUs (NVIDIA T4); use --nproc 2 or --gpu-ids none \
             for workers on the CPU"
        );
        let error = visible(Kind::Recipe, Nproc::Cpu, machine(gpus(2), None)).unwrap_err();
        assert!(
            error
                .to_string()
                .starts_with("--nproc cpu: there would be 6 workers")
        );
        let error = visible(Kind::Recipe, Nproc::Count(2), machine(divided(), None)).unwrap_err();
        assert!(error.to_string().contains("1 of 2 MIG instances"), "{error}");
        assert!(
            error.to_string().contains("name as many MIG instances"),
            "{error}"
        );
        let fits = visible(Kind::Recipe, Nproc::Count(2), machine(gpus(2), None)).unwrap();
        assert_eq!(fits, (2, ", 2 GPUs (NVIDIA T4) visible".into(), None));
        for hidden in [machine(gpus(2), Some("")), no_driver()] {
            let on_cpu = visible(Kind::Recipe, Nproc::Count(3), hidden).unwrap();
            assert_eq!(on_cpu, (3, " on the CPU".into(), None));
        }
    }

    #[test]
    fn more_workers_than_gpus_are_a_sentence_for_a_program() {
        let (count, _, note) = visible(Kind::Program, Nproc::Count(3), machine(gpus(2), None)).unwrap();
        assert_eq!(count, 3);
        assert_eq!(
            note.unwrap(),
            "there are more workers (3) than visible GPUs: what is visible is 2 GPUs (NVIDIA T4), and LOCAL_RANK goes to 2"
        );
        let without = visible(Kind::Program, Nproc::Count(3), no_driver()).unwrap();
        assert_eq!(without, (3, String::new(), None));
    }

    #[test]
    fn one_worker_on_each_gpu_that_is_named() {
        for nproc in [Nproc::Auto, Nproc::Gpu, Nproc::Count(2)] {
            let size = chosen(nproc, "1,0", || machine(gpus(8), Some("4,6"))).unwrap();
            assert_eq!(size.nproc, 2);
            assert_eq!(size.place, " on GPUs 6 and 4 (NVIDIA T4)");
            assert_eq!(size.note, None);
        }
        for (nproc, says) in [
            (
                Nproc::Count(3),
                "--nproc 3 asks for 3 workers, and --gpu-ids 1,0 names 2 GPUs",
            ),
            (Nproc::Count(1), "--nproc 1 asks for 1 worker, and"),
            (Nproc::Cpu, "--nproc cpu asks for 6 workers, and"),
        ] {
            let error = chosen(nproc, "1,0", never).unwrap_err().to_string();
            assert!(error.contains(says), "{error}");
        }
    }

    #[test]
    fn no_gpu_by_choice_is_the_cpu() {
        for (nproc, count) in [(Nproc::Auto, 1), (Nproc::Count(3), 3), (Nproc::Cpu, 6)] {
            let size = chosen(nproc, "none", never).unwrap();
            assert_eq!((size.nproc, size.devices), (count, Devices::Cpu));
            assert_eq!((size.place.as_str(), size.note), (" on the CPU", None));
        }
        assert!(chosen(Nproc::Gpu, "", never).is_err());
    }
}
