"""The values that a tape follows."""

from __future__ import annotations

import numpy as np

from funcgrad.core.array import Array
from funcgrad.core.aval import ShapedArray
from funcgrad.core.trace import Trace, Tracer
from funcgrad.core.types import Value
from funcgrad.transforms.tape.fused import Late, View


class TapeTracer(Tracer):
    """A known value, or one that is put off, and the place of its cotangent."""

    __slots__ = ("_primal", "kind", "maker", "place", "value")

    def __init__(
        self, trace: Trace, value: np.ndarray | None, place: int, aval: ShapedArray,
        kind: tuple | None, primal: Value = None,
    ):  # fmt: skip
        self._trace = trace
        self.aval = aval
        self.source = None
        # NumPy's array; None for a value of another kind, which is `primal`, and while it is put
        # off: then `maker` is what will make it. Of a view, `maker` tells how it was made.
        self.value = value
        self.maker: Late | View | None = None
        self.kind = kind  # the value's type in keys of rules
        self.place = place
        self._primal = primal

    @property
    def primal(self) -> Value:
        """The value as an Array, made when it is first asked for."""
        made = self._primal
        if made is None:
            made = self._primal = Array(self.known(), self.aval.weak_type, self.aval)
        return made

    def known(self) -> np.ndarray:
        """NumPy's array, which is computed now if it was put off."""
        if self.value is None and self.maker is not None:
            self._trace.catch_up()  # type: ignore[attr-defined]
        return self.value  # type: ignore[return-value]

    def concrete(self) -> Value | None:
        return self.primal
