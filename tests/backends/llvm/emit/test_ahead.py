"""Rows read out of order: where they are prefetched, and that results are the same."""

import ml_dtypes  # noqa: F401 (it names bfloat16)
import numpy as np
import pytest

import funcgrad as fg
import funcgrad.numpy as fnp
from funcgrad.backends.llvm.build import kernel_cache
from funcgrad.backends.llvm.native.target import Target
from tests.backends.checks import floats, integers, same


def bag(table, i):
    return fnp.sum(table[i], axis=1)


def along(x, i):
    return fnp.take_along_axis(x, i, axis=1)


def add_rows(table, i):
    return table.at[i].add(2 * table[: i.shape[0]])


CASES = {
    "rows": (lambda t, i: t[i], (50, 40), (30,)),
    "rows, filled": (lambda t, i: t.at[i + 40].get(mode="fill", fill_value=7), (50, 40), (30,)),
    "one row": (lambda t, i: t[i], (50, 40), (1,)),
    "bag": (bag, (50, 64), (9, 20)),
    "bag of odd rows": (bag, (50, 33), (9, 7)),
    "along rows": (along, (9, 200), (9, 150)),
    "along a row": (along, (1, 200), (1, 150)),
    "added rows": (add_rows, (50, 40), (30,)),
    "sums of columns": (lambda t, i: t.sum(1), (20, 64, 256), (1,)),
    "running sums": (lambda t, i: fnp.cumsum(t, 0), (40, 2048), (1,)),
    "set rows": (lambda t, i: t.at[i].set(t[: i.shape[0]], unique_indices=False), (50, 40), (30,)),
}  # fmt: skip


@pytest.mark.sampled(2)
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("dtype", ["float32", "int8", "bfloat16"])
def test_results(case, dtype):
    f, shape, indices = CASES[case]
    x, i = integers(*shape).astype(np.dtype(dtype)), integers(*indices, low=-50, high=50)
    # Anywhere, and at the end of the array's memory.
    last = np.full_like(i, shape[1] - 1 if "along" in case else shape[0] - 1)
    for at in (i % shape[1] if "along" in case else i, last):
        same(np.asarray(fg.jit(f)(x, at)), np.asarray(f(fnp.asarray(x), at)), exact=True)


@pytest.mark.parametrize("case", [c for c in CASES if "one" not in c and " a " not in c])
def test_prefetched(case):
    f, shape, indices = CASES[case]
    text = fg.jit(f).lower(floats(*shape), integers(*indices)).as_text("llvm")
    assert "call void @llvm.prefetch" in text


def test_prefetched_to_the_end():
    """A row that begins inside a line ends in one line more."""
    text = fg.jit(CASES["rows"][0]).lower(floats(50, 64), integers(30)).as_text("llvm")
    assert "i64 255" in text


def test_not_prefetched():
    x, i = floats(60, 2000), integers(60, low=0)
    few = fg.jit(lambda x, i: along(x, fnp.broadcast_to(i[:, None], (60, 3))))
    for f in (few, fg.jit(lambda x, i: x + i[:, None]), fg.jit(lambda x, i: x[:, i])):
        assert "call void @llvm.prefetch" not in f.lower(x, i).as_text("llvm")


def test_no_elements():
    assert fg.jit(lambda t, i: t[i])(floats(5, 40), np.zeros(0, np.int32)).shape == (0, 40)
    assert fg.jit(bag)(floats(5, 40), np.zeros((3, 0), np.int32)).shape == (3, 40)
    assert fg.jit(lambda t, i: t[i])(floats(5, 0), np.zeros(4, np.int32)).shape == (4, 0)


def layer_norm(x, scale):
    y = x - x.mean(-1, keepdims=True)
    return y / fnp.sqrt((y * y).mean(-1, keepdims=True) + 1e-5) * scale


@pytest.mark.parametrize("follows", [False, True])
@pytest.mark.parametrize("shape", [(1, 70), (7, 33), (50, 256), (2, 5, 600)])
def test_next_block_of_rows(monkeypatch, follows, shape):
    """Rows that take several passes are asked for a block ahead, where it helps; bits stay."""
    x, scale = floats(*shape), floats(shape[-1])
    wanted = np.asarray(fg.jit(layer_norm)(x, scale))
    kernel_cache().forget()
    monkeypatch.setenv("FUNCGRAD_CACHE_DIR", "")
    monkeypatch.setattr(Target, "follows_strides", property(lambda self: follows))
    try:
        f = fg.jit(lambda x, scale: layer_norm(x, scale))
        assert ("call void @llvm.prefetch" in f.lower(x, scale).as_text("llvm")) == (
            not follows and shape[0] > 1
        )
        same(np.asarray(f(x, scale)), wanted, exact=True)
    finally:
        kernel_cache().forget()


def with_sums(x, ct):
    made = fnp.tanh(x) * ct
    return made, made.sum(0)


@pytest.mark.parametrize(("rows", "width"), [(64, 1024), (72, 1152), (96, 1008), (512, 128)])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_in_pieces(rows, width, dtype):
    """Rows that are gone through once, one after the other, ask for the next one on their way."""
    x, ct = floats(rows, width, dtype=dtype), floats(rows, width, seed=1, dtype=dtype)
    f = fg.jit(with_sums)
    made, sums = f(x, ct)
    long = width * x.itemsize > 4096
    assert long or "call void @llvm.prefetch" in f.lower(x, ct).as_text("llvm")
    same(np.asarray(made), np.asarray(fnp.tanh(x) * ct))
    same(np.asarray(sums) / 10, (np.tanh(x) * ct).sum(0, dtype=dtype) / 10)
