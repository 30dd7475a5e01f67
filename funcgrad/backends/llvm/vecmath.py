"""The elementary functions of the LLVM CPU backend, by NumPy's names.

`emit(builder, name, args)` calls the function `name` for float or double. Its body is emitted once
per module, as an internal `alwaysinline` function of straight-line code, so that every optimizing
pass pipeline inlines it before the loop vectorizer looks at the loop around the call. What only
rare arguments need is behind a branch for whole vectors (`vecmath_rare`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from llvmlite import ir

from . import (
    vecmath_arc,
    vecmath_bits,
    vecmath_erf,
    vecmath_exp,
    vecmath_gamma,
    vecmath_log,
    vecmath_power,
    vecmath_trig,
)
from .vecmath_ir import F32, F64, Num

_TABLE: dict[str, Callable[..., Num]] = {
    "exp": vecmath_exp.exp,
    "exp2": vecmath_exp.exp2,
    "expm1": vecmath_exp.expm1,
    "logistic": vecmath_exp.logistic,
    "tanh": vecmath_exp.tanh,
    "sinh": vecmath_exp.sinh,
    "cosh": vecmath_exp.cosh,
    "log": vecmath_log.log,
    "log2": vecmath_log.log2,
    "log10": vecmath_log.log10,
    "log1p": vecmath_log.log1p,
    "sin": vecmath_trig.sin,
    "cos": vecmath_trig.cos,
    "tan": vecmath_trig.tan,
    "power": vecmath_power.power,
    "rsqrt": vecmath_power.rsqrt,
    "erf": vecmath_erf.erf,
    "erfc": vecmath_erf.erfc,
    "erf_inv": vecmath_erf.erf_inv,
    "arcsin": vecmath_arc.arcsin,
    "arccos": vecmath_arc.arccos,
    "arctan": vecmath_arc.arctan,
    "arctan2": vecmath_arc.arctan2,
    "arcsinh": vecmath_log.arcsinh,
    "arccosh": vecmath_log.arccosh,
    "arctanh": vecmath_log.arctanh,
    "cbrt": vecmath_power.cbrt,
    "hypot": vecmath_power.hypot,
    "lgamma": vecmath_gamma.lgamma,
    "digamma": vecmath_gamma.digamma,
    "fmod": vecmath_bits.fmod,
    "nextafter": vecmath_bits.nextafter,
}

NAMES = frozenset(_TABLE)
"""Every name `emit` knows."""


def emit(builder: ir.IRBuilder, name: str, args: Sequence[ir.Value]) -> ir.Value:
    """The value of the elementary function `name` at `args`, which are all float or all double.

    Raises KeyError for a name outside `NAMES`, TypeError for other argument types.

    >>> from llvmlite import ir
    >>> module, f32 = ir.Module(), ir.FloatType()
    >>> f = ir.Function(module, ir.FunctionType(f32, [f32]), "f")
    >>> builder = ir.IRBuilder(f.append_basic_block())
    >>> _ = builder.ret(emit(builder, "exp", f.args))
    >>> "fg.exp.f32" in str(module)
    True
    """
    body = _TABLE[name]
    kind = args[0].type
    if kind not in (F32, F64) or any(a.type != kind for a in args):
        got = ", ".join(str(a.type) for a in args)
        raise TypeError(f"vecmath.emit: {name} takes arguments all float or all double, got {got}")
    return builder.call(_function(builder.module, name, body, kind, len(args)), args)


def _function(
    module: ir.Module, name: str, body: Callable[..., Num], kind: ir.Type, arity: int
) -> ir.Function:
    symbol = f"fg.{name}.{'f32' if kind == F32 else 'f64'}"
    if symbol in module.globals:
        return module.globals[symbol]
    fn = ir.Function(module, ir.FunctionType(kind, [kind] * arity), symbol)
    fn.linkage = "internal"
    for attribute in ("alwaysinline", "nounwind"):
        fn.attributes.add(attribute)
    builder = ir.IRBuilder(fn.append_basic_block())
    builder.ret(body(*(Num(builder, a) for a in fn.args)).v)
    return fn
