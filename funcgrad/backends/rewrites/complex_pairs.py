"""Complex programs as real ones, which loops and matrix products can compute.

A complex array of shape S becomes a real one of shape (*S, 2), which is the same memory, so that
the program's inputs and results stay where they are. Inside, the real and the imaginary parts are
arrays of their own: what moves elements, or is linear, does so with each part, and what computes
follows a formula (`complex_math`). Ops without one run as they are, on complex views of the pairs.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from funcgrad import dtypes
from funcgrad.backends.lower.primitives import lowered
from funcgrad.backends.rewrites import complex_math, complex_matrices, products
from funcgrad.backends.rewrites.complex_math import Parts
from funcgrad.backends.rewrites.exchanges import REWRITES as EXCHANGES
from funcgrad.core.array import Array
from funcgrad.core.aval import ShapedArray
from funcgrad.core.closed import Constant, constant_p
from funcgrad.core.ir import Atom, Eqn, Jaxpr, sub_jaxprs
from funcgrad.core.primitive import Primitive
from funcgrad.core.record import Record
from funcgrad.core.rewriting import Boundary, rewrite
from funcgrad.core.trace import aval_of
from funcgrad.ops.base import broadcast_p, sum_p, transpose_p
from funcgrad.ops.contract import dot_general, dot_general_p
from funcgrad.ops.convolution.conv import conv_general_dilated_p
from funcgrad.ops.convolution.pooling import window_sum_p
from funcgrad.ops.cumulative import cumsum_p
from funcgrad.ops.elementwise.arithmetic import conj
from funcgrad.ops.elementwise.convert import convert_element_type_p, copy, select_n_p
from funcgrad.ops.fft import FFT, IFFT, IRFFT, RFFT, FftType, fft_p
from funcgrad.ops.indexing.gather import gather_p, scatter_add_p
from funcgrad.ops.indexing.scatter import scatter_p
from funcgrad.ops.indexing.windows import GatherScatterMode
from funcgrad.ops.indexing.windows_at import dynamic_slice_p, dynamic_update_slice_p, slice_in_dim
from funcgrad.ops.linalg.triangular import lu_p, triangular_solve_p
from funcgrad.ops.shape import reshape, reshape_p, rev_p, transpose
from funcgrad.ops.sharding import sharding_constraint_p
from funcgrad.ops.slicing import concatenate, concatenate_p, pad_p, slice_p
from funcgrad.ops.sort import sort_p
from funcgrad.transforms.control.cond import cond_p
from funcgrad.transforms.control.scan import scan_p
from funcgrad.transforms.control.while_loop import while_p

# What is done with each part alone, whatever real operands (indices, selectors) say; so are views.
BY_PARTS = frozenset((
    concatenate_p, copy, cumsum_p, dynamic_slice_p, dynamic_update_slice_p, gather_p, pad_p,
    scatter_add_p, scatter_p, select_n_p, sharding_constraint_p, sum_p, window_sum_p,
))  # fmt: skip
# Those of them that move pairs as they lie in memory: parameters for one axis more.
MOVES: dict[Primitive, Callable[[dict], dict]] = {
    broadcast_p: lambda p: {
        "shape": (*p["shape"], 2),
        "broadcast_dimensions": (*p["broadcast_dimensions"], len(p["shape"])),
    },
    concatenate_p: lambda p: p,
    reshape_p: lambda p: {"new_sizes": (*p["new_sizes"], 2)},
    rev_p: lambda p: p,
    slice_p: lambda p: {
        "start_indices": (*p["start_indices"], 0),
        "limit_indices": (*p["limit_indices"], 2),
        "strides": None if p["strides"] is None else (*p["strides"], 1),
    },
}
LOOPS = frozenset((cond_p, scan_p, while_p))
PRODUCTS = frozenset((conv_general_dilated_p, dot_general_p))  # one operand may be real
_RULES = {**complex_math.RULES, triangular_solve_p: complex_matrices.triangular_solve}


class _Unsupported(Exception):
    """A program that stays complex."""


def as_pairs(jaxpr: Jaxpr, tiny: int) -> Jaxpr:
    """The program with pairs in place of complex numbers; itself if it has none, or has what can't
    be written so.

    tiny: multiplications of a product that is better one of parts

    >>> import funcgrad as fg
    >>> program = fg.make_jaxpr(lambda x: x * x)(1j).jaxpr
    >>> as_pairs(program, 0).in_avals
    [f32[2]]
    """
    if not jaxpr.has_complex:
        return jaxpr
    try:
        return rewrite(jaxpr, _Rule(tiny), _PAIRS)
    except _Unsupported:
        return jaxpr


def _is_complex(atom: Atom) -> bool:
    return dtypes.is_complex(atom.aval.dtype)


def _pair_aval(aval: ShapedArray) -> ShapedArray:
    if not dtypes.is_complex(aval.dtype):
        return aval
    return ShapedArray((*aval.shape, 2), dtypes.real_part(aval.dtype))


class _Pairs(Boundary):
    """Arrays of pairs between programs."""

    def type(self, aval: ShapedArray) -> ShapedArray:
        return _pair_aval(aval)

    def enter(self, array: Any, aval: ShapedArray) -> Any:
        return _Pair(array) if dtypes.is_complex(aval.dtype) else array

    def leave(self, value: Any, aval: ShapedArray) -> Any:
        return _paired(value).array if dtypes.is_complex(aval.dtype) else value


_PAIRS = _Pairs()


# ---- values


class _Pair:
    """A complex value: as parts, as an array of pairs, or both, each made when it is first asked
    for.

    turned: another value, and the order of its axes in this one
    """

    def __init__(
        self,
        array: Any = None,
        parts: Parts | None = None,
        turned: tuple[_Pair, tuple[int, ...]] | None = None,
    ):
        self._array = array
        self._parts = parts
        self.turned = turned

    @property
    def lies_in_memory(self) -> bool:
        """Whether nothing has asked for the parts of an array."""
        return self._parts is None and (self.turned is None or self.turned[0].lies_in_memory)

    @property
    def operand(self) -> Any:
        """The array, for a product, which reads it in any order of axes."""
        if self._array is not None or self.turned is None:
            return self.array
        source, order = self.turned
        return transpose(source.operand, (*order, len(order)))

    @property
    def parts(self) -> Parts:
        if self._parts is None and self.turned is not None and not self.lies_in_memory:
            source, order = self.turned
            self._parts = Parts(*(transpose(x, order) for x in source.parts))
        elif self._parts is None:
            *shape, _ = self.array.shape
            cut = (slice_in_dim(self.array, i, i + 1, axis=len(shape)) for i in (0, 1))
            self._parts = Parts(*(reshape(x, shape) for x in cut))
        return self._parts

    @property
    def array(self) -> Any:
        if self._array is None and self.lies_in_memory:
            self._array = self.operand
        elif self._array is None:
            parts = self.parts
            axis = len(parts.re.shape)
            thick = [reshape(x, (*x.shape, 1)) for x in parts]
            self._array = concatenate(thick, axis)
        return self._array


def _aval(x: Any) -> ShapedArray:
    """The type of a value, complex where it is a pair."""
    if type(x) is not _Pair:
        return aval_of(x)
    aval = aval_of(x.array)
    return ShapedArray(aval.shape[:-1], dtypes.to_complex(aval.dtype))


def _paired(x: Any) -> Any:
    """A value, a complex number of the program's text as a pair."""
    if type(x) is not Array or not dtypes.is_complex(x.dtype):
        return x
    return _Pair(parts=Parts(x.value.real.copy(), x.value.imag.copy()))


def _part(x: Any, i: int) -> Any:
    return x.parts[i] if type(x) is _Pair else x


# ---- equations


class _Rule(Record):
    """The rule for equations. tiny: see `as_pairs`"""

    tiny: int

    def __call__(self, eqn: Eqn, values: Sequence[Any]) -> Any:
        """What takes the place of an equation; None where it may stay."""
        inner = any(j.has_complex for j in sub_jaxprs(eqn))
        if not inner and not any(map(_is_complex, (*eqn.ins, *eqn.outs))):
            return None
        if inner and eqn.prim in LOOPS:
            return None  # its programs take and give pairs
        out = _equation(eqn, inner, [_paired(x) for x in values], self.tiny)
        return out if eqn.prim.multiple else out[0]


def _equation(eqn: Eqn, inner: bool, ins: Sequence[Any], tiny: int) -> list[Any]:
    """The results of an equation of complex numbers, these as pairs."""
    prim, params = eqn.prim, eqn.params
    if prim is constant_p:
        return [_Pair(_constant(params["value"].array))]
    if inner or prim.effect or prim in EXCHANGES or any(map(callable, params.values())):
        raise _Unsupported
    if prim is transpose_p:
        return [_Pair(turned=(ins[0], params["permutation"]))]
    if prim is conj and type(ins[0]) is _Pair and ins[0].turned is not None:
        # Where it is in order, a product reads what is written.
        source, order = ins[0].turned
        return [_Pair(turned=(_Pair(parts=_RULES[prim](source.parts, **params)), order))]
    if prim in MOVES and all(x.lies_in_memory for x in ins):
        moved = prim.bind(*(x.array for x in ins), **MOVES[prim](params))
        return [_Pair(moved)]
    if prim in BY_PARTS or prim.view is not None or prim.identity:
        return _by_parts(eqn, ins)
    if prim is sort_p and not any(map(_is_complex, eqn.ins[: params["num_keys"]])):
        return _sort(eqn, ins)
    if prim is fft_p and len(params["fft_lengths"]) > 1:
        return [_fft(*ins, **params)]
    if prim in PRODUCTS:
        dtype = eqn.outs[0].aval.dtype
        convert: Any = _RULES[convert_element_type_p]
        ins = [x if type(x) is _Pair else _Pair(parts=convert(x, new_dtype=dtype)) for x in ins]
    if prim is dot_general_p:
        return [_dot(eqn, ins[0], ins[1], tiny)]
    if prim is lu_p:
        factors, *rows = complex_matrices.lu(ins[0].parts)
        return [_Pair(parts=factors), *rows]
    rule = _RULES.get(prim)
    if rule is None:
        return _host(prim, params, ins, [v.aval for v in eqn.outs])
    out = rule(*(x.parts if type(x) is _Pair else x for x in ins), **params)
    return [_Pair(parts=out) if type(out) is Parts else out]


def _dot(eqn: Eqn, x: _Pair, y: _Pair, tiny: int) -> _Pair:
    """A product of pairs; or products of parts, which become sums, if it is tiny or one number."""
    (cx, cy), (bx, by) = numbers = eqn.params["dimension_numbers"]
    avals, dtype = [v.aval for v in eqn.ins], eqn.outs[0].aval.dtype
    k, count = (math.prod(avals[0].shape[i] for i in axes) for axes in (cx, bx))
    m, n = (aval.size // max(1, k * count) for aval in avals)
    if max(m, n) > 1 and 8 * m * n * k > tiny and all(a.dtype == dtype for a in avals):
        return _Pair(_product(_neighbours(x.operand, cx, bx), _neighbours(y.operand, cy, by)))
    kind = dtypes.real_part(dtype)
    re, im = ([dot_general(a, b, numbers, preferred_element_type=kind) for b in y.parts]
              for a in x.parts)  # fmt: skip
    return _Pair(parts=Parts(re[0] - im[1], re[1] + im[0]))


def _neighbours(x: Any, contract: tuple[int, ...], batch: tuple[int, ...]) -> tuple:
    """Pairs with their contracted axes side by side, and where these and the batch's are."""
    if all(b == a + 1 for a, b in itertools.pairwise(contract)):
        return x, contract, batch
    last = len(x.shape) - 1
    free = [i for i in range(last) if i not in contract and i not in batch]
    n = len(batch) + len(free)
    moved = transpose(x, [*batch, *free, *contract, last])
    return moved, tuple(range(n, last)), tuple(range(len(batch)))


def _product(left: tuple, right: tuple) -> Any:
    """The product of pairs, each with its contracted and its batch axes."""
    (x, cx, bx), (y, cy, by) = left, right
    rank = len(x.shape) + len(y.shape) - 2 * len(cx) - len(bx) - 1
    return products.product_p.bind(
        x, y, dimension_numbers=((cx, cy), (bx, by)), permutation=tuple(range(rank)),
        gathers=False, exact=True, pairs=True, convolution=None, windows=False, rounded=False,
    )  # fmt: skip


def _by_parts(eqn: Eqn, ins: Sequence[Any]) -> list[Any]:
    sides = []
    for i in (0, 1):
        params = _filling(eqn.params, i) if eqn.prim is gather_p else eqn.params
        out = eqn.prim.bind(*(_part(x, i) for x in ins), **params)
        sides.append(out if eqn.prim.multiple else [out])
    return [
        _Pair(parts=Parts(*both)) if _is_complex(v) else both[0]
        for v, both in zip(eqn.outs, zip(*sides, strict=True), strict=True)
    ]


def _filling(params: dict, i: int) -> dict:
    """Parameters of a gather that fills with a part of a complex number: by default of NaN + 0j."""
    fill = params["fill_value"]
    if params["mode"] is not GatherScatterMode.FILL_OR_DROP or (fill is None and i == 0):
        return params
    value = complex(fill or 0)
    return {**params, "fill_value": value.imag if i else value.real}


def _sort(eqn: Eqn, ins: Sequence[Any]) -> list[Any]:
    """Complex numbers that go with keys, as two arrays that do."""
    flat = [v for x in ins for v in (x.parts if type(x) is _Pair else (x,))]
    rest = iter(eqn.prim.bind(*flat, **eqn.params))
    return [
        _Pair(parts=Parts(next(rest), next(rest))) if _is_complex(v) else next(rest)
        for v in eqn.outs
    ]


def _constant(array: Array) -> Any:
    value = np.ascontiguousarray(array.value)
    real = value.reshape((*value.shape, 1)).view(dtypes.real_part(value.dtype))
    return constant_p.bind(value=Constant(Array(real)))


def _fft(x: Any, *, fft_type: FftType, fft_lengths: tuple[int, ...]) -> Any:
    """Axis by axis, each the last one in its turn: rows are transformed in parallel."""
    *others, last = fft_lengths
    inner = FFT if fft_type in (FFT, RFFT) else IFFT

    def along(x: Any, kind: FftType, n: int) -> Any:
        made = fft_p.abstract(_aval(x), fft_type=kind, fft_lengths=(n,))
        return _host(fft_p, {"fft_type": kind, "fft_lengths": (n,)}, [x], [made])[0]

    if fft_type is not IRFFT:
        x = along(x, fft_type, last)
    for i, n in enumerate(reversed(others)):
        axis = _aval(x).ndim - 2 - i
        x = _Pair(_last_swapped(along(_Pair(_last_swapped(x.array, axis)), inner, n).array, axis))
    return along(x, IRFFT, last) if fft_type is IRFFT else x


def _last_swapped(pairs: Any, axis: int) -> Any:
    """An array of pairs with an axis in place of the last one, but that of the pairs."""
    order = list(range(len(pairs.shape)))
    order[axis], order[-2] = order[-2], order[axis]
    return transpose(pairs, order)


# ---- ops that run as they are


def _host(prim: Primitive, params: dict, ins: Sequence[Any], results: Sequence[Any]) -> list[Any]:
    """An op on complex views of pairs; it gives results of these types."""
    pairs = tuple(type(x) is _Pair for x in ins)
    given = [x.array if type(x) is _Pair else x for x in ins]
    outs = on_complex_p.bind(*given, prim=prim, params=params, pairs=pairs, results=tuple(results))
    return [
        _Pair(x) if dtypes.is_complex(aval.dtype) else x
        for x, aval in zip(outs, results, strict=True)
    ]


def _on_complex_abstract(*ins: Any, results: Sequence[ShapedArray], **_: Any) -> list[ShapedArray]:
    return [_pair_aval(aval.strong()) for aval in results]


def _on_complex_impl(
    xp: Any, *ins: Any, prim: Any, params: dict, pairs: Sequence[bool], results: Sequence[Any]
) -> list[Any]:
    given = [_joined(xp, x) if pair else x for x, pair in zip(ins, pairs, strict=True)]
    out = prim.impl(xp, *given, **params)
    found: list[Any] = []
    for x, aval in zip(out if prim.multiple else [out], results, strict=True):
        x = xp.asarray(x, aval.dtype)
        if dtypes.is_complex(aval.dtype):
            x = xp.ascontiguousarray(x[..., None]).view(dtypes.real_part(aval.dtype))
        found.append(x)
    return found


def _joined(xp: Any, x: Any) -> Any:
    return xp.ascontiguousarray(x).view(dtypes.to_complex(x.dtype))[..., 0]


on_complex_p = lowered("on_complex", _on_complex_abstract, _on_complex_impl, multiple=True)
