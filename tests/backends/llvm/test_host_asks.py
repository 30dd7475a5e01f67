"""Which programs ask for signals: those that may take long, and no others."""

import re

import numpy as np
import pytest

import funcgrad as fg
import funcgrad.numpy as fnp
from funcgrad import lax

ROW = np.ones(100, np.float32)
SQUARE = np.ones((300, 300), np.float32)


def turns(n, turn):
    return lambda x: lax.fori_loop(0, n, lambda i, y: turn(y), x)


def unrolled(n, turn):
    def f(x):
        for _ in range(n):
            x = turn(x)
        return x

    return f


def product(x):
    return fnp.sin(x @ x)


def until(turn):
    return lambda x: lax.while_loop(lambda y: (y > 0).all(), turn, x)


LONG = {
    "a loop without a known end": (until(fnp.sin), ROW),
    "one over numbers": (until(lambda y: y * 2), np.float32(1)),
    "one in a short loop": (turns(3, until(fnp.sin)), ROW),
    "one in a branch": (lambda x: lax.cond(x[0] > 0, until(fnp.sin), fnp.cos, x), ROW),
    "many turns": (turns(10**6, fnp.sin), ROW),
    "many turns of few": (turns(10**4, turns(10**3, fnp.sin)), ROW),
    "many turns over numbers": (turns(10**9, lambda y: y * 2), np.float32(1)),
    "long turns": (turns(3, product), SQUARE),
    "long steps": (unrolled(3, product), SQUARE),
    "very many steps": (unrolled(300, product), SQUARE),
}
SHORT = {
    "a step": (fnp.sin, ROW),
    "few turns": (turns(10, fnp.sin), ROW),
    "few turns of few": (turns(10, turns(10, fnp.sin)), ROW),
    "few turns over numbers": (turns(10**5, lambda y: y * 2), np.float32(1)),
    "short steps": (unrolled(200, lambda x: fnp.sin(x[::-1])), ROW),
}  # fmt: skip


def text(fun, x):
    return fg.jit(fun).lower(x).as_text("llvm")


@pytest.mark.parametrize("name", LONG)
def test_what_may_take_long_asks(name):
    assert "call i32 @fg_poll" in text(*LONG[name])


@pytest.mark.parametrize("name", SHORT)
def test_what_is_over_soon_does_not(name):
    assert "fg_poll" not in text(*SHORT[name])


def test_parts_of_a_long_program_ask_by_the_same_words():
    """Each part may be too short to ask in."""
    found = text(*LONG["very many steps"])
    host = found[found.index("define i32 @fg_program") :]
    assert len(re.findall(r"call i32 @fg_program_\d+\(.*, ptr %words\)", found)) > 3
    assert found.count("%words = alloca") == host.count("%words = alloca") == 1


def test_other_threads_use_python_while_a_loop_has_no_end_that_is_known():
    """However little one turn of it does."""
    step = fg.jit(until(lambda y: y * 2))
    assert not step.lower(np.float32(1)).compile()._executable.facts.short
    assert fg.jit(lambda y: y * 2).lower(np.float32(1)).compile()._executable.facts.short
