//! The segments in which a group allocates tensors.

use std::cell::RefCell;
use std::sync::{Arc, Weak};

use dtrain_shared_memory::{Element, Region, Segment};
use dtrain_torch_shim::blob;
use tch::{Device, Kind, Tensor};

use super::agree::{self, Failure};
use crate::{CollectiveError, GlooGroup, Operation, ProcessGroup};

/// The segments of one rank. A tensor or an operation keeps a segment alive.
#[derive(Debug)]
pub(crate) struct Segments {
    /// The number of this rank's region.
    region: usize,
    segments: RefCell<Vec<Weak<Segment>>>,
}

/// The place of a tensor in shared memory.
pub(crate) struct Located {
    pub(crate) element: Element,
    /// Bytes from the start of the region.
    pub(crate) offset: usize,
    pub(crate) segment: Arc<Segment>,
}

impl Segments {
    pub(crate) fn new(region: usize) -> Self {
        Self { region, segments: RefCell::default() }
    }

    /// Returns the place of a contiguous tensor, or None if it is not suitably placed in a segment.
    pub(crate) fn locate(&self, tensor: &Tensor) -> Option<Located> {
        if tensor.device() != Device::Cpu || tensor.numel() == 0 {
            return None;
        }
        let element = element(tensor.kind())?;
        let mut segments = self.segments.borrow_mut();
        // Remove unmapped segments: other memory may have their addresses by now.
        segments.retain(|segment| segment.strong_count() > 0);
        let (address, bytes) = (tensor.data_ptr().cast(), tensor.numel() * element.bytes());
        let mut segments = segments.iter().filter_map(Weak::upgrade);
        let (offset, segment) =
            segments.find_map(|segment| Some((segment.offset_of(self.region, address, bytes)?, segment)))?;
        offset.is_multiple_of(element.bytes()).then_some(Located { element, offset, segment })
    }

    /// See [`ProcessGroup::allocate`]. `node` shares the memory; all ranks of `all` get a tensor, or none.
    pub(crate) fn allocate(
        &self,
        (node, all): (&GlooGroup, &GlooGroup),
        numel: usize,
        kind: Kind,
    ) -> Result<Option<Tensor>, CollectiveError> {
        let Some(element) = element(kind).filter(|_| numel > 0) else {
            return Ok(None);
        };
        let bytes = numel.checked_mul(element.bytes()).ok_or_else(|| {
            let reason = format!("{numel} elements of {kind:?} exceed the address space");
            CollectiveError::InvalidTensor(Operation::new("allocate", all.rank()), reason)
        })?;
        let map_tensor = |segment: Segment| -> Result<(Arc<Segment>, Tensor), Failure> {
            segment.reserve(self.region)?;
            let segment = Arc::new(segment);
            let region = Region::new(&segment, self.region).ok_or("this rank has no region")?;
            Ok((segment, blob::from_region(region, numel, kind)?))
        };
        let created = agree::create_jointly(
            node,
            all,
            || {
                let (segment, ticket) = Segment::create(node.size(), bytes)?;
                Ok((map_tensor(segment)?, ticket))
            },
            |ticket| match ticket.region_bytes() {
                wanted if wanted == bytes => map_tensor(Segment::open(ticket)?),
                wanted => Err(format!("rank 0 allocates {wanted} bytes, but this rank {bytes}").into()),
            },
        )?;
        match created {
            Ok((segment, tensor)) => {
                self.segments.borrow_mut().push(Arc::downgrade(&segment));
                Ok(Some(tensor))
            }
            Err(reason) => {
                if all.rank() == 0 {
                    tracing::warn!(
                        "{bytes} bytes of tensors per rank use ordinary memory, which is slower than shared memory: {reason}"
                    );
                }
                Ok(None)
            }
        }
    }
}

fn element(kind: Kind) -> Option<Element> {
    match kind {
        Kind::Float => Some(Element::F32),
        Kind::Double => Some(Element::F64),
        Kind::Half => Some(Element::F16),
        Kind::BFloat16 => Some(Element::Bf16),
        _ => None,
    }
}
