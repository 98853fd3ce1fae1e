//! Figures that go over the boundary as they are, in C's layout.

/// Operations of a thread.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Operations {
    /// Those that compute: views, fresh memory and what is composed of others are not among them.
    pub kernels: u64,
    /// Those by which the host reads a value, for which a GPU would be waited for.
    pub reads: u64,
}

/// Bytes of tensors on one device.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Usage {
    /// In use by tensors.
    pub allocated: u64,
    /// Held by the allocator, in use or not; on the host as `allocated`.
    pub reserved: u64,
    /// The highest `allocated` since the start or the last [`crate::memory::reset_peak`].
    pub peak: u64,
}

/// How the loss of a head is computed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(C)]
pub struct Head {
    /// The target that counts for nothing.
    pub ignored: i64,
    /// Rows whose logits are there at a time, at least 1.
    pub rows: i64,
    /// Within a product the vocabulary is filled up to a multiple of this, at least 1: products of odd sizes are slow on GPUs. What is
    /// filled up counts for nothing.
    pub multiple: i64,
}

/// How weight decay enters an update of Adam.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum WeightDecay {
    /// Added to the gradient, and so to both moments: Adam (Kingma and Ba 2015, arXiv 1412.6980) with an L2 penalty.
    L2 = 0,
    /// Taken from the parameter itself: AdamW (Loshchilov and Hutter 2019, arXiv 1711.05101).
    Decoupled = 1,
}

/// The figures of one Adam or AdamW update.
#[derive(Debug, Clone, Copy, PartialEq)]
#[repr(C)]
pub struct Adam {
    /// Learning rate of this step.
    pub lr: f64,
    /// Decay of the mean and of the mean square of the gradient.
    pub betas: [f64; 2],
    /// Weight decay.
    pub weight_decay: f64,
    /// Added to the root of the mean square.
    pub eps: f64,
    /// How weight decay enters.
    pub decay: WeightDecay,
}

/// The figures of one SGD update with torch's momentum: v <- momentum v + g, p <- p - lr v.
#[derive(Debug, Clone, Copy, PartialEq)]
#[repr(C)]
pub struct Sgd {
    /// Learning rate of this step.
    pub lr: f64,
    /// Momentum; with 0 there is no buffer.
    pub momentum: f64,
    /// Weight decay, added to the gradient.
    pub weight_decay: f64,
    /// Nesterov's look-ahead: p <- p - lr (g + momentum v).
    pub nesterov: bool,
    /// The first update sets the momentum buffer to the gradient.
    pub first_step: bool,
}
