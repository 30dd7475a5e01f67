"""Convolutions between transposes, as convolutions of arrays that lie in another order.

Formats that know one order of a convolution's axes, as ONNX does, write those of another order with
transposes around them. `dimension_numbers` say the same without.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from funcgrad.core.dce import dce_eqns
from funcgrad.core.ir import Atom, Eqn, Jaxpr, Var
from funcgrad.core.rewriting import uses
from funcgrad.ops.base import transpose_p
from funcgrad.ops.convolution.conv import ConvDimensionNumbers, conv_general_dilated_p


def without_transposes(jaxpr: Jaxpr) -> Jaxpr:
    """The program in which convolutions read what transposes around them read, and write what those
    write, where images and results then lie in the same order.

    >>> import funcgrad as fg, funcgrad.numpy as fnp
    >>> def f(x, w):
    ...     y = fg.lax.conv(fnp.transpose(x, (0, 3, 1, 2)), w, (1, 1), "SAME")
    ...     return fnp.transpose(y, (0, 2, 3, 1))
    >>> closed = fg.make_jaxpr(f)(fnp.ones((1, 5, 5, 2)), fnp.ones((3, 2, 3, 3)))
    >>> [e.prim.name for e in without_transposes(closed.jaxpr).eqns]
    ['conv_general_dilated']
    """
    if not any(e.prim is conv_general_dilated_p for e in jaxpr.eqns):
        return jaxpr
    made = {e.outs[0]: e for e in jaxpr.eqns}
    readers, out = uses(jaxpr), list(jaxpr.eqns)
    for i, eqn in enumerate(jaxpr.eqns):
        conv = _maker(eqn.ins[0], made) if eqn.prim is transpose_p else None
        if conv is None or conv.prim is not conv_general_dilated_p:
            continue
        if len(readers[conv.outs[0]]) == 1 and (found := _absorbed(conv, eqn, made)) is not None:
            out[i] = found  # what it reads is there
    if all(a is b for a, b in zip(out, jaxpr.eqns, strict=True)):
        return jaxpr
    return Jaxpr(jaxpr.ins, dce_eqns(out, jaxpr.outs), jaxpr.outs, jaxpr.names)


def _absorbed(conv: Eqn, after: Eqn, made: Mapping[Var, Eqn]) -> Eqn | None:
    """A convolution with the transposes of its operands and, if it has one of its images, the one
    that follows; None where orders would differ."""
    numbers: ConvDimensionNumbers = conv.params["dimension_numbers"]
    x, lhs = _source(conv.ins[0], numbers.lhs_spec, made)
    w, rhs = _source(conv.ins[1], numbers.rhs_spec, made)
    order = after.params["permutation"]
    result = tuple([order.index(a) for a in numbers.out_spec])
    if x is conv.ins[0] or lhs != result:
        return None
    turned = ConvDimensionNumbers(lhs, rhs, result)
    params = conv.params | {"dimension_numbers": turned}
    return conv.replace(ins=[x, w], outs=after.outs, params=params)


def _source(
    atom: Atom, spec: Sequence[int], made: Mapping[Var, Eqn]
) -> tuple[Atom, tuple[int, ...]]:
    """What an atom is a transpose of, or itself, and where axes are there."""
    eqn = _maker(atom, made)
    if eqn is None or eqn.prim is not transpose_p:
        return atom, tuple(spec)
    return eqn.ins[0], tuple([eqn.params["permutation"][a] for a in spec])


def _maker(atom: Atom, made: Mapping[Var, Eqn]) -> Eqn | None:
    return made.get(atom) if isinstance(atom, Var) else None
