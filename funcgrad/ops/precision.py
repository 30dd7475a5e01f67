"""How exact products have to be: what `precision` means."""

from __future__ import annotations

import enum
from typing import Any

from funcgrad.core import context
from funcgrad.core.settings import Setting


class Precision(enum.Enum):
    """How exact products are. Their sums are never formed in fewer bits than the operands have.

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


def is_highest(name: str, precision: Any) -> bool:
    """Whether a function's argument asks for HIGHEST: a `Precision`, its name, or a pair; None asks
    for what `default_matmul_precision` says.

    Raises ValueError for anything else.

    >>> is_highest("conv", "highest"), is_highest("conv", (None, Precision.DEFAULT))
    (True, False)
    """
    if isinstance(precision, tuple | list) and len(precision) == 2:
        both = [is_highest(name, p) for p in precision]
        return any(both)
    if precision is None:
        return context.current().exact
    if isinstance(precision, Precision):
        return precision is Precision.HIGHEST
    if isinstance(precision, str) and precision in _NAMES:
        return _NAMES[precision] is Precision.HIGHEST
    raise ValueError(
        f"{name}: precision must be None, a lax.Precision, one of {', '.join(_NAMES)}, or a pair "
        f"of these, got {precision!r}"
    )


class default_matmul_precision(Setting):
    """What `precision` means where a product or convolution doesn't say it: in a `with` block, in
    a function that this decorates, or, called alone, from then on in the whole process.

    precision: None or one of JAX's names. On this processor matrix products keep all bits of their
    operands at each of them; "highest" and "float32" ask convolutions for sums of products, see
    `lax.Precision`.

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
        super().__init__(
            exact=precision is not None and is_highest("default_matmul_precision", precision)
        )
