import numpy as np
import pytest

import funcgrad as fg
import funcgrad.numpy as fnp
from funcgrad import lax, random
from funcgrad.backends.llvm.cpu import CPU
from funcgrad.backends.rewrites.normalize import normalize
from funcgrad.lax import ScatterDimensionNumbers
from funcgrad.transforms.passes.simplify import simplify


def check(f, *args, selects=True):
    """f gives the same jitted, without a scatter where it is a selection."""
    np.testing.assert_array_equal(np.asarray(fg.jit(f)(*args)), np.asarray(f(*args)))
    eqns = normalize(simplify(fg.make_jaxpr(f)(*args).jaxpr), CPU).eqns
    assert any(e.prim.name.startswith("scatter") for e in eqns) != selects


@pytest.mark.parametrize("index", [0, 3, 7, -1, -8, 8, -9, 1000])
@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16", "int32", "uint8"])
def test_one_index(index, dtype):
    x = random.normal(random.key(0), (5,)) * 9
    update = x.astype(dtype)
    check(lambda i, u: fnp.zeros((8, 5), dtype).at[i].add(u, mode="drop"), np.int32(index), update)
    check(
        lambda i, u: fnp.zeros((5, 8), dtype).at[:, i].set(u, mode="drop"), np.int32(index), update
    )


@pytest.mark.parametrize("index_dtype", ["int8", "uint8", "int32", "int64"])
def test_small_index_dtypes_reach_no_further_than_they_can(index_dtype):
    i = np.array(120, index_dtype)
    check(lambda i: fnp.zeros(300).at[i].add(2.0), i)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("width", [2, 3, 4, 5, 8, 12, 16, 20])
def test_rows_of_any_width_and_zero(dtype, width):
    x = np.array(random.normal(random.key(2), (6, width), dtype))
    x[1, :3] = [np.nan, -0.0, 0.0][:width]
    rows = np.array([1, 0, 1, 5, 9])
    for f in (
        lambda x, i: x.at[i].max(0.0, mode="drop"),
        lambda x, i: x.at[i].min(-0.0, mode="drop"),
    ):
        got, want = (np.asarray(g(fnp.array(x), rows)) for g in (fg.jit(f), f))
        np.testing.assert_array_equal(got, want)
        np.testing.assert_array_equal(np.signbit(got), np.signbit(want))


def test_one_index_a_row():
    x = random.normal(random.key(1), (6, 7))
    i = np.array([0, 6, -1, 3, 2, -7])[:, None]
    check(fg.grad(lambda x, i: fnp.sum(fnp.take_along_axis(x, i, axis=1) ** 2)), x, i)
    check(fg.vmap(lambda i, u: fnp.zeros((7, 2)).at[i].add(u, mode="drop")), i[:, 0] + 3, x[:, :2])
    check(
        fg.vmap(fg.vmap(lambda i, u: fnp.zeros(9).at[i].add(u)), in_axes=(1, 0), out_axes=1),
        np.arange(12).reshape(4, 3),
        x[:3, :4],
    )


def test_batching_axes_in_another_order():
    numbers = ScatterDimensionNumbers(
        update_window_dims=(1,),
        inserted_window_dims=(1,),
        scatter_dims_to_operand_dims=(1,),
        operand_batching_dims=(0, 3),
        scatter_indices_batching_dims=(1, 0),
    )
    i = np.array([[[0], [4]], [[2], [-1]], [[1], [3]]])
    u = np.arange(24.0, dtype=np.float32).reshape(3, 4, 2) - 7

    def f(i, u):
        return lax.scatter_add(fnp.zeros((2, 5, 4, 3)), i, u, numbers)

    check(f, i, u)


def test_minus_zero_and_nan():
    u = np.array([-0.0, np.nan, np.inf], np.float32)
    for how in ("add", "set"):
        f = lambda i, u, how=how: getattr(fnp.zeros((4, 3)).at[i], how)(u)
        eager, jitted = f(2, u), fg.jit(f)(2, u)
        np.testing.assert_array_equal(np.signbit(jitted), np.signbit(eager))
        check(f, 2, u)


def test_others_stay_scatters():
    i, u = np.array([1, 1, 2]), np.ones(3, np.float32)
    check(lambda i, u: fnp.zeros(5).at[i].add(u), i, u, selects=False)
    check(lambda i, u: fnp.ones(5).at[i].add(u), np.int32(1), np.float32(2), selects=False)
    numbers = ScatterDimensionNumbers((), (0,), (0,))

    def clipped(i, u):
        return lax.scatter_add(fnp.zeros(5), i, u, numbers, mode="clip")

    check(clipped, np.array([9]), np.float32(2), selects=False)


def test_gradient_of_cross_entropy_is_one_pass_over_the_logits():
    def loss(x, y):
        picked = fnp.take_along_axis(x, y[:, None], axis=-1)[:, 0]
        return fnp.mean(fg.nn.logsumexp(x, axis=-1) - picked)

    x = random.normal(random.key(2), (64, 96))
    y = np.arange(64) % 96
    step = fg.jit(fg.grad(loss))
    np.testing.assert_allclose(step(x, y), fg.grad(loss)(x, y), rtol=1e-5, atol=1e-8)
    text = step.lower(x, y).as_text("loops")
    assert text.count("\nkernel ") == 1


@pytest.mark.parametrize("n", [300, 3000, 100_000])
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_sums_of_narrow_floats_do_not_stick(dtype, n):
    """Compiled as without jit: one after the other, bfloat16 ones would stop at 256."""
    rng = np.random.default_rng(0)
    where, start = rng.integers(0, 3, n), fnp.zeros(7, dtype).at[3].set(5)
    ones, rows = fnp.ones(n, dtype), fnp.ones((n, 4), dtype)

    def added(x, u):
        return x.at[where].add(u)

    def gradient(x, u):
        return fg.grad(lambda x: fnp.sum(x[where] * u))(x)

    for f, args in ((added, (start, ones)), (added, (fnp.zeros((5, 4), dtype), rows)),
                    (gradient, (start, ones))):  # fmt: skip
        got = fg.jit(f)(*args)
        assert got.dtype == np.dtype(dtype)
        np.testing.assert_array_equal(got, fg.jit(f, backend="numpy")(*args))
    counts = fnp.zeros(3, dtype).at[where].add(ones)
    want = np.bincount(where, minlength=3).astype(dtype)
    np.testing.assert_array_equal(fg.jit(added)(fnp.zeros(3, dtype), ones), want)
    np.testing.assert_array_equal(counts, want)


def test_products_of_narrow_floats_are_rounded_at_the_end():
    x, where = fnp.ones(4, "bfloat16"), np.zeros(300, "int32")
    u = fnp.full(300, 1.0078125, "bfloat16")
    f = lambda x, u: x.at[where].multiply(u)
    np.testing.assert_array_equal(fg.jit(f)(x, u), fg.jit(f, backend="numpy")(x, u))


def test_few_or_separate_updates_are_added_in_place():
    x, u = fnp.ones(5000, "bfloat16"), fnp.ones(8, "bfloat16")
    text = fg.jit(lambda x, u: x.at[np.arange(8)].add(u)).lower(x, u).as_text("loops")
    assert "arena 0 bytes" in text
    many, v = np.arange(40), fnp.ones(40, "bfloat16")
    text = fg.jit(lambda x, u: x.at[many].add(u, unique_indices=True)).lower(x, v).as_text("loops")
    assert "arena 0 bytes" in text
