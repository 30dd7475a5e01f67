"""The processor as a target: which ops its tables name."""

from funcgrad.backends.llvm.cpu import CPU
from funcgrad.backends.llvm.rewrites import running
from funcgrad.backends.rewrites import exchanges
from funcgrad.core.primitive import Primitive
from funcgrad.ops.collective.reductions import psum_p
from funcgrad.ops.cumulative import cumsum_p
from tests.op_samples import ROWS


def named_like(table, op):
    return {known for known, entry in table.items() if entry is table[op]}


def test_running_sums_are_rewritten():
    assert named_like(CPU.rewrites, cumsum_p) == set(running._HOW)


def test_collectives_are_rewritten():
    assert named_like(CPU.rewrites, psum_p) == set(exchanges.REWRITES)


def test_reductions_are_rewritten_by_their_trait():
    prims = {x for row in ROWS for x in vars(row).values() if isinstance(x, Primitive)}
    assert CPU.reduction is not None
    assert not [p for p in prims if p.reduction and p in CPU.rewrites]


def test_only_ops_of_the_backends_are_known_by_name():
    """And attention, whose functions ask whether it is."""
    names = {k for t in (CPU.rewrites, CPU.writers, CPU.steps) for k in t if isinstance(k, str)}
    assert not names & {row.prim.name for row in ROWS if not row.prim.strided}
