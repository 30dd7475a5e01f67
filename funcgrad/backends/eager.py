"""What eager operations with large results take of the compiler: kept memory, and kernels."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from funcgrad.backends.llvm import cpu
from funcgrad.backends.llvm.build import assemble
from funcgrad.backends.llvm.runtime.memory import allocator as memory
from funcgrad.backends.loops import scalars
from funcgrad.backends.loops.ir import BITS, PREDICATES, Op
from funcgrad.backends.plan import plan
from funcgrad.backends.rewrites.equations import Equations
from funcgrad.core.aval import ShapedArray
from funcgrad.core.ir import Jaxpr, Var
from funcgrad.core.primitive import Primitive
from funcgrad.dtypes import FLOAT8
from funcgrad.ops.elementwise.convert import convert_element_type_p

__all__ = ["kernel", "memory"]


def kernel(
    prim: Primitive, operands: Sequence[tuple], out: ShapedArray, params: dict[str, Any]
) -> tuple[Callable[[Sequence[np.ndarray]], np.ndarray], tuple[int, int, int]] | None:
    """An elementwise operation, compiled for contiguous operands of these shapes and dtypes, which
    broadcast to the result's, and the words that tell native eager calls of it (see
    `core.eager.large`). None if it isn't `exact`.

    >>> from funcgrad.ops.families import add
    >>> x = np.ones(3, np.float32)
    >>> types = [((3,), x.dtype), ((1,), x.dtype)]
    >>> run, words = kernel(add, types, ShapedArray(*types[0]), {})
    >>> run((x, x[:1]))
    array([2., 2., 2.], dtype=float32)
    """
    if not exact(prim, params, [dtype for _, dtype in operands], out.dtype):
        return None
    ins = [Var(ShapedArray(*a)) for a in operands]
    flat, ndim = Equations(), out.ndim
    wide = [
        flat.broadcast(v, out.shape, range(ndim - v.aval.ndim, ndim))
        if v.aval.shape not in ((), out.shape)
        else v
        for v in ins
    ]
    result = flat.add(prim, wide, out.strong(), **params)
    run = assemble(plan(Jaxpr(ins, flat.eqns, (result,)), [False] * len(ins), prim.name, cpu.CPU))
    kept = memory()
    # What isn't just a kernel on operands and result is left to `run`.
    alone = not (run.facts.arena_bytes or run.facts.written or run.calls_back)
    words = (run.spec_address, id(kept.capsule), kept.set_handler) if alone else (0, 0, 0)
    return lambda values: run(list(values))[0], words


# What gives NumPy's bits: of floats what doesn't round, or rounds once as IEEE says.
_ROUNDING = frozenset({"add", "subtract", "multiply", "divide", "sqrt"})
_EXACT = frozenset({
    "abs", "bitcast", "ceil", "copysign", "floor", "negative", "rint", "trunc", "where",
    *BITS, *PREDICATES,
})  # fmt: skip
_OF_INTEGERS = frozenset({"add", "maximum", "minimum", "multiply", "sign", "subtract"})


def exact(prim: Primitive, params: dict, dtypes: Sequence[np.dtype], out: np.dtype) -> bool:
    """Whether compiled code gives NumPy's bits, as an elementwise operation rounds once at most,
    and computes anything.

    >>> from funcgrad.ops.elementwise.arithmetic import rsqrt, sqrt
    >>> [exact(p, {}, [np.dtype("float32")], np.dtype("float32")) for p in (sqrt, rsqrt)]
    [True, False]
    """
    if prim is convert_element_type_p and any(d in FLOAT8 for d in (*dtypes, out)):
        return True  # by integers' arithmetic; see `rewrites.narrow`
    if any(d in scalars.HALVES for d in (*dtypes, out)):
        return False
    code = scalars.traced(prim, params, dtypes, out)
    if code is None or not all(type(s) is Op for s in code):
        return False
    if all(s.name == "bitcast" for s in code):
        return False
    left = [s for s in code if s.name not in _EXACT]
    if all(s.out.dtype.kind != "f" for s in left):
        return all(s.name in _OF_INTEGERS for s in left)
    return len(left) == 1 and left[0].name in _ROUNDING
