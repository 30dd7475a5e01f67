"""Comparison of our functions with NumPy's, eager, compiled and batched; and of derivatives."""

import numpy as np

from funcgrad.core.array import Array
from funcgrad.transforms.batching.vmap import vmap
from funcgrad.transforms.derivatives.linear import jvp, vjp
from funcgrad.transforms.jit.jit import jit


def leaves(out):
    return [leaf for o in out for leaf in leaves(o)] if isinstance(out, list | tuple) else [out]


def same(ours, theirs, rtol=1e-6, atol=1e-6, dtype=True):
    """Results have NumPy's structure, shapes and values, and (where `dtype`) its dtypes."""
    several = isinstance(ours, list | tuple)
    ours, theirs = leaves(ours), leaves(theirs) if several else [np.asarray(theirs)]
    assert len(ours) == len(theirs)
    for a, b in zip(ours, theirs, strict=True):
        a, b = np.asarray(a), np.asarray(b)
        assert a.shape == b.shape
        assert not dtype or a.dtype == b.dtype
        np.testing.assert_allclose(a, b, rtol=rtol, atol=atol)


def same_as_numpy(ours, theirs, *args, jitted=True, **options):
    """ours(*args) is theirs(*args), also when compiled with all arguments traced."""
    expected = theirs(*args)
    arrays = [Array(np.asarray(a)) for a in args]
    same(ours(*arrays), expected, **options)
    if jitted:
        same(jit(ours, backend="numpy")(*arrays), expected, **options)


def same_batched(ours, *stacks, **options):
    """vmap over the first axes is a loop over them."""
    lanes = [
        leaves(ours(*(Array(np.asarray(s[i])) for s in stacks))) for i in range(len(stacks[0]))
    ]
    out = leaves(vmap(ours)(*(Array(s) for s in stacks)))
    same(out, [np.stack([np.asarray(x) for x in lane]) for lane in zip(*lanes, strict=True)])


def check_grad(fun, *args, step=1e-6, tol=1e-5, seed=0):
    """Forward mode against central differences, reverse mode against forward mode, in float64."""
    rng = np.random.default_rng(seed)
    args = [np.asarray(a) for a in args]
    tangents = [_noise(rng, a) for a in args]
    primals = [Array(a) for a in args]
    flat = lambda *xs: leaves(fun(*xs))
    _, got = jvp(flat, primals, [Array(t) for t in tangents])
    high, low = (
        flat(*(Array(np.asarray(a + s * t)) for a, t in zip(args, tangents, strict=True)))
        for s in (step, -step)
    )
    for g, h, lo in zip(got, high, low, strict=True):
        numeric = (np.asarray(h) - np.asarray(lo)) / (2 * step)
        np.testing.assert_allclose(np.asarray(g), numeric, rtol=tol, atol=tol)
    out, pull = vjp(flat, *primals)
    cts = [_noise(rng, np.asarray(o)) for o in out]
    back = pull([Array(c) for c in cts])
    forward = sum(np.sum(c * np.asarray(g)) for c, g in zip(cts, got, strict=True))
    reverse = sum(np.sum(t * np.asarray(b)) for t, b in zip(tangents, back, strict=True))
    np.testing.assert_allclose(np.real(forward), np.real(reverse), rtol=1e-7, atol=1e-8)


def _noise(rng, x):
    noise = rng.standard_normal(x.shape)
    return (noise + 1j * rng.standard_normal(x.shape) if x.dtype.kind == "c" else noise).astype(
        x.dtype
    )
