//! The number of workers on invented machines.

#![allow(clippy::unwrap_used)]

use super::super::devices::fake::{divided, gpus, machine, no_driver};
use super::*;
use dtrain_common::gpu::{GpuError, NvmlError};

const HOST: HostInfo = HostInfo { cores: 6, listed_gpus: None };

fn request(is_training: bool, nproc: Nproc) -> SizeRequest<'static> {
    SizeRequest { is_training, nproc, is_asked: false, gpu_ids: None }
}

fn never() -> Machine {
    panic!("the driver was asked")
}

/// Returns the number, the place and the note.
fn visible(
    is_training: bool,
    nproc: Nproc,
    probe: Machine,
) -> anyhow::Result<(usize, String, Option<String>)> {
    let size = size(request(is_training, nproc), HOST, || probe)?;
    assert_eq!(size.devices, Devices::Inherited);
    Ok((size.nproc, size.place, size.note))
}

fn chosen(nproc: Nproc, ids: &str, probe: impl FnOnce() -> Machine) -> anyhow::Result<Size> {
    let request = SizeRequest { gpu_ids: Some(&ids.parse().unwrap()), ..request(true, nproc) };
    size(request, HOST, probe)
}

#[test]
fn auto_takes_the_visible_gpus() {
    for (nproc, list, count) in
        [(Nproc::Auto, None, 4), (Nproc::Auto, Some("1,3"), 2), (Nproc::Gpu, Some("0"), 1)]
    {
        let (workers, place, note) = visible(true, nproc, machine(gpus(4), list)).unwrap();
        assert_eq!((workers, note), (count, None));
        assert!(place.ends_with(" (NVIDIA T4) visible"), "{place}");
    }
}

#[test]
fn without_a_gpu_auto_gives_a_note_and_gpu_an_error() {
    for is_training in [true, false] {
        let (count, place, note) = visible(is_training, Nproc::Auto, no_driver()).unwrap();
        assert_eq!((count, place.as_str()), (1, " on the CPU"));
        assert!(note.unwrap().contains("1 worker on the CPU"));
        let error = visible(is_training, Nproc::Gpu, no_driver()).unwrap_err();
        assert!(error.to_string().starts_with("--nproc gpu: "));
        let (count, _, note) = visible(is_training, Nproc::Auto, machine(gpus(2), Some(""))).unwrap();
        assert_eq!(count, 1);
        assert!(note.unwrap().starts_with("CUDA_VISIBLE_DEVICES=\"\" hides the 2 GPUs"));
        assert!(visible(is_training, Nproc::Gpu, machine(gpus(0), None)).is_err());
    }
}

#[test]
fn a_list_of_unknown_gpus_is_an_error_of_a_recipe() {
    for (list, nproc) in [("9", Nproc::Auto), ("0,0", Nproc::Count(1)), ("GPU-ff", Nproc::Gpu)] {
        let error = visible(true, nproc, machine(gpus(2), Some(list))).unwrap_err().to_string();
        let expected =
            format!("CUDA_VISIBLE_DEVICES={list:?} shows none of the 2 GPUs of this machine; list the GPUs");
        assert!(error.starts_with(&expected), "{error}");
        // Without a driver the worker says what to install.
        let without = Machine { list: Some(list.into()), ..no_driver() };
        assert!(visible(true, Nproc::Count(1), without).is_ok());
    }
    // A program may use devices of other makers.
    assert!(visible(false, Nproc::Count(2), machine(gpus(2), Some("9"))).is_ok());
}

#[test]
fn auto_that_is_written_starts_a_program_on_every_core_without_a_gpu() {
    let none: GpuIds = "none".parse().unwrap();
    for (is_training, is_asked, count) in [(false, true, 6), (false, false, 1), (true, true, 1)] {
        let asked = SizeRequest { is_asked, ..request(is_training, Nproc::Auto) };
        let visible = size(asked, HOST, no_driver).unwrap();
        assert_eq!((visible.nproc, visible.place.as_str()), (count, " on the CPU"));
        let note = visible.note.unwrap();
        let says = if count == 6 {
            "starting 6 workers on the CPU, one per core"
        } else {
            "starting 1 worker on the CPU"
        };
        assert!(note.contains(says) && note.ends_with("on the CPU") == (count == 1), "{note}");
        let chosen = size(SizeRequest { gpu_ids: Some(&none), ..asked }, HOST, never).unwrap();
        assert_eq!((chosen.nproc, chosen.devices), (count, Devices::Cpu));
        let on_gpus = size(asked, HOST, || machine(gpus(2), None)).unwrap();
        assert_eq!((on_gpus.nproc, on_gpus.note), (2, None));
    }
}

#[test]
fn a_programs_number_of_workers_needs_no_driver() {
    let four_listed = HostInfo { listed_gpus: Some(4), ..HOST };
    for (nproc, count) in [(Nproc::Count(1), 1), (Nproc::Count(4), 4), (Nproc::Cpu, 6)] {
        let size = size(request(false, nproc), four_listed, never).unwrap();
        assert_eq!((size.nproc, size.place.as_str(), size.note), (count, "", None));
    }
}

#[test]
fn with_fewer_gpus_than_nproc_a_recipe_gets_one_worker_per_gpu() {
    let (count, place, note) = visible(true, Nproc::Count(4), machine(gpus(4), Some("0,2"))).unwrap();
    assert_eq!((count, place.as_str()), (2, ", 2 GPUs (NVIDIA T4) visible"));
    assert_eq!(
        note.unwrap(),
        "--nproc 4, but only 2 GPUs (NVIDIA T4) visible: starting 2 workers instead, one on each; effective batch and \
         learning rate stay those of the recipe, and each worker computes a larger share of every step; results differ by \
         rounding, and more with local BatchNorm; use --gpu-ids none for 4 workers on the CPU"
    );
    let (count, _, note) = visible(true, Nproc::Count(2), machine(gpus(1), None)).unwrap();
    assert_eq!(count, 1);
    assert!(note.unwrap().contains("1 GPU (NVIDIA T4) visible: starting 1 worker instead"));
    let fits = visible(true, Nproc::Count(2), machine(gpus(2), None)).unwrap();
    assert_eq!(fits, (2, ", 2 GPUs (NVIDIA T4) visible".into(), None));
    for hidden in [machine(gpus(2), Some("")), no_driver()] {
        let on_cpu = visible(true, Nproc::Count(3), hidden).unwrap();
        assert_eq!(on_cpu, (3, " on the CPU".into(), None));
    }
}

#[test]
fn a_recipe_uses_one_unnamed_mig_instance() {
    let (count, _, note) = visible(true, Nproc::Count(2), machine(divided(), None)).unwrap();
    assert_eq!(count, 1);
    let one = machine(divided(), Some("MIG-1"));
    assert_eq!(visible(true, Nproc::Auto, one).unwrap().1, ", 1 MIG instance (NVIDIA T4 MIG 1g.8gb) visible");
    let note = note.unwrap();
    for part in [
        "only 1 of 2 MIG instances (NVIDIA T4 MIG 1g.8gb) visible: starting 1 worker instead",
        "name as many MIG instances in --gpu-ids for a worker on each, or use --gpu-ids none",
    ] {
        assert!(note.contains(part), "{note}");
    }
}

#[test]
fn all_cores_and_fewer_gpus_are_an_error_for_a_recipe() {
    let error = visible(true, Nproc::Cpu, machine(gpus(2), None)).unwrap_err();
    assert_eq!(
        error.to_string(),
        "--nproc cpu: 6 workers, but only 2 GPUs (NVIDIA T4) visible; use --nproc 2 or --gpu-ids none for workers on the CPU"
    );
    let error = visible(true, Nproc::Cpu, machine(divided(), None)).unwrap_err();
    assert!(error.to_string().contains("name as many MIG instances"), "{error}");
}

#[test]
fn a_failing_driver_is_reported_before_training_on_the_cpu() {
    let broken = Machine {
        inventory: Err(GpuError::Driver { what: "start".into(), source: NvmlError::LibRmVersionMismatch }),
        ..no_driver()
    };
    let (count, place, note) = visible(true, Nproc::Count(3), broken).unwrap();
    assert_eq!((count, place.as_str()), (3, " on the CPU"));
    let note = note.unwrap();
    assert!(note.starts_with("the NVIDIA driver failed to start: "), "{note}");
    assert!(note.ends_with("; training on the CPU"), "{note}");
}

#[test]
fn gpus_in_use_are_known_if_the_driver_was_asked() {
    let of = |is_training, nproc, probe: Machine| {
        let size = size(request(is_training, nproc), HOST, || probe).unwrap();
        size.gpus.map(|gpus| gpus.devices.len())
    };
    assert_eq!(of(true, Nproc::Count(4), machine(gpus(2), None)), Some(2), "of those that are started");
    assert_eq!(of(true, Nproc::Count(1), machine(gpus(2), None)), Some(1));
    assert_eq!(of(true, Nproc::Count(1), machine(divided(), None)), Some(0), "which of them is not certain");
    assert_eq!(of(true, Nproc::Count(2), no_driver()), None);
    let named = chosen(Nproc::Auto, "1,0", || machine(gpus(8), Some("4,6"))).unwrap();
    let devices = named.gpus.unwrap().devices;
    assert_eq!(devices.iter().map(|device| device.gpu()).collect::<Vec<_>>(), [6, 4]);
}

#[test]
fn a_program_with_more_workers_than_gpus_gets_a_note() {
    let (count, _, note) = visible(false, Nproc::Count(3), machine(gpus(2), None)).unwrap();
    assert_eq!(count, 3);
    assert_eq!(
        note.unwrap(),
        "there are more workers (3) than visible GPUs (2 GPUs (NVIDIA T4)); LOCAL_RANK goes up to 2"
    );
    let without = visible(false, Nproc::Count(3), no_driver()).unwrap();
    assert_eq!(without, (3, String::new(), None));
}

#[test]
fn named_gpus_get_one_worker_each() {
    for nproc in [Nproc::Auto, Nproc::Gpu, Nproc::Count(2)] {
        let size = chosen(nproc, "1,0", || machine(gpus(8), Some("4,6"))).unwrap();
        assert_eq!(size.nproc, 2);
        assert_eq!(size.place, " on GPUs 6 and 4 (NVIDIA T4)");
        assert_eq!(size.note, None);
    }
    for (nproc, says) in [
        (Nproc::Count(3), "--nproc 3 gives 3 workers, but --gpu-ids 1,0 names 2 GPUs; leave out --nproc for"),
        (Nproc::Count(1), "--nproc 1 gives 1 worker, but"),
        (Nproc::Cpu, "--nproc cpu gives 6 workers, but"),
    ] {
        let error = chosen(nproc, "1,0", never).unwrap_err().to_string();
        assert!(error.contains(says), "{error}");
    }
}

#[test]
fn gpu_ids_none_means_the_cpu() {
    for (nproc, count) in [(Nproc::Auto, 1), (Nproc::Count(3), 3), (Nproc::Cpu, 6)] {
        let size = chosen(nproc, "none", never).unwrap();
        assert_eq!((size.nproc, size.devices), (count, Devices::Cpu));
        assert_eq!((size.place.as_str(), size.note), (" on the CPU", None));
    }
    let error = chosen(Nproc::Gpu, "", never).unwrap_err().to_string();
    assert!(error.contains("--nproc gpu and --gpu-ids none contradict each other"), "{error}");
}
