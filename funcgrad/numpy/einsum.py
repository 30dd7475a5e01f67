"""Einstein's summation: any sum of products of arrays, from one string that names their axes.

Operands are contracted two at a time, in an order that keeps products small (NumPy's search for
one); each pair is one dot_general, or an elementwise product where nothing is summed.
"""

from __future__ import annotations

import string
from collections.abc import Sequence
from contextlib import nullcontext
from functools import lru_cache
from typing import Any

import numpy as np

from funcgrad import dtypes
from funcgrad.core.context import scoped
from funcgrad.errors import ShapeError, within
from funcgrad.numpy._util import as_array, broadcast_to, convert, promote
from funcgrad.numpy.creation.diagonals import diagonal
from funcgrad.ops import shape as ops
from funcgrad.ops.base import sum_p
from funcgrad.ops.contract import dot_general_p
from funcgrad.ops.elementwise.arithmetic import mul
from funcgrad.ops.elementwise.compare import bitwise_and
from funcgrad.ops.precision import rounding, said
from funcgrad.ops.reduce import or_p
from funcgrad.ops.sharding import cut_as_said

__all__ = ["einsum", "einsum_path"]

Labels = tuple[str, ...]
Term = tuple[Any, Labels]  # an array and the labels of its axes


def einsum(
    subscripts: Any,
    /,
    *operands: Any,
    out: None = None,
    optimize: Any = "auto",
    precision: Any = None,
    preferred_element_type: Any = None,
    out_sharding: Any = None,
) -> Any:
    """Sum of products of arrays whose axes `subscripts` names: "ij,jk->ik" is a matrix product.

    A letter that the part after "->" lacks is summed over; without "->" those that appear once
    remain, in alphabetical order. A letter twice in one operand means its diagonal; "..." stands
    for axes that broadcast. Operands may also be given as `einsum(a, [0, 1], b, [1, 2], [0, 2])`.
    `optimize` is how the order of contractions is found: "auto" ("optimal" for few operands, else
    "greedy"), True, False (from left to right) or a list of pairs from `einsum_path`.
    `preferred_element_type` is the dtype of sums and result, `out_sharding` how it is to be cut
    over a mesh. Raises ShapeError where letters and shapes do not fit.

    >>> x = fnp.array([[1.0, 2.0], [3.0, 4.0]])
    >>> fnp.einsum("ij,jk->ik", x, x)
    Array([[ 7., 10.],
           [15., 22.]], dtype=float32)
    >>> fnp.einsum("ii", x)
    Array(5., dtype=float32)
    """
    if out is not None:
        raise NotImplementedError("einsum: arrays are immutable, so there is no out=")
    scope = nullcontext() if precision is None else scoped(precision=said("einsum", precision))
    with scope:
        return _einsum(subscripts, operands, optimize, preferred_element_type, out_sharding)


def _einsum(
    subscripts: Any, operands: tuple, optimize: Any, preferred_element_type: Any, out_sharding: Any
) -> Any:
    arrays, inputs, output = _parse(subscripts, operands)
    parts = promote("einsum", *arrays)
    if preferred_element_type is not None:
        parts = [convert(p, dtypes.canonical(preferred_element_type)) for p in parts]
    steps = _path(inputs, output, tuple(p.shape for p in parts), _hashable(optimize))
    sizes = _sizes(inputs, parts)
    terms = [_single(x, labels, sizes) for x, labels in zip(parts, inputs, strict=True)]
    for step in steps:
        chosen = [terms[i] for i in step]
        terms = [t for i, t in enumerate(terms) if i not in step]
        kept = set(output).union(*(labels for _, labels in terms))
        while len(chosen) > 1:
            later = kept.union(*(labels for _, labels in chosen[2:]))
            chosen[:2] = [_pair(chosen[0], chosen[1], later, output)]
        terms.append(_summed(chosen[0], kept))
    result = _ordered(_summed(terms[0], set(output)), output, sizes)
    return cut_as_said(result, out_sharding)


def einsum_path(
    subscripts: Any, /, *operands: Any, optimize: Any = "auto"
) -> tuple[list[tuple[int, ...]], str]:
    """The order in which `einsum` contracts its operands, and a report on what that saves.

    Each step names the operands (by position among those left) that are replaced by their
    product, which goes to the end.

    >>> x, y = fnp.ones((2, 9)), fnp.ones((9, 2))
    >>> fnp.einsum_path("ij,jk,kl->il", x, y, x)[0]
    [(0, 1), (0, 1)]
    """
    arrays, inputs, output = _parse(subscripts, operands)
    shapes = tuple(a.shape for a in arrays)
    steps = _path(inputs, output, shapes, _hashable(optimize))
    given = ["einsum_path", *steps]
    report = np.einsum_path(_spec(inputs, output), *_stand_ins(shapes), optimize=given)[1]
    return list(steps), report


# ---- reading the arguments


def _parse(subscripts: Any, operands: tuple) -> tuple[list[Any], tuple[Labels, ...], Labels]:
    """Operands, the labels of their axes, and those of the result; ellipses are given letters."""
    if isinstance(subscripts, str):
        left, arrow, right = subscripts.replace(" ", "").partition("->")
        given, result = left.split(","), right if arrow else None
    else:
        given, result, operands = _from_lists(subscripts, operands)
    if len(given) != len(operands) or not operands:
        raise ValueError(
            f"einsum: the subscripts {subscripts!r} name {len(given)} operands, got {len(operands)}"
        )
    arrays = [as_array("einsum", x, f"operand {i}") for i, x in enumerate(operands)]
    used = set("".join(given))
    wide = max(a.ndim - len(t.replace("...", "")) if "..." in t else 0
               for a, t in zip(arrays, given, strict=True))  # fmt: skip
    new = [c for c in string.ascii_letters if c not in used][: max(wide, 0)]
    inputs = tuple(
        _labels(a, t, new, i) for i, (a, t) in enumerate(zip(arrays, given, strict=True))
    )
    everything = [c for labels in inputs for c in labels]
    if result is None:
        single = sorted(c for c in set(everything) if everything.count(c) == 1 and c not in new)
        return arrays, inputs, (*new, *single)
    output = tuple(result.replace("...", "".join(new)))
    if len(set(output)) != len(output) or not set(output) <= set(everything):
        raise ValueError(
            f"einsum: the result {result!r} must name letters of the operands, each once"
        )
    if not set(new) <= set(output):
        raise ValueError(f"einsum: operands have '...', which the result {result!r} lacks")
    return arrays, inputs, output


def _labels(x: Any, term: str, new: list[str], position: int) -> Labels:
    """The label of each axis of an operand; "..." takes the last of the new letters."""
    before, dots, after = term.partition("...")
    if not all(c in string.ascii_letters for c in before + after):
        raise ValueError(f"einsum: subscripts must be letters, ',', '->' and '...', got {term!r}")
    missing = x.ndim - len(before) - len(after)
    if missing < 0 or (missing and not dots):
        raise ShapeError(
            f"einsum: {term!r} names {len(before) + len(after)} axes, operand {position} {x.aval} "
            f"has {x.ndim}"
        )
    return (*before, *new[len(new) - missing :], *after)


def _from_lists(first: Any, rest: tuple) -> tuple[list[str], str | None, tuple]:
    """The subscripts of operands that are each followed by a list of integers (or Ellipsis)."""
    everything = (first, *rest)

    def text(labels: Any) -> str:
        if not isinstance(labels, list | tuple):
            raise TypeError(f"einsum: expected subscripts as a string or a list, got {labels!r}")
        return "".join("..." if i is Ellipsis else string.ascii_letters[i] for i in labels)

    result = text(everything[-1]) if len(everything) % 2 else None
    pairs = everything[: len(everything) // 2 * 2]
    return [text(labels) for labels in pairs[1::2]], result, tuple(pairs[::2])


def _sizes(inputs: tuple[Labels, ...], arrays: list[Any]) -> dict[str, int]:
    """The size of each label; an axis of size 1 broadcasts."""
    sizes: dict[str, int] = {}
    for i, (labels, x) in enumerate(zip(inputs, arrays, strict=True)):
        for c, n in zip(labels, x.shape, strict=True):
            if sizes.setdefault(c, n) == 1:
                sizes[c] = n
            if n not in (1, sizes[c]):
                raise ShapeError(
                    f"einsum: {c!r} has size {sizes[c]} in one operand and {n} in operand {i}, "
                    f"{x.aval} with axes {''.join(labels)}"
                )
    return sizes


# ---- the order of contractions


def _hashable(optimize: Any) -> Any:
    if isinstance(optimize, list | tuple):
        return tuple(tuple(s) if isinstance(s, list | tuple) else s for s in optimize)
    if not isinstance(optimize, str | bool | int | None):
        raise TypeError(within(f"optimize must be a bool, a name or a path, got {optimize!r}"))
    return optimize


def _spec(inputs: tuple[Labels, ...], output: Labels) -> str:
    return ",".join(map("".join, inputs)) + "->" + "".join(output)


def _stand_ins(shapes: Sequence[tuple[int, ...]]) -> list[np.ndarray]:
    """Arrays of the shapes that take no memory."""
    return [np.broadcast_to(np.float32(0), shape) for shape in shapes]


@lru_cache(maxsize=1024)
def _path(inputs: tuple[Labels, ...], output: Labels, shapes: tuple, optimize: Any) -> tuple:
    """The steps of a contraction: positions of the operands that each one contracts."""
    n = len(inputs)
    if isinstance(optimize, tuple):
        steps = [s for s in optimize if s != "einsum_path"]
        left = n
        for step in steps:
            if not isinstance(step, tuple) or not all(0 <= i < left for i in step):
                raise ValueError(f"einsum: optimize {optimize} is no path for {n} operands")
            left -= len(step) - 1
        return (*steps, *([tuple(range(left))] if left > 1 else []))
    if optimize in ("auto", True):
        optimize = "optimal" if n <= 5 else "greedy"
    if optimize not in (False, None, "optimal", "greedy"):
        raise ValueError(
            f"einsum: optimize must be 'auto', 'optimal', 'greedy', a bool or a path, got "
            f"{optimize!r}"
        )
    if n < 3 or not optimize:
        return (tuple(range(n)),)
    # Without a limit on the size of products, which would contract several at once.
    found = np.einsum_path(_spec(inputs, output), *_stand_ins(shapes), optimize=(optimize, 1e18))
    return tuple(found[0][1:])


# ---- contractions


def _single(x: Any, labels: Labels, sizes: dict[str, int]) -> Term:
    """An operand without repeated labels (their diagonal) and without axes that broadcast."""
    stretched = [i for i, c in enumerate(labels) if x.shape[i] == 1 and sizes[c] != 1]
    if stretched:
        x = ops.squeeze(x, stretched)
        labels = tuple(c for i, c in enumerate(labels) if i not in stretched)
    while len(set(labels)) < len(labels):
        c = next(c for c in labels if labels.count(c) > 1)
        i = labels.index(c)
        j = labels.index(c, i + 1)
        x = diagonal(x, 0, i, j)
        labels = (*labels[:i], *labels[i + 1 : j], *labels[j + 1 :], c)
    return x, labels


def _summed(term: Term, kept: set[str]) -> Term:
    """An operand summed over the labels that nothing else needs."""
    x, labels = term
    axes = tuple(i for i, c in enumerate(labels) if c not in kept)
    if not axes:
        return term
    prim = or_p if x.dtype == dtypes.BOOL else sum_p
    return prim.bind(x, axes=axes), tuple(c for c in labels if c in kept)


def _pair(a: Term, b: Term, kept: set[str], output: Labels) -> Term:
    """The product of two operands, summed over the labels that are needed no more."""
    x, left = _summed(a, kept | set(b[1]))
    y, right = _summed(b, kept | set(left))
    both = [c for c in left if c in right]
    if all(c in kept for c in both):
        return _product(x, left, y, right)
    contracted = [c for c in both if c not in kept]
    batch = [c for c in both if c in kept]

    def free(labels: Labels) -> Labels:
        return tuple(c for c in labels if c not in both)

    if (*batch, *free(right), *free(left)) == output:
        x, left, y, right = y, right, x, left
    numbers = tuple(
        (tuple(left.index(c) for c in names), tuple(right.index(c) for c in names))
        for names in (contracted, batch)
    )
    out = dot_general_p.bind(
        x, y, dimension_numbers=numbers, preferred_element_type=None, **rounding("einsum", None)
    )
    return out, (*batch, *free(left), *free(right))


def _product(x: Any, left: Labels, y: Any, right: Labels) -> Term:
    """The product of two operands where nothing is summed."""
    labels = (*left, *(c for c in right if c not in left))
    x, y = (_aligned(v, own, labels) for v, own in ((x, left), (y, right)))
    shape = np.broadcast_shapes(x.shape, y.shape)
    prim = bitwise_and if x.dtype == dtypes.BOOL else mul
    return prim.bind(broadcast_to(x, shape), broadcast_to(y, shape)), labels


def _aligned(x: Any, labels: Labels, wanted: Labels) -> Any:
    """x with its axes in the wanted order, and axes of size 1 for labels that it lacks."""
    present = [c for c in wanted if c in labels]
    x = ops.transpose(x, [labels.index(c) for c in present])
    return ops.expand_dims(x, [i for i, c in enumerate(wanted) if c not in labels])


def _ordered(term: Term, output: Labels, sizes: dict[str, int]) -> Any:
    """The result with its axes in the order that was asked for."""
    return broadcast_to(_aligned(*term, output), tuple(sizes[c] for c in output))
