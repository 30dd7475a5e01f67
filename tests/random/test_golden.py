"""Draws written down once from jax.random (0.10, threefry2x32, partitionable; 64-bit dtypes with
jax_enable_x64): bits and integers are equal, floats up to the rounding of their functions."""

import json
from pathlib import Path

import numpy as np
import pytest

import funcgrad as fg
import funcgrad.numpy as fnp
from funcgrad import random
from tests.random.store_draws import COUNT, PARAMETERS, SEED

KEY = random.key(42)
SEEDS = {
    0: [0, 0],
    42: [0, 42],
    2**31: [0, 2**31],
    2**32 - 1: [0, 2**32 - 1],
    2**32: [1, 0],
    2**40 + 3: [256, 3],
    -(2**33) - 5: [4294967293, 4294967291],
    -1: [0, 2**32 - 1],  # as without jax_enable_x64
}
BITS = {
    "uint8": [162, 217, 249, 215],
    "uint16": [5026, 12505, 63993, 49623],
    "uint32": [2098992034, 2919706841, 2646866425, 2409546199],
    "uint64": [
        7871734211187709741, 276886910877598708, 10591095138341673235, 13462782411356743825,
    ],
}  # fmt: skip
NARROW, WIDE = [38, 79, 89, 54, 28], [34, 78, 93, 73, 60]
UNIFORM = {
    "float16": ["0x1.38p-4", "0x1.86p-3", "0x1.f38p-1", "0x1.838p-1"],
    "bfloat16": ["0x1.44p-1", "0x1.bp-1", "0x1.fp-1", "0x1.acp-1"],
    "float32": ["0x1.f47048p-2", "0x1.5c0e6p-1", "0x1.3b87fp-1", "0x1.1f3d8p-1"],
    "float64": [
        "0x1.b4f8123c40884p-2", "0x1.ebd996d6e84p-7", "0x1.25f641d41e71ap-1",
        "0x1.75aad28c6a974p-1",
    ],
}  # fmt: skip
LOGITS = fnp.array([0.0, 1.0, 2.0])
P = fnp.array([0.1, 0.2, 0.3, 0.4])

# (what, draw, its values)
INTEGERS = [
    ("split", lambda: random.split(random.key(7), 3).data,
     [[3625411723, 1954958720], [195045567, 4062205631], [966301609, 1948237315]]),
    ("split_shape", lambda: random.split(random.key(7), (2, 1)).data,
     [[[3625411723, 1954958720]], [[195045567, 4062205631]]]),
    ("fold_in", lambda: random.fold_in(random.key(7), 5).data, [3583082021, 1947592014]),
    ("fold_in_large", lambda: random.fold_in(random.key(7), 2**32 - 1).data,
     [3658129989, 1719350670]),
    ("randint_int8", lambda: random.randint(KEY, (5,), -128, 128, "int8"), [68, -110, 55, 65, 13]),
    ("randint_uint8", lambda: random.randint(KEY, (5,), 0, 256, "uint8"), [196, 18, 183, 193, 141]),
    ("bernoulli", lambda: random.bernoulli(KEY, 0.3, (8,)), [0, 0, 0, 0, 0, 0, 1, 0]),
    ("categorical", lambda: random.categorical(KEY, LOGITS, shape=(8,)), [2, 2, 2, 2, 1, 2, 1, 2]),
    ("categorical_once",
     lambda: random.categorical(KEY, fnp.arange(5.0), shape=(5,), replace=False), [4, 3, 2, 1, 0]),
    ("permutation", lambda: random.permutation(KEY, 8), [7, 4, 2, 5, 3, 6, 0, 1]),
    ("permutation_rows",
     lambda: random.permutation(KEY, fnp.arange(12).reshape(3, 4), 1, independent=True),
     [[2, 3, 0, 1], [7, 4, 5, 6], [10, 11, 8, 9]]),
    ("choice", lambda: random.choice(KEY, 10, (6,)), [4, 4, 1, 9, 9, 9]),
    ("choice_once", lambda: random.choice(KEY, 10, (6,), replace=False), [7, 4, 2, 5, 3, 6]),
    ("choice_p", lambda: random.choice(KEY, 4, (6,), p=P), [2] * 6),
    ("choice_once_p", lambda: random.choice(KEY, 4, (3,), False, p=P), [3, 2, 1]),
    ("rademacher", lambda: random.rademacher(KEY, (8,)), [1, -1, -1, -1, 1, -1, 1, -1]),
    ("poisson", lambda: random.poisson(KEY, fnp.array([0.5, 4.0, 30.0, 1000.0])), [1, 3, 24, 977]),
    ("geometric", lambda: random.geometric(KEY, 0.2, (5,)), [4, 2, 3, 3, 4]),
    ("binomial", lambda: random.binomial(KEY, fnp.array([5.0, 20.0, 100.0, 1e4]), 0.3),
     [1, 7, 25, 2967]),
    ("multinomial", lambda: random.multinomial(KEY, 50, fnp.array([0.2, 0.3, 0.5])), [13, 16, 21]),
]  # fmt: skip
FLOATS = {
    "normal": ((), [-0.02830462, 0.46713185]),
    "exponential": ((), [0.6708175, 1.1388006]),
    "gumbel": ((), [0.3340934, 0.95201945]),
    "laplace": ((), [0.02283965, -0.44565356]),
    "logistic": ((), [-0.04516941, 0.7528398]),
    "cauchy": ((), [-0.03548463, 0.6337261]),
    "maxwell": ((), [0.5535825, 0.29328507]),
    "truncated_normal": ((-1.0, 2.0), [0.14770006, 0.5684449]),
    "lognormal": ((0.5,), [0.9859474, 1.2630961]),
    "pareto": ((2.0,), [1.3985119, 1.7672069]),
    "rayleigh": ((2.0,), [2.3933022, 1.7571814]),
    "weibull_min": ((1.5, 2.5), [1.278595, 1.5800482]),
    "triangular": ((0.0, 0.3, 1.0), [0.4017498, 0.52656364]),
    "beta": ((2.0, 3.0), [0.43196177, 0.3128183]),
    "chisquare": ((3.0,), [5.870714, 1.397851]),
    "t": ((3.0,), [0.08987478, -1.7357467]),
    "f": ((3.0, 4.0), [0.74487185, 0.47861135]),
    "generalized_normal": ((1.5,), [-0.87823755, -0.20616245]),
    "double_sided_maxwell": ((0.5, 2.0), [-2.2620435, -0.85137796]),
    "wald": ((1.5,), [1.6461202, 2.6983466]),
    "loggamma": ((0.3,), [-0.8295456, -1.1391261]),
}


@pytest.mark.parametrize("number", SEEDS)
def test_keys(number):
    assert random.key(number).data.tolist() == SEEDS[number]


@pytest.mark.parametrize("dtype", BITS)
def test_bits(dtype):
    drawn = random.bits(KEY, (4,), dtype)
    assert drawn.dtype == dtype
    assert drawn.tolist() == BITS[dtype]
    assert random.bits(KEY, (2, 2), dtype).tolist() == [BITS[dtype][:2], BITS[dtype][2:]]


@pytest.mark.parametrize("bits", [8, 16, 32, 64])
@pytest.mark.parametrize("kind", ["int", "uint"])
def test_randint(kind, bits):
    drawn = random.randint(KEY, (5,), 3, 100, f"{kind}{bits}")
    assert drawn.dtype == f"{kind}{bits}"
    assert drawn.tolist() == (WIDE if bits == 64 else NARROW)


@pytest.mark.parametrize("dtype", UNIFORM)
def test_uniform(dtype):
    drawn = random.uniform(KEY, (4,), dtype)
    assert drawn.dtype.name == dtype
    assert [float(x) for x in drawn] == [float.fromhex(x) for x in UNIFORM[dtype]]


@pytest.mark.parametrize(
    ("draw", "wanted"), [c[1:] for c in INTEGERS], ids=[c[0] for c in INTEGERS]
)
def test_integers(draw, wanted):
    assert draw().tolist() == wanted


@pytest.mark.parametrize("name", FLOATS)
def test_floats(name):
    args, wanted = FLOATS[name]
    drawn = getattr(random, name)(KEY, *args, shape=(2,))
    assert drawn.dtype == np.float32
    np.testing.assert_allclose(drawn, wanted, rtol=3e-6, atol=1e-7)


def test_vectors():
    close = {"rtol": 3e-6, "atol": 1e-7}
    drawn = random.gamma(KEY, fnp.array([0.3, 1.0, 5.0]))
    np.testing.assert_allclose(drawn, [0.43624744, 0.33158407, 7.432342], **close)
    drawn = random.dirichlet(KEY, fnp.array([1.0, 2.0]))
    np.testing.assert_allclose(drawn, [0.6626061, 0.33739385], **close)
    np.testing.assert_allclose(random.ball(KEY, 2), [0.3234561, 0.06134896], **close)
    drawn = random.normal(KEY, (2,), "complex64")
    wanted = [0.05368746 + 0.42833984j, -0.34389618 + 0.5650095j]
    np.testing.assert_allclose(drawn, wanted, **close)
    drawn = random.lognormal(random.key(0), 0.5, (2,), "complex64")
    wanted = [0.92663807 - 1.0840765j, 0.5458168 - 0.47844973j]
    np.testing.assert_allclose(drawn, wanted, **close)
    drawn = random.orthogonal(KEY, 2)
    np.testing.assert_allclose(drawn, [[-0.095284, 0.995450], [0.995450, 0.095284]], atol=1e-6)


# Of jax.random on CPUs (0.10.2): words of split, fold_in; bits; uniform draws of key(42).
PHILOX = {
    "rbg": (
        [[1832780943, 270669613, 1832780943, 270669613],
         [64467757, 2916123636, 64467757, 2916123636]],
        [2765691542, 824333390, 2765691542, 824333390], [1, 20, 35, 41], [2, 1, 3, 4, 5, 0],
    ),
    "unsafe_rbg": (
        [[2620864722, 2991908441, 282133475, 2589630650],
         [4105776319, 298289174, 864345282, 274752888]],
        [3810769997, 2355008983, 1837142617, 748193156], [39, 91, 59, 37], [4, 3, 0, 2, 1, 5],
    ),
}  # fmt: skip


@pytest.mark.parametrize("impl", PHILOX)
@pytest.mark.parametrize("transform", [lambda f: f, fg.jit])
def test_philox(impl, transform):
    split, folded, integers, order = PHILOX[impl]
    key = random.key(42, impl=impl)
    draw = lambda f: transform(f)(key).tolist()
    assert draw(lambda k: random.split(k, 3).data[:2]) == split
    assert draw(lambda k: random.split(k, (3, 1)).data[:2, 0]) == split
    assert draw(lambda k: random.fold_in(k, 5).data) == folded
    words = [2620864722, 2991908441, 282133475, 2589630650, 1779689962]
    assert draw(lambda k: random.bits(k, (5,))) == words
    assert draw(lambda k: random.bits(k, (3,), "uint8")) == [210, 89, 227]
    floats = [0.6102175712585449, 0.6966079473495483, 0.06568920612335205]
    assert draw(lambda k: random.uniform(k, (3,))) == floats
    assert draw(lambda k: random.randint(k, (4,), 0, 100)) == integers
    assert draw(lambda k: random.permutation(k, 6)) == order


# Of a key of seed 12345678901: its words, a split, fold_in(7); bits of 8, 32, 64; normal draws.
CIPHERS = {
    "threefry4x32": (
        [2749882422, 358690259, 2597816956, 1943259890],
        [1156592623, 438606183, 2288133683, 1639885668],
        [3496647053, 3038756972, 3194081895, 994145580],
        [22, 2633638934, 14759526269325310695], [0.28764793, 0.99069017],
    ),
    "philox2x32": (
        [269672003], [1763106894], [2134859971],
        [54, 1439538486, 6587179676989898802], [-0.42568522, 0.24123981],
    ),
    "philox4x32": (
        [762606365, 176872025], [820808922, 3008155166], [1056112636, 201204710],
        [2, 3521542914, 2113275856637376263], [0.91507178, 0.30309855],
    ),
}  # fmt: skip


@pytest.mark.parametrize("impl", CIPHERS)
def test_generators_of_other_ciphers(impl):
    words, split, folded, drawn, floats = CIPHERS[impl]
    key = random.key(12345678901, impl=impl)
    assert key.data.tolist() == words
    assert random.split(key, (2, 2)).data[0, 1].tolist() == split
    assert random.fold_in(key, 7).data.tolist() == folded
    dtypes = ("uint8", "uint32", "uint64")
    assert [random.bits(key, (3,), d)[0].tolist() for d in dtypes] == drawn
    for transform in (lambda f: f, fg.jit):
        normal = transform(lambda k: random.normal(k, (2,)))(key)
        np.testing.assert_allclose(normal, floats, rtol=1e-6)


def test_philox_counters_carry():
    words = fnp.array([1, 2, 2**32 - 1, 2**32 - 1], "uint32")
    drawn = random.bits(random.wrap_key_data(words, impl="rbg"), (9,))
    assert drawn.tolist() == [875035680, 2457449792, 952865925, 536199321, 67759320, 265751716,
                              222428074, 2049345928, 2818318232]  # fmt: skip


@pytest.mark.parametrize("name", PARAMETERS)
def test_floats_differ_from_jax_in_the_last_places(name):
    # The README and the page of differences state this bound.
    stored = json.loads(Path(__file__).with_name("jax_draws.json").read_text())[name]
    places, wanted = zip(*stored, strict=True)
    drawn = getattr(random, name)(random.key(SEED), *PARAMETERS[name], shape=(COUNT,))
    found, wanted = np.asarray(drawn, np.float64)[list(places)], np.array(wanted)
    error = np.abs(found - wanted) / np.maximum(1, np.abs(wanted))
    assert error.max() <= (0 if name == "uniform" else 6e-6)


def test_modes_of_more_bits():
    wanted = [0.39925798773765564, -0.12997561693191528, 0.043095413595438004]
    drawn = random.gumbel(KEY, (3,), mode="high")
    np.testing.assert_allclose(drawn, wanted, rtol=1e-5)
    flips = random.bernoulli(KEY, 0.3, (8,), mode="high")
    assert flips.tolist() == [False] * 6 + [True, False]
    drawn = random.categorical(KEY, fnp.arange(5.0), shape=(8,), mode="high")
    assert drawn.tolist() == [4, 1, 4, 3, 2, 1, 4, 4]
    assert random.choice(KEY, 4, (3,), False, p=P, mode="high").tolist() == [3, 2, 1]
    for name, args in (("gumbel", ()), ("bernoulli", ()), ("categorical", (fnp.ones(2),))):
        draw = getattr(random, name)
        assert draw(KEY, *args, mode="low").tolist() == draw(KEY, *args).tolist()
        with pytest.raises(ValueError, match=rf"random\.{name}: mode must be one of low, high"):
            draw(KEY, *args, mode="middle")
