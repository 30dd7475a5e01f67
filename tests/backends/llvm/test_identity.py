import subprocess
import sys

import numpy as np

import funcgrad as fg
import funcgrad.numpy as fnp
from funcgrad import lax
from funcgrad.backends.llvm.identity import identity
from funcgrad.ops.families import unary

X = np.ones((3, 4), np.float32)


def of(fun, *args):
    return identity(fg.make_jaxpr(fun)(*(args or (X,))).jaxpr)


def test_equal_programs_are_equal():
    assert of(lambda x: fnp.sin(x) + 1) == of(lambda y: fnp.sin(y) + 1)
    assert of(lambda x: fg.jit(fnp.sin)(x)) == of(lambda x: fg.jit(lambda z: fnp.sin(z))(x))


FUNCTIONS = [
    lambda x: x + 2,
    lambda x: x + 1.0,
    lambda x: x + np.float32(1),
    lambda x: x - 1,
    lambda x: 1 + x,
    lambda x: x + 1 + 0 * x,
    lambda x: (x + 1, x),
    lambda x: (x, x + 1),
    lambda x: fnp.sum(x + 1),
    lambda x: fnp.sum(x + 1, 0),
    lambda x: fnp.sum(x + 1, 1),
    lambda x: fnp.sum(x + 1, (0, 1)),
    lambda x: fnp.sum(x + 1, 0, keepdims=True),
    lambda x: (x + 1).astype("float64"),
    lambda x: fg.jit(lambda x: x + 1)(x),
    lambda x: fg.jit(lambda x: x + 2)(x),
    lambda x: lax.scan(lambda c, _: (c + 1, c), x, length=3),
    lambda x: lax.scan(lambda c, _: (c + 2, c), x, length=3),
    lambda x: lax.scan(lambda c, _: (c + 1, c), x, length=4),
    lambda x: lax.cond(x[0, 0] > 0, lambda x: x, lambda x: -x, x),
    lambda x: lax.cond(x[0, 0] > 0, lambda x: -x, lambda x: x, x),
    lambda x: x + 0.0,
    lambda x: x + -0.0,
    lambda x: x + np.nan,
]


def test_programs_that_differ_in_one_thing():
    found = [of(fun) for fun in FUNCTIONS]
    assert None not in found
    assert of(lambda x: x + 1) not in found[3:]
    assert len(set(found)) >= len({str(fg.make_jaxpr(fun)(X)) for fun in FUNCTIONS})


def test_types_of_arguments_count():
    kinds = [X, X.T, X.astype("float64"), X.astype("int32"), 1.0, np.float32(1)]
    assert len({of(lambda x: x * 2, x) for x in kinds}) == len(kinds)


def test_what_others_do_not_know_has_none():
    mine = unary("sin", impl=lambda xp, x: xp.cos(x), jvp=lambda g, y, x: g, doc="Mine.")
    assert of(mine) is None
    assert of(lambda x: fg.jit(mine)(x)) is None
    assert of(lambda x: fg.pure_callback(np.sin, x, x)) is None


def test_derivatives_and_custom_rules_have_one():
    @fg.custom_jvp
    def f(x):
        return fnp.sin(x)

    f.defjvp(lambda primals, tangents: (f(*primals), 2 * tangents[0]))
    assert of(f) is not None
    assert of(fg.grad(lambda x: fnp.sum(f(x) * fnp.exp(x)))) is not None
    assert of(fg.checkpoint(lambda x: fnp.sin(fnp.sin(x)))) is not None


def test_other_processes_find_the_same():
    code = """
import numpy as np, funcgrad as fg, funcgrad.numpy as fnp
from funcgrad.backends.llvm.identity import identity
def f(x, key):
    y = fnp.sort(x @ x.T, axis=-1)[:, ::2] + fg.random.normal(key, (3, 2))
    return fg.lax.while_loop(lambda c: c.sum() < 100, lambda c: c + fnp.abs(y), y)
print(identity(fg.make_jaxpr(f)(np.ones((3, 4), np.float32), fg.random.key(0)).jaxpr))
"""
    runs = [
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
        for _ in range(2)
    ]
    assert runs[0].stdout == runs[1].stdout, runs[0].stderr
    assert len(runs[0].stdout) == 65
