"""The processor as a target: which ops its tables name."""

from funcgrad.backends.llvm.cpu import CPU
from funcgrad.backends.llvm.rewrites import running
from funcgrad.backends.rewrites import exchanges
from funcgrad.core.primitive import Primitive
from tests.op_samples import ROWS


def named_like(table, op):
    return {name for name, entry in table.items() if entry is table[op]}


def test_running_sums_are_rewritten():
    assert named_like(CPU.rewrites, "cumsum") == set(running.OPS)


def test_collectives_are_rewritten():
    assert named_like(CPU.rewrites, "psum") == set(exchanges.REWRITES)


def test_reductions_are_rewritten():
    prims = {x for row in ROWS for x in vars(row).values() if isinstance(x, Primitive)}
    reductions = {p.name for p in prims if p.reduction}
    assert named_like(CPU.rewrites, "reduce_sum") == reductions
