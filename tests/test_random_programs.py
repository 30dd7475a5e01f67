"""Random programs under random stacks of transformations mean what they mean run op by op.

Beside each transformed function there is a reference that is only evaluated eagerly, by numpy: a
loop in place of `vmap`, the function itself in place of `jit`, `checkpoint`, a branch or a scan
around it. Forward and reverse mode are held together by the products of cotangents and tangents.
"""

import itertools

import numpy as np
import pytest
from hypothesis import currently_in_test_context, given, note, settings
from hypothesis import strategies as st

from funcgrad.core.array import Array
from funcgrad.core.ir import interpret, typecheck
from funcgrad.core.trace import aval_of
from funcgrad.ops.base import move_axis, sum_p
from funcgrad.ops.elementwise.compare import eq, ne
from funcgrad.ops.indexing.windows_at import index_in_dim
from funcgrad.ops.shape import concatenate, expand_dims
from funcgrad.transforms.batching.vmap import vmap
from funcgrad.transforms.control.cond import cond
from funcgrad.transforms.control.scan import scan
from funcgrad.transforms.derivatives.checkpoint import checkpoint
from funcgrad.transforms.derivatives.linear import jvp, linearize, vjp
from funcgrad.transforms.jit.jit import jit
from funcgrad.transforms.jit.make_jaxpr import make_jaxpr
from tests.op_samples_base import as_list
from tests.random_programs import Drawn, Rolled, integer_program, narrow_program, program

LANES = 2
TOLERANCE = {"float64": 1e-9, "float32": 1e-3, "float16": 0.06, "bfloat16": 0.4}
pytestmark = pytest.mark.timeout(3600)  # for the thorough profile


def arrays(values):
    return [Array(np.asarray(x)) for x in values]


def same(got, wanted, what):
    """Equal up to rounding, on the scale of the result."""
    got, wanted = as_list(got), as_list(wanted)
    assert len(got) == len(wanted)
    for g, w in zip(got, wanted, strict=True):
        g, w = np.asarray(g), np.asarray(w)
        assert (g.shape, g.dtype) == (w.shape, w.dtype), what
        if w.dtype.kind in "iu":
            np.testing.assert_array_equal(g, w, err_msg=what)
            continue
        assert np.isfinite(w).all(), f"{what}: the program is to have finite values"
        scale = max(1.0, float(np.abs(w).max(initial=0)))
        bound = TOLERANCE[w.dtype.name] * scale
        g, w = g.astype(np.float64), w.astype(np.float64)
        np.testing.assert_allclose(g, w, rtol=0, atol=bound, err_msg=what)


def tell(text):
    """Printed with an example of hypothesis that fails."""
    if currently_in_test_context():
        note(text)


def directions(args, seed):
    rng = np.random.default_rng(seed)
    return [rng.uniform(-1, 1, np.shape(x)).astype(aval_of(x).dtype) for x in args]


# ---- transformations beside their references: (function, reference, args) → the same


def by_jit(choose, f, r, args):
    return jit(f), r, args


def by_checkpoint(choose, f, r, args):
    return checkpoint(f), r, args


def by_vmap(choose, f, r, args):
    """Some operands are mapped, at any axis; the lanes of the others are the same."""
    axes = [choose.one_of([*range(np.ndim(x) + 1), None]) for x in args]
    if all(d is None for d in axes):
        axes[0] = 0
    wide = [
        x if d is None else np.stack([x, 0.7 * x], d).astype(x.dtype)
        for x, d in zip(args, axes, strict=True)
    ]
    out = choose.integer(0, 1)

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


def by_jvp(choose, f, r, args):
    tangents = tuple(directions(args, choose.integer(0, 99)))

    def push(f):
        return lambda *xs: [*itertools.chain(*jvp(lambda *ys: as_list(f(*ys)), xs, tangents))]

    return push(f), push(r), args


def by_linearize(choose, f, r, args):
    tangents = tuple(directions(args, choose.integer(0, 99)))
    fast = lambda *xs: linearize(lambda *ys: as_list(f(*ys)), *xs)[1](*tangents)
    slow = lambda *xs: jvp(lambda *ys: as_list(r(*ys)), xs, tangents)[1]
    return fast, slow, args


def by_vjp(choose, f, r, args):
    seed = choose.integer(0, 99)

    def pull(f):
        def gradients(*xs):
            outs, back = vjp(lambda *ys: as_list(f(*ys)), *xs)
            return list(back(arrays(directions(outs, seed))))

        return gradients

    return pull(f), pull(r), args


def by_scan(choose, f, r, args):
    """In the body of a loop of two turns, whose results are stacked."""

    def looped(*xs):
        return scan(lambda k, _: (k, as_list(f(*xs))), 0, None, length=2)[1]

    def twice(*xs):
        return [concatenate([expand_dims(y, (0,))] * 2, 0) for y in as_list(r(*xs))]

    return looped, twice, args


def by_cond(choose, f, r, args):
    """In one of two branches; the operands say which."""
    which = bool(choose.integer(0, 1))

    def branched(*xs):
        total = sum_p.bind(xs[0], axes=tuple(range(aval_of(xs[0]).ndim)))
        pred = eq(total, total) if which else ne(total, total)
        one = lambda *ys: as_list(f(*ys))
        two = lambda *ys: [y * 2 for y in as_list(f(*ys))]
        return cond(pred, one, two, *xs) if which else cond(pred, two, one, *xs)

    return branched, r, args


TRANSFORMS = (by_jit, by_vmap, by_vjp, by_jvp, by_linearize, by_checkpoint, by_scan, by_cond)


def check_stack(choose, block, args, most=3, transforms=TRANSFORMS):
    """A program under a stack of transformations: eagerly, interpreted and compiled."""
    f = r = block
    stack = [choose.one_of(transforms) for _ in range(choose.integer(1, most))]
    for transform in stack:
        f, r, args = transform(choose, f, r, args)
    names = " of ".join(t.__name__[3:] for t in reversed(stack))
    tell(f"{names} of the program\n{block}\non {[aval_of(x) for x in args]}")
    args = arrays(args)
    wanted = r(*args)
    closed = make_jaxpr(f)(*args)
    tell(repr(closed))
    typecheck(closed.jaxpr)
    same(f(*args), wanted, f"{names}, eagerly")
    with np.errstate(all="ignore"):
        values = [np.asarray(x) for x in (*closed.consts, *args)]
        same(interpret(closed.jaxpr, np, *values), wanted, f"{names}, interpreted")
    same(jit(f)(*args), wanted, f"jit of {names}")


EXACT = (by_jit, by_vmap, by_checkpoint, by_scan, by_cond)


def check_integers(choose, block, args):
    """Integers are equal to the last bit."""
    check_stack(choose, block, args, transforms=EXACT)


def check_narrow(choose, block, args):
    """Narrow floats, which are rounded more often eagerly."""
    check_stack(choose, block, args, most=2)


def check_both_modes(choose, block, args):
    """Forward and backward in one compiled program, and both modes against each other."""
    tangents = directions(args, 1)
    args = arrays(args)
    tell(f"{block}\non {[aval_of(x) for x in args]}\n{make_jaxpr(block)(*args)}")

    def everything(xs, ts, ct):
        out, out_t = jvp(block, xs, ts)
        _, back = vjp(block, *xs)
        return [out, out_t, *back(ct)]

    out = block(*args)
    ct = directions([out], 2)[0]
    operands = (tuple(args), tuple(arrays(tangents)), Array(ct))
    _, pushed, *pulled = wanted = everything(*operands)
    same(wanted[0], out, "the value by jvp")
    same(jit(everything)(*operands), wanted, "jit of jvp and vjp")
    forward = float(np.sum(ct * np.asarray(pushed), dtype=float))
    terms = [t * np.asarray(c) for t, c in zip(tangents, pulled, strict=True)]
    reverse = sum(float(np.sum(x, dtype=float)) for x in terms)
    sizes = sum(float(np.abs(x).sum()) for x in terms)
    assert abs(forward - reverse) <= 10 * TOLERANCE[ct.dtype.name] * max(1.0, sizes), (
        forward,
        reverse,
    )


@given(st.data())
def test_stacks_of_transformations(data):
    choose = Drawn(data.draw)
    check_stack(choose, *program(choose))


@given(st.data())
def test_stacks_of_transformations_of_integers(data):
    choose = Drawn(data.draw)
    check_integers(choose, *integer_program(choose))


@pytest.mark.long
@given(st.data())
def test_both_modes(data):
    choose = Drawn(data.draw)
    check_both_modes(choose, *program(choose))


# ---- many programs by seeds: faster and more varied, with a shrinker of their own


def failure(check, seed, block, args):
    """What a check of a program raises, with the choices that the seed makes after the program."""
    try:
        check(Rolled(-seed - 1), block, args)
    except Exception as error:
        return error
    return None


def check_seed(check, seed):
    block, args = MAKERS.get(check, program)(Rolled(seed), most=14)
    error = failure(check, seed, block, args)
    if error is None:
        return
    while (smaller := block.shorter()) is not None:
        found = failure(check, seed, smaller, args)
        if found is None:
            break
        block, error = smaller, found
    shown = make_jaxpr(block)(*args)
    raise AssertionError(f"{check.__name__} of seed {seed}: {block}\n{shown}") from error


MAKERS = {check_integers: integer_program, check_narrow: narrow_program}
COUNT = settings().max_examples


@pytest.mark.parametrize("part", range(4))
@pytest.mark.parametrize("check", [check_stack, check_both_modes, check_integers, check_narrow])
def test_seeds(check, part):
    for seed in range(part, COUNT, 4):
        check_seed(check, seed)
