"""Every op, by its row of samples: values, derivatives, batching and axis mappings."""

import itertools

import numpy as np
import pytest

from funcgrad import dtypes
from funcgrad.core import dims as dims_
from funcgrad.core.array import Array
from funcgrad.core.context import named_axis
from funcgrad.core.ir import eval_jaxpr, interpret, sub_jaxprs, typecheck
from funcgrad.core.primitive import NoRule
from funcgrad.core.staging import stage
from funcgrad.core.trace import aval_of
from funcgrad.errors import BatchingError, DifferentiationError
from funcgrad.transforms.batching.vmap import vmap
from tests.op_checks import (
    LANES,
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
from tests.op_samples import PRIMITIVES, ROWS
from tests.op_samples_base import C128, F32, F64, as_list, assert_close, widened
from tests.ops.rules import check_derivatives, jvp, random_like, vjp

# ---- completeness


def test_every_primitive_has_a_row():
    covered = {row.prim for row in ROWS}
    missing = [p.name for p in PRIMITIVES if p not in covered]
    assert not missing, f"no samples in tests/op_samples*.py: {', '.join(missing)}"
    names = [str(row) for row in ROWS]
    assert len(set(names)) == len(names), "rows of one primitive need names"


def primitives_in(jaxpr):
    for eqn in jaxpr.eqns:
        yield eqn.prim
        for sub in sub_jaxprs(eqn):
            yield from primitives_in(sub)


@by_row(ROWS)
def test_the_row_is_about_its_primitive(row, rng):
    case = row.cases[0]
    avals = [aval_of(x) for x in case.make(rng, typical(row))]
    with named_axis("i", LANES):
        jaxpr, _ = stage(lambda *xs: as_list(row.apply(*xs, **case.params)), avals)
    assert row.prim in set(primitives_in(jaxpr))


@by_row(PRIMITIVES)
def test_absent_rules_say_why(row):
    prim = row
    for rule, run, error in (
        ("jvp", lambda: prim.differentiate((), (), {}), DifferentiationError),
        ("transpose", lambda: prim.transposed((), (), {}), DifferentiationError),
        ("batch", lambda: prim.batched(None, (), (), {}), BatchingError),
    ):
        if isinstance(getattr(prim, rule), NoRule):
            with pytest.raises(error) as caught:
                run()
            assert prim.name in str(caught.value)
            assert getattr(prim, rule).why in str(caught.value)


# ---- values


def check_values(row, case, args, dtype):
    outs = numpy_list(function(row, case)(*arrays(args)))
    expected = row.result(dtype, case.params) if row.result else dtype
    expected = expected if isinstance(expected, list) else [expected] * len(outs)
    assert [o.dtype for o in outs] == expected
    if row.check:
        row.check(numpy_list(args), outs, **case.params)
        return outs
    given = args if row.exact else [widened(x) for x in args]
    wanted = as_list(row.oracle(*given, **case.params))
    for out, want in zip(outs, wanted, strict=True):
        shown = f"{row} of {[aval_of(x) for x in args]} with {case.params}"
        row.close(out, want, shown, row.ulps, row.atol)
    return outs


@by_dtype()
def test_eager(row, dtype, rng):
    for case in row.cases_for("eager"):
        check_values(row, case, operands(row, case, rng, dtype), dtype)


@by_special_dtype
def test_eager_at_special_values(row, dtype):
    for case in distinct_params(row):
        check_values(row, case, special_args(row, dtype), dtype)


# ---- programs


@by_row(ROWS)
def test_programs(row, rng):
    """The traced op typechecks, and runs alike through traces and without."""
    for case in row.cases_for("eager"):
        args = operands(row, case, rng, typical(row))
        jaxpr, consts = stage(function(row, case), [aval_of(x) for x in args])
        typecheck(jaxpr)
        through = numpy_list(eval_jaxpr(jaxpr, *arrays([*consts, *args])))
        with np.errstate(all="ignore"):
            without = interpret(jaxpr, np, *numpy_list([*consts, *args]))
        for x, y in zip(through, without, strict=True):
            assert_close(x, y, what=f"{row} with {case.params}", signed_zeros=True)


# ---- derivatives


def smooth_rows():
    return [row for row in ROWS if row.order and row.cases_for("grad")]


@pytest.mark.sampled(4)
@pytest.mark.parametrize("dtype", [F64, C128], ids=str)
@by_row(smooth_rows())
def test_derivatives(row, dtype, rng):
    if dtype not in row.dtypes:
        return
    for case in row.cases_for("grad"):
        fun, xs = varying(row, case, operands(row, case, rng, dtype))
        if xs and any(dtypes.is_inexact(aval_of(o).dtype) for o in fun(*arrays(xs))):
            check_derivatives(fun, xs, rng, row.order, row.gradient_tol)


@by_row([row for row in ROWS if row.no_derivative])
def test_operands_without_a_derivative(row, rng):
    case = row.cases[0]
    args = operands(row, case, rng, F64)
    for i, words in row.no_derivative.items():
        fun = lambda x: as_list(
            row.apply(*arrays(args[:i]), x, *arrays(args[i + 1 :]), **case.params)
        )
        tangent = lambda x: jvp(fun, [x], [x])
        with pytest.raises(DifferentiationError, match=words):
            (vmap(tangent, axis_name=row.axis) if row.axis else tangent)(Array(args[i]))


@by_row([row for row in ROWS if row.axis and row.order])
def test_collectives_differentiate_inside_of_vmap(row, rng):
    (case,) = row.cases
    fun, (x,) = function(row, case), operands(row, case, rng, F64)
    inner = lambda y: as_list(row.apply(y, **case.params))
    t = random_like(rng, x)
    outer = np.asarray(jvp(fun, [Array(x)], [Array(t)])[0])
    pushed = vmap(lambda x, t: jvp(inner, [x], [t])[0], axis_name=row.axis)(x, t)
    np.testing.assert_allclose(pushed, outer, rtol=1e-12)
    ct = random_like(rng, outer)
    pulled = vmap(lambda x, ct: vjp(inner, [x], [ct])[0], axis_name=row.axis)(x, ct)
    np.testing.assert_allclose(pulled, vjp(fun, [Array(x)], [Array(ct)])[0], rtol=1e-12)


# ---- batching


def choices(case):
    """For each operand its batch axis or None: every axis of each one alone, then all sets (of
    many operands the pairs and the whole)."""
    free = [i for i, a in enumerate(case.args) if a.batched]
    for i in free:
        for d in range(len(case.args[i].shape) + 1):
            yield [d if j == i else None for j in range(len(case.args))]
    for k, chosen in enumerate(itertools.product((False, True), repeat=len(free))):
        if sum(chosen) > 1 and (len(free) < 5 or sum(chosen) in (2, len(free))):
            at = dict(zip(free, chosen, strict=True))
            yield [(k + i) % (len(a.shape) + 1) if at.get(i) else None
                   for i, a in enumerate(case.args)]  # fmt: skip


def check_lanes(row, got, lanes, what):
    for k, wanted in enumerate(lanes):
        for g, w in zip(got, wanted, strict=True):
            w = np.asarray(w)
            lane = np.asarray(g)[k]
            assert lane.dtype == w.dtype
            assert_close(lane, w, max(row.jit_ulps, 8), max(row.jit_atol, 8), what)


@pytest.mark.sampled(4)
@by_row(batched_rows())
def test_vmap(row, rng):
    dtype = typical(row)
    for case in row.cases_for("vmap"):
        fun = function(row, case)
        for axes in choices(case):
            args, by_lane = stacked(case, axes, rng, dtype)
            got = vmap(fun, tuple(axes))(*arrays(args))
            lanes = [fun(*arrays(xs)) for xs in by_lane]
            check_lanes(row, got, lanes, f"vmap of {row} over {axes} with {case.params}")


@by_row(batched_rows())
def test_vmap_twice(row, rng):
    dtype = typical(row)
    for case in row.cases_for("vmap")[:2]:
        if not case.args:
            continue
        fun = function(row, case)
        inner = [len(a.shape) if a.batched else None for a in case.args]
        rows = [stacked(case, inner, rng, dtype) for _ in range(2)]
        # Lanes of the inner vmap share what it doesn't map; the outer one maps the first operand.
        outer = [0 if a.batched and i == 0 else None for i, a in enumerate(case.args)]
        args = [
            np.stack([r[0][i] for r in rows], 0) if d == 0 else rows[0][0][i]
            for i, d in enumerate(outer)
        ]
        got = vmap(vmap(fun, tuple(inner)), tuple(outer))(*arrays(args))
        for k in range(2):
            own = [x[k] if d == 0 else x for x, d in zip(args, outer, strict=True)]
            lanes = [
                fun(*arrays(x if d is None else np.take(x, j, d)
                            for x, d in zip(own, inner, strict=True)))
                for j in range(LANES)
            ]  # fmt: skip
            check_lanes(row, [np.asarray(g)[k] for g in got], lanes, f"{row} with {case.params}")


def pulled_back(row, case, args, cts):
    """Cotangents of the operands that vary, at given operands."""
    fun, xs = varying(row, case, args)
    return [np.asarray(c) for c in vjp(fun, arrays(xs), arrays(cts))]


@by_row([row for row in batched_rows() if row.order and row.cases_for("grad")])
def test_vmap_of_gradients(row, rng):
    dtype = next((d for d in (F32, F64) if d in row.dtypes), None)
    for case in row.cases_for("grad")[:3]:
        if dtype is None or "vmap" not in case.tests:
            continue
        args, by_lane = stacked(case, [0 if a.batched else None for a in case.args], rng, dtype)
        fun, xs = varying(row, case, by_lane[0])
        outs = [o for o in fun(*arrays(xs)) if dtypes.is_inexact(aval_of(o).dtype)]
        if not xs or not outs:
            continue
        cts = [random_like(rng, np.asarray(o)) for o in outs]
        lanes = [pulled_back(row, case, own, cts) for own in by_lane]
        chosen = [i for i, a in enumerate(case.args) if a.smooth and i not in row.no_derivative]
        chosen = [i for i in chosen if dtypes.is_inexact(args[i].dtype)]

        def gradient(*full):
            def of_chosen(*ys):
                given = list(full)
                for i, y in zip(chosen, ys, strict=True):
                    given[i] = y
                return function(row, case)(*given)

            return vjp(of_chosen, [full[i] for i in chosen], arrays(cts))

        axes = tuple(0 if a.batched else None for a in case.args)
        got = vmap(gradient, axes)(*arrays(args))
        for k, wanted in enumerate(lanes):
            for g, w in zip(got, wanted, strict=True):
                size = float(np.abs(w).max(initial=1))
                assert_close(np.asarray(g)[k], w, 512, 512 * size, f"gradient of {row}")


# ---- axis mappings

COMBINE = {
    "sum": np.add, "max": np.maximum, "min": np.minimum, "prod": np.multiply,
    "and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor,
}  # fmt: skip


def block(x, factors, factor, part):
    where = tuple(part if f == factor else slice(None) for f in factors)
    return np.ascontiguousarray(x[where]).reshape(x[where].shape)


def local_params(prim, params, operands, out_shape):
    """The parameters that hold sizes, for a block."""
    params = dict(params)
    if prim.name in ("broadcast_in_dim", "iota"):
        params["shape"] = out_shape
    elif prim.name == "reshape":
        params["new_sizes"] = out_shape
    elif prim.name == "dynamic_slice":
        params["slice_sizes"] = out_shape
    elif prim.name == "slice":
        limits = zip(params["limit_indices"], operands[0].shape, strict=True)
        params["limit_indices"] = tuple(min(*pair) for pair in limits)
    elif prim.name == "gather":
        sizes = zip(params["slice_sizes"], operands[0].shape, strict=True)
        params["slice_sizes"] = tuple(min(*pair) for pair in sizes)
    return params


def check_cuts(prim, params, args):
    """Cutting any factor that may be cut in two, the blocks' results make up the whole result."""
    avals = [aval_of(x) for x in args]
    mapping = dims_.parse(prim.dims(*avals, **params))
    whole = numpy_list(as_list(prim.bind(*args, **params)))
    dims_.check(mapping, avals, [aval_of(o) for o in whole])
    ins = mapping.ins if args else ()
    named = zip((*ins, *mapping.outs), (*args, *whole), strict=True)
    sizes = {f: n for names, x in named for f, n in zip(names, x.shape, strict=True)}
    for factor, n in sizes.items():
        if factor == "." or factor in mapping.whole or n < 2:
            continue
        results = []
        for part in (slice(0, n // 2), slice(n // 2, n)):
            own = [block(x, names, factor, part) for names, x in zip(ins, args, strict=True)]
            named, count = zip(mapping.outs[0], whole[0].shape, strict=True), len(range(n)[part])
            shape = tuple(count if f == factor else m for f, m in named)
            outs = prim.bind(*own, **local_params(prim, params, own, shape))
            results.append(numpy_list(as_list(outs)))
        for k, out in enumerate(whole):
            halves = [r[k] for r in results]
            if factor in mapping.outs[k]:
                joined = np.concatenate(halves, mapping.outs[k].index(factor))
            elif factor not in mapping.contracted:
                # Another result's: this one is the same in both blocks.
                joined = halves[1]
            else:
                joined = COMBINE[mapping.reduction](*halves)
            what = f"{prim.name} {mapping} cut in {factor}"
            assert_close(joined.astype(out.dtype), out, 64, 64, what)


@by_row([row for row in ROWS if row.call is None and callable(row.prim.dims)])
def test_dims(row, rng):
    for case in row.cases_for("dims"):
        check_cuts(row.prim, case.params, case.make(rng, typical(row)))
