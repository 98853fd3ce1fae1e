//! The tensors of an archive: parameters and buffers go to the registry, constants to the device.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet};

use dtrain_torch_shim::symbolic::is_symbolic;
use tch::{Kind, Tensor};

use super::archive::Archive;
use super::dtype::dtype;
use super::schema::{InputSpec, Payload, Payloads, Signature, TensorMeta};
use crate::dtype::dtype_of;
use crate::error::ModelError;
use crate::exported_error::{Problem, Result};
use crate::registry::Registry;

/// The tensors of a program by their names in Python's module.
#[derive(Default)]
pub(super) struct Tensors {
    by_name: HashMap<String, Tensor>,
    constants: Vec<(Payload, Tensor)>,
    /// Names whose tensors have memory in common in Python, and not here.
    overlaps: Vec<[String; 2]>,
}

/// The folder of constants.
const CONSTANTS: &str = "data/constants/";
/// The folder of parameters and buffers.
const WEIGHTS: &str = "data/weights/";
/// The entry with the constants of the program for evaluation, if they have other names.
const EVALUATION_CONSTANTS: &str = "extra/evaluation_constants_config.json";

impl Tensors {
    /// Reads constants; those of the same file and view are one tensor. Only a buffer, which may change, is its own.
    fn read_constants(
        &mut self,
        archive: &mut Archive,
        config: Vec<(String, Payload)>,
        registry: &Registry,
        signature: &Signature,
    ) -> Result<(), ModelError> {
        let buffers = signature.input_specs.iter().filter_map(|spec| match spec {
            InputSpec::Buffer { buffer_name, .. } => Some(buffer_name.as_str()),
            _ => None,
        });
        let buffers: HashSet<&str> = buffers.collect();
        for (name, payload) in config {
            if buffers.contains(name.as_str()) {
                if let Entry::Vacant(entry) = self.by_name.entry(name) {
                    let value = tensor(archive, CONSTANTS, entry.key(), &payload)?;
                    entry.insert(value.f_to_device(registry.device())?);
                }
                continue;
            }
            let known = self.constants.iter().find(|(known, _)| is_same(known, &payload));
            let value = match known {
                Some((_, value)) => value.shallow_clone(),
                None => {
                    let value =
                        tensor(archive, CONSTANTS, &name, &payload)?.f_to_device(registry.device())?;
                    self.constants.push((payload, value.shallow_clone()));
                    value
                }
            };
            self.by_name.insert(name, value);
        }
        Ok(())
    }

    pub(super) fn get(&self, name: &str) -> Option<&Tensor> {
        self.by_name.get(name)
    }

    /// Returns the name of another tensor that has memory in common with this one in Python, and not here.
    pub(super) fn overlapping(&self, name: &str) -> Option<&str> {
        let [one, other] = self.overlaps.iter().find(|pair| pair.iter().any(|own| own == name))?;
        Some(if one == name { other } else { one })
    }
}

/// Reads all tensors; the weights of `products` may be held in fewer bytes. Those of `state_dict` are registered in its order, under its names; a name that shares the data of
/// an earlier one is tied to it.
pub(super) fn load(
    archive: &mut Archive,
    registry: &mut Registry,
    signature: &Signature,
    products: &HashSet<String>,
) -> Result<Tensors, ModelError> {
    let mut tensors = Tensors::default();
    let mut first: HashMap<String, Vec<(String, Payload)>> = HashMap::new();
    for (name, payload) in payloads(archive, WEIGHTS, "_weights_config.json")? {
        let views = first.entry(payload.path_name.clone()).or_default();
        if let Some((of, _)) = views.iter().find(|(_, known)| is_same(known, &payload)) {
            registry.root().repeat(&name, of);
            let tensor = tensors.by_name[of].shallow_clone();
            tensors.by_name.insert(name, tensor);
            continue;
        }
        let init = tensor(archive, WEIGHTS, &name, &payload)?;
        for (of, known) in views.iter().filter(|(_, known)| overlap(known, &payload)) {
            if is_trained(known) || is_trained(&payload) {
                return Err(archive.error(Problem::Overlap(of.clone(), name)).into());
            }
            tensors.overlaps.push([of.clone(), name.clone()]);
        }
        let tensor = register(archive, registry, &name, &payload, &init, products)?;
        tensors.by_name.insert(name.clone(), tensor);
        views.push((name, payload));
    }
    let constants = payloads(archive, CONSTANTS, "_constants_config.json")?;
    tensors.read_constants(archive, constants, registry, signature)?;
    Ok(tensors)
}

/// Returns the tensors of the program for evaluation: the same parameters and buffers, and its own constants.
pub(super) fn of_evaluation(
    archive: &mut Archive,
    shared: Tensors,
    registry: &Registry,
    signature: &Signature,
) -> Result<Tensors, ModelError> {
    let mut tensors = shared;
    if archive.has(EVALUATION_CONSTANTS) {
        let Payloads { config } = archive.json(EVALUATION_CONSTANTS)?;
        tensors.read_constants(archive, config, registry, signature)?;
    }
    Ok(tensors)
}

/// Reads the lists of payloads in a folder; a name of a later list does not replace that of an earlier one.
fn payloads(archive: &mut Archive, folder: &str, ending: &str) -> Result<Vec<(String, Payload)>> {
    let (mut all, mut known) = (Vec::new(), HashSet::new());
    for list in archive.names(folder, ending) {
        let Payloads { config } = archive.json(&list)?;
        all.extend(config.into_iter().filter(|(name, _)| known.insert(name.clone())));
    }
    Ok(all)
}

fn is_same(one: &Payload, other: &Payload) -> bool {
    let view = |payload: &Payload| {
        let meta = payload.tensor_meta.as_ref()?;
        let layout = (constants(&meta.sizes)?, constants(&meta.strides)?, offset(meta));
        Some((payload.path_name.clone(), payload.is_param, meta.dtype, layout))
    };
    view(one).is_some_and(|found| Some(found) == view(other))
}

/// Returns whether two views of a file, which fit it, have an element in common.
fn overlap(one: &Payload, other: &Payload) -> bool {
    let elements = |payload: &Payload| {
        let meta = payload.tensor_meta.as_ref()?;
        let (sizes, strides) = (constants(&meta.sizes)?, constants(&meta.strides)?);
        let Extent { begin, end, elements } = Extent::of(&sizes, &strides, offset(meta))?;
        Some((begin..end, elements, sizes, strides))
    };
    // Reading the tensors tells what is wrong with them.
    let (Some((extent, count, sizes, strides)), Some((other, others, other_sizes, other_strides))) =
        (elements(one), elements(other))
    else {
        return false;
    };
    if count == 0 || others == 0 || extent.start >= other.end || other.start >= extent.end {
        return false;
    }
    // Views without gaps meet if their extents do.
    if count >= extent.len() || others >= other.len() {
        return true;
    }
    let mut own = vec![false; extent.len()];
    positions(&sizes, &strides).for_each(|position| own[position] = true);
    // Positions count from the beginning of each extent.
    let mut others = positions(&other_sizes, &other_strides).map(|position| other.start + position);
    others.any(|position| extent.contains(&position) && own[position - extent.start])
}

/// Returns the positions of a view's elements from its first one; [`Extent::of`] has checked them.
fn positions(sizes: &[i64], strides: &[i64]) -> impl Iterator<Item = usize> {
    let dims: Vec<(usize, usize)> =
        sizes.iter().zip(strides).map(|(size, stride)| (*size as usize, *stride as usize)).collect();
    (0..dims.iter().map(|(size, _)| size).product()).map(move |number: usize| {
        let mut rest = number;
        let along = dims.iter().rev().map(|(size, stride)| {
            let index = rest % size;
            rest /= size;
            index * stride
        });
        along.sum()
    })
}

fn is_trained(payload: &Payload) -> bool {
    payload.is_param && payload.tensor_meta.as_ref().is_some_and(|meta| meta.requires_grad)
}

fn constants(sizes: &[super::schema::Size]) -> Option<Vec<i64>> {
    sizes.iter().map(super::schema::Size::constant).collect()
}

fn offset(meta: &TensorMeta) -> i64 {
    meta.storage_offset.as_ref().and_then(super::schema::Size::constant).unwrap_or(0)
}

/// Reads one tensor on the CPU, in the layout that it had.
fn tensor(archive: &mut Archive, folder: &str, name: &str, payload: &Payload) -> Result<Tensor, ModelError> {
    let Some(meta) = payload.tensor_meta.as_ref().filter(|_| !payload.use_pickle) else {
        return Err(archive.error(Problem::Pickled(name.to_owned())).into());
    };
    let Some((kind, _)) = dtype(meta.dtype) else {
        return Err(archive.error(Problem::Dtype(name.to_owned(), meta.dtype)).into());
    };
    let unfit = |reason: &str| Problem::Tensor(name.to_owned(), reason.to_owned());
    let (Some(sizes), Some(strides)) = (constants(&meta.sizes), constants(&meta.strides)) else {
        return Err(archive.error(unfit("its shape is not constant")).into());
    };
    let Some(Extent { begin, end, elements }) = Extent::of(&sizes, &strides, offset(meta)) else {
        return Err(archive.error(unfit("its shape or strides are invalid")).into());
    };
    if elements == 0 {
        return Ok(Tensor::f_empty(sizes.as_slice(), (kind, tch::Device::Cpu))?);
    }
    let (entry, size) = (format!("{folder}{}", payload.path_name), kind.elt_size_in_bytes());
    if archive.may_lack_weights && folder == WEIGHTS && !archive.has(&entry) {
        let storage = Tensor::f_zeros([(end - begin) as i64], (kind, tch::Device::Cpu))?;
        return Ok(storage.f_as_strided(sizes.as_slice(), strides.as_slice(), 0)?);
    }
    let has = archive.size(&entry)? as usize / size;
    if end > has {
        let reason = format!("its shape {sizes:?} needs {end} elements, and the archive has {has}");
        return Err(archive.error(unfit(&reason)).into());
    }
    archive.spend(name, (elements.max(end - begin) as u64).saturating_mul(size as u64))?;
    let length = [(end - begin) as i64];
    let storage = match is_symbolic() {
        // A plan needs no values, and the file may be larger than this machine's memory.
        true => Tensor::f_zeros(length, (kind, tch::Device::Cpu))?,
        false => Tensor::f_from_data_size(&archive.bytes(&entry)?[begin * size..end * size], &length, kind)?,
    };
    Ok(storage.f_as_strided(sizes.as_slice(), strides.as_slice(), 0)?)
}

/// The part of a file that a view reaches.
struct Extent {
    begin: usize,
    end: usize,
    /// The number of the view's elements, which can be more than those of the part.
    elements: usize,
}

impl Extent {
    fn of(sizes: &[i64], strides: &[i64], offset: i64) -> Option<Self> {
        if sizes.len() != strides.len() {
            return None;
        }
        let begin = usize::try_from(offset).ok()?;
        let (mut last, mut elements) = (begin, 1usize);
        for (&size, &stride) in sizes.iter().zip(strides) {
            let (size, stride) = (usize::try_from(size).ok()?, usize::try_from(stride).ok()?);
            last = last.checked_add(size.saturating_sub(1).checked_mul(stride)?)?;
            elements = elements.checked_mul(size)?;
        }
        Some(Self { begin, end: last.checked_add(1)?, elements })
    }
}

fn register(
    archive: &Archive,
    registry: &mut Registry,
    name: &str,
    payload: &Payload,
    init: &Tensor,
    products: &HashSet<String>,
) -> Result<Tensor, ModelError> {
    let kind = init.f_kind()?;
    let remedy = match kind {
        _ if !payload.is_param => None,
        Kind::Half | Kind::BFloat16 | Kind::Double => {
            Some("call model.float() before the export, and set precision.amp in the recipe")
        }
        _ if init.is_complex() => {
            Some("make it real by torch.view_as_real, and use torch.view_as_complex in forward")
        }
        _ => None,
    };
    if let Some(remedy) = remedy {
        let reason = format!("the parameter `{name}` is {kind:?}: {remedy}");
        return Err(archive.error(Problem::Unfit(reason)).into());
    }
    if dtype_of(kind).is_none() {
        let reason = format!(
            "checkpoints cannot have the buffer `{name}`, which is {kind:?}: make it complex64, or register it with persistent=False"
        );
        return Err(archive.error(Problem::Unfit(reason)).into());
    }
    // PyTorch also has parameters of whole numbers, which are never trained.
    if payload.is_param && kind == Kind::Float {
        let frozen = registry.frozen.as_ref().and_then(|frozen| frozen.of(name));
        if let Some(frozen) = frozen.filter(|_| products.contains(name)) {
            return Ok(registry.root().frozen(name, init, frozen)?.leaf);
        }
        return registry.root().parameter_or_frozen(name, init, is_trained(payload));
    }
    registry.root().foreign_buffer(name, init)
}
