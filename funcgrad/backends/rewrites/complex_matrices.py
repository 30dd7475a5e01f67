"""Decompositions of complex matrices, and solving with them, by real ones.

A complex number is the matrix [[re, -im], [im, re]]. With these in place of numbers, a triangular
matrix whose diagonal is real stays one, and solving takes as many multiplications as before; so
columns are rid of the diagonal's phases first. That doesn't work for what looks for pivots: `lu`
goes to a routine, of arrays of the parts.
"""

from __future__ import annotations

from typing import Any

import numpy as np

import funcgrad.numpy as fnp
from funcgrad.backends.lower.primitives import lowered
from funcgrad.backends.rewrites.complex_math import RULES, Parts
from funcgrad.core.aval import ShapedArray
from funcgrad.ops.elementwise import arithmetic
from funcgrad.ops.linalg.matrices import diagonal, eye_mask
from funcgrad.ops.linalg.triangular import lu_p, triangular_solve_p


def triangular_solve(a: Parts, b: Parts, **params: Any) -> Parts:
    """The solution of complex systems by one real system of twice the size."""
    left, turned, conj = (params[k] for k in ("left_side", "transpose_a", "conjugate_a"))
    if conj:
        a = Parts(a.re, -a.im)
    if not params["unit_diagonal"]:
        # a = a' p for the diagonal's phases p, which are next to the solution or to what is given.
        line = Parts(*(diagonal(x) for x in a))
        phases = _conjugate_phases(line)
        a = RULES[arithmetic.mul](a, Parts(*(x[..., None, :] for x in phases)))
        size = RULES[arithmetic.abs](line)
        a = Parts(fnp.where(eye_mask(a.re), size[..., None, :], a.re), a.im)
        phases = Parts(*(x[..., :, None] if left else x[..., None, :] for x in phases))
        if turned == left:
            b = RULES[arithmetic.mul](b, phases)
    # From the right, numbers multiply rows of parts by the transpose.
    im = fnp.where(eye_mask(a.im), 0, a.im if left != turned else -a.im)
    rows = [fnp.stack(pair, -1) for pair in ((a.re, -im), (im, a.re))]
    *lead, n, _ = a.re.shape
    matrix = fnp.reshape(fnp.stack(rows, -3), (*lead, 2 * n, 2 * n))
    at = -2 if left else -1
    both = fnp.stack(b, at if left else -1)
    shape = list(b.re.shape)
    shape[at] *= 2
    x = triangular_solve_p.bind(
        matrix, fnp.reshape(both, shape), **{**params, "conjugate_a": False}
    )
    x = fnp.reshape(x, both.shape)
    out = Parts(*((x[..., i, :] if left else x[..., i]) for i in (0, 1)))
    if not params["unit_diagonal"] and turned != left:
        out = RULES[arithmetic.mul](out, phases)
    return out


def _conjugate_phases(x: Parts) -> Parts:
    """What turns numbers to positive ones; 1 for 0, by which a solution is divided then."""
    re, im = RULES[arithmetic.sign](x)
    return Parts(fnp.where((x.re == 0) & (x.im == 0), 1, re), -im)


def lu(x: Parts) -> tuple[Parts, Any, Any]:
    """Factors, pivots and order of rows of complex matrices."""
    re, im, pivots, order = lu_parts_p.bind(*x)
    return Parts(re, im), pivots, order


def _lu_parts_abstract(re: Any, im: Any) -> list[ShapedArray]:
    _, pivots, order = lu_p.abstract(re)
    return [re.strong(), im.strong(), pivots, order]


def _lu_parts_impl(xp: Any, re: Any, im: Any) -> list[Any]:
    x = np.empty(re.shape, np.result_type(re.dtype, np.complex64))
    x.real, x.imag = re, im
    factors, pivots, order = lu_p.impl(xp, x)
    return [factors.real, factors.imag, pivots, order]


lu_parts_p = lowered("lu_parts", _lu_parts_abstract, _lu_parts_impl, multiple=True)
