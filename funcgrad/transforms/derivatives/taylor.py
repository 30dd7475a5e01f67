"""Taylor mode: all derivatives of a function along a curve at once, up to an order.

Each value of the program is a polynomial in t, a list of coefficients of which the last ones may
lack. What is linear acts on each coefficient, products are Cauchy's, and all else follows from
its jvp rule: y(t) = f(x(t)) has y' = jvp(x; x'), a polynomial of one order less, which is
integrated (Griewank and Walther, "Evaluating Derivatives", ch. 13; Bettencourt, Johnson and
Duvenaud, "Taylor-mode automatic differentiation", 2019).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from funcgrad import dtypes, tree
from funcgrad.core import source
from funcgrad.core.aval import ShapedArray, with_zeros
from funcgrad.core.dce import dce_jaxpr
from funcgrad.core.display.tracebacks import boundary
from funcgrad.core.ir import Atom, Eqn, Jaxpr, Var, eval_jaxpr, literal_value
from funcgrad.core.primitive import Primitive
from funcgrad.core.staging import stage_closed
from funcgrad.core.trace import aval_of
from funcgrad.core.types import Tree, Value, Values
from funcgrad.errors import DTypeError, ShapeError
from funcgrad.ops.arguments import check_callable
from funcgrad.ops.base import instantiate, zeros
from funcgrad.ops.elementwise.arithmetic import div, mul, sub
from funcgrad.ops.elementwise.convert import convert_element_type
from funcgrad.transforms.arguments import as_array, is_arraylike
from funcgrad.transforms.autodiff.jvp import jvp_flat
from funcgrad.transforms.control.bodies import as_type, choose, split_list
from funcgrad.transforms.control.cond import cond_p
from funcgrad.transforms.control.jit_primitive import jit_p
from funcgrad.transforms.control.scan import scan_p
from funcgrad.transforms.control.while_loop import while_p
from funcgrad.transforms.derivatives.checkpoint import checkpoint_p
from funcgrad.transforms.jit.make_jaxpr import make_jaxpr

Series = list[Value]  # the coefficient of each power of t, as far as they aren't zero


@boundary
def jet(
    fun: Callable,
    primals: Sequence[Value],
    series: Sequence[Sequence[Value]],
    factorial_scaled: bool = True,
) -> tuple[Tree, Tree]:
    """The value of `fun` and its derivatives along a curve, up to an order, in one pass.

    primals: the arguments, arrays or numbers. series: for each argument its derivatives along the
    curve, of order 1, 2, …, as many as wanted, with the argument's shape. Returns fun(*primals)
    and, in its structure, the list of its derivatives along the curve; where not
    `factorial_scaled`, both are coefficients of powers (the kth derivative divided by k!). Those of
    integers are zeros. The cost grows as the square of the order, where nested `jvp` doubles with
    each.

    Raises ValueError where the lists differ in length, ShapeError for a term of another shape than
    its argument's, TypeError for what is no array.

    >>> from funcgrad.experimental.jet import jet
    >>> y, (dy, ddy) = jet(fnp.sin, (0.5,), ([1.0, 0.0],))
    >>> print(y.round(3), dy.round(3), ddy.round(3))  # sin, cos, -sin
    0.479 0.878 -0.479
    """
    check_callable("jet", fun)
    order = _check(primals, series)
    curves = [_curve(i, x, terms, factorial_scaled) for i, (x, terms) in
              enumerate(zip(primals, series, strict=True))]  # fmt: skip
    values = [curve[0] for curve in curves]
    closed, shape = make_jaxpr(fun, return_shape=True)(*values)
    consts = [[c] for c in closed.consts]
    outs = [_full(s, order) for s in _program(closed.jaxpr, [*consts, *curves], order)]
    found = [
        [_scaled(c, math.factorial(k)) if factorial_scaled else c for k, c in enumerate(out[1:], 1)]
        for out in outs
    ]
    structure = tree.structure(shape)
    return structure.unflatten([out[0] for out in outs]), structure.unflatten(found)


def _check(primals: Sequence[Value], series: Sequence[Sequence[Value]]) -> int:
    """The order; raise unless each argument has as many terms."""
    if len(primals) != len(series):
        raise ValueError(
            f"jet: {len(primals)} primals have {len(series)} series; give one for each"
        )
    for i, x in enumerate(primals):
        if not is_arraylike(x):
            raise TypeError(f"jet: primal value at position {i} is not an array, got {x!r}")
    orders = [len(terms) for terms in series]
    if len(set(orders)) > 1:
        raise ValueError(
            f"jet terms have inconsistent lengths for different arguments: series has {orders}"
        )
    return orders[0] if orders else 0


def _curve(i: int, x: Value, terms: Sequence[Value], factorial_scaled: bool) -> Series:
    """An argument's coefficients in its dtype."""
    x = as_array(x)
    aval = aval_of(x)
    found = [x]
    for k, term in enumerate(terms, 1):
        if not is_arraylike(term):
            raise TypeError(f"jet: term {k - 1} for argument {i} is not an array, got {term!r}")
        term = as_array(term)
        have = aval_of(term)
        if have.shape != aval.shape:
            raise ShapeError(f"jet: term {k - 1} for argument {i} must be {aval}, got {have}")
        if dtypes.is_complex(have.dtype) and dtypes.is_float(aval.dtype):
            raise DTypeError(f"jet: term {k - 1} for argument {i} must be {aval}, got {have}")
        if _moves(aval):
            term = as_type(term, aval)
            found.append(_scaled(term, 1 / math.factorial(k)) if factorial_scaled else term)
    return found


def _moves(aval: ShapedArray) -> bool:
    """Whether values of a type can follow a curve."""
    return dtypes.is_inexact(aval.dtype)


def _scaled(x: Value, by: float) -> Value:
    if by == 1:
        return x
    aval = aval_of(x)
    return mul(x, convert_element_type(np.float64(by), aval.dtype))


def _full(s: Series, order: int) -> Series:
    """All coefficients up to an order."""
    return s + [zeros(aval_of(s[0])) for _ in range(order + 1 - len(s))]


# ---- programs


def _program(jaxpr: Jaxpr, args: Sequence[Series], order: int) -> list[Series]:
    """The results of a program whose values are polynomials."""
    env: dict[Var, Series] = dict(zip(jaxpr.ins, args, strict=True))

    def read(atom: Atom) -> Series:
        return env[atom] if isinstance(atom, Var) else [literal_value(atom)]

    outer = source.placed()
    try:
        for eqn in jaxpr.eqns:
            source.set_place(eqn.source or outer)
            outs = _equation(eqn, [read(a) for a in eqn.ins], order)
            env.update(zip(eqn.outs, outs, strict=True))
    finally:
        source.set_place(outer)
    return [read(a) for a in jaxpr.outs]


def _equation(eqn: Eqn, ins: Sequence[Series], order: int) -> list[Series]:
    prim = eqn.prim
    ins = [s[: order + 1] for s in ins]
    if all(len(s) == 1 for s in ins):
        return [[y] for y in _bind(eqn, [s[0] for s in ins])]
    if prim in (jit_p, checkpoint_p):
        return _program(eqn.params["jaxpr"], ins, order)
    rule = _RULES.get(prim)
    if rule is not None:
        return rule(eqn, ins, order)
    if prim.linear:
        n = max(map(len, ins))
        columns = zip(*(_full(s, n - 1) for s in ins), strict=True)
        return [list(y) for y in zip(*(_bind(eqn, c) for c in columns), strict=True)]
    return _product(eqn, ins, order) if prim.contraction else _by_jvp(eqn, ins, order)


def _bind(eqn: Eqn, values: Values) -> list:
    outs = eqn.prim.bind(*values, **eqn.params)
    return outs if eqn.prim.multiple else [outs]


def _by_jvp(eqn: Eqn, ins: Sequence[Series], order: int) -> list[Series]:
    """y' = jvp(x; x'), integrated."""
    outs = [[y] for y in _bind(eqn, [s[0] for s in ins])]
    moving = [len(s) > 1 for s in ins]
    program, used, mask = _tangents(eqn, [aval_of(s[0]) for s in ins], moving)
    slopes = [[_scaled(c, k) for k, c in enumerate(s[1:], 1)] for s in choose(ins, moving)]
    args = choose([*ins, *slopes], used)
    found = iter(_program(program, args, order - 1))
    for y, m in zip(outs, mask, strict=True):
        y += [_scaled(c, 1 / k) for k, c in enumerate(next(found), 1)] if m else []
    return outs


def _tangents(
    eqn: Eqn, avals: Sequence[ShapedArray], moving: Sequence[bool]
) -> tuple[Jaxpr, list[bool], list[bool]]:
    """The program of an op's tangents, which of (operands, their tangents) it reads, and which
    results have one."""
    n, mask = len(avals), []

    def fun(*args: Value) -> list:
        tangents = with_zeros(args[n:], moving, avals)
        outs, outs_t = jvp_flat(lambda *xs: _bind(eqn, xs), args[:n], tangents)
        kept = [_moves(aval_of(o)) and t is not None for o, t in zip(outs, outs_t, strict=True)]
        mask.extend(kept)
        return [instantiate(t) for t in choose(outs_t, kept)]

    whole = stage_closed(fun, [*avals, *choose(avals, moving)], f"the Taylor series of {eqn.prim}")
    return (*dce_jaxpr(whole, [True] * len(whole.outs)), mask)


# ---- rules


def _product(eqn: Eqn, ins: Sequence[Series], order: int) -> list[Series]:
    """Cauchy's: the kth coefficient is the sum of products of the ith and the (k - i)th."""
    x, y = ins
    found: Series = []
    for k in range(min(order + 1, len(x) + len(y) - 1)):
        terms = [
            _bind(eqn, [x[i], y[k - i]])[0] for i in range(k + 1) if i < len(x) and k - i < len(y)
        ]
        total = terms[0]
        for term in terms[1:]:
            total = total + term
        found.append(total)
    return [found]


def _quotient(eqn: Eqn, ins: Sequence[Series], order: int) -> list[Series]:
    """z = x / y: z y = x tells each coefficient by those before."""
    x, y = ins
    n = len(x) if len(y) == 1 else order + 1
    found: Series = []
    for k, rest in enumerate(_full(x, n - 1)):
        for i in range(1, min(k + 1, len(y))):
            rest = sub(rest, mul(y[i], found[k - i]))
        found.append(_bind(eqn, [rest, y[0]])[0])
    return [found]


def _flat(parts: Sequence[Series]) -> list:
    return [c for s in parts for c in s]


def _carried(parts: Sequence[Series], order: int) -> list[Series]:
    """What a loop carries: all coefficients of what can move."""
    return [_full(s, order) if _moves(aval_of(s[0])) else s for s in parts]


def _outs(
    jaxpr: Jaxpr, sizes: Sequence[int], avals: Sequence[ShapedArray], order: int
) -> Callable[..., list]:
    """The function of coefficients, so many an input, to all those of results, in these types."""

    def fun(*flat: Value) -> list:
        outs = _carried(_program(jaxpr, split_list(flat, *sizes)[: len(sizes)], order), order)
        return [as_type(c, a) for out, a in zip(outs, avals, strict=True) for c in out]

    return fun


def _sizes(avals: Sequence[ShapedArray], order: int) -> list[int]:
    return [order + 1 if _moves(a) else 1 for a in avals]


def _grouped(flat: Sequence[Value], avals: Sequence[ShapedArray], order: int) -> list[Series]:
    sizes = _sizes(avals, order)
    return split_list(list(flat), *sizes)[: len(sizes)]


def _scan(eqn: Eqn, ins: Sequence[Series], order: int) -> list[Series]:
    """A scan that carries the coefficients of what it carried."""
    params = eqn.params
    jaxpr, n_consts, n_carry = params["jaxpr"], params["n_consts"], params["n_carry"]
    consts, carry, xs = split_list(ins, n_consts, n_carry)
    carry = _carried(carry, order)
    parts = [*consts, *carry, *xs]
    sizes = [len(s) for s in parts]
    avals = [a for a, n in zip(jaxpr.in_avals, sizes, strict=True) for _ in range(n)]
    outs = [*jaxpr.in_avals[n_consts : n_consts + n_carry], *jaxpr.out_avals[n_carry:]]
    body = stage_closed(_outs(jaxpr, sizes, outs, order), avals, "the Taylor series of a scan")
    flat = [as_type(x, _typed(x, a)) for x, a in zip(_flat(parts), avals, strict=True)]
    numbers = {"n_consts": len(_flat(consts)), "n_carry": len(_flat(carry))}
    return _grouped(scan_p.bind(*flat, **{**params, "jaxpr": body, **numbers}), outs, order)


def _typed(x: Value, aval: ShapedArray) -> ShapedArray:
    """The type of x, as weak as that of which it is a row or a coefficient."""
    return ShapedArray(aval_of(x).shape, aval.dtype, aval.weak_type)


def _while(eqn: Eqn, ins: Sequence[Series], order: int) -> list[Series]:
    """A loop that carries coefficients, and goes on as the values say."""
    params = eqn.params
    test, body = params["cond_jaxpr"], params["body_jaxpr"]
    n_cond, n_body = params["n_cond"], params["n_body"]
    for_test, consts, carry = split_list(ins, n_cond, n_body)
    carry = _carried(carry, order)
    outs = body.in_avals[n_body:]
    sizes = [len(s) for s in (*consts, *carry)]
    avals = [a for a, n in zip(body.in_avals, sizes, strict=True) for _ in range(n)]
    held = _flat(consts)

    def goes_on(*flat: Value) -> list:
        values = [s[0] for s in _grouped(flat[n_cond:], outs, order)]
        return eval_jaxpr(test, *flat[:n_cond], *values)

    step = stage_closed(_outs(body, sizes, outs, order), avals, "the Taylor series of a loop")
    asked = stage_closed(goes_on, [*test.in_avals[:n_cond], *avals[len(held) :]], "a loop's test")
    flat = [as_type(x, a) for x, a in zip([*held, *_flat(carry)], avals, strict=True)]
    found = while_p.bind(
        *(s[0] for s in for_test), *flat, cond_jaxpr=asked, body_jaxpr=step, n_cond=n_cond,
        n_body=len(held),
    )  # fmt: skip
    return _grouped(found, outs, order)


def _cond(eqn: Eqn, ins: Sequence[Series], order: int) -> list[Series]:
    """The branch that the values choose, on polynomials."""
    (index, *_), *operands = ins
    sizes = [len(s) for s in operands]
    branches, outs = eqn.params["branches"], eqn.params["branches"][0].out_avals
    avals = [a for a, n in zip(branches[0].in_avals, sizes, strict=True) for _ in range(n)]
    made = tuple(
        stage_closed(_outs(b, sizes, outs, order), avals, "the Taylor series of a branch")
        for b in branches
    )
    flat = [as_type(x, a) for x, a in zip(_flat(operands), avals, strict=True)]
    return _grouped(cond_p.bind(index, *flat, branches=made), outs, order)


_RULES: dict[Primitive, Callable[[Eqn, Sequence[Series], int], list[Series]]] = {
    mul: _product, div: _quotient, scan_p: _scan, while_p: _while, cond_p: _cond,
}  # fmt: skip
