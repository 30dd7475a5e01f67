"""How exact products have to be: what `precision` means."""

from __future__ import annotations

import enum
from typing import Any

from funcgrad.core import context
from funcgrad.core.settings import Setting


class Precision(enum.Enum):
    """How exact products are. Their sums are never formed in fewer bits than the operands have.

    HIGH ("tensorfloat32") lets products and convolutions of float32 on a GPU round operands to 11
    bits, TensorFloat-32, and be several times as fast; so do those of their gradients. No other
    does: without it a GPU's float32 stays float32, and on other processors it always does.
    HIGHEST asks convolutions for sums of products. Otherwise those of 3×3 windows, and of 4×4 that
    double an image, in compiled code, may go by Winograd's tiles: sums of fewer products, of sums
    of elements and of the kernel's. Their mean error is no larger, but is one of what is in a
    window on the whole: a large element rounds results even where the kernel is 0.
    """

    DEFAULT = 0
    HIGH = 1
    HIGHEST = 2


_NAMES = {
    "default": Precision.DEFAULT, "fastest": Precision.DEFAULT, "bfloat16": Precision.DEFAULT,
    "high": Precision.HIGH, "tensorfloat32": Precision.HIGH, "bfloat16_3x": Precision.HIGH,
    "highest": Precision.HIGHEST, "float32": Precision.HIGHEST,
}  # fmt: skip


def said(name: str, precision: Any) -> Precision | None:
    """What a function's argument asks for: a `Precision`, its name, or a pair, of which the more
    exact one counts; None asks for what `default_matmul_precision` says, if it says anything.

    Raises ValueError for anything else.

    >>> said("dot", "tensorfloat32"), said("dot", ("high", "highest")), said("dot", None)
    (<Precision.HIGH: 1>, <Precision.HIGHEST: 2>, None)
    """
    if precision is None:
        return context.current().precision  # type: ignore[return-value]
    if isinstance(precision, Precision):
        return precision
    if isinstance(precision, str) and precision in _NAMES:
        return _NAMES[precision]
    if isinstance(precision, tuple | list) and len(precision) == 2:
        both = [p for p in (said(name, p) for p in precision) if p is not None]
        return max(both, key=lambda p: p.value, default=None)
    raise ValueError(
        f"{name}: precision must be None, a lax.Precision, one of {', '.join(_NAMES)}, or a pair "
        f"of these, got {precision!r}"
    )


def rounding(name: str, precision: Any) -> dict[str, str]:
    """The parameter of a product, or convolution, whose operands may be rounded; none otherwise.

    >>> rounding("dot", "high"), rounding("dot", "highest")
    ({'precision': 'tensorfloat32'}, {})
    """
    if precision is None and context.current().precision is None:
        return {}
    return {"precision": "tensorfloat32"} if said(name, precision) is Precision.HIGH else {}


def is_highest(name: str, precision: Any) -> bool:
    """Whether a function's argument asks for HIGHEST; see `said`.

    >>> is_highest("conv", "highest"), is_highest("conv", (None, Precision.DEFAULT))
    (True, False)
    """
    return said(name, precision) is Precision.HIGHEST


class default_matmul_precision(Setting):
    """What `precision` means where a product or convolution doesn't say it: in a `with` block, in
    a function that this decorates, or, called alone, from then on in the whole process.

    precision: None or one of JAX's names, see `lax.Precision`. "tensorfloat32" rounds operands of
    products and convolutions on a GPU; on this processor these keep all bits of their operands at
    each of them. "highest" and "float32" ask convolutions for sums of products.

    >>> with fg.default_matmul_precision("highest"):
    ...     y = lax.conv(fnp.ones((1, 1, 4, 4)), fnp.ones((1, 1, 3, 3)), (1, 1), "VALID")
    >>> float(y[0, 0, 0, 0])
    9.0
    """

    def __init__(self, precision: str | None):
        if precision is not None and not isinstance(precision, str):
            raise ValueError(
                f"default_matmul_precision: precision must be None or one of {', '.join(_NAMES)}, "
                f"got {precision!r}"
            )
        level = None if precision is None else said("default_matmul_precision", precision)
        super().__init__(precision=level)
