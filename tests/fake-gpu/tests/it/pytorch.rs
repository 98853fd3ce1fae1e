//! PyTorch on the fake machine.
