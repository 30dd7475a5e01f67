"""Cotangents in pieces: the bits of adding padded ones, whatever the order and the overlaps."""

import itertools

import numpy as np
import pytest

import funcgrad as fg
import funcgrad.numpy as fnp
from funcgrad import lax
from funcgrad.core import context
from funcgrad.core.eager import large
from funcgrad.transforms.tape.sliced import Pieces, in_one, pulled_pieces

RNG = np.random.default_rng(0)


def piece(start, stop, size=10, axis=0, shape=(10, 3)):
    """A slice's cotangent, and what it is, padded."""
    shape = tuple(stop - start if i == axis else n for i, n in enumerate(shape))
    ct = RNG.choice(np.float32([-0.0, 0.0, 1.5, np.nan, -np.inf, 2.0]), shape)
    width = [(start, size - stop) if i == axis else (0, 0) for i in range(len(shape))]
    whole = np.pad(ct, width)
    room = lambda xp: xp.full_like(whole, 7)
    return Pieces(lambda ct: [np.pad(ct, width)], room, ct, axis, start), whole


def same_bits(x, y):
    np.testing.assert_array_equal(x, y)
    there = ~np.isnan(y)
    np.testing.assert_array_equal(np.signbit(x)[there], np.signbit(y)[there])


@pytest.mark.parametrize("seed", range(20))
def test_parts_in_any_order(seed):
    rng = np.random.default_rng(seed)
    ends = [0, *sorted(rng.choice(9, rng.integers(0, 6), replace=False) + 1), 10]
    spans = [(a, b) for a, b in itertools.pairwise(ends) if rng.random() < 0.8] or [(2, 5)]
    made = [piece(*spans[i]) for i in rng.permutation(len(spans))]
    (first, total), *others = made
    for other, padded in others:
        assert first.add(other)
        total = total + padded
    same_bits(first.whole(), total)
    for a in range(10):
        inside = any(a < stop and start < a + 1 for start, stop in spans)
        if inside:
            assert not first.add(piece(a, a + 1)[0])


def test_overlaps_and_other_axes_are_not_taken():
    held, padded = piece(2, 5)
    for start, stop in [(2, 5), (1, 3), (4, 6), (0, 10), (3, 4)]:
        assert not held.add(piece(start, stop)[0])
    assert not held.add(piece(0, 1, 3, 1)[0])
    same_bits(in_one(held), padded)
    assert in_one(None) is None


@pytest.mark.parametrize(
    ("config", "value", "taken"),
    [
        ([(1, 2, 0), (0, 0, 0)], 0.0, True),
        ([(0, 0, 0), (4, 0, 0)], 0.0, True),
        ([(1, 2, 0), (0, 1, 0)], 0.0, False),
        ([(1, 2, 1), (0, 0, 0)], 0.0, False),
        ([(-1, 2, 0), (0, 0, 0)], 0.0, False),
        ([(0, 0, 0), (0, 0, 0)], 0.0, False),
        ([(1, 2, 0), (0, 0, 0)], -0.0, False),
        ([(1, 2, 0), (0, 0, 0)], 1.0, False),
    ],
)
def test_programs_that_pad(config, value, taken):
    x = fnp.ones((2, 3))
    jaxpr = fg.make_jaxpr(lambda ct: lax.pad(ct, np.float32(value), config))(x).jaxpr
    assert (pulled_pieces(jaxpr, lambda ct: [ct]) is not None) is taken


FUNCTIONS = {
    "split": lambda x: sum(fnp.sum(p * i) for i, p in enumerate(fnp.split(x, 5, axis=1))),
    "steps": lambda x: sum(fnp.sum(x[i] * float(i)) for i in range(6)),
    "neighbours": lambda x: fnp.sum((x[1:] - x[:-1]) ** 2),
    "a slice and the whole": lambda x: fnp.sum(x[:, 2:4] ** 3) + fnp.sum(x * x) + fnp.sum(x[3]),
    "one slice": lambda x: fnp.sum(x[2:4] ** 2),
    "strides": lambda x: fnp.sum(x[::2] * 2) + fnp.sum(x[1::2] ** 2) + fnp.sum(x[::-1][:2]),
    "of a result": lambda x: fnp.sum(fnp.sin(y := x * 2)[:3]) + fnp.sum(y[3:] ** 2),
    "of a branch": lambda x: fnp.sum(
        (y := lax.cond(x[0, 0] > 9, fnp.sin, fnp.cos, x))[:2]) + fnp.sum(y[4:]),
    "nothing": lambda x: fnp.sum(x[2:2]) + fnp.sum(x[:, :3]),
}  # fmt: skip


@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16", "complex64"])
@pytest.mark.parametrize("fun", FUNCTIONS.values(), ids=FUNCTIONS)
def test_gradients(fun, dtype):
    x = fnp.array(RNG.standard_normal((6, 5)), dtype)
    real = lambda x: fun(x).real.astype("float32")
    (want,) = fg.vjp(real, x)[1](fnp.float32(1))
    context.ROOT.types.clear()
    for _ in range(4):
        got = fg.grad(real)(x)
        assert got.dtype == want.dtype
        np.testing.assert_array_equal(got, want)


def test_memory_of_large_sums_is_never_compiled(monkeypatch):
    """It has no operands that would tell whether compiled code gives the same bits."""
    monkeypatch.setattr(large, "KEPT_AFTER", 1 << 20)
    monkeypatch.setattr(large, "COMPILED_AFTER", 1 << 21)
    x = fnp.ones((4, 1 << 17), np.float32)
    pull = fg.grad(lambda x: sum((p * p).sum() for p in fnp.split(x, 2)))
    for _ in range(4):
        np.testing.assert_array_equal(pull(x), np.full(x.shape, 2, np.float32))
