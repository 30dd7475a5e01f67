"""Every op, by its row of samples: what `jit` compiles gives what eager evaluation gives."""

import itertools

import numpy as np
import pytest

from funcgrad import dtypes
from funcgrad.backends.llvm.runtime import pool
from funcgrad.core.trace import aval_of
from funcgrad.ops.base import transpose_p
from funcgrad.ops.shape import rev_p
from funcgrad.transforms.batching.vmap import vmap
from funcgrad.transforms.jit.jit import jit
from tests.op_checks import (
    arrays,
    batched_rows,
    by_dtype,
    by_row,
    by_special_dtype,
    distinct_params,
    function,
    numpy_list,
    operands,
    special_args,
    stacked,
    typical,
    varying,
)
from tests.op_samples import INDEX, ROWS, STRUCTURE
from tests.op_samples_base import C64, F32, I32, as_list, assert_close
from tests.ops.rules import jvp, random_like, vjp

# ---- compiled code


def check_jit(row, cases, all_args, through=lambda x: x, jit=jit):
    """All cases as one program, against running them at once."""
    funs = [function(row, c) for c in cases]
    sizes = [len(args) for args in all_args]

    def together(*flat):
        rest = iter(flat)
        return [f(*(through(next(rest)) for _ in range(n)))
                for f, n in zip(funs, sizes, strict=True)]  # fmt: skip

    got = jit(together)(*[x for args in all_args for x in args])
    for case, fun, args, outs in zip(cases, funs, all_args, got, strict=True):
        shown = f"jit of {row} of {[aval_of(x) for x in args]} with {case.params}"
        for g, w in zip(outs, fun(*(through(x) for x in arrays(args))), strict=True):
            assert g.dtype == w.dtype
            row.close(g, w, shown, row.jit_ulps, row.jit_atol)


@pytest.mark.sampled(6)
@by_dtype()
def test_jit(row, dtype, rng):
    cases = row.cases_for("jit")
    if cases:
        check_jit(row, cases, [operands(row, c, rng, dtype) for c in cases])


@pytest.mark.sampled(8)
@by_special_dtype
def test_jit_at_special_values(row, dtype):
    cases = distinct_params(row)
    check_jit(row, cases, [special_args(row, dtype)] * len(cases))


def backwards(x):
    """x read with strides that are negative and out of order, of an array laid out so."""
    ndim = len(aval_of(x).shape)
    flipped = rev_p.bind(x, dimensions=tuple(range(ndim)))
    return transpose_p.bind(flipped, permutation=tuple(reversed(range(ndim))))


@pytest.mark.sampled(8)
@by_row([row for row in ROWS if row.cases_for("jit") and not row.axis])
def test_jit_of_strided_operands(row, rng):
    cases = [c for c in row.cases_for("jit") if c.args]
    all_args = [operands(row, c, rng, typical(row)) for c in cases]
    if not cases:
        return
    # Inside the program, and as arrays that aren't contiguous.
    check_jit(
        row, cases, [[np.asarray(backwards(x)) for x in args] for args in all_args], backwards
    )
    check_jit(row, cases, [[spaced(x) for x in args] for args in all_args])


@pytest.mark.sampled(8)
@by_row([row for row in ROWS if row.order and row.cases_for("grad") and row.cases_for("jit")])
def test_jit_of_gradients(row, rng):
    check_gradients(row, rng)


def check_gradients(row, rng, jit=jit):
    """Forward and backward, in single precision, of all cases as one program."""
    dtype = next((d for d in (F32, C64) if d in row.dtypes), None)
    funs, given, wanted = [], [], []
    for case in row.cases_for("grad") if dtype else []:
        fun, xs = varying(row, case, operands(row, case, rng, dtype))
        outs = [o for o in fun(*arrays(xs)) if dtypes.is_inexact(aval_of(o).dtype)]
        if not xs or not outs:
            continue
        tangents = [random_like(rng, x) for x in xs]
        cts = [random_like(rng, np.asarray(o)) for o in outs]

        def both(xs, tangents, cts, fun=fun):
            return jvp(fun, xs, tangents), vjp(fun, xs, cts)

        funs.append(both)
        given.append([arrays(v) for v in (xs, tangents, cts)])
        wanted.append(both(*given[-1]))
    if not funs:
        return
    got = jit(lambda every: [f(*v) for f, v in zip(funs, every, strict=True)])(given)
    for pair, want in zip(got, wanted, strict=True):
        for g, w in zip([*pair[0], *pair[1]], [*want[0], *want[1]], strict=True):
            size = float(np.abs(np.asarray(w)).max(initial=1))
            assert_close(g, w, 512, 64 * size, f"gradient of {row}")


@pytest.mark.sampled(4)
@by_row([row for row in batched_rows() if row.cases_for("jit")])
def test_jit_of_vmap(row, rng):
    check_vmap(row, rng)


def check_vmap(row, rng, jit=jit):
    """The first cases, with lanes along different axes."""
    dtype = typical(row)
    for case in row.cases_for("vmap")[:2]:
        axes = [
            (i + 1) % (len(a.shape) + 1) if a.batched else None for i, a in enumerate(case.args)
        ]
        if all(d is None for d in axes):
            continue
        args, _ = stacked(case, axes, rng, dtype)
        mapped = vmap(function(row, case), tuple(axes))
        for g, w in zip(jit(mapped)(*args), mapped(*arrays(args)), strict=True):
            row.close(g, w, f"jit of vmap of {row}", row.jit_ulps, row.jit_atol)


def spaced(x):
    """x as a view with gaps."""
    if not x.ndim:
        return x
    wide = np.zeros((*x.shape[:-1], 2 * x.shape[-1]), x.dtype)
    wide[..., ::2] = x
    return wide[..., ::2]


def repeated(x):
    """x's first element, seen at all places."""
    return np.broadcast_to(x.reshape(-1)[:1].reshape((1,) * x.ndim), x.shape) if x.size else x


ODD = [np.nan, np.inf, -np.inf, 0.0, -0.0, 1e-42]


@pytest.mark.sampled(9)
@pytest.mark.parametrize("odd", ODD)
@by_row([row for row in (*STRUCTURE, *INDEX) if F32 in row.dtypes and row.cases_for("jit")])
def test_jit_with_odd_values(row, odd, rng):
    """A few elements are NaN, infinite, zeros of both signs or denormal."""
    cases = [c for c in row.cases_for("jit") if c.args]
    all_args = [operands(row, c, rng, F32) for c in cases]
    for x in itertools.chain(*all_args):
        if x.dtype == F32 and x.ndim:
            x[rng.uniform(size=x.shape) < 0.2] = odd
    if cases:
        check_jit(row, cases, all_args)


@pytest.mark.sampled(4)
@pytest.mark.slow
@by_dtype([row for row in ROWS if not row.axis])
def test_jit_of_each_case_alone(row, dtype, rng):
    for case in row.cases_for("jit"):
        args = operands(row, case, rng, dtype)
        check_jit(row, [case], [args])
        if case.args:
            check_jit(row, [case], [[np.asarray(backwards(x)) for x in args]], backwards)


# ---- threads


@pytest.fixture
def threads():
    before = pool.num_threads()
    yield pool.set_num_threads
    pool.set_num_threads(before)


BY_NAME = {str(row): row for row in ROWS}
LARGE = {
    "exp": [(100_003,)], "add": [(301, 333), (301, 333)], "lgamma": [(30_001,)],
    "reduce_sum": [(517, 301)], "reduce_max": [(517, 301)], "argmax": [(333, 517)],
    "cumsum": [(333, 517)], "transpose": [(333, 517)], "dot_general": [(257, 129), (129, 211)],
    "sort": [(129, 301)], "concatenate": [(333, 100), (333, 201)], "broadcast_in_dim": [(517,)],
}  # fmt: skip
LARGE_PARAMS = {
    "reduce_sum": [{"axes": (0,)}, {"axes": (1,)}, {"axes": (0, 1)}],
    "reduce_max": [{"axes": (0,)}, {"axes": (1,)}, {"axes": (0, 1)}],
    "argmax": [{"axes": (k,), "index_dtype": I32} for k in (0, 1)],
    "cumsum": [{"axis": k, "reverse": bool(k)} for k in (0, 1)],
    "transpose": [{"permutation": (1, 0)}],
    "dot_general": [{"dimension_numbers": (((1,), (0,)), ((), ())),
                     "preferred_element_type": None}],
    "sort": [{"dimension": k, "is_stable": True, "num_keys": 1} for k in (0, 1)],
    "concatenate": [{"dimension": 1}],
    "broadcast_in_dim": [{"shape": (517, 300), "broadcast_dimensions": (0,)}],
}  # fmt: skip


@pytest.mark.parametrize("name", LARGE)
def test_results_do_not_depend_on_threads(name, threads, rng):
    row = BY_NAME[name]
    args = [rng.uniform(0.1, 2, s).astype(F32) for s in LARGE[name]]
    for params in LARGE_PARAMS.get(name, [{}]):
        compiled = jit(lambda *xs: as_list(row.apply(*xs, **params)))
        wanted = as_list(row.apply(*arrays(args), **params))
        results = []
        for n in (1, 2, 3):
            threads(n)
            results.append(numpy_list(compiled(*args)))
        for k, want in enumerate(wanted):
            assert_close(results[0][k], want, 256, 256, name)
            for other in results[1:]:
                np.testing.assert_array_equal(other[k], results[0][k])
