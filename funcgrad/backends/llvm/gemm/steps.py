"""How a program's products are calls of the generated GEMM: of which function, with which words."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

from funcgrad.backends.llvm.gemm import functions, micro
from funcgrad.backends.llvm.gemm.images import frames
from funcgrad.backends.llvm.gemm.kernels import Micro
from funcgrad.backends.llvm.gemm.words import CALL, FINISH, FRAMED, axes_words, inner_words
from funcgrad.backends.llvm.rewrites.tiles import one_phase, tiles_of
from funcgrad.backends.program import GemmStep


class ProductCall(NamedTuple):
    """A product's call.

    places: of words that are addresses, by name: of a, b and c, of what finishes rows and of
        `tables` of other words
    outer: batch axes, for each point of which there is one
    copier: what writes the framed operand with its zeros, for a way that needs it; else ""
    kernels: functions whose addresses are to be in these places, before the call
    """

    symbol: str
    words: list[int]
    places: dict[str, int]
    tables: dict[str, list[int]]
    outer: tuple[tuple[int, int, int, int], ...]
    copier: str
    kernels: list[tuple[str, str]]


def product_call(s: GemmStep) -> ProductCall:
    """How a product is called.

    >>> import numpy as np
    >>> from funcgrad.backends.program import Ref
    >>> f32, ref, rows = np.dtype("float32"), Ref("arena"), (4, 1)
    >>> product_call(GemmStep(f32, f32, 4, 4, 4, ref, ref, ref, rows, rows, rows)).tables
    {}
    """
    words, names = product_words(s), CALL
    called = _called(s)
    tables = {} if called.axes is None else {"axes": axes_words(called.axes)}
    if s.frame is not None:
        tables["frame"] = frames.frame_words(s.frame)
    copied = s.frame is not None and not takes_frame(s)
    (dtype, out, way), kernels = _routed(s)
    name = functions.name_of(dtype, out, way)
    return ProductCall(
        name,
        [words.get(name, 0) for name in names],
        {name: names.index(name) for name in ("a", "b", "c", *FINISH[:2], *tables)},
        tables,
        called.batch[:-2],
        frames.name_of(s.dtype.itemsize) if copied else "",
        [(micro.symbol(dtype, k), micro.place(name, k)) for k in kernels],
    )


def product_kind(s: GemmStep) -> tuple[str, str, str]:
    """The formats of a matrix product, and the way that it goes or "" for any.

    >>> import numpy as np
    >>> from funcgrad.backends.program import Ref
    >>> f32, ref, rows = np.dtype("float32"), Ref("arena"), (4, 1)
    >>> product_kind(GemmStep(f32, f32, 4, 4, 4, ref, ref, ref, rows, rows, rows))[:2]
    ('float32', 'float32')
    """
    return _routed(s)[0]


def _routed(s: GemmStep) -> tuple[tuple[str, str, str], list[Micro]]:
    dtype, out = s.dtype.name, s.out.name
    way, kernels = functions.route(dtype, out, product_words(s))
    return (dtype, out, way), kernels


def takes_frame(s: GemmStep) -> bool:
    """Whether a product goes a way that reads an operand with zeros around it.

    >>> import numpy as np
    >>> from funcgrad.backends.program import Ref
    >>> f32, ref, rows = np.dtype("float32"), Ref("arena"), (4, 1)
    >>> takes_frame(GemmStep(f32, f32, 4, 4, 4, ref, ref, ref, rows, rows, rows))
    False
    """
    if s.frame is None or s.axes is None or len(_called(s).batch) > 2:
        return False
    words = product_words(s) | {FRAMED: s.frame.operand + 1}
    return bool(functions.route(s.dtype.name, s.out.name, words)[0])


def product_needs(s: GemmStep) -> dict[tuple, Callable[[], Any]]:
    """What compiles the functions that a product calls, by a key for each.

    >>> import numpy as np
    >>> from funcgrad.backends.program import Ref
    >>> f32, ref, rows = np.dtype("float32"), Ref("arena"), (4, 1)
    >>> len(product_needs(GemmStep(f32, f32, 4, 4, 4, ref, ref, ref, rows, rows, rows)))
    2
    """
    kind, kernels = _routed(s)
    dtype, out, way = kind
    found: dict[tuple, Callable[[], Any]] = {kind: partial(functions.install, dtype, out, way=way)}
    for kernel in kernels:
        found[*kind, kernel] = partial(functions.install_kernel, *kind, kernel)
    if s.frame is not None and not takes_frame(s):
        size = s.dtype.itemsize
        found["framed", size] = partial(frames.install, size)
    return found


def product_words(s: GemmStep) -> dict[str, int]:
    """What is known of a call, with the two innermost batch axes.

    >>> import numpy as np
    >>> from funcgrad.backends.program import Ref
    >>> f32, ref, rows = np.dtype("float32"), Ref("arena"), (4, 1)
    >>> product_words(GemmStep(f32, f32, 4, 4, 4, ref, ref, ref, rows, rows, rows))["a_rs"]
    4
    """
    (form, _), of, w, s = tiles_of(s), s.convolution, s.windows, _called(s)
    inner = s.batch[-2:]
    sizes, steps = [1, 1], [(0, 0), (0, 0), (0, 0)]
    if inner:
        rows = [(1, 0, 0, 0), *inner][-2:]
        sizes = [r[0] for r in rows]
        steps = [(rows[0][i], rows[1][i]) for i in (1, 2, 3)]
    words = {"m": s.m, "n": s.n, "k": s.k, "batch0": sizes[0], "batch1": sizes[1]}
    matrix = (s.a_strides, s.b_strides, s.c_strides)
    for x, batch, strides in zip("abc", steps, matrix, strict=True):
        words |= {f"{x}_b0": batch[0], f"{x}_b1": batch[1]}
        words |= {f"{x}_rs": strides[0], f"{x}_cs": strides[1]}
    if s.finish is not None:
        words |= {"finish": 1, "apart": int(s.apart)}
    if s.axes is None:
        return words
    # Windows of one element don't overlap.
    side = w.operand + 1 if w and of and math.prod(of.taps) > 1 else 0
    words |= {"axes": 1, "tiled": form, "windows": side}
    return words | inner_words(s.axes)


def _called(s: GemmStep) -> GemmStep:
    """The product that a call describes: one phase's, if a call makes all of them."""
    return one_phase(s) or s
