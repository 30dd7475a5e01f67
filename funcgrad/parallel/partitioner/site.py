"""Where a device's blocks meet an op: an equation, its cuts, and the op to bind."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from funcgrad.core.aval import ShapedArray
from funcgrad.core.primitive import Primitive
from funcgrad.parallel.partitioner.reshard import Sizes, offset

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Site:
    """An equation at which a device's blocks meet its op.

    ins: the types of the whole operands
    out_shapes: the shapes of the results' blocks
    assigned: the mesh axes of each factor that is cut
    """

    prim: Primitive
    params: Mapping[str, Any]
    ins: tuple[ShapedArray, ...]
    out_shapes: tuple[Shape, ...]
    assigned: Mapping[str, tuple[str, ...]]
    sizes: Sizes

    def bind(self, *values: Any, **changes: Any) -> Any:
        """The op on blocks, some parameters changed."""
        return self.prim.bind(*values, **{**self.params, **changes})

    def offset(self, factor: str, block: int) -> Any:
        """Where a device's block begins along a factor."""
        return offset(self.assigned[factor], block)
