"""Small programs that are evaluated again and again: as lists of NumPy calls, or compiled.

NumPy passes over memory once an operation, on one thread. So a program of several operations on
large operands is compiled: it takes a fraction of the time, and on disk it is found again. Sums,
products and elementary functions then differ from NumPy's in their last bits. That a result may not
depend on how often something was done before leaves one way to decide it: by types alone, when
something is met first. On smaller operands nothing is compiled, as it wouldn't be paid back, nor
what was compiled for many other numbers or in many other sequences already (`transforms.recorded`,
`transforms.tape.fused`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
from numpy import ascontiguousarray

from funcgrad.core.aval import ShapedArray
from funcgrad.core.backend import backend
from funcgrad.core.eager import large
from funcgrad.core.eager.numpy_calls import numpy_calls
from funcgrad.core.ir import Jaxpr, Var
from funcgrad.core.process.gc_pause import no_collections
from funcgrad.core.types import PlainArray
from funcgrad.core.views import repeats


def is_large(values: Iterable[np.ndarray | ShapedArray]) -> bool:
    """Whether one of some arrays, or of their types, is large.

    >>> import numpy as np
    >>> is_large([np.zeros(3)]), is_large([np.zeros(1 << 20)])
    (False, True)
    """
    return any(x.nbytes >= large.LARGE for x in values)


def pays(jaxpr: Jaxpr) -> bool:
    """Whether a program is to be compiled where its operands are large."""
    passes = 0
    for e in jaxpr.eqns:
        n = e.prim.passes
        if n is None or any(a.aval.dtype.kind == "c" for a in (*e.ins, *e.outs)):
            return False
        if repeats(e) and e.outs[0] not in jaxpr.outs:
            n = 1  # what reads a broadcast in NumPy does so in short loops
        if n and is_large(a.aval for a in (*e.ins, *e.outs)):
            passes += n
    return passes > 1


def calls(jaxpr: Jaxpr, compiling: bool = False, name: str = "eager") -> Callable[..., Sequence]:
    """The function from a simplified program's inputs, as NumPy arrays of their types, to its
    results; it is to be called where floating-point errors pass silently
    (`core.process.float_errors`). With `compiling`, which says that operands are large, a program
    that pays for it is compiled.

    >>> import funcgrad as fg, funcgrad.numpy as fnp, numpy as np
    >>> run = calls(fg.make_jaxpr(lambda x: fnp.sin(x) * 2)(fnp.ones(2)).jaxpr)
    >>> run(np.zeros(2, np.float32))
    (array([0., 0.], dtype=float32),)
    """
    return _compiled(jaxpr, name) if compiling and pays(jaxpr) else numpy_calls(jaxpr)


def _compiled(jaxpr: Jaxpr, name: str) -> Callable[..., Sequence]:
    """As `calls`. Results that are inputs are handed on: the arrays themselves, or what was made of
    them in row-major order."""
    read = {a for e in jaxpr.eqns for a in e.ins}
    bound = {v for e in jaxpr.eqns for v in e.outs}
    made = [a for a in dict.fromkeys(jaxpr.outs) if a in bound]
    ins = [v for v in jaxpr.ins if v in read]
    with no_collections():
        run = backend().compile(Jaxpr(ins, jaxpr.eqns, made), (False,) * len(ins), name)
    if len(ins) == len(jaxpr.ins) and tuple(made) == jaxpr.outs:
        return lambda *values: run(values)
    given = [v for v in jaxpr.ins if v not in read]
    constants = [a for a in jaxpr.outs if not isinstance(a, Var)]
    taken, left = ([jaxpr.ins.index(v) for v in some] for some in (ins, given))
    place: dict[Any, int] = {a: i for i, a in enumerate((*ins, *made, *given, *constants))}
    outs = [place[a] for a in jaxpr.outs]
    held = [a.value for a in constants]

    def call(*values: PlainArray) -> list:
        operands = [values[i] for i in taken]
        for i, x in enumerate(operands):
            if not x.flags.c_contiguous:
                operands[i] = ascontiguousarray(x)
        known = (*operands, *run(operands), *[values[i] for i in left], *held)
        return [known[i] for i in outs]

    return call
