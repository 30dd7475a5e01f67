"""The elementary functions of the LLVM CPU backend, by NumPy's names.

`emit(builder, name, args)` calls the function `name` for float or double. Its body is emitted once
per module, as an internal `alwaysinline` function of straight-line code, so that every optimizing
pass pipeline inlines it before the loop vectorizer looks at the loop around the call. What only
rare arguments need is behind a branch for whole vectors (`rare`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from funcgrad.backends.llvm.native import ir
from funcgrad.backends.llvm.native.builder import IRBuilder
from funcgrad.backends.llvm.vecmath import arc, bits, erf, exp, gamma, log, power, trig
from funcgrad.backends.llvm.vecmath.ir import F32, F64, Num

_TABLE: dict[str, Callable[..., Num]] = {
    "exp": exp.exp,
    "exp2": exp.exp2,
    "expm1": exp.expm1,
    "logistic": exp.logistic,
    "tanh": exp.tanh,
    "sinh": exp.sinh,
    "cosh": exp.cosh,
    "log": log.log,
    "log2": log.log2,
    "log10": log.log10,
    "log1p": log.log1p,
    "sin": trig.sin,
    "cos": trig.cos,
    "tan": trig.tan,
    "power": power.power,
    "rsqrt": power.rsqrt,
    "erf": erf.erf,
    "erfc": erf.erfc,
    "erf_inv": erf.erf_inv,
    "arcsin": arc.arcsin,
    "arccos": arc.arccos,
    "arctan": arc.arctan,
    "arctan2": arc.arctan2,
    "arcsinh": log.arcsinh,
    "arccosh": log.arccosh,
    "arctanh": log.arctanh,
    "cbrt": power.cbrt,
    "hypot": power.hypot,
    "lgamma": gamma.lgamma,
    "digamma": gamma.digamma,
    "fmod": bits.fmod,
    "nextafter": bits.nextafter,
}

NAMES = frozenset(_TABLE)
"""Every name `emit` knows."""


def emit(builder: IRBuilder, name: str, args: Sequence[ir.Value]) -> ir.Value:
    """The value of the elementary function `name` at `args`, which are all float or all double.

    Raises KeyError for a name outside `NAMES`, TypeError for other argument types.

    >>> from funcgrad.backends.llvm.native import ir
    >>> from funcgrad.backends.llvm.native.builder import IRBuilder
    >>> module, f32 = ir.Module(), ir.FloatType()
    >>> f = ir.Function(module, ir.FunctionType(f32, [f32]), "f")
    >>> builder = IRBuilder(f.append_basic_block())
    >>> _ = builder.ret(emit(builder, "exp", f.args))
    >>> "fg.exp.f32" in str(module)
    True
    """
    kind = args[0].type
    if kind not in (F32, F64) or any(a.type != kind for a in args):
        got = ", ".join(str(a.type) for a in args)
        raise TypeError(f"vecmath.emit: {name} takes arguments all float or all double, got {got}")
    return builder.call(function(builder.module, name, kind, len(args)), args)


def function(module: ir.Module, name: str, kind: ir.Type, arity: int) -> ir.Function:
    """The function `name` of a module, for float or double.

    >>> function(ir.Module(), "exp", F32, 1).name
    'fg.exp.f32'
    """
    body, symbol = _TABLE[name], f"fg.{name}.{'f32' if kind == F32 else 'f64'}"
    if symbol in module.globals:
        return module.globals[symbol]
    fn = ir.Function(module, ir.FunctionType(kind, [kind] * arity), symbol)
    fn.linkage = "internal"
    for attribute in ("alwaysinline", "nounwind"):
        fn.attributes.add(attribute)
    builder = IRBuilder(fn.append_basic_block())
    builder.ret(body(*(Num(builder, a) for a in fn.args)).v)
    return fn
