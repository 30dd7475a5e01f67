"""What each primitive is in ONNX: rules from an equation and its operands to its results.

- `structure`: what moves elements, makes arrays, changes types
- `products`: matrix products and convolutions
- `reductions`: reductions, running ones, positions of extrema, sorting
- `indexing`: gathers, scatters, windows at computed positions
- `windows`: reductions of windows, and their gradients
- `fourier`: Fourier transforms
- `control`: branches and loops

Elementwise ops need none, but where ONNX has the function: `plain` has those.
"""

from __future__ import annotations

from collections.abc import Callable

from funcgrad.core.primitive import Primitive
from funcgrad.export.onnx.rules import (
    control,
    fourier,
    indexing,
    plain,
    products,
    reductions,
    structure,
    windows,
)

RULES: dict[Primitive, Callable] = {
    **structure.RULES,
    **plain.RULES,
    **products.RULES,
    **reductions.RULES,
    **indexing.RULES,
    **windows.RULES,
    **fourier.RULES,
}
WITH_PROGRAMS: dict[Primitive, Callable] = control.RULES
# Their results are elements of their operands, so that narrow types need no rounding again.
MOVES = frozenset(structure.RULES)
