"""Random numbers that depend only on a seed and a position, so the order of drawing does not matter."""

import numpy as np

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


def _mix(x: np.ndarray) -> np.ndarray:
    """The finalizer of splitmix64 (Steele, Lea, Flood 2014): a bijection in which each bit affects all."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def uniforms(seeds: np.ndarray, positions: np.ndarray) -> np.ndarray:
    """f64 `[N]` in [0, 1) with 53 random bits. `seeds` u64 `[N]`, `positions` integers `[N]`."""
    with np.errstate(over="ignore"):
        stream = _mix(seeds.astype(np.uint64) + _GOLDEN)
        bits = _mix(stream + _GOLDEN * (positions.astype(np.uint64) + np.uint64(1)))
    return (bits >> np.uint64(11)).astype(np.float64) * 2.0**-53
