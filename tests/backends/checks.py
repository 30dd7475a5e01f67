"""How lowering is tested: a program, planned and interpreted, against its ops one by one."""

import numpy as np

import funcgrad as fg
import funcgrad.numpy as fnp
from funcgrad.backends.llvm import cpu
from funcgrad.backends.llvm.runtime import pool
from funcgrad.backends.plain import PLAIN
from funcgrad.backends.plain.interpret import run as run_program
from funcgrad.backends.plan import plan
from funcgrad.backends.program import HostStep, KernelStep, walk
from funcgrad.core.ir import interpret, typecheck
from funcgrad.core.record import replace
from funcgrad.core.staging import stage
from funcgrad.core.trace import aval_of

TOLERANCE = {"e": 2e-3, "f": 3e-5, "d": 1e-12, "F": 3e-5, "D": 1e-12}


def program(fun, *arrays, donated=None):
    """The jaxpr of a function of arrays that gives a list, what it captured, and its plan."""
    jaxpr, consts = stage(lambda *args: fun(*args), [aval_of(a) for a in arrays])
    typecheck(jaxpr)
    donated = [False] * len(consts) + list(donated or [False] * len(arrays))
    return jaxpr, [np.asarray(c) for c in consts], plan(jaxpr, donated, "test", cpu.CPU)


def limited(monkeypatch, **limits):
    """Plan for the processor with other limits."""
    changed = replace(cpu.CPU.limits, **limits)
    monkeypatch.setattr(cpu, "CPU", replace(cpu.CPU, limits=changed))


def check(fun, *arrays, donated=None, exact=False):
    """Compare both ways of running; the planned program, for more questions."""
    arrays = [np.asarray(a) for a in arrays]
    jaxpr, consts, planned = program(fun, *arrays, donated=donated)
    arrays = [*consts, *arrays]
    with np.errstate(all="ignore"):
        wanted = interpret(jaxpr, np, *arrays)
    got = run_program(planned, arrays)
    # Another target, with no pass of the processor's.
    plain = run_program(plan(jaxpr, [False] * len(arrays), "test", PLAIN), arrays)
    for w, g, p, v in zip(wanted, got, plain, jaxpr.outs, strict=True):
        same(g, np.asarray(w).astype(v.aval.dtype), exact)
        same(p, np.asarray(w).astype(v.aval.dtype))
    return planned


def same(got, wanted, exact=False):
    """Assert that arrays are equal: type, shape and, up to rounding, values."""
    assert got.dtype == wanted.dtype
    assert got.shape == wanted.shape
    if got.dtype.kind == "V" or got.dtype.name == "bfloat16":
        got, wanted = got.astype(np.float32), wanted.astype(np.float32)
        np.testing.assert_allclose(got, wanted, rtol=2e-2, atol=2e-2)
        return
    tolerance = 0 if exact else TOLERANCE.get(got.dtype.char, 0)
    np.testing.assert_allclose(got, wanted, rtol=tolerance, atol=tolerance)


def as_eager(f, *args):
    """The planned program, and compiled code in so many threads, give what eager operations do."""
    check(lambda *a: [f(*a)], *args, exact=True)
    wanted = np.asarray(f(*map(fnp.asarray, args)))
    for threads in (1, 2, 3):
        pool.set_num_threads(threads)
        np.testing.assert_array_equal(np.asarray(fg.jit(f)(*args)), wanted)


def kernels(planned):
    """How many kernels the program runs."""
    return sum(isinstance(s, KernelStep) for s in walk(planned.steps))


def hosts(planned):
    """The names of the ops that run in Python."""
    return [s.prim.name for s in walk(planned.steps) if isinstance(s, HostStep)]


def floats(*shape, seed=0, dtype="float32"):
    """Reproducible normal numbers."""
    return np.random.default_rng(seed).normal(size=shape).astype(dtype)


def integers(*shape, low=-5, high=6, seed=0, dtype="int32"):
    """Reproducible integers."""
    return np.random.default_rng(seed).integers(low, high, size=shape).astype(dtype)
