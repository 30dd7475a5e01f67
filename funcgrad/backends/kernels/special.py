"""What kernels are written with that run through memory in an order of their own."""

from __future__ import annotations

from collections.abc import Sequence

from funcgrad.backends.kernels.cluster import Parameters, Written, column_block
from funcgrad.backends.loops.builder import ZERO, Builder
from funcgrad.backends.loops.ir import Axis, Index, Operand
from funcgrad.backends.lower.pull import Pull
from funcgrad.backends.lower.rules import RULES
from funcgrad.backends.target import Target
from funcgrad.core.ir import Atom, Eqn, Var
from funcgrad.core.views import in_order


class SpecialKernel:
    """What kernels of ops that are none of elements are written with."""

    def __init__(self, inlined: dict[Var, Eqn], target: Target):
        self.target = target
        self.builder = Builder()
        self.params = Parameters()
        self.axes: list[Axis] = []
        self.pull = Pull(self.builder, RULES, target.limits, inlined, self.leaf)

    def leaf(self, var: Var, flat: Index) -> Operand:
        """An element of a variable in memory."""
        return self.builder.load(self.params.read(var), flat)

    def element(self, x: Atom, at: Sequence[Index]) -> Operand:
        """An element of an operand, which is memory, perhaps under another shape."""
        return self.element_at(x, self.builder.flatten(at, x.aval.shape))

    def element_at(self, x: Atom, flat: Index) -> Operand:
        """The element of such an operand at a row-major position."""
        while type(x) is Var and x in self.pull.inlined:
            eqn = self.pull.inlined[x]
            if eqn.prim.view is not in_order:
                break
            x = eqn.ins[0]
        return self.pull.read_flat(x, flat)

    def column_block(self, columns: int, others: int) -> int:
        """How many columns a task takes, of which there are others for each: see `cluster`."""
        return column_block(columns, others, self.target.limits)

    def outer(self, n: int) -> Index:
        """A new outer axis."""
        if n == 1:
            return ZERO
        self.axes.append(Axis(self.builder.axis(n), n))
        return Index(0, ((1, self.axes[-1].value),))

    def done(self, eqn: Eqn, in_place: Sequence[tuple[Var, Var]] = ()) -> Written:
        """The finished kernel, named after its op; pairs of what it may write over what."""
        return self.params.kernel(self.builder, eqn.prim.name, self.axes, in_place)
