"""What programs are made of, by the names of `jax.extend.core`: `funcgrad.core.ir`'s classes.

A `Jaxpr` here is closed: what a function captured are its first inputs, and `constvars` is empty.
So a program of JAX's kind, `ClosedJaxpr`, is evaluated on `(*closed.consts, *args)`. An equation
has neither effects nor a stack of names; a primitive has all its rules from the beginning.

- `primitives`: ops by JAX's names
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from funcgrad import dtypes
from funcgrad.core.array import Array, raw
from funcgrad.core.aval import ShapedArray
from funcgrad.core.closed import ClosedJaxpr
from funcgrad.core.context import current
from funcgrad.core.ir import Atom, Jaxpr, Literal, Var, sub_jaxprs, typecheck
from funcgrad.core.ir import Eqn as JaxprEqn
from funcgrad.core.primitive import Primitive
from funcgrad.core.trace import Tracer
from funcgrad.core.types import DTypeLike, Params, Value
from funcgrad.errors import ConcretizationError, JaxprTypeError
from funcgrad.extend.core import primitives
from funcgrad.transforms.arguments import is_arraylike

__all__ = [
    "ClosedJaxpr", "Jaxpr", "JaxprEqn", "JaxprTypeError", "Literal", "Primitive", "Var",
    "array_types", "check_jaxpr", "concrete_or_error", "get_opaque_trace_state", "jaxpr_as_fun",
    "jaxprs_in_params", "mapped_aval", "new_jaxpr_eqn", "no_effects",
    "primal_dtype_to_tangent_dtype", "primitives", "subjaxprs", "unmapped_aval", "valid_jaxtype",
]  # fmt: skip

# The types of values that are arrays, or become some, but for tracers.
array_types = frozenset({Array, np.ndarray, *(d.type for d in dtypes.CANONICAL)})
no_effects: frozenset = frozenset()


def valid_jaxtype(arg: Any) -> bool:
    """Whether a value is an array or may become one.

    >>> from funcgrad.extend import core
    >>> core.valid_jaxtype(1.0), core.valid_jaxtype("a")
    (True, False)
    """
    return is_arraylike(arg)


def check_jaxpr(jaxpr: Jaxpr) -> None:
    """Check that a program's variables are bound once and before use, and that types are those that
    its ops give. Raises JaxprTypeError.

    >>> from funcgrad.extend import core
    >>> core.check_jaxpr(fg.make_jaxpr(lambda x: x * 2)(1.0).jaxpr)
    """
    typecheck(jaxpr)


def jaxpr_as_fun(closed_jaxpr: ClosedJaxpr) -> Callable[..., list]:
    """The function of flat arguments that a program computes; its results are a list.

    >>> from funcgrad.extend import core
    >>> closed = fg.make_jaxpr(lambda x: fnp.sin(x) ** 2)(1.0)
    >>> core.jaxpr_as_fun(closed)(fnp.float32(0))
    [Array(0., dtype=float32)]
    """
    if not isinstance(closed_jaxpr, ClosedJaxpr):
        raise TypeError(
            f"jaxpr_as_fun: need a ClosedJaxpr, as make_jaxpr gives, got {closed_jaxpr!r}"
        )
    return closed_jaxpr.__call__


def jaxprs_in_params(params: Params) -> Iterator[Jaxpr]:
    """The programs among the parameters of an equation.

    >>> from funcgrad.extend import core
    >>> (eqn,) = fg.make_jaxpr(fg.jit(lambda x: x + 1))(1.0).eqns
    >>> [len(j.eqns) for j in core.jaxprs_in_params(eqn.params)]
    [1]
    """
    return iter(sub_jaxprs(JaxprEqn(primitives.jit_p, (), (), params)))


def subjaxprs(jaxpr: Jaxpr) -> Iterator[Jaxpr]:
    """The programs within a program, one level down.

    >>> from funcgrad.extend import core
    >>> closed = fg.make_jaxpr(fg.jit(lambda x: x + 1))(1.0)
    >>> len(list(core.subjaxprs(closed.jaxpr)))
    1
    """
    for eqn in jaxpr.eqns:
        yield from sub_jaxprs(eqn)


def new_jaxpr_eqn(
    invars: Sequence[Atom],
    outvars: Sequence[Var],
    primitive: Primitive,
    params: Mapping[str, Any],
    effects: frozenset = no_effects,
    source_info: Any = None,
) -> JaxprEqn:
    """An equation. effects: none, as whether an op has some is its primitive's affair.

    >>> from funcgrad.extend import core
    >>> x, y = core.Var(fg.typeof(1.0)), core.Var(fg.typeof(1.0))
    >>> core.new_jaxpr_eqn([x], [y], core.primitives.sin_p, {})
    b:f32[] = sin a
    """
    if effects:
        raise ValueError(f"new_jaxpr_eqn: effects must be empty, got {effects}")
    return JaxprEqn(primitive, invars, outvars, dict(params), source_info)


def mapped_aval(size: int, axis: int | None, aval: ShapedArray) -> ShapedArray:
    """The type of a row along an axis of that size; the type itself where axis is None.

    >>> from funcgrad.extend import core
    >>> core.mapped_aval(3, 1, fg.typeof(fnp.ones((2, 3))))
    f32[2]
    """
    if axis is None:
        return aval
    if not 0 <= axis < aval.ndim or aval.shape[axis] != size:
        raise ValueError(f"mapped_aval: {aval} has no axis {axis} of size {size}")
    return aval.update(shape=aval.shape[:axis] + aval.shape[axis + 1 :])


def unmapped_aval(size: int, axis: int | None, aval: ShapedArray) -> ShapedArray:
    """The type of so many rows along a new axis; the type itself where axis is None.

    >>> from funcgrad.extend import core
    >>> core.unmapped_aval(3, 1, fg.typeof(fnp.ones(2)))
    f32[2,3]
    """
    if axis is None:
        return aval
    if not 0 <= axis <= aval.ndim:
        raise ValueError(f"unmapped_aval: {aval} can't get an axis {axis}")
    return aval.update(shape=(*aval.shape[:axis], size, *aval.shape[axis:]))


def primal_dtype_to_tangent_dtype(primal_dtype: DTypeLike) -> np.dtype:
    """The dtype of derivatives: float0 for what has none.

    >>> from funcgrad.extend import core
    >>> core.primal_dtype_to_tangent_dtype("bfloat16"), core.primal_dtype_to_tangent_dtype("int32")
    (dtype(bfloat16), dtype([('float0', 'V')]))
    """
    return ShapedArray((), primal_dtype).tangent().dtype


def concrete_or_error(force: Callable | None, val: Value, context: str = "") -> Any:
    """`force(val)` of a value that is known, or the value itself where force is None. Raises
    ConcretizationTypeError, which says `context`, for one that is traced.

    >>> from funcgrad.extend import core
    >>> core.concrete_or_error(int, fnp.int32(3))
    3
    """
    known = val.concrete() if isinstance(val, Tracer) else val
    if known is None:
        raise ConcretizationError(f"a value is needed, but {val!r} is traced. {context}".rstrip())
    if force is not None:
        return force(known)
    return raw(known) if isinstance(known, Array) else known


class _TraceState:
    """Which transformations run; equal while they are the same, and says nothing else."""

    def __init__(self, trace: Hashable):
        self._trace = trace

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _TraceState) and self._trace is other._trace

    def __hash__(self) -> int:
        return hash(id(self._trace))


def get_opaque_trace_state(convention: str | None = None) -> Hashable:
    """What tells whether the transformations that run now are those of another time: equal if so.

    convention: not used; JAX's callers say who they are

    >>> from funcgrad.extend import core
    >>> before = core.get_opaque_trace_state()
    >>> before == core.get_opaque_trace_state()
    True
    >>> fg.vmap(lambda x: print(before == core.get_opaque_trace_state()) or x)(fnp.ones(2)).shape
    False
    (2,)
    """
    return _TraceState(current().trace)
