"""Numbers from tables of 16 floats are those that indexing gives, found by permutations."""

import numpy as np
import pytest

import funcgrad as fg
import funcgrad.numpy as fnp
from funcgrad.backends.llvm.emit.tables import define
from funcgrad.backends.llvm.emit.text import Definitions
from funcgrad.backends.llvm.native.compiler import compiled
from funcgrad.backends.llvm.native.engine import engine
from funcgrad.backends.llvm.native.target import Target


@pytest.mark.parametrize("n", [1, 7, 64, 1000])
@pytest.mark.parametrize("dtype", ["uint8", "int32"])
def test_they_are_what_indexing_gives(n, dtype):
    rng = np.random.default_rng(n)
    table = rng.standard_normal(16).astype(np.float32)
    table[3:5] = np.nan, -np.inf
    places = rng.integers(0, 16, n).astype(dtype)
    found = fg.jit(lambda t, i: fnp.take(t, i, mode="clip"))(table, places)
    np.testing.assert_array_equal(found, table[places])
    outside = (places + 100).astype(dtype)
    clipped = fg.jit(lambda t, i: fnp.take(t, i, mode="clip"))(table, outside)
    np.testing.assert_array_equal(clipped, np.full(n, table[15]))


def test_other_tables_are_read():
    for n in (15, 17):
        table, places = np.arange(n, dtype=np.float32), np.arange(40) % n
        np.testing.assert_array_equal(fg.jit(lambda t, i: t[i])(table, places), table[places])


@pytest.mark.parametrize(
    ("cpu", "features", "each"),
    [("haswell", "+avx2,+avx,+fma", 2), ("znver4", "+avx512f,+avx512bw,+avx2,+avx,+fma", 1)],
)
def test_variants_permute_registers(cpu, features, each):
    target, module = Target("x86_64-unknown-linux-gnu", cpu, features), Definitions()
    if not engine().target.triple.startswith("x86_64"):
        pytest.skip("this LLVM writes code of other processors")
    define(module, target)
    define(module, target)  # once is enough
    code = compiled(target, module.text([]), 1, lambda m: m.code(assembly=True).decode())
    variant = code[code.index("\nfg.table.x8:") : code.index("fg.table.x16:")]
    assert variant.count("vperm") == each


def test_kernels_call_the_variants():
    if not (engine().target.triple.startswith("x86_64") and engine().target.has("avx2")):
        pytest.skip("this processor has no such instructions")
    f = fg.jit(lambda t, i: fnp.take(t, i, mode="clip"))
    lowered = f.lower(np.zeros(16, np.float32), np.zeros(1000, np.uint8))
    assert "permps" in lowered.as_text("llvm") or "permvar" in lowered.as_text("llvm")
