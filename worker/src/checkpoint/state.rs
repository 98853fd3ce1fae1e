//! The optimizer's state for a checkpoint: whole tensors where every rank has all of it, and where updates are sharded what this
//! rank has, so that nothing is gathered.

use tch::{Kind, TchError, Tensor};

use super::STEPS;
use super::error::CheckpointError;
use super::items::{Source, item};
use super::layout::Held;
use crate::collectives::{Ranks, ReduceOp};
use crate::engine::{Arena, FlatBuffer, Part, Slot, patiently};
use crate::optim::Optimizer;

/// `step.NAME`, how many updates a parameter has had, and for each kind of state `KIND.NAME`; parameters in the order of
/// construction, which does not depend on how the arena is laid out.
pub(super) fn sources(
    arena: &Arena,
    optimizer: &dyn Optimizer,
    ranks: &Ranks,
) -> Result<Vec<Source>, CheckpointError> {
    let (mut sources, scattered) = patiently(arena.device(), || held(arena, optimizer))?;
    assemble(&mut sources, &scattered, arena, ranks)?;
    Ok(sources)
}

/// Sources, by their place in a list, that no rank can write in ranges, and where their elements lie in memory.
type Scattered<'a> = Vec<(usize, &'a Slot)>;

/// What this rank has of the state, and which of it cannot be written so.
fn held<'a>(
    arena: &'a Arena,
    optimizer: &dyn Optimizer,
) -> Result<(Vec<Source>, Scattered<'a>), CheckpointError> {
    let mut slots: Vec<(usize, &Slot)> = Vec::new();
    for (number, buffer) in arena.buffers().iter().enumerate() {
        slots.extend(buffer.slots.iter().map(|slot| (number, slot)));
    }
    slots.sort_by_key(|(_, slot)| slot.parameter);

    let mut sources = Vec::new();
    for (_, slot) in &slots {
        let steps = Tensor::from(optimizer.steps()[slot.parameter] as i64);
        sources.push(Source::whole(format!("{STEPS}.{}", slot.name), steps)?);
    }
    let shards: Vec<Vec<Part>> = (0..arena.shards()).map(|shard| arena.parts_of(shard)).collect();
    let mut scattered = Vec::new();
    for (kind, held) in optimizer.moments() {
        for &(buffer, slot) in &slots {
            let name = format!("{kind}.{}", slot.name);
            if shards.len() == 1 {
                sources.push(Source::whole(name, slot.view(&held[buffer])?)?.lasting());
                continue;
            }
            let kind = arena.buffers()[buffer].kind;
            let mut source = sharded(name, kind, (buffer, slot), &shards, (arena.parts(), held))?;
            if !is_contiguous(slot) {
                match &source.item.held {
                    Held::Parts(owners) if owners.len() > 1 => scattered.push((sources.len(), slot)),
                    _ => {
                        for (_, tensor) in &mut source.held {
                            *tensor = in_shape(tensor, slot)?;
                        }
                    }
                }
            }
            sources.push(source.lasting());
        }
    }
    Ok((sources, scattered))
}

/// What the ranks have of a slot's state, in the order in which memory holds it.
fn sharded(
    name: String,
    kind: Kind,
    (buffer, slot): (usize, &Slot),
    shards: &[Vec<Part>],
    (own, held): (&[Part], &[Tensor]),
) -> Result<Source, CheckpointError> {
    let all = slot.range();
    let within = |part: &Part| {
        let (start, end) = (all.start.max(part.range.start), all.end.min(part.range.end));
        (part.buffer == buffer && start < end).then_some(start..end)
    };
    let mut owners = Vec::new();
    for (rank, parts) in shards.iter().enumerate() {
        let ends = parts.iter().filter_map(within);
        owners.extend(ends.map(|range| ((range.end - all.start) as u64, rank)));
    }
    owners.sort_unstable();
    let mut source = Source {
        item: item(name, kind, slot.shape.clone(), Held::Parts(owners))?,
        held: Vec::new(),
        lasts: false,
    };
    for (part, tensor) in own.iter().zip(held) {
        if let Some(range) = within(part) {
            let elements = tensor.f_narrow(0, range.start - part.range.start, range.end - range.start)?;
            let place = (range.start - all.start) as u64..(range.end - all.start) as u64;
            source.held.push((place, elements));
        }
    }
    Ok(source)
}

/// Tensors that lie otherwise in memory than in a file, and in parts at several ranks, cannot be written in ranges: every rank
/// gets them whole. These are convolutions' weights that lie pixel by pixel, at a boundary of two ranks' parts.
fn assemble(
    sources: &mut [Source],
    scattered: &[(usize, &Slot)],
    arena: &Arena,
    ranks: &Ranks,
) -> Result<(), CheckpointError> {
    if scattered.is_empty() {
        return Ok(());
    }
    let kind_of = |slot: &Slot| {
        let holds = |buffer: &&FlatBuffer| buffer.slots.iter().any(|own| own.parameter == slot.parameter);
        arena
            .buffers()
            .iter()
            .find(holds)
            .map_or(Kind::Float, |buffer| buffer.kind)
    };
    let bytes_of = |source: &Source, slot: &Slot| slot.len() * (source.item.dtype.bitsize() / 8) as i64;
    let total: i64 = scattered
        .iter()
        .map(|(index, slot)| bytes_of(&sources[*index], slot))
        .sum();
    // As bytes, each of which only one rank sets: a sum of floats would lose the sign of a zero.
    let options = (Kind::Uint8, arena.device());
    let bytes = patiently(arena.device(), || Tensor::f_zeros([total], options))?;
    let mut offset = 0;
    for (index, slot) in scattered {
        let source = &sources[*index];
        let own = bytes.f_narrow(0, offset, bytes_of(source, slot))?;
        for (range, tensor) in &source.held {
            let flat = tensor.f_contiguous()?.f_view_dtype(Kind::Uint8)?;
            let width = (source.item.dtype.bitsize() / 8) as u64;
            let mut place = own.f_narrow(0, (range.start * width) as i64, flat.numel() as i64)?;
            tch::no_grad(|| place.f_copy_(&flat))?;
        }
        offset += bytes_of(source, slot);
    }
    ranks.all_reduce(&bytes, ReduceOp::Sum)?.wait()?;
    let mut offset = 0;
    for (index, slot) in scattered {
        let source = &mut sources[*index];
        let length = bytes_of(source, slot);
        // A copy begins where its elements may.
        let piece = bytes.f_narrow(0, offset, length)?;
        let mut own = patiently(arena.device(), || piece.f_empty_like())?;
        tch::no_grad(|| own.f_copy_(&piece))?;
        let own = own.f_view_dtype(kind_of(slot))?;
        source.held = vec![(0..slot.len() as u64, in_shape(&own, slot)?)];
        source.item.held = Held::All { divisible: false };
        offset += length;
    }
    Ok(())
}

/// Elements in the order of memory as a tensor of the slot's shape.
fn in_shape(flat: &Tensor, slot: &Slot) -> Result<Tensor, TchError> {
    flat.f_as_strided(slot.shape.as_slice(), slot.strides.as_slice(), None)
}

/// Whether the slot's elements lie in memory in the order of a file.
fn is_contiguous(slot: &Slot) -> bool {
    let mut expected = 1;
    let in_order = |(&size, &stride): (&i64, &i64)| {
        let fits = size == 1 || stride == expected;
        expected *= size;
        fits
    };
    slot.is_empty() || slot.shape.iter().zip(&slot.strides).rev().all(in_order)
}
