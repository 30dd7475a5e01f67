"""rng_bit_generator: JAX's bits on CPUs, counters that go on, under transforms; bad input."""

import numpy as np
import pytest

import funcgrad as fg
import funcgrad.numpy as fnp
from funcgrad import errors, lax, random

KEY = np.array([1, 2, 3, 4], np.uint32)
PHILOX, FRY = lax.RandomAlgorithm.RNG_PHILOX, lax.RandomAlgorithm.RNG_THREE_FRY
# (algorithm, shape, dtype): (the third word of the next key, bits), from jax 0.10.2
JAX = {
    (PHILOX, (5,), "uint32"): (5, [512747620, 1298009047, 1267190206, 761827841, 1383286907]),
    (PHILOX, (2, 3), "uint32"): (5, [[512747620, 1298009047, 1267190206], [761827841, 1383286907, 1639995030]]),  # noqa: E501
    (PHILOX, (), "uint8"): (4, 100),
    (PHILOX, (5,), "uint16"): (5, [59492, 3031, 51646, 37377, 18555]),
    (PHILOX, (3,), "uint64"): (5, [5574906407289874532, 3272025663544478142, 7043725020835825787]),
    (FRY, (5,), "uint32"): (6, [1576285164, 2249660814, 740599976, 2425682526, 2436392515]),
    (FRY, (2, 3), "uint32"): (6, [[1576285164, 740599976, 2436392515], [2249660814, 2425682526, 1497962777]]),  # noqa: E501
    (FRY, (), "uint16"): (4, 13292),
    (FRY, (5,), "uint8"): (6, [236, 142, 168, 94, 67]),
}  # fmt: skip


@pytest.mark.parametrize("jit", [False, True], ids=["eager", "jit"])
@pytest.mark.parametrize("case", JAX, ids=str)
def test_bits_are_jax_s(case, jit):
    algorithm, shape, dtype = case
    f = lambda key: lax.rng_bit_generator(key, shape, dtype, algorithm)
    key, bits = (fg.jit(f) if jit else f)(KEY)
    counter, wanted = JAX[case]
    assert np.array_equal(key, [1, 2, counter, 4])
    assert key.dtype == np.uint32
    assert bits.dtype == dtype
    assert np.array_equal(bits, np.array(wanted, dtype))


def test_keys_of_two_words():
    key, bits = lax.rng_bit_generator(np.array([1, 2], np.uint64), (3,), "uint64")
    assert np.array_equal(key, [1, 4])
    assert key.dtype == np.uint64
    wanted = [12229731395331991369, 3437131457114678231, 13465615291114923006]
    assert np.array_equal(bits, np.array(wanted, np.uint64))


@pytest.mark.parametrize("algorithm", lax.RandomAlgorithm)
def test_draws_go_on_where_the_last_ended(algorithm):
    draw = lambda key: lax.rng_bit_generator(key, (4,), algorithm=algorithm)
    _, both = lax.scan(lambda key, _: draw(key), KEY, None, length=3)
    assert len(np.unique(both)) == 12
    top = np.array([1, 2, 0xFFFFFFFF, 0], np.uint32)
    assert np.array_equal(draw(top)[0][2:], [0, 1] if algorithm != FRY else [1, 1])


def test_vmap_draws_what_each_key_does():
    keys = np.stack([KEY, KEY + 1])
    _, bits = fg.vmap(lambda k: lax.rng_bit_generator(k, (3,)))(keys)
    assert np.array_equal(bits, [lax.rng_bit_generator(k, (3,))[1] for k in keys])


def test_the_default_is_what_keys_of_rbg_draw():
    key = random.key(7, impl="rbg")
    wanted = random.bits(key, (5,))
    _, bits = lax.rng_bit_generator(random.key_data(key), (5,))
    assert np.array_equal(bits, wanted)


@pytest.mark.parametrize(
    ("args", "error", "words"),
    [
        ((KEY[:2], (3,)), ValueError, r"key must be uint32 of shape \(4,\), or uint64 \(2,\), got"),
        ((KEY.astype("int32"), (3,)), ValueError, "key must be uint32"),
        ((KEY, (3,), "int32"), errors.DTypeError, "must be one of uint8, uint16, uint32, uint64"),
        ((KEY, (3,), "uint4"), errors.DTypeError, "got uint4"),
        ((KEY, (-1,)), ValueError, "shape"),
        ((KEY, (3,), "uint32", 7), ValueError, "algorithm must be a RandomAlgorithm, got 7"),
    ],
)
def test_bad_input(args, error, words):
    with pytest.raises(error, match=words):
        lax.rng_bit_generator(*args)


def test_unused_draws_leave_the_key():
    key, bits = lax.rng_bit_generator(fnp.asarray(KEY), (0,))
    assert bits.shape == (0,)
    assert np.array_equal(key, KEY)
