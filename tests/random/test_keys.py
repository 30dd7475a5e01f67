"""Keys: how they are made, what accepts them, how they pass through transforms."""

import numpy as np
import pytest

import funcgrad as fg
import funcgrad.numpy as fnp
from funcgrad import errors, lax, random, tree


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "int32", "uint32"])
def test_seeds_of_integer_dtypes(dtype):
    assert random.key(np.dtype(dtype).type(7)).data.tolist() == [0, 7]
    assert fg.jit(random.key)(np.dtype(dtype).type(7)).data.tolist() == [0, 7]


@pytest.mark.parametrize("number", [2**40 + 3, -(2**33) - 5, 2**63 - 1, 5])
def test_traced_seeds_of_64_bits(number):
    traced = fg.jit(random.key)(np.int64(number)).data
    assert traced.tolist() == random.key(number).data.tolist()


def test_words_are_keys_too():
    raw = random.PRNGKey(3)
    assert raw.shape == (2,)
    assert raw.dtype == np.uint32
    key = random.key(3)
    for kind in (raw, np.asarray(raw)):
        assert np.array_equal(random.split(kind, 3), random.split(key, 3).data)
        assert np.array_equal(random.fold_in(kind, 3), random.fold_in(key, 3).data)
        assert np.array_equal(random.normal(kind, (3,)), random.normal(key, (3,)))
    a, b = random.split(raw)
    assert a.shape == b.shape == (2,)
    assert np.array_equal(random.gamma(raw, 2.0, (3,)), random.gamma(key, 2.0, (3,)))
    assert np.array_equal(random.wrap_key_data(raw).data, key.data)
    assert np.array_equal(random.key_data(key), raw)


@pytest.mark.parametrize("impl", ["threefry2x32", "threefry4x32", "rbg"])
def test_keys_that_lack_words(impl):
    keys = random.split(random.key(0, impl=impl), 3)
    with pytest.raises(errors.DTypeError, match=r"random\.uniform: .* as '.*' has, got u32\[3\]"):
        fg.vmap(random.uniform, in_axes=1)(keys)


def test_indexing_and_shapes():
    keys = random.split(random.key(0), (2, 3))
    assert (keys.shape, keys.ndim, keys.size, len(keys)) == ((2, 3), 2, 6, 2)
    assert keys[1].shape == (3,)
    assert keys[:, 1].shape == (2,)
    assert keys[..., 0].shape == (2,)
    assert keys[1, 2].shape == ()
    assert np.array_equal(keys[1, 2].data, keys.data[1, 2])
    assert keys.reshape(6).shape == keys.reshape(-1).shape == keys.reshape((6,)).shape == (6,)
    assert [k.shape for k in keys] == [(3,), (3,)]
    assert random.split(random.key(0), 0).shape == (0,)
    assert random.split(random.key(0), ()).shape == ()


def test_keys_are_leaves_of_trees():
    state = {"key": random.key(1), "w": fnp.ones(2)}
    assert [x.shape for x in tree.leaves(state)] == [(2,), (2,)]
    new = fg.jit(lambda s: {**s, "key": random.split(s["key"])[0]})(state)
    assert isinstance(new["key"], random.Key)
    assert np.array_equal(new["key"].data, random.split(state["key"])[0].data)
    assert "data" in tree.keystr(tree.leaves_with_path(state)[0][0])


def test_vmap_and_scan_over_keys():
    keys = random.split(random.key(1), 4)
    one_by_one = np.stack([random.normal(k, (3,)) for k in keys])
    assert np.array_equal(fg.vmap(lambda k: random.normal(k, (3,)))(keys), one_by_one)
    _, scanned = lax.scan(lambda c, k: (c, random.normal(k, (3,))), 0, keys)
    assert np.array_equal(scanned, one_by_one)
    raw = fg.vmap(lambda k: random.normal(k, (3,)))(keys.data)
    assert np.array_equal(raw, one_by_one)
    assert fg.vmap(random.split)(keys).shape == (4, 2)
    assert fg.vmap(random.key)(fnp.arange(3)).shape == (3,)
    folded = fg.vmap(lambda i: random.fold_in(keys[0], i))(fnp.arange(3))
    assert np.array_equal(folded.data[2], random.fold_in(keys[0], 2).data)


def test_a_key_as_carry():
    def step(key, _):
        key, sub = random.split(key)
        return key, random.uniform(sub)

    key, wanted = random.key(5), []
    for _ in range(4):
        key, sub = random.split(key)
        wanted.append(float(random.uniform(sub)))
    last, drawn = fg.jit(lambda k: lax.scan(step, k, None, length=4))(random.key(5))
    assert drawn.tolist() == wanted
    assert np.array_equal(last.data, key.data)
    looped = lax.fori_loop(0, 4, lambda i, k: random.split(k)[0], random.key(5))
    assert np.array_equal(looped.data, key.data)


def test_the_same_key_gives_the_same_draw():
    key = random.key(0)
    assert np.array_equal(random.normal(key, (4,)), random.normal(random.clone(key), (4,)))
    a, b = random.split(key)
    assert not np.array_equal(random.normal(a, (4,)), random.normal(b, (4,)))
    # A longer draw begins with the shorter one.
    assert np.array_equal(random.bits(key, (10,))[:4], random.bits(key, (4,)))


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda: random.key(1.0), errors.DTypeError, "seed must be an integer"),
        (lambda: random.key(fnp.arange(2)), errors.DTypeError, "integer scalar"),
        (lambda: random.normal(0), errors.DTypeError, r"random\.normal|random\.uniform"),
        (lambda: random.normal("seed"), TypeError, r"need a random key \(random.key\(seed\)\)"),
        (lambda: random.normal(fnp.ones(2)), errors.DTypeError, "two uint32 words"),
        (lambda: random.split(random.split(random.key(0))), errors.ShapeError, "use vmap"),
        (lambda: random.fold_in(random.key(0), 0.5), errors.DTypeError, "integer scalar"),
        (lambda: random.fold_in(random.key(0), 2**32), OverflowError, "got 4294967296"),
        (lambda: random.fold_in(random.key(0), -1), OverflowError, "got -1"),
        (lambda: random.bits(random.key(0), (2,), "int32"), errors.DTypeError, "unsigned"),
        (lambda: random.wrap_key_data(fnp.ones(2)), errors.DTypeError, "uint32 words"),
        (lambda: random.key(0)[0], errors.ShapeError, "split it first"),
        (lambda: len(random.key(0)), TypeError, "single random key"),
        (lambda: list(random.key(0)), TypeError, r"random.split\(key, n\)"),
    ],
)
def test_bad_keys(call, error, words):
    with pytest.raises(error, match=words):
        call()


def test_repr():
    assert repr(random.key(3)) == "Key(Array([0, 3], dtype=uint32))"
    assert "<" in random.key(3)._repr_html_()
    assert "keys (2,)" in random.split(random.key(3))._repr_html_()


PARAMETERS = {
    "ball": (2,), "beta": (2.0, 3.0), "binomial": (3, 0.5), "categorical": (np.zeros(2),),
    "chisquare": (2.0,), "choice": (3,), "dirichlet": (np.ones(2),),
    "double_sided_maxwell": (0.0, 1.0), "f": (2.0, 3.0), "gamma": (2.0,),
    "generalized_normal": (2.0,), "geometric": (0.5,), "loggamma": (2.0,),
    "multinomial": (3, np.ones(2) / 2), "multivariate_normal": (np.zeros(2), np.eye(2)),
    "orthogonal": (2,), "pareto": (2.0,), "permutation": (3,), "poisson": (2.0,),
    "rayleigh": (1.0,), "t": (2.0,), "triangular": (0.0, 0.5, 1.0),
    "truncated_normal": (-1.0, 1.0), "wald": (1.0,), "weibull_min": (1.0, 2.0),
}  # fmt: skip
NOT_SAMPLERS = {"Key", "PRNGKey", "clone", "fold_in", "key", "key_data", "key_dtype",
               "key_impl", "split", "wrap_key_data"}  # fmt: skip
SAMPLERS = sorted(set(random.__all__) - NOT_SAMPLERS)


def draw(name, key, **shape):
    limits = {"minval": 0, "maxval": 9} if name == "randint" else {}
    return getattr(random, name)(key, *PARAMETERS.get(name, ()), **shape, **limits)


@pytest.mark.parametrize("name", SAMPLERS)
def test_samplers_name_themselves(name):
    key = random.key(0)
    shape = {} if name == "permutation" else {"shape": (3,)}
    for wrong, error, text in [
        (0, errors.DTypeError, "need a random key .*got i32"),
        ("seed", TypeError, "need a random key .*got 'seed'"),
        ((2, 3), TypeError, "need a random key"),
        (random.split(key, 3), errors.ShapeError, r"need a single key, got .* shape \(3,\)"),
    ]:
        with pytest.raises(error, match=rf"^random\.{name}: {text}"):
            draw(name, wrong, **shape)
    if shape:
        for wrong in ((2.5,), 2.5, "ab", key):
            with pytest.raises(TypeError, match=rf"^random\.{name}: shape must be integers, got "):
                draw(name, key, shape=wrong)
        with pytest.raises(errors.ShapeError, match=rf"^random\.{name}: shape .* negative size"):
            draw(name, key, shape=(2, -1))


def test_shapes_of_draws():
    key = random.key(0)
    for shape in (3, (3,), [3], np.int64(3), fnp.array(3), fnp.array([3])):
        assert random.normal(key, shape).shape == random.normal(key, shape=shape).shape == (3,)
        assert random.gamma(key, 1.0, shape).shape == random.split(key, shape).shape == (3,)
    assert random.gamma(key, fnp.ones(4), None).shape == (4,)
    with pytest.raises(TypeError, match=r"random\.normal: shape must be integers, got None"):
        random.normal(key, None)
    with pytest.raises(errors.ShapeError, match=r"random\.split: num .* negative"):
        random.split(key, -1)
    with pytest.raises(errors.TracerIntegerConversionError):
        fg.jit(lambda n: random.normal(key, (n,)))(3)
    with pytest.raises(TypeError, match=r"normal\(\) missing 1 required .* 'key'"):
        random.normal()


def test_axes_of_draws():
    key, x = random.key(0), fnp.ones((3, 4))
    assert random.choice(key, x, (2, 5), axis=-1).shape == (3, 2, 5)
    for name, f in [
        ("choice", lambda: random.choice(key, x, (2,), axis=2)),
        ("permutation", lambda: random.permutation(key, x, axis=2)),
        ("permutation", lambda: random.permutation(key, x, axis=-3, independent=True)),
        ("categorical", lambda: random.categorical(key, x, axis=2)),
    ]:
        with pytest.raises(errors.ShapeError, match=rf"random\.{name}: axis .* out of range"):
            f()


@pytest.mark.parametrize("wrong", ["a", 1.5, np.ones(2, int)])
def test_seeds_that_are_none(wrong):
    with pytest.raises(errors.DTypeError, match=r"random\.key: the PRNG key seed must be"):
        random.key(wrong)
    with pytest.raises(errors.DTypeError, match=r"random\.fold_in: data must be an integer"):
        random.fold_in(random.key(0), wrong)
    with pytest.raises(errors.DTypeError, match=r"random\.wrap_key_data: need uint32 words"):
        random.wrap_key_data(wrong)


IMPLS = {
    "threefry2x32": "key<fry>", "rbg": "key<rbg>", "unsafe_rbg": "key<urbg>",
    "threefry4x32": "key<fry4>", "philox2x32": "key<phx2>", "philox4x32": "key<phx4>",
}  # fmt: skip


@pytest.mark.parametrize("impl", IMPLS)
def test_typed_keys(impl):
    key = random.key(3, impl=impl)
    assert repr(key.dtype) == key.dtype.name == IMPLS[impl]
    assert key.dtype == random.key_dtype(impl)
    assert random.key_impl(key) == impl
    assert key.data.shape[-1] * 4 == key.dtype.itemsize
    again = random.wrap_key_data(random.key_data(key), impl=impl)
    for other in (again, random.key(3, dtype=key.dtype), fg.jit(lambda k: k)(key)):
        assert other.dtype == key.dtype
        assert bool(other == key)
        assert not bool(other != key)
    keys = random.split(key, (2, 3))
    same = keys == keys[1, 2]
    assert same.dtype == bool
    assert same.tolist() == [[False] * 3, [False, False, True]]
    assert (keys != keys[1, 2]).tolist() == (~same).tolist()
    assert keys.reshape(3, 2)[0].dtype == key.dtype
    assert [k.shape for k in keys] == [(3,), (3,)]
    stacked = tree.map(lambda *x: fnp.stack(x), key, keys[0, 0])
    assert stacked.dtype == key.dtype
    assert stacked.shape == (2,)
    # Draws of mapped keys are those of each alone.
    each = [random.normal(k, (3,)).tolist() for k in keys[0]]
    assert fg.vmap(lambda k: random.normal(k, (3,)))(keys[0]).tolist() == each
    assert lax.scan(lambda c, k: (c, random.normal(k, (3,))), 0, keys[0])[1].tolist() == each
    assert random.PRNGKey(3, impl=impl).tolist() == key.data.tolist()


@pytest.mark.parametrize("impl", ["rbg", "unsafe_rbg", "philox2x32"])
@pytest.mark.parametrize("name", SAMPLERS)
def test_samplers_take_keys_of_other_generators(name, impl):
    key = random.key(1, impl=impl)
    shape = {} if name == "permutation" else {"shape": (2,)}
    drawn = draw(name, key, **shape)
    assert not np.array_equal(random.split(key)[0].data, key.data)
    assert drawn.shape == draw(name, random.key(1), **shape).shape


def test_bad_impls():
    for wrong in ("x", 3, np.float32):
        for make in (random.key, random.PRNGKey):
            with pytest.raises(ValueError, match="impl must be one of threefry2x32, rbg"):
                make(0, impl=wrong)
    with pytest.raises(ValueError, match="Cannot specify both"):
        random.key(0, impl="rbg", dtype=random.key_dtype("rbg"))
    with pytest.raises(TypeError, match="don't compare"):
        random.key(0) == random.key(0, impl="rbg")  # noqa: B015
    with pytest.raises(errors.DTypeError, match="a last axis of 4"):
        random.wrap_key_data(random.key(0).data, impl="rbg")
    with pytest.raises(TypeError, match="need random keys"):
        random.key_impl("x")


def test_orthogonal_of_nothing():
    for n, m in ((0, 0), (0, 3), (3, 0)):
        assert random.orthogonal(random.key(0), n, m=m).shape == (n, m)
        assert random.orthogonal(random.key(0), n, (2,), m=m).shape == (2, n, m)


def test_keys_are_arrays():
    """Their shape, place and items, as those of arrays of their words, also under jit."""
    keys = random.split(random.key(7), (2, 3))
    words = np.asarray(random.key_data(keys))

    def moved(keys):
        changed = keys.at[0, 1].set(keys[1, 1])
        return keys.T, keys.ravel(), keys.at[1].get(), changed, keys.copy()

    changed = words.copy()
    changed[0, 1] = words[1, 1]
    want = words.transpose(1, 0, 2), words.reshape(6, 2), words[1], changed, words
    for got in (moved(keys), fg.jit(moved)(keys)):
        for g, w in zip(got, want, strict=True):
            np.testing.assert_array_equal(random.key_data(g), w)
    batched = fg.vmap(lambda k: k.at[0].set(k[2]).T)(keys)
    np.testing.assert_array_equal(random.key_data(batched)[:, 0], words[:, 2])
    assert (keys.itemsize, keys.nbytes) == (8, 48)
    assert keys.device == keys.data.device
    assert keys.devices() == keys.data.devices()
    assert keys.sharding == keys.data.sharding
    assert keys.is_fully_addressable
    assert keys.block_until_ready() is keys
    assert not keys.is_deleted()
    with pytest.raises(TypeError, match=r"keys\.at.*set: need keys of key<fry>, got 3"):
        keys.at[0].set(3)
    with pytest.raises(TypeError, match="need keys of key<fry>"):
        keys.at[0].set(random.key(0, impl="rbg"))
    own = keys.copy()
    own.delete()
    assert own.is_deleted()
    assert not keys.is_deleted()


KEYS = random.split(random.key(0), 6).reshape(2, 3)


@pytest.mark.parametrize(
    "move",
    [
        lambda k, np: np.reshape(k, (3, 2)),
        lambda k, np: np.tile(k, (2, 1)),
        lambda k, np: np.concatenate([k, k], 1),
        lambda k, np: np.stack([k, k], 2),
        lambda k, np: np.broadcast_to(k, (4, 2, 3)),
        lambda k, np: np.append(k, k[0]),
        lambda k, np: np.where(np.array([True, False, True]), k, k[0]),
        lambda k, np: np.take(k, np.array([1, 0]), 0),
        lambda k, np: np.roll(np.flip(np.transpose(k)), 1, 0),
        lambda k, np: np.split(k, 3, 1)[1],
    ],
)
def test_keys_in_functions_that_move_elements(move):
    numbers = np.arange(6).reshape(2, 3)
    expected = KEYS.ravel()[fnp.asarray(move(numbers, np))]
    for moved in (move(KEYS, fnp), fg.jit(lambda k: move(k, fnp))(KEYS)):
        assert moved.shape == expected.shape
        assert fnp.all(moved == expected)


def test_keys_do_not_mix_with_others():
    with pytest.raises(TypeError, match=r"where: keys and others don't mix .* y holds 1"):
        fnp.where(True, KEYS, 1)
    with pytest.raises(TypeError, match=r"concatenate: keys and others .* arrays holds"):
        fnp.concatenate([KEYS, fnp.ones((2, 3), "uint32")])
    with pytest.raises(errors.DTypeError, match="stack: keys of 2 kinds"):
        fnp.stack([random.key(0), random.key(0, impl="rbg")])
