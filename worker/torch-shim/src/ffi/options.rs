//! Numbers that cross the boundary unchanged, in C's layout.

/// Counted operations of a thread.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Operations {
    /// Operations that compute, without views, allocations and composed operations.
    pub kernels: u64,
    /// Operations by which the host reads a value, for which it would wait on a GPU.
    pub reads: u64,
}

/// Bytes of the tensors on one device.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Usage {
    /// Used by tensors.
    pub allocated: u64,
    /// Held by the allocator, used or not; on the host equal to `allocated`.
    pub reserved: u64,
    /// The highest `allocated` since the start or the last [`crate::memory::reset_peak`].
    pub peak: u64,
}

/// The settings of the loss of a head.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(C)]
pub struct Head {
    /// The target to ignore.
    pub ignored: i64,
    /// Rows whose logits are held at once, at least 1.
    pub rows: i64,
    /// The multiple, at least 1, to which the vocabulary is padded in products: odd sizes are slow on GPUs.
    /// The padding does not affect the result.
    pub multiple: i64,
}

/// The form of weight decay in an update of Adam.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum WeightDecay {
    /// Added to the gradient, so to both moments: Adam (Kingma and Ba 2015, arXiv 1412.6980) with L2 penalty.
    L2 = 0,
    /// Subtracted from the parameter: AdamW (Loshchilov and Hutter 2019, arXiv 1711.05101).
    Decoupled = 1,
}

/// The options of one Adam or AdamW update.
#[derive(Debug, Clone, Copy, PartialEq)]
#[repr(C)]
pub struct Adam {
    /// Learning rate of this step.
    pub lr: f64,
    /// Decay rates of the gradient's mean and mean square.
    pub betas: [f64; 2],
    /// Weight decay.
    pub weight_decay: f64,
    /// Added to the root of the mean square.
    pub eps: f64,
    /// The form of weight decay.
    pub decay: WeightDecay,
}

/// The options of one SGD update with torch's momentum: v <- momentum v + g, p <- p - lr v.
#[derive(Debug, Clone, Copy, PartialEq)]
#[repr(C)]
pub struct Sgd {
    /// Learning rate of this step.
    pub lr: f64,
    /// Momentum; with 0 there is no momentum buffer.
    pub momentum: f64,
    /// Weight decay, added to the gradient.
    pub weight_decay: f64,
    /// Nesterov's look-ahead: p <- p - lr (g + momentum v).
    pub nesterov: bool,
    /// Whether this is the first update, which sets the momentum buffer to the gradient.
    pub first_step: bool,
}
