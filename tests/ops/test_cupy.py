"""Each op's rule `impl` on arrays of CuPy, against itself on those of NumPy.

Every equation is run by itself on the same operands: the same types, near values, and nothing that
lies in the host's memory instead. Where there is no GPU a stand-in takes CuPy's place, which finds
what uses NumPy behind the namespace it was given, but not what CuPy computes otherwise. The types
of ml_dtypes are left out: CuPy has none of 8 bits and less, and doesn't sort or sum up bfloat16.
"""

import numpy as np
import pytest

import funcgrad as fg
import funcgrad.numpy as fnp
from funcgrad import lax, nn
from funcgrad.core.ir import interpret
from funcgrad.core.staging import stage
from funcgrad.core.trace import aval_of
from funcgrad.ops import cumulative, reduce, sort
from funcgrad.ops.indexing.windows import GatherScatterMode, ScatterDimensionNumbers
from funcgrad.ops.linalg import triangular
from tests.op_checks import distinct_params, function, operands, special_args
from tests.op_samples import PRIMITIVES, ROWS
from tests.op_samples_base import C64, C128, COMPLEX, F32, F64, as_list, assert_close
from tests.ops import elsewhere

# What CuPy's functions do otherwise than NumPy's at special values.
OTHERWISE = {
    ("expm1", COMPLEX): "it is exp(x) - 1, which cancels near 0",
    ("div", COMPLEX): "it is NaN where NumPy has infinities: at divisors 0",
    ("nextafter", (np.dtype("float16"),)): "it is NaN next to infinities",
    ("nextafter", (F32,)): "the least normal number is next to 0",
    ("log", (F64,)): "it is -inf at negative subnormal numbers",
}


class Place:
    """Where programs run: a namespace, the type of its arrays, whether float32 has no subnormals,
    as CuPy compiles its functions."""

    def __init__(self, xp, kind, flushes):
        self.xp, self.kind, self.flushes = xp, kind, flushes

    def flushed(self, x):
        if not self.flushes or x.dtype not in (F32, C64):
            return x
        parts = np.array(x, order="C").reshape(-1).view(F32)
        parts[np.abs(parts) < np.finfo(F32).tiny] *= 0
        return parts.view(x.dtype).reshape(x.shape)

    def to(self, x):
        return self.xp.asarray(x)

    def back(self, x):
        assert type(x) is self.kind, f"it lies in the host's memory: {type(x)}"
        return x.get()


CUPY = pytest.param("cupy", marks=[pytest.mark.gpu, pytest.mark.cupy])


@pytest.fixture(params=["stand-in", CUPY])
def place(request):
    if request.param == "stand-in":
        return Place(elsewhere.namespace, elsewhere.Away, flushes=False)
    cupy = pytest.importorskip("cupy")
    return Place(cupy, cupy.ndarray, flushes=True)


def cases_of(row, dtype, cases):
    """The cases of which CuPy has the types of operands and results."""

    def is_cupys(case):
        results = as_list(row.result(dtype, case.params)) if row.result else []
        return all(
            t.isbuiltin == 1 for t in (dtype, *results, *(a.dtype or dtype for a in case.args))
        )

    return list(filter(is_cupys, cases))


def by_dtype(special=False):
    return pytest.mark.parametrize(
        ("row", "dtype"),
        [pytest.param(r, d, id=f"{r}-{d}") for r in ROWS for d in r.dtypes
         if cases_of(r, d, r.cases_for("eager")) and (d in r.special or not special)],
    )  # fmt: skip


def check_equations(row, case, jaxpr, values, place):
    env = dict(zip(jaxpr.ins, map(np.asarray, values), strict=True))
    for eqn in jaxpr.eqns:
        ins = [place.flushed(env[a] if a in env else np.asarray(a.value)) for a in eqn.ins]
        there = eqn.prim.impl(place.xp, *map(place.to, ins), **eqn.params)
        here = eqn.prim.impl(np, *ins, **eqn.params)
        there, here = (as_list(x) if eqn.prim.multiple else [x] for x in (there, here))
        shown = f"{eqn.prim} of {[aval_of(x) for x in ins]} with {eqn.params}"
        for var, g, w in zip(eqn.outs, there, here, strict=True):
            g, w = place.back(g), np.asarray(w)
            assert g.dtype == w.dtype, f"{shown}: {g.dtype}, not {w.dtype}"
            env[var] = w.astype(var.aval.dtype)
            if row.check:
                assert g.shape == w.shape
            else:
                g, w = (place.flushed(x) for x in (g.astype(var.aval.dtype), env[var]))
                ulps, atol = max(row.ulps, row.jit_ulps), max(row.atol, row.jit_atol)
                row.close(g, w, shown, ulps, atol)


def check_row(row, case, args, place):
    jaxpr, consts = stage(function(row, case), [aval_of(x) for x in args])
    values = [*consts, *args]
    check_equations(row, case, jaxpr, values, place)
    if row.check:
        outs = interpret(jaxpr, place.xp, *map(place.to, values))
        row.check([np.asarray(x) for x in args], [place.back(x) for x in outs], **case.params)


@by_dtype()
def test_impl(row, dtype, rng, place):
    for case in cases_of(row, dtype, row.cases_for("eager")):
        check_row(row, case, operands(row, case, rng, dtype), place)


@by_dtype(special=True)
def test_impl_at_special_values(row, dtype, place, request):
    for (name, of), why in OTHERWISE.items():
        if place.flushes and name == str(row) and dtype in of:
            request.applymarker(pytest.mark.xfail(reason=f"CuPy: {why}", strict=True))
    for case in cases_of(row, dtype, distinct_params(row)):
        check_row(row, case, special_args(row, dtype), place)


def both(fun, place, *args):
    """The arrays that `fun(xp, *arrays)` makes there and here."""
    there = as_list(fun(place.xp, *map(place.to, args)))
    return zip(map(place.back, there), as_list(fun(np, *args)), strict=True)


@pytest.mark.parametrize("dtype", [np.float16, F32, F64])
def test_order_of_nan_and_zeros(place, dtype):
    rows = [
        [1, np.nan, 0, -np.nan, -0.0, np.inf, -np.inf, 0, 5],
        [2, -0.0, 0, -1, -0.0, 3, 0, 1, 1],
    ]
    x = np.array(rows, dtype)
    places = np.broadcast_to(np.arange(9, dtype=np.int32), x.shape)
    checks = [
        lambda xp, x, _: sort.sort_p.impl(xp, x, dimension=1, is_stable=True, num_keys=1),
        lambda xp, *xs: sort.sort_p.impl(xp, *xs, dimension=1, is_stable=True, num_keys=1),
        lambda xp, x, _: sort.top_k_p.impl(xp, x, k=4),
        lambda xp, x, _: [r.impl(xp, x, axes=(1,)) for r in (reduce.max_p, reduce.min_p)],
        lambda xp, x, _: [r.impl(xp, x, axes=(0, 1)) for r in (reduce.max_p, reduce.min_p)],
        lambda xp, x, _: [r.impl(xp, x, axes=(1,), index_dtype=places.dtype)
                          for r in (reduce.argmax_p, reduce.argmin_p)],
        lambda xp, x, _: [r.impl(xp, x, axis=1, reverse=False)
                          for r in (cumulative.cummax_p, cumulative.cummin_p)],
    ]  # fmt: skip
    for check in checks:
        for g, w in both(check, place, x, places):
            np.testing.assert_array_equal(g, w)


@pytest.mark.parametrize("dtype", [np.int16, np.int64, np.uint64, np.float16, F32, F64, C128])
@pytest.mark.parametrize("name", ["scatter", "scatter_add", "scatter_mul", "scatter_max"])
def test_scatters_of_updates_that_meet(place, name, dtype, rng):
    if name == "scatter_max" and dtype is C128:
        return
    prim = {p.name: p for p in PRIMITIVES}[name]
    numbers = ScatterDimensionNumbers((), (0,), (0,), (), ())
    x, at = rng.integers(1, 4, 7).astype(dtype), rng.integers(-2, 9, (200, 1))
    updates = rng.integers(1, 3, 200).astype(dtype)
    if dtype in (np.float16, F32, F64, C128) and name == "scatter_mul":
        updates = np.where(updates == 2, 1.25, 0.75).astype(dtype)

    def scattered(xp, x, at, updates):
        return prim.impl(xp, x, at, updates, dimension_numbers=numbers,
                         mode=GatherScatterMode.FILL_OR_DROP)  # fmt: skip

    for g, w in both(scattered, place, x, at, updates):
        assert g.dtype == w.dtype
        assert_close(g, w, 200 if name == "scatter_mul" else 0)


@pytest.mark.parametrize("name", ["psum", "all_gather", "psum_scatter", "all_to_all", "ppermute"])
def test_collectives_are_of_the_host(place, name):
    prim = {p.name: p for p in PRIMITIVES}[name]
    more = {"all_gather": {"axis": 0, "tiled": False}, "psum_scatter": {"axis": 0, "tiled": False},
            "all_to_all": {"split": 0, "concat": 0}, "ppermute": {"perm": ((0, 0),)}}  # fmt: skip
    with pytest.raises(TypeError, match=f"{name}: .* in the host's memory, got "):
        prim.impl(place.xp, place.to(np.ones((1, 2))), axis_name=("i",), **more.get(name, {}))


@pytest.mark.parametrize("dtype", [F32, F64, C64])
def test_cholesky_of_what_is_not_positive(place, dtype):
    if place.xp is elsewhere.namespace:
        pytest.skip("the stand-in raises, as NumPy does")
    many = [[[1, 2], [2, 1]], [[4, 2], [2, 5]], [[0, 0], [0, 0]], [[np.nan, 0], [0, 1]]]
    for x in (np.array(many, dtype), np.array(many[0], dtype), np.zeros((1, 1), dtype)):
        for g, w in both(triangular.cholesky_p.impl, place, x):
            np.testing.assert_allclose(g, w, rtol=1e-6)


# ---- whole programs


def mlp(params, x, y):
    for w, b in params[:-1]:
        x = fnp.tanh(x @ w + b)
    w, b = params[-1]
    logits = x @ w + b
    return -fnp.mean(nn.log_softmax(logits)[fnp.arange(len(y)), y])


def gpt_block(params, x):
    def normal(x):
        return (x - fnp.mean(x, -1, keepdims=True)) / fnp.sqrt(fnp.var(x, -1, keepdims=True) + 1e-5)

    b, t, d = x.shape
    q, k, v = (fnp.reshape(normal(x) @ params[n], (b, t, 2, d // 2)) for n in ("q", "k", "v"))
    mixed = nn.dot_product_attention(q, k, v, is_causal=True)
    x = x + fnp.reshape(mixed, (b, t, d)) @ params["out"]
    return fnp.sum((x + nn.gelu(normal(x) @ params["up"]) @ params["down"]) ** 2)


def cnn(params, x):
    for w in params:
        x = nn.relu(lax.conv(x, w, (1, 1), "SAME"))
        x = lax.reduce_window(x, -np.inf, lax.max, (1, 1, 2, 2), (1, 1, 2, 2), "VALID")
    return fnp.sum(x**2)


def many_elements(x, ids, m):
    """More than one block of threads of each kind of kernel works on."""
    near = m @ m.T + len(m) * fnp.eye(len(m), dtype=m.dtype)
    return [
        fnp.sum(x), fnp.max(x), fnp.argmin(x), fnp.cumsum(x), fnp.cumprod(1 + x / 1000),
        lax.cummax(x), lax.cumlogsumexp(x), fnp.sort(x), fnp.argsort(x), *lax.top_k(x, 50),
        x[ids], x.at[ids].set(x), x.at[ids].add(x), x.at[ids].multiply(1 + x / 100),
        fnp.fft.fft(x), nn.softmax(m), fnp.linalg.solve(near, m), fnp.linalg.cholesky(near),
        fnp.linalg.eigvalsh(near), fnp.linalg.svd(m, compute_uv=False),
        lax.bitwise_xor(ids, ids + 1), lax.reduce_xor(ids, [0]),
        fg.random.normal(fg.random.key(7), (3000,)),
    ]  # fmt: skip


def of_many(draw):
    ids = (1000 * np.abs(draw(5000))).astype(np.int32)
    return many_elements, draw(5000), ids, draw(90, 70)


def of_mlp(draw):
    layers = [(draw(8, 16), draw(16)), (draw(16, 16), draw(16)), (draw(16, 5), draw(5))]
    return mlp, layers, draw(6, 8), np.int32([0, 1, 2, 3, 4, 0])


def of_gpt(draw):
    sizes = {"q": (8, 8), "k": (8, 8), "v": (8, 8), "out": (8, 8), "up": (8, 32), "down": (32, 8)}
    return gpt_block, {n: draw(*s) for n, s in sizes.items()}, draw(2, 6, 8)


def of_cnn(draw):
    return cnn, [draw(4, 3, 3, 3), draw(5, 4, 3, 3)], draw(2, 3, 8, 8)


@pytest.mark.parametrize("make", [of_many, of_mlp, of_gpt, of_cnn])
def test_interpreted_programs(make, rng, place):
    fun, *args = make(lambda *shape: rng.normal(size=shape).astype(np.float32))
    closed = fg.make_jaxpr(fun if make is of_many else fg.value_and_grad(fun))(*args)
    values = [*closed.consts, *(np.asarray(x) for x in fg.tree.leaves(args))]
    values = [np.asarray(x) for x in values]
    there = interpret(closed.jaxpr, place.xp, *map(place.to, values))
    here = interpret(closed.jaxpr, np, *values)
    for g, w in zip(there, here, strict=True):
        g = place.back(g)
        assert g.dtype == w.dtype
        assert_close(g, w, 64, 64 * float(np.abs(w).max()), fun.__name__)
