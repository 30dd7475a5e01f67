"""A fused elementwise chain over a million float32: tanh(a)·exp(-b²) + log1p(|a|)."""

from __future__ import annotations

import numpy as np

import funcgrad as fg
import funcgrad.numpy as fnp
from benchmarks.timing import interleaved, report


def chain(xp, a, b):
    """The work itself, on any namespace."""
    return xp.tanh(a) * xp.exp(-b * b) + xp.log1p(xp.abs(a))


def main() -> None:
    """Measure funcgrad, NumPy, and JAX where it is installed."""
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal(1 << 20, np.float32) for _ in range(2))
    ours = fg.jit(lambda a, b: chain(fnp, a, b))
    xs = fnp.array(a), fnp.array(b)
    cases = {"funcgrad": lambda: ours(*xs), "numpy": lambda: chain(np, a, b)}
    try:
        import jax
    except ImportError:
        print("(jax is not installed: pip install jax)")
    else:
        theirs = jax.jit(lambda a, b: chain(jax.numpy, a, b))
        ys = jax.numpy.array(a), jax.numpy.array(b)
        cases["jax"] = lambda: theirs(*ys).block_until_ready()
    report("tanh(a)*exp(-b*b)+log1p(abs(a)), 1M float32", interleaved(cases))


if __name__ == "__main__":
    main()
