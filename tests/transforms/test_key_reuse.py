"""Random keys that are used twice, op by op, in programs, and in loops."""

import numpy as np
import pytest

import funcgrad as fg
import funcgrad.numpy as fnp
from funcgrad import lax, random
from funcgrad.errors import KeyReuseError, NonFiniteError

KEY = lambda: random.key(0)
shots = fg.pmap(lambda key: random.normal(key))
draw = fg.jit(lambda key: random.normal(key))


def both(f, g):
    def run():
        key = KEY()
        f(key), g(key)

    return run


def in_turns(key):
    return lax.fori_loop(0, 3, lambda i, c: c + random.normal(key), 0.0)


def carried(advance):
    def body(carry, x):
        key, total = carry
        key, now = random.split(key) if advance else (key, key)
        return (key, total + random.normal(now)), None

    return lambda: lax.scan(body, (KEY(), 0.0), fnp.arange(3.0))


def branches(key):
    return lax.cond(True, random.normal, random.uniform, key)


def captured_by_branches(key):
    return lax.switch(1, [lambda: 0.0, lambda: random.normal(key), lambda: random.uniform(key)])


def halves(first, then):
    def run():
        keys = random.split(KEY(), (3, 2))
        lax.scan(lambda c, k: (c + random.normal(k[first]), None), 0.0, keys)
        random.normal(keys[0, then])

    return run


@fg.jit
def whole_after_one(keys):
    random.normal(keys[0, 0])
    return random.normal(keys.reshape(4)[:][0])


def elements(*places):
    def run():
        keys = random.split(KEY(), 3)
        return [random.normal(keys[i]) for i in places]

    return run


def rows(then):
    def run():
        keys = random.split(KEY(), 3)
        lax.scan(lambda c, key: (c + random.normal(key), None), 0.0, keys)
        then(keys)

    return run


TWICE = {
    "samplers": both(random.normal, random.uniform),
    "split": both(random.split, random.normal),
    "words": lambda: [random.bits(w := random.PRNGKey(1)), random.bits(w)],
    "elements": elements(0, 0),
    "within jit": lambda: fg.jit(lambda k: random.normal(k) + random.uniform(k))(KEY()),
    "two calls": both(draw, draw),
    "a call and a sampler": both(draw, random.normal),
    "each turn": lambda: fg.jit(in_turns)(KEY()),
    "each turn, op by op": lambda: in_turns(KEY()),
    "a carry": carried(advance=False),
    "rows": rows(lambda keys: random.normal(keys[0])),
    "rows' parts": halves(0, 0),
    "in another shape": lambda: whole_after_one(random.split(KEY(), (2, 2))),
    "captured by branches": lambda: both(captured_by_branches, random.normal)(),
    "a branch": lambda: fg.jit(lambda k: branches(k) + random.normal(k))(KEY()),
    "vmap": lambda: [fg.vmap(random.normal)(k := random.split(KEY())), fg.vmap(random.normal)(k)],
    "pmap": lambda: [shots(k := random.split(KEY())), shots(k)],
    "grad": lambda: fg.grad(lambda x, k: x * random.normal(k) * random.normal(k))(1.0, KEY()),
}
ONCE = {
    "split": lambda: [random.normal(k) for k in random.split(KEY())],
    "elements": elements(0, 1, 2),
    "fold_in": both(lambda k: random.fold_in(k, 0), lambda k: random.fold_in(k, 1)),
    "clone": both(random.normal, lambda k: random.uniform(random.clone(k))),
    "two keys": lambda: (draw(KEY()), draw(KEY())),
    "a carry": carried(advance=True),
    "rows": rows(lambda keys: None),
    "rows' parts": halves(0, 1),
    "captured by branches": lambda: captured_by_branches(KEY()),
    "captured in jit": lambda: fg.jit(captured_by_branches)(KEY()),
    "both branches": lambda: fg.jit(branches)(KEY()),
    "grad": lambda: fg.grad(lambda x, k: x * random.normal(k))(1.0, KEY()),
    "checkpoint": lambda: fg.grad(fg.checkpoint(lambda x, k: x * random.normal(k)))(1.0, KEY()),
    "samplers of samplers": lambda: (
        random.gamma(KEY(), 1.0), random.permutation(KEY(), 5), random.dirichlet(KEY(), fnp.ones(3))
    ),
}  # fmt: skip


@pytest.mark.parametrize("how", TWICE)
def test_twice(how):
    with fg.debug_key_reuse(), pytest.raises(KeyReuseError, match="the random key (was|is) used"):
        TWICE[how]()
    TWICE[how]()


@pytest.mark.parametrize("how", ONCE)
def test_once(how):
    with fg.debug_key_reuse():
        ONCE[how]()


def test_messages_name_who_and_where():
    with fg.debug_key_reuse(), pytest.raises(KeyReuseError) as error:
        TWICE["samplers"]()
    assert str(error.value).startswith("random.uniform: the random key was used before at ")
    assert "test_key_reuse" in str(error.value)
    assert "random.clone(key)" in str(error.value)
    with fg.debug_key_reuse(), pytest.raises(KeyReuseError, match=r"a call of jit\(<lambda>\)"):
        TWICE["two calls"]()


@pytest.mark.parametrize("index", [7, (1, 2)])
def test_an_index_that_is_not_there(index):
    keys = random.split(KEY(), 4)
    with pytest.raises(IndexError) as alone:
        keys[index]
    with fg.debug_key_reuse(), pytest.raises(type(alone.value)) as error:
        keys[index]
    assert str(error.value) == str(alone.value)


def test_blocks_share_programs():
    traced = []
    shot = fg.jit(lambda key: traced.append(1) or random.normal(key))
    for _ in range(3):
        with fg.debug_key_reuse():
            shot(key := KEY())
            with pytest.raises(KeyReuseError, match="a call of jit"):
                shot(key)
        shot(key)
    assert len(traced) == 2


def test_beside_other_checks():
    with fg.debug_key_reuse(), fg.debug_nans(), fg.transfer_guard("disallow"):
        draw(KEY())
        with pytest.raises(NonFiniteError, match="div produced NaN"):
            fg.jit(lambda k: random.normal(k) * 0 / 0)(KEY())


def test_bits_stay_and_blocks_nest():
    want = np.asarray(random.normal(KEY(), (4,)))
    with fg.debug_key_reuse():
        key = KEY()
        np.testing.assert_array_equal(random.normal(key, (4,)), want)
        with fg.debug_key_reuse(False):
            random.normal(key)
        with fg.debug_key_reuse(), pytest.raises(KeyReuseError):
            random.normal(key)
        np.testing.assert_array_equal(random.normal(random.clone(key), (4,)), want)
        np.testing.assert_array_equal(fg.jit(lambda k: random.normal(k, (4,)))(KEY()), want)
