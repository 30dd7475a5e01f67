"""The order of updates by the rows they go to, as generated code: a sort by counting.

Rows' counts become where their updates begin, and each update's number goes to the next place of
its row. What is counted is read again, perhaps after its owner changed it: places are kept inside.
"""

from __future__ import annotations

import functools

from funcgrad.backends.llvm.native import ir
from funcgrad.backends.llvm.native.code import I32, PTR, Code, Int, Record
from funcgrad.backends.llvm.native.engine import Engine
from funcgrad.backends.llvm.runtime.routine import Call, compiled
from funcgrad.backends.llvm.sort.radix import clear, zext
from funcgrad.backends.program import HostStep

_NAME, _CALL = "fg_row_order", ("n", "rows", "positions", "out")


def order_call(step: HostStep) -> Call:
    """How the function that runs a step of `row_order` is called."""
    return Call(_NAME, (step.ins[0].aval.size, step.params["rows"]), (install,))


@functools.cache
def install(target: Engine | None = None) -> int:
    """Compile the function that `order_call` names; bind its symbol, return its address.

    >>> install() == install()
    True
    """
    return compiled(_NAME, _module, 2, ("routines.rows",), target)


def _module() -> ir.Module:
    """void fg_row_order(ptr call) of the words `_CALL`."""
    module = ir.Module("rows")
    code = Code(module, _NAME, [PTR], public=True)
    call = Record(code, _CALL, code.args[0])
    n, rows, positions = call["n"], call["rows"], call.pointer_at("positions")
    bounds = call.pointer_at("out")
    numbers = code.at(bounds, rows + 2, I32)
    clear(code, bounds, (rows + 2) * 4)

    def end(i: Int) -> ir.Value:
        """Where the end of update i's row is; that of no row is the last."""
        row = zext(code, code.load(code.at(positions, i, I32), I32)).min(rows)
        return code.at(bounds, row + 1, I32)

    with code.range(0, n) as i:
        at = end(i)
        code.store(code.b.add(code.load(at, I32), I32(1)), at)
    total = code.variable(I32, I32(0))
    with code.range(1, rows + 2) as row:
        at = code.at(bounds, row, I32)
        count = code.load(at, I32)
        code.store(total.get(), at)
        total.set(code.b.add(total.get(), count))
    with code.range(0, n) as i:
        at = end(i)
        place = code.load(at, I32)
        code.store(code.b.add(place, I32(1)), at)
        inside = zext(code, place).min(n - 1)
        code.store(code.b.trunc(i.value, I32), code.at(numbers, inside, I32))
    code.ret()
    return module
