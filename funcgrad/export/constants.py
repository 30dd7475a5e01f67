"""Programs whose weights are laid out for the processor, once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from funcgrad.backends.late import Late
from funcgrad.core.array import Array
from funcgrad.core.closed import ClosedJaxpr
from funcgrad.core.ir import Jaxpr
from funcgrad.transforms.passes.simplify import simplify

constants = Late("funcgrad.backends.llvm.rewrites.constants")
pack = Late("funcgrad.backends.llvm.gemm.pack")
target = Late("funcgrad.backends.llvm.native.target")


def laid_out(closed: ClosedJaxpr) -> ClosedJaxpr:
    """A program that computes the same from weights that lie as products of few rows read them:
    itself, where it has none. It isn't for derivatives: custom rules are gone.

    >>> w = fnp.ones((256, 128))
    >>> laid_out(fg.make_jaxpr(lambda x: x @ w)(fnp.ones((4, 256)))).consts[0].shape
    (8, 256, 16)
    """
    jaxpr = simplify(closed.jaxpr)
    found = common_panels([jaxpr], len(closed.consts))
    if not found:
        return closed
    consts = [Array(found[i].of(np.asarray(c))) if i in found else c
              for i, c in enumerate(closed.consts)]  # fmt: skip
    return ClosedJaxpr(panelled(jaxpr, found), consts)


def common_panels(jaxprs: Sequence[Jaxpr], count: int) -> dict[int, Any]:
    """The panels in which all of some simplified programs had better have the first inputs, that
    are the same for all (`backends.llvm.rewrites.constants`).

    >>> common_panels([fg.make_jaxpr(fnp.sin)(1.0).jaxpr], 1)
    {}
    """
    first, *others = [constants.panelled_inputs(j, count, _columns) for j in jaxprs]
    return {i: p for i, p in first.items() if all(each.get(i) == p for each in others)}


def _columns(dtype: np.dtype) -> int:
    return pack.Tile.of(target.default_target(), pack.FORMATS[dtype.name]).cols


def panelled(jaxpr: Jaxpr, panels: Mapping[int, Any]) -> Jaxpr:
    """A simplified program that takes these inputs in panels.

    >>> panelled(jaxpr := fg.make_jaxpr(fnp.sin)(1.0).jaxpr, {}) is jaxpr
    True
    """
    return constants.with_panels(jaxpr, panels)
