"""Every op, by its row of samples: values, derivatives, batching, compiled code, axis mappings."""

import itertools

import numpy as np
import pytest

from funcgrad import dtypes
from funcgrad.backends.llvm import pool
from funcgrad.core import dims as dims_
from funcgrad.core.array import Array
from funcgrad.core.context import named_axis
from funcgrad.core.ir import eval_jaxpr, interpret, sub_jaxprs, typecheck
from funcgrad.core.primitive import NoRule
from funcgrad.core.staging import stage
from funcgrad.core.trace import aval_of
from funcgrad.errors import BatchingError, DifferentiationError
from funcgrad.ops.base import transpose_p
from funcgrad.ops.shape import rev_p
from funcgrad.transforms.jit import jit
from funcgrad.transforms.vmap import vmap
from tests.op_samples import PRIMITIVES, ROWS
from tests.op_samples_base import (
    C64,
    C128,
    F32,
    F64,
    I32,
    as_list,
    assert_close,
    special_operands,
    widened,
)
from tests.ops.rules import check_derivatives, jvp, random_like, vjp

LANES = 3


def function(row, case):
    """The row's op as a function of arrays that gives a list."""
    if row.axis:
        mapped = vmap(lambda *xs: row.apply(*xs, **case.params), axis_name=row.axis)
        return lambda *xs: as_list(mapped(*xs))
    return lambda *xs: as_list(row.apply(*xs, **case.params))


def operands(row, case, rng, dtype):
    if row.axis:
        lanes = [case.make(rng, dtype) for _ in range(LANES)]
        return [np.stack(xs) for xs in zip(*lanes, strict=True)]
    return case.make(rng, dtype)


def arrays(values):
    return [Array(np.asarray(x)) for x in values]


def numpy_list(values):
    return [np.asarray(x) for x in values]


def typical(row):
    """The dtype in which rules are tested that no dtype changes."""
    return next((d for d in (F32, F64, I32) if d in row.dtypes), row.dtypes[0])


def by_dtype(rows=ROWS):
    return pytest.mark.parametrize(
        ("row", "dtype"), [pytest.param(r, d, id=f"{r}-{d}") for r in rows for d in r.dtypes]
    )


def by_row(rows):
    return pytest.mark.parametrize("row", list(rows), ids=str)


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


by_special_dtype = pytest.mark.parametrize(
    ("row", "dtype"),
    [pytest.param(r, d, id=f"{r}-{d}") for r in ROWS for d in r.dtypes if d in r.special],
)


def special_args(row, dtype):
    args = row.cases[0].args
    return special_operands(dtype, len(args), [a.dtype for a in args])


def distinct_params(row):
    return [c for i, c in enumerate(row.cases) if c.params not in [d.params for d in row.cases[:i]]]


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


def varying(row, case, args):
    """The op as a function of the operands with derivatives, and these operands."""
    fun = function(row, case)
    chosen = [i for i, a in enumerate(case.args) if a.smooth and i not in row.no_derivative]
    chosen = [i for i in chosen if dtypes.is_inexact(args[i].dtype)]

    def of_chosen(*xs):
        full = arrays(args)
        for i, x in zip(chosen, xs, strict=True):
            full[i] = x
        return fun(*full)

    return of_chosen, [args[i] for i in chosen]


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
    """For each operand its batch axis or None: every axis of each one alone, then all sets."""
    free = [i for i, a in enumerate(case.args) if a.batched]
    for i in free:
        for d in range(len(case.args[i].shape) + 1):
            yield [d if j == i else None for j in range(len(case.args))]
    for k, chosen in enumerate(itertools.product((False, True), repeat=len(free))):
        if sum(chosen) > 1:
            at = dict(zip(free, chosen, strict=True))
            yield [(k + i) % (len(a.shape) + 1) if at.get(i) else None
                   for i, a in enumerate(case.args)]  # fmt: skip


def stacked(case, axes, rng, dtype, size=LANES):
    """Operands with lanes along their batch axes, and the operands of each lane."""
    lanes = [case.make(rng, dtype) for _ in range(size)]
    args = [
        lanes[0][i] if d is None else np.stack([lane[i] for lane in lanes], d)
        for i, d in enumerate(axes)
    ]
    by_lane = [
        [lanes[0][i] if d is None else lane[i] for i, d in enumerate(axes)] for lane in lanes
    ]
    return args, by_lane


def check_lanes(row, got, lanes, what):
    for k, wanted in enumerate(lanes):
        for g, w in zip(got, wanted, strict=True):
            w = np.asarray(w)
            lane = np.asarray(g)[k]
            assert lane.dtype == w.dtype
            assert_close(lane, w, max(row.jit_ulps, 8), max(row.jit_atol, 8), what)


def batched_rows():
    return [row for row in ROWS if not row.axis and row.cases_for("vmap")]


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


# ---- compiled code


def check_jit(row, cases, all_args, through=lambda x: x):
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


@by_dtype()
def test_jit(row, dtype, rng):
    cases = row.cases_for("jit")
    if cases:
        check_jit(row, cases, [operands(row, c, rng, dtype) for c in cases])


@by_special_dtype
def test_jit_at_special_values(row, dtype):
    cases = distinct_params(row)
    check_jit(row, cases, [special_args(row, dtype)] * len(cases))


def backwards(x):
    """x read with strides that are negative and out of order, of an array laid out so."""
    ndim = len(aval_of(x).shape)
    flipped = rev_p.bind(x, dimensions=tuple(range(ndim)))
    return transpose_p.bind(flipped, permutation=tuple(reversed(range(ndim))))


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


@by_row([row for row in ROWS if row.order and row.cases_for("grad") and row.cases_for("jit")])
def test_jit_of_gradients(row, rng):
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


@by_row([row for row in batched_rows() if row.cases_for("jit")])
def test_jit_of_vmap(row, rng):
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


@pytest.mark.slow
@by_dtype([row for row in ROWS if not row.axis])
def test_jit_of_each_case_alone(row, dtype, rng):
    for case in row.cases_for("jit"):
        args = operands(row, case, rng, dtype)
        check_jit(row, [case], [args])
        if case.args:
            check_jit(row, [case], [[np.asarray(backwards(x)) for x in args]], backwards)


# ---- axis mappings

COMBINE = {
    "sum": np.add, "max": np.maximum, "min": np.minimum, "prod": np.multiply,
    "and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor,
}  # fmt: skip


def block(x, factors, factor, part):
    where = tuple(part if f == factor else slice(None) for f in factors)
    return np.ascontiguousarray(x[where]).reshape(x[where].shape)


def local_params(prim, params, operand, out_shape):
    """The parameters that hold sizes, for a block."""
    params = dict(params)
    if prim.name == "broadcast_in_dim":
        params["shape"] = out_shape
    elif prim.name == "reshape":
        params["new_sizes"] = out_shape
    elif prim.name == "dynamic_slice":
        params["slice_sizes"] = out_shape
    elif prim.name == "slice":
        limits = zip(params["limit_indices"], operand.shape, strict=True)
        params["limit_indices"] = tuple(min(*pair) for pair in limits)
    elif prim.name == "gather":
        sizes = zip(params["slice_sizes"], operand.shape, strict=True)
        params["slice_sizes"] = tuple(min(*pair) for pair in sizes)
    return params


def check_cuts(prim, params, args):
    """Cutting any factor that may be cut in two, the blocks' results make up the whole result."""
    avals = [aval_of(x) for x in args]
    mapping = dims_.parse(prim.dims(*avals, **params))
    whole = numpy_list(as_list(prim.bind(*args, **params)))
    dims_.check(mapping, avals, [aval_of(o) for o in whole])
    named = zip(mapping.ins, args, strict=True) if args else ()
    sizes = {f: n for names, x in named for f, n in zip(names, x.shape, strict=True)}
    for factor, n in sizes.items():
        if factor == "." or factor in mapping.whole or n < 2:
            continue
        results = []
        for part in (slice(0, n // 2), slice(n // 2, n)):
            own = [
                block(x, names, factor, part) for names, x in zip(mapping.ins, args, strict=True)
            ]
            named, count = zip(mapping.outs[0], whole[0].shape, strict=True), len(range(n)[part])
            shape = tuple(count if f == factor else m for f, m in named)
            outs = prim.bind(*own, **local_params(prim, params, own[0], shape))
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
