"""Sorts by random words as shuffles: which sorts are, and that their order is that of the words."""

import ctypes

import numpy as np
import pytest

import funcgrad as fg
import funcgrad.numpy as fnp
from funcgrad import lax, random
from funcgrad.backends.llvm.native import ir
from funcgrad.backends.llvm.native.engine import engine
from funcgrad.backends.llvm.native.target import Target
from funcgrad.backends.llvm.rewrites.shuffles import MANY
from funcgrad.backends.llvm.runtime import pool, scratch
from funcgrad.backends.llvm.sort import shuffle as sort_shuffle
from funcgrad.backends.llvm.sort.functions import install
from tests.backends.checks import check, hosts

KEY = random.key(7)


def order(key, n):
    """The places of elements in the order of a key's random words."""
    return np.argsort(np.asarray(random.bits(key, (n,))), kind="stable")


def shuffled(key, x):
    """x as `permutation` leaves it."""
    for _ in range(2):
        key, sub = random.split(key)
        x = x[order(sub, len(x))]
    return x


@pytest.mark.parametrize("threads", [1, 2, 3, 9])
@pytest.mark.parametrize("n", [MANY, MANY + 1, 100_003, 263_000])
def test_permutations(n, threads):
    pool.set_num_threads(threads)
    got = fg.jit(lambda key: random.permutation(key, n))(KEY)
    np.testing.assert_array_equal(got, shuffled(KEY, np.arange(n, dtype=np.int32)))
    np.testing.assert_array_equal(got, random.permutation(KEY, n))


@pytest.mark.parametrize("dtype", ["bool", "int8", "uint16", "float16", "float32", "uint32"])
def test_dtypes(dtype, rng):
    x = rng.integers(0, 1 << 31, MANY + 5).astype(np.uint32)
    x = x.view(np.uint8)[: len(x)].view(dtype) if dtype == "int8" else x.astype(dtype)

    def f(key, x):
        return [random.permutation(key, x)]

    planned = check(f, random.key_data(KEY), x, exact=True)
    assert hosts(planned) == ["shuffle"] * 2
    np.testing.assert_array_equal(np.asarray(fg.jit(f)(KEY, x)[0]), shuffled(KEY, x))


def test_others_stay_sorts():
    n = MANY

    def by(words, x=None):
        return lambda key: [lax.sort_key_val(words(key), fnp.arange(n) if x is None else x)[1]]

    def drawn(key):
        return random.bits(key, (n,))

    data = random.key_data(KEY)
    assert hosts(check(by(drawn), data, exact=True)) == ["shuffle"]
    wide = np.arange(n, dtype=np.int64)
    for f in (
        by(drawn, wide),
        by(lambda key: drawn(key) >> 1),
        by(lambda key: random.bits(key, (n + 8,))[8:]),
        by(lambda key: random.bits(key, (2, n // 2)).reshape(n)),
        by(lambda key: random.bits(key, (n,), "uint16")),
        lambda key: list(lax.sort_key_val(drawn(key), fnp.arange(n))),
        lambda key: [lax.sort([drawn(key), fnp.arange(n)], num_keys=2)[1]],
        lambda key: [random.permutation(key, n // 2)],
    ):
        assert "shuffle" not in hosts(check(f, data, exact=True))


def test_vmapped_and_twice():
    """A batch of permutations, and words that are used besides."""
    keys = random.split(KEY, 2)
    both = fg.jit(fg.vmap(lambda key: random.permutation(key, MANY)))(keys)
    for key, got in zip(keys, both, strict=True):
        np.testing.assert_array_equal(got, random.permutation(key, MANY))

    def f(key):
        words = random.bits(key, (MANY,))
        return words, lax.sort_key_val(words, fnp.arange(MANY))[1]

    words, places = fg.jit(f)(KEY)
    np.testing.assert_array_equal(words, random.bits(KEY, (MANY,)))
    np.testing.assert_array_equal(places, order(KEY, MANY))


def run(address, x):
    words = np.asarray(random.key_data(KEY)).copy()
    out = np.empty_like(x)
    call = [len(x), words.ctypes.data, words.ctypes.data + 4, x.ctypes.data, out.ctypes.data]
    ctypes.CFUNCTYPE(None, ctypes.c_void_p)(address)((ctypes.c_int64 * len(call))(*call))
    np.testing.assert_array_equal(out, x[order(KEY, len(x))])


@pytest.mark.parametrize("width", [1, 2, 4])
def test_without_room(width, monkeypatch):
    """Where a bucket is full the result is the same."""
    monkeypatch.setattr(sort_shuffle, "_DEVIATIONS", 0)
    pool.bind(engine())
    scratch.bind(engine())
    module = ir.Module(f"test_shuffle{width}")
    sort_shuffle.emit_shuffle(module, "shuffle", width, 32)
    address = engine().compile(module, level=1).address("shuffle")
    for n in (MANY, 70_001):
        run(address, np.arange(n).astype(f"i{width}"))


def test_any_processor():
    address = install("fg_shuffle_4", engine(Target.host().generic()))
    for n in (MANY + 3, 200_000):
        run(address, np.arange(n, dtype=np.int32))
