"""Axis mappings: the one rule of an op about axes, written as in einsum.

`"i k, k j -> i j"` names each axis of each operand and result. A factor that only operands have is
contracted; how, stands after a colon: `"i k -> i : max"` (sum where nothing is said). A factor with
`!` must be whole on every device (a sorted axis, an axis of an fft); `.` is an axis that matches
nothing (of size 1, or made anew). Partitioning reads these; typecheck holds them to the shapes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from funcgrad.core.aval import ShapedArray
from funcgrad.core.primitive import Primitive
from funcgrad.core.record import Record
from funcgrad.core.types import Param
from funcgrad.errors import IRError


class Dims(Record):
    """A parsed axis mapping."""

    ins: tuple[tuple[str, ...], ...]
    outs: tuple[tuple[str, ...], ...]
    whole: frozenset[str]
    reduction: str = "sum"

    @property
    def contracted(self) -> frozenset[str]:
        """Factors that operands have and results lack."""
        kept = {f for out in self.outs for f in out}
        return frozenset(f for i in self.ins for f in i if f != "." and f not in kept)


def parse(text: str) -> Dims:
    """Read a mapping.

    >>> sorted(parse("i k, k j -> i j").contracted)
    ['k']
    """
    body, _, reduction = text.partition(":")
    left, arrow, right = body.partition("->")
    if not arrow:
        raise IRError(f"an axis mapping needs '->': {text!r}")
    whole = frozenset(f.strip("!") for f in body.replace(",", " ").split() if f.endswith("!"))

    def side(s: str) -> tuple[tuple[str, ...], ...]:
        return tuple(tuple(f.strip("!") for f in part.split()) for part in s.split(","))

    return Dims(side(left), side(right), whole, reduction.strip() or "sum")


def mapping(prim: Primitive, avals: Sequence[ShapedArray], params: Mapping[str, Param]) -> Dims:
    """The mapping of an op that has one, for operands of these types."""
    dims = prim.dims(*avals, **params)  # type: ignore[operator]
    return parse(dims) if isinstance(dims, str) else dims


def check(dims: Dims, ins: Sequence[ShapedArray], outs: Sequence[ShapedArray]) -> None:
    """Check that a mapping fits the shapes: ranks agree and each factor has one size."""
    sizes: dict[str, int] = {}
    # An op without operands and one of a scalar are written alike.
    no_ins = () if not ins and dims.ins == ((),) else dims.ins
    for names, avals in ((no_ins, ins), (dims.outs, outs)):
        if len(names) != len(avals):
            raise IRError(f"{dims} maps {len(names)} values, there are {len(avals)}")
        for factors, aval in zip(names, avals, strict=True):
            if len(factors) != aval.ndim:
                raise IRError(f"{dims}: {factors} does not fit {aval}")
            for f, n in zip(factors, aval.shape, strict=True):
                if f != "." and sizes.setdefault(f, n) != n:
                    raise IRError(f"{dims}: factor {f} has sizes {sizes[f]} and {n}")


def letters(n: int, start: int = 0) -> list[str]:
    """n factor names.

    >>> letters(3)
    ['a', 'b', 'c']
    """
    return [chr(97 + i % 26) + (str(i // 26) if i >= 26 else "") for i in range(start, start + n)]


def pointwise(*avals: ShapedArray, results: int = 1) -> str:
    """The mapping of an op whose operands (but scalars) and results all have one shape."""
    rank = max((a.ndim for a in avals), default=0)
    names = " ".join(letters(rank))
    ins = ", ".join(names if a.ndim == rank else "" for a in avals)
    return f"{ins} -> {', '.join([names] * results)}"
