"""Checks that a function's derivatives and batching are what its values say, for tests of ops."""

import itertools

import numpy as np

from funcgrad import dtypes
from funcgrad.core import dims as dims_
from funcgrad.core.array import Array
from funcgrad.core.aval import Linear, Zero
from funcgrad.core.ir import typecheck
from funcgrad.core.staging import stage
from funcgrad.core.trace import aval_of
from funcgrad.ops.base import instantiate
from funcgrad.transforms.autodiff.jvp import jvp_flat
from funcgrad.transforms.autodiff.partial_eval import linearize_flat
from funcgrad.transforms.autodiff.transpose import backward_pass
from funcgrad.transforms.batching.batching import batch_flat
from funcgrad.transforms.batching.trace import BatchAxis


def as_list(out):
    return list(out) if isinstance(out, list | tuple) else [out]


def flat(fun):
    """`fun` with a list of results, those without tangents left out."""
    return lambda *xs: [o for o in as_list(fun(*xs)) if dtypes.is_inexact(aval_of(o).dtype)]


def jvp(fun, primals, tangents):
    """Tangents of the results."""
    return [instantiate(t) for t in jvp_flat(flat(fun), primals, tangents)[1]]


def vjp(fun, primals, cts):
    """Cotangents of the arguments."""
    _, lin = linearize_flat(flat(fun), primals)
    cts = [c for c, nz in zip(cts, lin.out_nonzero, strict=True) if nz]
    args = [*lin.residuals, *(Linear(aval_of(p)) for p in primals)]
    found = backward_pass(lin.jaxpr, args, cts)[len(lin.residuals) :]
    return [instantiate(c) for c in found]


def numpy_list(values):
    return [np.asarray(v) for v in values]


def numeric_jvp(fun, primals, tangents, step=1e-6):
    """Central differences of the results along the tangents."""
    high = flat(fun)(
        *(Array(np.asarray(p + step * t)) for p, t in zip(primals, tangents, strict=True))
    )
    low = flat(fun)(
        *(Array(np.asarray(p - step * t)) for p, t in zip(primals, tangents, strict=True))
    )
    pairs = zip(numpy_list(high), numpy_list(low), strict=True)
    # Infinite results that stay so have the derivative zero.
    return [np.where(a == b, 0, (a - b) / (2 * step)) for a, b in pairs]


def random_like(rng, x):
    x = np.asarray(x)
    noise = rng.standard_normal(x.shape)
    noise = noise + 1j * rng.standard_normal(x.shape) if x.dtype.kind == "c" else noise
    return np.asarray(noise).astype(x.dtype)


def check_derivatives(fun, args, rng, order=2, tol=1e-5):
    """Forward mode against finite differences, reverse mode against forward mode, to `order`."""
    args = [np.asarray(a) for a in args]
    primals = [Array(a) for a in args]
    tangents = [random_like(rng, a) for a in args]
    got = numpy_list(jvp(fun, primals, [Array(t) for t in tangents]))
    for g, n in zip(got, numeric_jvp(fun, args, tangents), strict=True):
        np.testing.assert_allclose(g, n, rtol=tol, atol=tol)
    cts = [random_like(rng, g) for g in got]
    back = numpy_list(vjp(fun, primals, [Array(c) for c in cts]))
    forward = sum(np.sum(c * g) for c, g in zip(cts, got, strict=True))
    reverse = sum(np.sum(t * b) for t, b in zip(tangents, back, strict=True))
    # Complex cotangents pair with tangents by the real part: |z| is linear over the reals only.
    np.testing.assert_allclose(np.real(forward), np.real(reverse), rtol=1e-7, atol=1e-8)
    if order > 1:
        n = len(args)
        check_derivatives(
            lambda *xs: jvp(fun, xs[:n], xs[n:]), [*args, *tangents], rng, order - 1, tol * 10
        )
        check_derivatives(
            lambda *xs: vjp(fun, xs[:n], xs[n:]), [*args, *cts], rng, order - 1, tol * 10
        )


def check_transpose(fun, shapes, rng):
    """A linear function's transpose rule against the adjoint's definition."""
    xs = [Array(rng.standard_normal(s)) for s in shapes]
    outs = as_list(fun(*xs))
    cts = [Array(rng.standard_normal(aval_of(o).shape)) for o in outs]
    back = vjp(fun, xs, cts)
    forward = sum(np.sum(np.asarray(c) * np.asarray(o)) for c, o in zip(cts, outs, strict=True))
    reverse = sum(np.sum(np.asarray(x) * np.asarray(b)) for x, b in zip(xs, back, strict=True))
    np.testing.assert_allclose(forward, reverse, rtol=1e-7, atol=1e-8)


def check_vmap(fun, args, rng, size=3, tol=1e-6):
    """Batching against a loop, for every choice of batched operands, at several batch axes."""
    args = [np.asarray(a) for a in args]
    for i, mapped in enumerate(itertools.product((False, True), repeat=len(args))):
        if not any(mapped):
            continue
        dims = [(i + j) % (a.ndim + 1) if m else None
                for j, (a, m) in enumerate(zip(args, mapped, strict=True))]  # fmt: skip
        stacks = [
            a if d is None else np.stack([a, *(_shuffled(rng, a) for _ in range(size - 1))], d)
            for a, d in zip(args, dims, strict=True)
        ]
        outs, out_dims = batch_flat(
            lambda *xs: as_list(fun(*xs)), BatchAxis(None, size), [Array(s) for s in stacks], dims
        )
        lanes = [
            numpy_list(as_list(fun(*(Array(s if d is None else np.take(s, k, d))
                                     for s, d in zip(stacks, dims, strict=True)))))
            for k in range(size)
        ]  # fmt: skip
        for o, (out, d) in enumerate(zip(outs, out_dims, strict=True)):
            for k, lane in enumerate(lanes):
                one = np.asarray(out) if d is None else np.take(np.asarray(out), k, d)
                assert one.dtype == lane[o].dtype
                np.testing.assert_allclose(
                    one.astype(lane[o].dtype), lane[o], rtol=tol, atol=tol, err_msg=f"{dims}"
                )


def _shuffled(rng, a):
    return rng.permutation(a.reshape(-1)).reshape(a.shape)


def check_dims(fun, args):
    """`fun` as a program typechecks, and the axis mapping of each of its ops fits the shapes."""
    jaxpr, _ = stage(lambda *xs: as_list(fun(*xs)), [aval_of(np.asarray(a)) for a in args])
    typecheck(jaxpr)
    for eqn in jaxpr.eqns:
        if callable(eqn.prim.dims):
            avals = [a.aval for a in eqn.ins]
            mapping = dims_.parse(eqn.prim.dims(*avals, **eqn.params))
            dims_.check(mapping, avals, [v.aval for v in eqn.outs])


def zero_tangent(x):
    """A symbolic zero for an operand that isn't differentiated."""
    return Zero(aval_of(x).tangent())
