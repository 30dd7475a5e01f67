"""Functions that take a longer way for rare arguments, without giving up vectors.

The usual way is straight-line code for all elements. Its value then passes through a function that
replaces it where the argument is rare: LLVM's vectorizer calls the variant of that function for as
many lanes as it chose (`vector-function-abi-variant`), which leaves at once if no lane is rare. The
choice is made by element, so that a value never depends on its neighbours.
"""

from __future__ import annotations

from collections.abc import Callable

from funcgrad.backends.llvm.native import ir
from funcgrad.backends.llvm.native.builder import IRBuilder
from funcgrad.backends.llvm.vecmath.ir import F32, F64, I64, Num

LANES = {F32: (4, 8, 16), F64: (2, 4, 8)}
"""The numbers of lanes that there are variants for."""

_PTR, _VOID = ir.PointerType(), ir.VoidType()


def replace_beyond(name: str, bound: float, x: Num, y: Num, far: Callable[[Num], Num]) -> Num:
    """`y` where |x| ≤ bound, else `far(x)`; NaN is far. `name` is the module's for this function,
    bound and way."""
    module, kind = x.b.module, x.type
    symbol = f"fg.{name}.beyond.{'f32' if kind == F32 else 'f64'}"
    if symbol not in module.globals and module.scalar:
        _scalar(module, symbol, kind, bound, far)
    elif symbol not in module.globals:
        way = _far(module, symbol, kind, far)
        for lanes in (1, *LANES[kind]):
            _replacer(module, symbol, kind, lanes, bound, way)
    return Num(x.b, x.b.call(module.globals[symbol], [x.v, y.v]))


def _scalar(
    module: ir.Module, symbol: str, kind: ir.Type, bound: float, far: Callable[[Num], Num]
) -> None:
    """The function of x and y where there are no vectors: nothing goes through memory."""
    fn = ir.Function(module, ir.FunctionType(kind, [kind, kind]), symbol)
    fn.linkage = "internal"
    fn.attributes |= {"noinline", "memory(none)", "nounwind", "willreturn"}
    entry, rare, end = (fn.append_basic_block(s) for s in ("entry", "rare", "end"))
    b = IRBuilder(entry)
    x, y = fn.args
    size = b.call(module.intrinsic("fabs", kind, [kind]), [x])
    b.cbranch(b.fcmp_ordered("<=", size, ir.Constant(kind, bound)), end, rare)
    b = IRBuilder(rare)
    replaced = far(Num(b, x)).v
    b.branch(end)
    b = IRBuilder(end)
    result = b.phi(kind)
    result.add_incoming(y, entry)
    result.add_incoming(replaced, rare)
    b.ret(result)


def _far(module: ir.Module, symbol: str, kind: ir.Type, far: Callable[[Num], Num]) -> ir.Function:
    """void(ptr x, ptr y): y[i] = far(x[i]) for the most lanes; what none has is not read again."""
    fn = ir.Function(module, ir.FunctionType(_VOID, [_PTR, _PTR]), f"{symbol}.way")
    fn.linkage = "internal"
    for attribute in ("cold", "noinline", "nounwind"):
        fn.attributes.add(attribute)
    for argument in fn.args:
        argument.add_attribute("noalias")
    x, y = fn.args
    entry, loop, end = (fn.append_basic_block(s) for s in ("entry", "loop", "end"))
    IRBuilder(entry).branch(loop)
    b = IRBuilder(loop)
    i = b.phi(I64)
    value = Num(b, b.load(b.gep(x, [i], source_etype=kind), typ=kind))
    b.store(far(value).v, b.gep(y, [i], source_etype=kind))
    following = b.add(i, I64(1))
    i.add_incoming(I64(0), entry)
    i.add_incoming(following, loop)
    b.cbranch(b.icmp_unsigned("<", following, I64(max(LANES[kind]))), loop, end)
    IRBuilder(end).ret_void()
    return fn


def _replacer(
    module: ir.Module, symbol: str, kind: ir.Type, lanes: int, bound: float, way: ir.Function
) -> None:
    """The function of x and y for a number of lanes."""
    vector = kind if lanes == 1 else ir.VectorType(kind, lanes)
    mangled = symbol if lanes == 1 else f"{symbol}.x{lanes}"
    fn = ir.Function(module, ir.FunctionType(vector, [vector, vector]), mangled)
    # What the vectorizer may call must not go before it has run.
    fn.linkage = "linkonce_odr hidden" if lanes == 1 else "weak_odr hidden"
    inlining = "noinline" if lanes == 1 else "alwaysinline"
    fn.attributes |= {inlining, "memory(none)", "nounwind", "willreturn"}
    if lanes == 1:
        names = ",".join(f"_ZGV_LLVM_N{n}vv_{symbol}({symbol}.x{n})" for n in LANES[kind])
        fn.attributes.add(f'"vector-function-abi-variant"="{names}"')
    entry, rare, end = (fn.append_basic_block(s) for s in ("entry", "rare", "end"))
    b = IRBuilder(entry)
    x, y = fn.args
    size = b.call(module.intrinsic("fabs", vector, [vector]), [x])
    near = b.fcmp_ordered("<=", size, _splat(vector, bound))
    all_near = near
    if lanes > 1:
        mask = ir.IntType(lanes)
        all_near = b.icmp_unsigned("==", b.bitcast(near, mask), mask(-1))
    slots = [_array(b, kind) for _ in range(2)]
    b.cbranch(all_near, end, rare)
    b = IRBuilder(rare)
    b.store(x, slots[0])
    b.call(way, slots)
    replaced = b.select(near, y, b.load(slots[1], typ=vector))
    b.branch(end)
    b = IRBuilder(end)
    result = b.phi(vector)
    result.add_incoming(y, entry)
    result.add_incoming(replaced, rare)
    b.ret(result)


def _array(b: IRBuilder, kind: ir.Type) -> ir.Value:
    """Memory for the most lanes."""
    return b.alloca(ir.ArrayType(kind, max(LANES[kind])), align=64)


def _splat(kind: ir.Type, value: float) -> ir.Constant:
    return ir.Constant(kind, [value] * kind.count if isinstance(kind, ir.VectorType) else value)
