"""Families of elementwise ops: one formula and one derivative make a complete primitive.

Operands of an elementwise op have one dtype (unless the op says otherwise) and one shape, but
scalars, which count at each element. `impl` is written on an array namespace with operators and
NumPy's names alone, so that numpy runs it on arrays and a compiler traces it on symbols.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from funcgrad import dtypes
from funcgrad.core import context
from funcgrad.core import dims as dims_
from funcgrad.core.array import Array, of_scalar
from funcgrad.core.aval import Linear, ShapedArray, Zero, promote, scalar_dtype
from funcgrad.core.primitive import NoRule, Primitive
from funcgrad.core.trace import Tracer, aval_of
from funcgrad.errors import DifferentiationError, DTypeError, ShapeError, within
from funcgrad.ops import identities
from funcgrad.ops.base import batch_front, broadcast_p, full, sum_to

Partial = Callable[..., Any]
NOT_LINEAR = NoRule("it is not linear")
# A derivative that is zero wherever it exists (floor, sign) or whose result has no tangents.
FLAT = "flat"


def _any_dtype(dtype: np.dtype) -> bool:
    return True


# ---- types


def check_dtype(name: str, x: ShapedArray, accepts: Callable[[np.dtype], bool], need: str) -> None:
    """Raise unless the operand's dtype is one that the op is defined for."""
    if not accepts(x.dtype):
        raise DTypeError(
            f"{name} does not accept dtype {x.dtype}: need {need}, got {x}; convert with "
            ".astype(...)"
        )


def common_shape(name: str, avals: Sequence[ShapedArray]) -> tuple[int, ...]:
    """The one shape of elementwise operands; scalars go with any."""
    shape: tuple[int, ...] = ()
    for a in avals:
        if a.shape and a.shape != shape:
            if shape:
                listed = " and ".join(str(b) for b in avals)
                raise ShapeError(
                    f"{name}: operands must have one shape, but for axes of size 1 (or be "
                    f"scalars), got {listed}; broadcast them, or use funcgrad.numpy, which does"
                )
            shape = a.shape
    return shape


def spread(args: Sequence[Any]) -> Sequence[Any]:
    """Operands of one rank with axes of size 1 as long as those of the others, if they fit."""
    shapes = {a.shape for a in args if a.shape}
    if len(shapes) < 2 or len(set(map(len, shapes))) > 1:
        return args
    sizes = [set(ns) - {1} for ns in zip(*shapes, strict=True)]
    if any(len(n) > 1 for n in sizes):
        return args
    shape = tuple([n.pop() if n else 1 for n in sizes])
    dims = tuple(range(len(shape)))
    return [a if a.shape in ((), shape) else broadcast_p.bind(a, shape=shape,
            broadcast_dimensions=dims) for a in args]  # fmt: skip


def scalar_operands(name: str, args: Sequence[Any]) -> Sequence[Any]:
    """Operands with Python scalars turned into weak arrays of the other operands' dtype."""
    for a in args:
        if type(a) is not Array and not isinstance(a, Tracer):
            break
    else:
        return args
    scalars = [isinstance(a, bool | int | float | complex) and not isinstance(a, np.generic)
               for a in args]  # fmt: skip
    if not any(scalars):
        return [_checked(name, i, a) for i, a in enumerate(args)]
    # Arrays keep their dtype, weak or not: they are not converted here.
    avals = [aval_of(_checked(name, i, a)) for i, a in enumerate(args)]
    if all(scalars) and any(v.dtype != avals[0].dtype for v in avals):
        listed = ", ".join(map(repr, args))
        raise DTypeError(f"{name}: operands must have one dtype, got the numbers {listed}")
    dtype = promote([v if s else v.strong() for v, s in zip(avals, scalars, strict=True)])[0]
    out: list[Any] = []
    for a, is_scalar in zip(args, scalars, strict=True):
        out.append(Array(of_scalar(a, dtype), scalar_dtype(a) != dtypes.BOOL) if is_scalar else a)
    return out


def _checked(name: str, position: int, a: Any) -> Any:
    if hasattr(a, "aval") or isinstance(a, np.ndarray | np.generic | bool | int | float | complex):
        return a
    message = f"{name}: argument {position} must be an array or a scalar, got {type(a)}: {a}"
    raise TypeError(within(message))


def _abstract(name: str, accepts: Any, need: str, result: Any, same_dtype: bool) -> Callable:
    def rule(*avals: ShapedArray, **params: Any) -> ShapedArray:
        for a in avals:
            check_dtype(name, a, accepts, need)
        if same_dtype and any(a.dtype != avals[0].dtype for a in avals):
            listed = ", ".join(str(a) for a in avals)
            raise DTypeError(f"{name}: operands must have one dtype, got {listed}")
        dtype = result(*(a.dtype for a in avals), **params) if result else avals[0].dtype
        weak = all(a.weak_type for a in avals) and dtype != dtypes.BOOL
        return ShapedArray(common_shape(name, avals), dtype, weak)

    return rule


# ---- rules


def _batch(prim: Callable[[], Primitive]) -> Callable:
    def rule(axis: Any, args: Sequence[Any], dims: Sequence[int | None], **params: Any) -> Any:
        ranks = [len(aval_of(a).shape) - (d is not None) for a, d in zip(args, dims, strict=True)]
        rank = max(ranks)
        # All operands with elements batched at one axis: nothing to move.
        at = {d for d, r in zip(dims, ranks, strict=True) if r or d is not None}
        mapped = [r for r, d in zip(ranks, dims, strict=True) if d is not None]
        if len(at) == 1 and None not in at and all(r == rank for r in mapped):
            return prim().bind(*args, **params), at.pop()
        moved = []
        for a, d, r in zip(args, dims, ranks, strict=True):
            if d is None and not r:
                moved.append(a)
                continue
            front = batch_front(a, d, axis.size)
            if r < rank:
                shape = (axis.size, *_shape_without_batch(args, dims, ranks, rank))
                front = broadcast_p.bind(front, shape=shape, broadcast_dimensions=(0,))
            moved.append(front)
        return prim().bind(*moved, **params), 0

    return rule


def _shape_without_batch(args: Any, dims: Any, ranks: Any, rank: int) -> tuple[int, ...]:
    a, d = next((a, d) for a, d, r in zip(args, dims, ranks, strict=True) if r == rank)
    shape = aval_of(a).shape
    return shape if d is None else shape[:d] + shape[d + 1 :]


def _jvp(prim: Callable[[], Primitive], partials: Any) -> Any:
    """The sum of partials[i](tangent_i, result, *operands) over operands that have a tangent."""
    if isinstance(partials, NoRule) or callable(partials):
        return partials

    def rule(primals: Sequence[Any], tangents: Sequence[Any], **params: Any) -> tuple[Any, Any]:
        y = context.current().trace.process(prim(), tuple(primals), params)
        total: Any = None
        for partial, g in zip(partials, tangents, strict=True) if partials is not FLAT else ():
            if type(g) is Zero or partial is FLAT:
                continue
            if isinstance(partial, NoRule):
                partial.raise_for(prim(), "differentiation", DifferentiationError)
            term = partial(g, y, *primals, **params) if params else partial(g, y, *primals)
            if type(term) is not Zero:
                total = term if total is None else add.bind(total, term)
        if total is None:
            return y, Zero(y.aval.tangent())
        shape = y.aval.shape
        return y, total if aval_of(total).shape == shape else full(shape, total)

    return rule


def _transpose(by_operand: Any) -> Any:
    """by_operand[i](ct, *operands): the cotangent of operand i, in which the op is linear."""
    if isinstance(by_operand, NoRule) or callable(by_operand):
        return by_operand

    def rule(ct: Any, *args: Any, **params: Any) -> list:
        return [
            sum_to(t(ct, *args, **params), a.aval) if type(a) is Linear else None
            for t, a in zip(by_operand, args, strict=True)
        ]

    return rule


def elementwise(
    name: str,
    *,
    impl: Callable,
    jvp: Sequence[Any] | Callable | NoRule | str,
    transpose: Sequence[Callable] | Callable | NoRule = NOT_LINEAR,
    abstract: Callable | None = None,
    accepts: Callable[[np.dtype], bool] = _any_dtype,
    need: str = "numbers",
    result: Callable[..., Any] | None = None,
    same_dtype: bool = True,
    prepare: Callable | None = None,
    operands: int | None = None,
    doc: str,
    **traits: Any,
) -> Primitive:
    """An elementwise primitive from its formula.

    It has as many operands as said, or as derivatives; any number where a function gives these.
    jvp[i](g, y, *operands) is the tangent that operand i's tangent g contributes; `FLAT` is zero.
    transpose[i](ct, *operands) is operand i's cotangent where the op is linear in it.
    A function in place of a sequence is the primitive's whole rule; so is `abstract`. Traits are
    those of `Primitive`.
    """

    if operands is None and isinstance(jvp, tuple):
        operands = len(jvp)

    def this() -> Primitive:
        return made

    def prepared(*args: Any, **params: Any) -> tuple[Sequence[Any], dict]:
        if operands not in (None, len(args)):
            raise TypeError(
                f"{name}: needs {operands} operand{'s' * (operands != 1)}, got {len(args)}"
            )
        given = scalar_operands(name, args)
        return given if len(given) < 2 else spread(given), params

    made = Primitive(
        name=name,
        abstract=abstract or _abstract(name, accepts, need, result, same_dtype),
        impl=impl,
        jvp=_jvp(this, jvp),
        transpose=_transpose(transpose),
        batch=_batch(this),
        dims=lambda *avals, **params: dims_.pointwise(*avals),
        prepare=prepare or prepared,
        elementwise=True,
        doc=doc,
        **{"linear": operands == 1 and not isinstance(transpose, NoRule), **traits},
    )
    return made


def unary(name: str, *, impl: Callable, jvp: Any, transpose: Any = NOT_LINEAR, **rest: Any):
    """An elementwise op of one operand: jvp(g, y, x), transpose(ct, x).

    >>> double = unary(
    ...     "double", impl=lambda xp, x: x + x, jvp=lambda g, y, x: add(g, g), doc="Twice x."
    ... )
    >>> double(2.0)
    Array(4., dtype=float32, weak_type=True)
    """
    jvp = jvp if isinstance(jvp, NoRule | str) else (jvp,)
    transpose = transpose if isinstance(transpose, NoRule) else (transpose,)
    return elementwise(name, impl=impl, jvp=jvp, transpose=transpose, operands=1, **rest)


def binary(name: str, *, impl: Callable, jvp: Any, transpose: Any = NOT_LINEAR, **rest: Any):
    """An elementwise op of two operands: jvp is a pair of functions of (g, result, x, y)."""
    return elementwise(name, impl=impl, jvp=jvp, transpose=transpose, operands=2, **rest)


def is_number(dtype: np.dtype) -> bool:
    """Whether a dtype is of numbers, which bools are not."""
    return dtype != dtypes.BOOL


# The family's first member, which the rules of all others need.
add = binary(
    "add",
    impl=lambda xp, x, y: xp.add(x, y),
    jvp=(lambda g, z, x, y: g, lambda g, z, x, y: g),
    transpose=(lambda ct, x, y: ct, lambda ct, x, y: ct),
    simplify=identities.plus_zero,
    accepts=is_number,
    linear=True,
    doc="""Elementwise sum x + y of two arrays of one dtype and shape (or scalars).

    Axes of size 1 are as long as the other operand's, here and in other ops of two operands.

    >>> from funcgrad import lax
    >>> lax.add(1.0, 2.0)
    Array(3., dtype=float32, weak_type=True)
    """,
)
