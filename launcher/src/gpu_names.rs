//! GPUs by name, and their memory as the driver reports it.

use dtrain_common::gpu::{Inventory, Settings, Visible};
use dtrain_common::question::{Gpu, GpuProperties};
use dtrain_common::units::ByteSize;

/// Name, memory in hundredths of a GiB, ten times the compute capability, and multiprocessors.
///
/// The memory is the "total capacity" in PyTorch's out-of-memory messages, from the guides (T4, RTX 2080 Ti,
/// P100) and published messages (RTX 5090, A100-80GB, L40). The other values are from memory, not checked on
/// a device. ECC and the driver take a part of the nominal size; the margin covers some hundredths.
const GPUS: &[(&str, u32, u32, u32)] = &[
    ("a10", 2198, 86, 72),
    ("a10g", 2198, 86, 80),
    ("a100-40gb", 3939, 80, 108),
    ("a100-80gb", 7914, 80, 108),
    ("a30", 2350, 80, 56),
    ("a40", 4435, 86, 84),
    ("a4000", 1573, 86, 48),
    ("a5000", 2357, 86, 64),
    ("a6000", 4741, 86, 84),
    ("b200", 17835, 100, 148),
    ("gtx1080ti", 1091, 61, 28),
    ("h100", 7910, 90, 132),
    ("h200", 13972, 90, 132),
    ("k80", 1117, 37, 13),
    ("l4", 2195, 89, 58),
    ("l40", 4439, 89, 142),
    ("l40s", 4439, 89, 142),
    ("p100", 1589, 60, 56),
    ("p40", 2238, 61, 30),
    ("rtx2080ti", 1057, 75, 68),
    ("rtx3060", 1166, 86, 28),
    ("rtx3060ti", 766, 86, 38),
    ("rtx3070", 766, 86, 46),
    ("rtx3080", 964, 86, 68),
    ("rtx3080ti", 1166, 86, 80),
    ("rtx3090", 2356, 86, 82),
    ("rtx4060", 763, 89, 24),
    ("rtx4060ti-16gb", 1560, 89, 34),
    ("rtx4070", 1160, 89, 46),
    ("rtx4080", 1570, 89, 76),
    ("rtx4090", 2352, 89, 128),
    ("rtx5070", 1150, 120, 48),
    ("rtx5080", 1546, 120, 84),
    ("rtx5090", 3136, 120, 170),
    ("t4", 1474, 75, 40),
    ("v100-16gb", 1577, 70, 80),
    ("v100-32gb", 3174, 70, 80),
];

/// Sizes to plan for if no GPU is named or found.
const USUAL_GIB: [u64; 7] = [8, 12, 16, 24, 40, 48, 80];
const LEAST_BYTES: u64 = 256 << 20;
const MOST_BYTES: u64 = 16 << 40;
const GIB: u64 = 1 << 30;

/// Returns the names of all known GPUs.
pub(crate) fn names() -> impl Iterator<Item = &'static str> {
    GPUS.iter().map(|(name, ..)| *name)
}

/// Parses a list such as `16GiB,24GiB,a100-40gb`. Names ignore case, makers, spaces and dashes.
pub(crate) fn parse_list(list: &str) -> Result<Vec<Gpu>, String> {
    let mut gpus: Vec<Gpu> = Vec::new();
    for entry in list.split(',') {
        let entry = entry.trim();
        if entry.is_empty() {
            return Err(format!(
                "`{list}` has an empty entry; separate GPUs by single commas, such as 16GiB,a100-40gb"
            ));
        }
        let gpu = parse(entry)?;
        if !gpus.contains(&gpu) {
            gpus.push(gpu);
        }
    }
    Ok(gpus)
}

/// Parses `cpu` or `cpu:64GiB`; `None` for another entry.
fn parse_cpu(entry: &str) -> Option<Result<Gpu, String>> {
    let rest = entry.get(..3).filter(|begin| begin.eq_ignore_ascii_case("cpu")).map(|_| &entry[3..])?;
    let Some(memory) = rest.strip_prefix(':') else {
        return rest.is_empty().then(|| Ok(Gpu::cpu("cpu", 0)));
    };
    Some(match memory.trim().parse() {
        Ok(ByteSize(bytes)) if (LEAST_BYTES..=MOST_BYTES).contains(&bytes) => Ok(Gpu::cpu(entry, bytes)),
        _ => Err(format!(
            "`{entry}` has no memory size; give 256 MiB to 16 TiB with the unit, such as cpu:64GiB"
        )),
    })
}

fn parse(entry: &str) -> Result<Gpu, String> {
    if let Some(cpu) = parse_cpu(entry) {
        return cpu;
    }
    let looks_like_a_size = entry.starts_with(|first: char| first.is_ascii_digit() || first == '.');
    if looks_like_a_size && let Ok(ByteSize(bytes)) = entry.parse() {
        let name = entry.to_owned();
        return match (LEAST_BYTES..=MOST_BYTES).contains(&bytes) {
            true => Ok(Gpu { name, ..Gpu::of_size(bytes) }),
            false => Err(format!(
                "`{entry}` is not a GPU's memory; give 256 MiB to 16 TiB with the unit, such as 16GiB"
            )),
        };
    }
    let key = key(entry);
    let is_begun = |name: &str| name.strip_prefix(&*key).is_some_and(|rest| rest.starts_with('-'));
    let begun: Vec<_> = GPUS.iter().filter(|(name, ..)| is_begun(name)).collect();
    // A name with a memory size, of a GPU listed with only one size, such as "h100-80gb".
    let is_sized = |name: &str, hundredths: u32| {
        key.strip_prefix(&*self::key(name))
            .and_then(|rest| rest.strip_suffix("gb")?.parse::<u32>().ok())
            .is_some_and(|gb| (gb * 90..=gb * 101).contains(&hundredths))
    };
    let exact = GPUS.iter().find(|(name, ..)| self::key(name) == key);
    match (exact, &begun[..]) {
        (Some(gpu), _) => return Ok(known(gpu)),
        (None, [_, _, ..]) => {
            let choices: Vec<_> = begun.iter().map(|(name, ..)| *name).collect();
            let choices = choices.join(" or ");
            return Err(format!("`{entry}` matches several GPUs; name one: {choices}"));
        }
        _ => {}
    }
    let sized = GPUS.iter().find(|(name, hundredths, ..)| is_sized(name, *hundredths));
    sized.or(begun.first().copied()).map(known).ok_or_else(|| {
        let (supported, others): (Vec<_>, Vec<_>) = GPUS.iter().map(known).partition(|gpu| gpu.supported);
        let [supported, others] = [supported, others]
            .map(|gpus| gpus.into_iter().map(|gpu| gpu.name).collect::<Vec<_>>().join(", "));
        format!(
            "`{entry}` is not a known GPU{}; give a name or a size of memory, such as a100-40gb or 16GiB. Names: \
             {supported}; too old for libtorch 2.11 with CUDA 13: {others}",
            nearest(&key)
        )
    })
}

fn known(&(name, hundredths, capability, multiprocessors): &(&str, u32, u32, u32)) -> Gpu {
    let bytes = u64::from(hundredths) * GIB / 100;
    let properties = Some(GpuProperties { multiprocessors, capability });
    let (bf16, supported) = (capability >= 80, capability >= 75);
    Gpu { name: name.into(), bytes, bf16, supported, cpu: false, properties }
}

fn key(name: &str) -> String {
    let mut key = name.to_ascii_lowercase();
    for word in ["nvidia", "tesla", "geforce"] {
        key = key.replace(word, "");
    }
    key.retain(|letter| letter.is_ascii_alphanumeric());
    key
}

/// Returns `; did you mean ...?` with at most three similar names.
fn nearest(key: &str) -> String {
    let mut near: Vec<_> = GPUS
        .iter()
        .map(|(name, ..)| (strsim::osa_distance(key, &self::key(name)), *name))
        .filter(|(distance, name)| *distance <= (name.len() / 3).max(1))
        .collect();
    near.sort_unstable();
    let names: Vec<_> = near.into_iter().take(3).map(|(_, name)| name).collect();
    match names.is_empty() {
        true => String::new(),
        false => format!("; did you mean {}?", names.join(" or ")),
    }
}

pub(crate) fn usual() -> Vec<Gpu> {
    USUAL_GIB.map(|gib| Gpu::of_size(gib * GIB)).to_vec()
}

/// Returns the visible GPUs or MIG instances, each kind once. `settings` are those of all GPUs; `bf16`: see [`Gpu::bf16`].
/// Instances have a part of the multiprocessors, which is not known here.
pub(crate) fn of_machine(
    inventory: &Inventory,
    visible: &Visible,
    settings: &[Settings],
    bf16: bool,
) -> Vec<Gpu> {
    let properties = |settings: &Settings| {
        let (major, minor) = settings.capability?;
        let capability = u32::try_from(10 * major + minor).ok()?;
        Some(GpuProperties { multiprocessors: settings.multiprocessors?, capability })
    };
    let mut gpus: Vec<Gpu> = Vec::new();
    let mut devices: Vec<_> = visible.instances(inventory).collect();
    if devices.is_empty() {
        devices = visible.devices().to_vec();
    }
    for index in devices {
        let device = inventory.device(index);
        let properties = settings.get(index.gpu()).filter(|_| !index.is_instance()).and_then(properties);
        let (name, bytes) = (device.name.clone(), device.total_bytes);
        let gpu = Gpu { name, bytes, bf16, supported: true, cpu: false, properties };
        if !gpus.contains(&gpu) {
            gpus.push(gpu);
        }
    }
    gpus
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    fn gib(gpu: &Gpu) -> String {
        format!("{} {}", gpu.name, ByteSize(gpu.bytes))
    }

    #[test]
    fn a_cpu_has_its_own_memory_or_a_named_one() {
        let gpus = parse_list("cpu,CPU:64GiB,t4").unwrap();
        let found: Vec<_> = gpus.iter().map(|gpu| (gpu.cpu, gpu.bytes >> 30)).collect();
        assert_eq!(found, [(true, 0), (true, 64), (false, 14)]);
        assert!(parse_list("cpu:some").unwrap_err().contains("such as cpu:64GiB"));
        assert!(parse_list("cpu4").unwrap_err().contains("is not a known GPU"));
    }

    #[test]
    fn names_and_sizes() {
        let gpus =
            parse_list("16GiB, 24GB,a100-40gb,NVIDIA Tesla T4,GeForce RTX 4090,h100-80gb,V100 32GB").unwrap();
        let shown: Vec<_> = gpus.iter().map(gib).collect();
        assert_eq!(
            shown,
            [
                "16GiB 16.00 GiB",
                "24GB 22.35 GiB",
                "a100-40gb 39.39 GiB",
                "t4 14.74 GiB",
                "rtx4090 23.52 GiB",
                "h100 79.10 GiB",
                "v100-32gb 31.74 GiB"
            ]
        );
        assert_eq!(
            gpus.iter().map(|gpu| gpu.bf16).collect::<Vec<_>>(),
            [true, true, true, false, true, true, false]
        );
        assert!(gpus.iter().all(|gpu| gpu.supported == (gpu.name != "v100-32gb")));
        assert_eq!(parse_list("t4,T4").unwrap().len(), 1);
        assert_eq!(gib(&parse_list("rtx4060ti").unwrap()[0]), "rtx4060ti-16gb 15.60 GiB");
    }

    #[test]
    fn gpu_names_parse_and_usable_memory_is_below_nominal() {
        for gpu in GPUS {
            let read = &parse_list(gpu.0).unwrap()[0];
            assert_eq!((read.name.as_str(), read), (gpu.0, &known(gpu)));
            if let Some(gb) = gpu.0.rsplit('-').next().and_then(|size| size.strip_suffix("gb")) {
                assert!(gpu.1 <= gb.parse::<u32>().unwrap() * 100, "{}", gpu.0);
            }
        }
        let keys: std::collections::BTreeSet<_> = GPUS.iter().map(|(name, ..)| key(name)).collect();
        assert_eq!(keys.len(), GPUS.len());
    }

    #[test]
    fn an_unknown_name_is_an_error_with_the_nearest_names() {
        let said = |list: &str| parse_list(list).unwrap_err().to_string();
        assert!(said("a100-44gb").starts_with("`a100-44gb` is not a known GPU; did you mean a100-40gb"));
        assert!(said("rtx4900").contains("did you mean rtx4090"), "{}", said("rtx4900"));
        assert!(said("cray").contains("such as a100-40gb or 16GiB. Names: a10, a10g, a100-40gb"));
        let too_old =
            "t4; too old for libtorch 2.11 with CUDA 13: gtx1080ti, k80, p100, p40, v100-16gb, v100-32gb";
        assert!(said("cray").ends_with(too_old), "{}", said("cray"));
        assert_eq!(said("a100"), "`a100` matches several GPUs; name one: a100-40gb or a100-80gb");
        assert!(said("16").contains("`16` is not a GPU's memory"));
        assert!(said("17TiB,t4").contains("256 MiB to 16 TiB"));
        assert!(said("16 GiBs").contains("not a known GPU"));
        for list in ["", ",", "t4,", " , t4"] {
            assert!(said(list).contains("empty entry"), "{list:?}");
        }
    }

    #[test]
    fn the_usual_sizes() {
        let names: Vec<_> = usual().into_iter().map(|gpu| gpu.name).collect();
        assert_eq!(names, ["8 GiB", "12 GiB", "16 GiB", "24 GiB", "40 GiB", "48 GiB", "80 GiB"]);
    }
}
