"""Kernels of a team a row: the same bits in all orders of threads, planted faults are found."""

import numpy as np
import pytest

import funcgrad.numpy as fnp
from funcgrad.backends.cuda import modules, simulate
from funcgrad.backends.cuda.rows import Rows, identity
from tests.backends.cuda.simulated import layer_norm, numbers, planned, softmax

ROWS = [(softmax, 300), (softmax, 1500), (layer_norm, 200), (layer_norm, 5000)]


@pytest.mark.parametrize(("f", "n"), ROWS, ids=[f"{f.__name__} {n}" for f, n in ROWS])
def test_all_orders_give_the_same_bits(f, n):
    x = numbers(17, n)
    programs = [planned(f, x, seed=seed) for seed in (None, 1, 2, 3)]
    assert programs[0].kernels.launches[0].plan.kind == "rows"
    first, *others = [p([x])[0] for p in programs]
    np.testing.assert_allclose(first, f(x), rtol=2e-5, atol=2e-5)
    for y in others:
        np.testing.assert_array_equal(y, first)


def kept(x):
    """Two passes over what the first keeps of a row."""
    y = fnp.tanh(x * 1.5)
    z = fnp.exp(y - y.mean(-1, keepdims=True)) * y
    return z / z.sum(-1, keepdims=True)


@pytest.mark.parametrize(("n", "place"), [(100, "shared"), (2000, "shared"), (12500, "workspace")])
def test_rows_are_kept_where_there_is_room(n, place):
    x = numbers(20, n)
    programs = [planned(kept, x, seed=seed) for seed in (None, 1)]
    (launch, *_) = programs[0].kernels.launches
    if place == "shared":
        assert any(name.endswith("shared") for name, _ in launch.shared)
    assert (launch.workspace > 0) == (place == "workspace")
    first, second = (p([x])[0] for p in programs)
    np.testing.assert_array_equal(first, second)
    np.testing.assert_allclose(first, kept(x), rtol=1e-4, atol=1e-6)


def results(monkeypatch, writer, f, x):
    monkeypatch.setitem(modules._WRITERS, "rows", writer)
    # By its number, the thread that stores is the first.
    return [planned(f, x, seed=seed)([x])[0] for seed in (None, 1, 2, 3)]


class NoBarriers(Rows):
    """A planted fault: a block's warps don't wait for each other."""

    def run(self, plan):
        return super().run(plan).replace("  call void @fg_sync()\n", "")


class Racing(Rows):
    """A planted fault: all warps put their totals in one slot of shared memory."""

    def _of_warps(self, combine, dtype, value):
        self.warp = "0"
        return super()._of_warps(combine, dtype, value)


@pytest.mark.parametrize("writer", [NoBarriers, Racing])
def test_planted_faults_change_results(monkeypatch, writer):
    x = numbers(5, 1500)
    want = softmax(x)
    wrong = [not np.allclose(y, want, rtol=1e-4) for y in results(monkeypatch, writer, softmax, x)]
    assert any(wrong)


def test_accesses_out_of_range_are_told(monkeypatch):
    class Beyond(Rows):
        def index(self, index, kind):
            return self.f.let(f"add i32 {super().index(index, kind)}, 1")

    with pytest.raises(simulate.OutOfRange, match=r"max_exp_sum_div_\w+: \d+ accesses outside"):
        results(monkeypatch, Beyond, softmax, numbers(5, 300))


def test_what_combines_to_nothing():
    for dtype in map(np.dtype, ("bool", "int8", "uint32", "float32", "float64")):
        x = np.array([0, 1, 7]).astype(dtype)
        for name in ("add", "multiply", "maximum", "minimum"):
            np.testing.assert_array_equal(getattr(np, name)(x, identity(name, dtype)), x)
    assert identity("bitwise_and", np.dtype("uint8")) == 255
