"""Programs with the values that they captured: beside them, or inside as constants."""

from __future__ import annotations

from funcgrad.core.array import Array
from funcgrad.core.aval import ShapedArray
from funcgrad.core.display import jaxpr_html as show_html
from funcgrad.core.display import jaxpr_text as show
from funcgrad.core.ir import Eqn, Jaxpr, eval_jaxpr
from funcgrad.core.primitive import NoRule, Primitive
from funcgrad.core.types import Value, Values


class ClosedJaxpr:
    """A program together with the values it captured, its first inputs: what `make_jaxpr` gives."""

    __slots__ = ("consts", "jaxpr")

    def __init__(self, jaxpr: Jaxpr, consts: Values):
        self.jaxpr = jaxpr
        self.consts = tuple(consts)

    @property
    def in_avals(self) -> list[ShapedArray]:
        """The types of the arguments, without those of captured values."""
        return self.jaxpr.in_avals[len(self.consts) :]

    @property
    def out_avals(self) -> list[ShapedArray]:
        """The types of the results."""
        return self.jaxpr.out_avals

    @property
    def eqns(self) -> tuple[Eqn, ...]:
        """The equations, in the order in which they run.

        >>> fg.make_jaxpr(lambda x: fnp.sin(x) * 2)(1.0).eqns
        (b:f32[] = sin a, b:f32[] = mul a 2.0:f32[])
        """
        return self.jaxpr.eqns

    @property
    def literals(self) -> list[Value]:
        """The captured values, under JAX's name."""
        return list(self.consts)

    def __call__(self, *args: Value) -> list:
        """Evaluate on flat arguments."""
        return eval_jaxpr(self.jaxpr, *self.consts, *args)

    def __repr__(self) -> str:
        return show.jaxpr_text(self.jaxpr, n_consts=len(self.consts))

    def _repr_html_(self) -> str:
        return show_html.jaxpr_html(self.jaxpr, n_consts=len(self.consts))


def with_constants(jaxpr: Jaxpr, captured: Values) -> Jaxpr:
    """The program with arrays in place of its first inputs."""
    n = len(captured)
    if not n:
        return jaxpr
    constants = [
        Eqn(constant_p, (), (var,), {"value": Constant(c)})
        for c, var in zip(captured, jaxpr.ins, strict=False)
    ]
    names = jaxpr.names and jaxpr.names[n:]
    return Jaxpr(jaxpr.ins[n:], [*constants, *jaxpr.eqns], jaxpr.outs, names)


class Constant:
    """An array as a parameter of an equation; equal only to itself."""

    __slots__ = ("array",)

    def __init__(self, array: Array):
        self.array = array

    def __repr__(self) -> str:
        return f"array{list(self.array.shape)}"


_NO_OPERANDS = NoRule("it has no operands")


constant_p = Primitive(
    name="constant",
    abstract=lambda *, value: value.array.aval,
    impl=lambda xp, *, value: xp.asarray(value.array.value),
    jvp=_NO_OPERANDS,
    transpose=_NO_OPERANDS,
    batch=_NO_OPERANDS,
    dims=lambda *, value: f" -> {' '.join('.' * value.array.ndim)}",
)
