"""What each primitive is in ONNX: rules from an equation and its operands to its results.

- `structure`: what moves elements, makes arrays, changes types
- `products`: matrix products and convolutions
- `reductions`: reductions, running ones, positions of extrema, sorting
- `indexing`: gathers, scatters, windows at computed positions
- `windows`: reductions of windows, and their gradients
- `fourier`: Fourier transforms
- `attention`: attention as one node, where it was kept
- `control`: branches and loops
- `origins`, `quantized`: several equations as one node, where they are of quantized numbers

Elementwise ops need none, but where ONNX has the function: `plain` has those.
"""

from __future__ import annotations

from collections.abc import Callable

from funcgrad.core.primitive import Primitive
from funcgrad.export.onnx.rules import (
    attention,
    control,
    fourier,
    indexing,
    plain,
    products,
    quantized,
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
    **quantized.RULES,
}
# Ops that are formulas unless their node was asked for.
KEPT: dict[Primitive, Callable] = attention.RULES
WITH_PROGRAMS: dict[Primitive, Callable] = control.RULES
# Their results are elements of their operands, so that narrow types need no rounding again.
MOVES = frozenset(structure.RULES)
