"""Random programs under random stacks of transformations mean what they mean run op by op.

Beside each transformed function there is a reference that is only evaluated eagerly, by numpy: a
loop in place of `vmap`, the function itself in place of `jit`, `checkpoint`, a branch or a scan
around it. Forward and reverse mode are held together by the products of cotangents and tangents.
"""

import numpy as np
import pytest
from hypothesis import given, note, settings
from hypothesis import strategies as st

from funcgrad.core.array import Array
from funcgrad.core.ir import interpret, typecheck
from funcgrad.core.trace import aval_of
from funcgrad.ops.base import move_axis, sum_p
from funcgrad.ops.compare import lt
from funcgrad.ops.index import index_in_dim
from funcgrad.ops.shape import concatenate, expand_dims
from funcgrad.transforms.checkpoint import checkpoint
from funcgrad.transforms.cond import cond
from funcgrad.transforms.grad import jvp, linearize, vjp
from funcgrad.transforms.jit import jit
from funcgrad.transforms.make_jaxpr import make_jaxpr
from funcgrad.transforms.scan import scan
from funcgrad.transforms.vmap import vmap
from tests.op_samples_base import as_list
from tests.random_programs import programs

LANES = 2


def arrays(values):
    return [Array(np.asarray(x)) for x in values]


def same(got, wanted, what):
    """Equal up to rounding, on the scale of the result."""
    got, wanted = as_list(got), as_list(wanted)
    assert len(got) == len(wanted)
    for g, w in zip(got, wanted, strict=True):
        g, w = np.asarray(g), np.asarray(w)
        assert (g.shape, g.dtype) == (w.shape, w.dtype), what
        assert np.isfinite(w).all(), f"{what}: the program is to have finite values"
        scale = max(1.0, float(np.abs(w).max(initial=0)))
        bound = (1e-3 if w.dtype == np.float32 else 1e-9) * scale
        np.testing.assert_allclose(g, w, rtol=0, atol=bound, err_msg=what)


def directions(args, seed):
    rng = np.random.default_rng(seed)
    return [rng.uniform(-1, 1, np.shape(x)).astype(aval_of(x).dtype) for x in args]


# ---- transformations beside their references: (function, reference, args) → the same


def by_jit(draw, f, r, args):
    return jit(f), r, args


def by_checkpoint(draw, f, r, args):
    return checkpoint(f), r, args


def by_vmap(draw, f, r, args):
    """Some operands are mapped, at any axis; the lanes of the others are the same."""
    axes = [draw(st.one_of(st.none(), st.integers(0, np.ndim(x)))) for x in args]
    if all(d is None for d in axes):
        axes[0] = 0
    wide = [
        x if d is None else np.stack([x, *(0.7 * x[None])], d).astype(x.dtype)
        for x, d in zip(args, axes, strict=True)
    ]
    out = draw(st.integers(0, 1))

    def loop(*xs):
        lanes = []
        for k in range(LANES):
            own = [x if d is None else index_in_dim(x, k, d, keepdims=False)
                   for x, d in zip(xs, axes, strict=True)]  # fmt: skip
            lanes.append(as_list(r(*own)))
        stacked = []
        for parts in zip(*lanes, strict=True):
            at = min(out, aval_of(parts[0]).ndim)
            stacked.append(concatenate([expand_dims(p, (at,)) for p in parts], at))
        return stacked

    def mapped(*xs):
        outs = vmap(lambda *ys: as_list(f(*ys)), tuple(axes))(*xs)
        return [move_axis(o, 0, min(out, aval_of(o).ndim - 1)) for o in outs]

    return mapped, loop, wide


def by_jvp(draw, f, r, args):
    tangents = directions(args, draw(st.integers(0, 99)))
    push = lambda f: (
        lambda *xs: [
            y for pair in jvp(lambda *ys: as_list(f(*ys)), xs, tuple(tangents)) for y in pair
        ]
    )
    return push(f), push(r), args


def by_linearize(draw, f, r, args):
    tangents = directions(args, draw(st.integers(0, 99)))
    fast = lambda *xs: as_list(linearize(lambda *ys: as_list(f(*ys)), *xs)[1](*tangents))
    slow = lambda *xs: jvp(lambda *ys: as_list(r(*ys)), xs, tuple(tangents))[1]
    return fast, slow, args


def by_vjp(draw, f, r, args):
    seed = draw(st.integers(0, 99))

    def pull(f):
        def gradients(*xs):
            outs, back = vjp(lambda *ys: as_list(f(*ys)), *xs)
            return list(back(arrays(directions(outs, seed))))

        return gradients

    return pull(f), pull(r), args


def by_scan(draw, f, r, args):
    """In the body of a loop of two turns, whose results are stacked."""

    def looped(*xs):
        return scan(lambda k, _: (k, as_list(f(*xs))), 0, None, length=2)[1]

    def twice(*xs):
        return [concatenate([expand_dims(y, (0,))] * 2, 0) for y in as_list(r(*xs))]

    return looped, twice, args


def by_cond(draw, f, r, args):
    which = draw(st.booleans())

    def branched(*xs):
        total = sum_p.bind(xs[0], axes=tuple(range(aval_of(xs[0]).ndim)))
        pred = lt(total, 1e9 if which else -1e9)
        one = lambda *ys: as_list(f(*ys))
        two = lambda *ys: [y * 2 for y in as_list(f(*ys))]
        return cond(pred, one, two, *xs) if which else cond(pred, two, one, *xs)

    return branched, r, args


TRANSFORMS = (by_jit, by_vmap, by_vjp, by_jvp, by_linearize, by_checkpoint, by_scan, by_cond)


def check_stack(draw, most=3):
    block, args = draw(programs())
    f = r = block
    stack = draw(st.lists(st.sampled_from(TRANSFORMS), min_size=1, max_size=most))
    for transform in stack:
        f, r, args = transform(draw, f, r, args)
    names = " of ".join(t.__name__[3:] for t in reversed(stack))
    note(f"{names} of the program\n{block}\non {[aval_of(x) for x in args]}")
    args = arrays(args)
    wanted = r(*args)
    closed = make_jaxpr(f)(*args)
    note(repr(closed))
    typecheck(closed.jaxpr)
    same(f(*args), wanted, f"{names}, eagerly")
    with np.errstate(all="ignore"):
        values = [np.asarray(x) for x in (*closed.consts, *args)]
        same(interpret(closed.jaxpr, np, *values), wanted, f"{names}, interpreted")
    same(jit(f)(*args), wanted, f"jit of {names}")


@given(st.data())
def test_stacks_of_transformations(data):
    check_stack(data.draw)


def check_compiled(program):
    """Forward and backward in one program, and both modes against each other."""
    block, args = program
    note(f"{block}\non {[aval_of(x) for x in args]}\n{make_jaxpr(block)(*args)}")
    tangents = directions(args, 1)

    def everything(xs, ts, ct):
        out, out_t = jvp(block, xs, ts)
        _, back = vjp(block, *xs)
        return out, out_t, back(ct)

    args = arrays(args)
    out = block(*args)
    ct = directions([out], 2)[0]
    given_ = (tuple(args), tuple(arrays(tangents)), Array(ct))
    value, pushed, pulled = everything(*given_)
    same(value, out, "the value by jvp")
    got = jit(everything)(*given_)
    for g, w, what in zip(got, (out, pushed, pulled), ("value", "jvp", "vjp"), strict=True):
        same(list(g) if what == "vjp" else g, list(w) if what == "vjp" else w, f"jit: {what}")
    forward = float(np.sum(ct * np.asarray(pushed), dtype=float))
    reverse = sum(float(np.sum(t * np.asarray(c), dtype=float))
                  for t, c in zip(tangents, pulled, strict=True))  # fmt: skip
    tolerance = 1e-3 if ct.dtype == np.float32 else 1e-8
    sizes = sum(float(np.abs(np.asarray(c)).sum()) for c in pulled)
    assert abs(forward - reverse) <= tolerance * max(1.0, sizes, abs(forward))


@given(programs())
def test_compiled_programs(program):
    check_compiled(program)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@settings(max_examples=3000, derandomize=False)
@given(st.data())
def test_many_stacks(data):
    check_stack(data.draw, most=4)
