"""The names by which generated code calls LAPACK."""

from funcgrad.backends.llvm.native.engine import engine
from funcgrad.backends.llvm.runtime.lapack import ROUTINES, bind, symbol
from funcgrad.ops.linalg import lapack


def test_names_are_bound_as_often_as_asked_for():
    for _ in range(2):
        bind(engine())
    assert len({symbol(name) for name in ROUTINES}) == len(ROUTINES)
    assert all(lapack.address(name) for name in ROUTINES)
