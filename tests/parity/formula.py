"""Numbers that Python and Rust both compute: the parity tests need no committed weights and inputs.

The Rust version is tests/kit/src/formula.rs; README.md states the formula. Before rounding to float32, every
operation is integer arithmetic modulo 2**64 or correctly rounded float64: both versions agree bit by bit.
"""

import math

import numpy as np

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)


def name_hash(name):
    """Returns the 64-bit FNV-1a hash of the UTF-8 bytes of a name."""
    state = 0xCBF29CE484222325
    for byte in name.encode("utf-8"):
        state = ((state ^ byte) * 0x100000001B3) % 2**64
    return state


def words(name, count):
    """Returns the first `count` 64-bit words of a name's stream: splitmix64 seeded with the name's hash."""
    index = np.arange(1, count + 1, dtype=np.uint64)
    z = np.uint64(name_hash(name)) + index * _GOLDEN
    z = (z ^ (z >> np.uint64(30))) * _MIX_1
    z = (z ^ (z >> np.uint64(27))) * _MIX_2
    return z ^ (z >> np.uint64(31))


def unit(name, count):
    """Returns `count` float64 values in [-1, 1), evenly distributed: the upper 53 bits of each word."""
    return (words(name, count) >> np.uint64(11)).astype(np.float64) * 2.0**-52 - 1.0


def state_value(name, shape):
    """Returns the values of one entry of a network's state, float64 (int64 for a batch counter).

    Convolutions get the variance 1 / fan_in and fully connected layers a quarter of it. Normalisations stay
    near the identity, with a positive variance. Tables of vectors (tokens, positions) get values below 1/2.
    """
    count = math.prod(shape)
    if name.endswith("num_batches_tracked"):
        return np.zeros(shape, dtype=np.int64)
    values = unit(name, count)
    if name.endswith(("pos_embed", "cls_token", "wte.weight", "wpe.weight")):
        values = 0.5 * values
    elif len(shape) > 1:
        fan_in = math.prod(shape[1:])
        values = values * math.sqrt((3.0 if len(shape) == 4 else 0.75) / fan_in)
    elif name.endswith("running_var"):
        values = 1.0 + 0.5 * values
    elif name.endswith("weight"):
        values = 0.75 + 0.25 * values
    else:
        values = 0.1 * values
    return values.reshape(shape)


def images(size, count):
    """Returns input images, `count` x 3 x size x size, values in [-1.5, 1.5)."""
    name = f"images.{size}"
    return (1.5 * unit(name, count * 3 * size * size)).reshape(count, 3, size, size)


def labels(size, classes, count):
    """Returns one class per image, int64."""
    return (words(f"labels.{size}", count) % np.uint64(classes)).astype(np.int64)


def gradient(name, step, count):
    """Returns the gradient for the optimizers at one step.

    Magnitudes vary over many powers of two with the index, and every eleventh element is zero, so that both
    `eps` and the division by the second moment matter.
    """
    scale = np.exp2(np.arange(count) % 13 - 6.0)
    values = unit(f"{name}.{step}", count) * scale
    values[np.arange(count) % 11 == 10] = 0.0
    return values
