"""The samples of all ops in one C library: the bits of jit. What can't be in one is listed."""

import ctypes
import shutil

import numpy as np
import pytest

import funcgrad as fg
from funcgrad import export
from funcgrad.errors import ExportError
from tests.export.golden_files import PYTHON, golden
from tests.op_samples import ROWS

pytestmark = pytest.mark.skipif(shutil.which("gcc") is None, reason="needs a C compiler")

# What NumPy computes: conversions to narrow types, and rare decompositions.
REFUSED = {
    "bitcast to uint8", "bitcast_regroup", "bitcast_regroup to wider", "column_order",
    "convert to int4", "convert to uint4", "eig", "hessenberg", "iota", "lu_pivots_to_permutation",
    "pullback", "reduce_max of small floats", "schur", "select_and_gather_add",
    "sharding_constraint", "svd", "tridiagonal",
}  # fmt: skip


def is_refused(row):
    return str(row) in REFUSED or "float8" in str(row)


POSSIBLE = [r for r in ROWS if r.prim.name not in PYTHON]


def aligned(nbytes):
    buffer = ctypes.create_string_buffer(nbytes + 64)
    return buffer, ctypes.addressof(buffer) + -ctypes.addressof(buffer) % 64


def run(library, args, outs):
    """The bytes of a library's results."""
    lib = ctypes.CDLL(str(library.library))
    context, size = ctypes.create_string_buffer(256), ctypes.c_size_t
    assert lib.ops_init(context, size(256), None, size(0)) == 0
    ins = [aligned(x.nbytes) for x in args]
    for (_, at), x in zip(ins, args, strict=True):
        ctypes.memmove(at, np.ascontiguousarray(x).tobytes(), x.nbytes)
    results = [aligned(a.nbytes) for a in outs]
    arena, at = aligned(library.arena_bytes)
    pointers = lambda held: (ctypes.c_void_p * len(held))(*(place for _, place in held))
    status = lib.ops_run(context, pointers(ins), pointers(results), ctypes.c_void_p(at),
                         size(library.arena_bytes))  # fmt: skip
    assert status == 0, context.raw[64:].partition(b"\0")[0]
    del arena
    return [ctypes.string_at(at, a.nbytes) for (_, at), a in zip(results, outs, strict=True)]


@pytest.mark.long
def test_all_ops_in_one_library(tmp_path):
    fun, args = golden([r for r in POSSIBLE if not is_refused(r)])
    f = fg.jit(fun)
    e = export.export(f, rule_order=0)(*args)
    library = export.aot(e, tmp_path, name="ops")
    flat = [np.asarray(x) for x in fg.tree.leaves(args)]
    want = [np.asarray(y).tobytes() for y in fg.tree.leaves(f(*args))]
    got = run(library, flat, e.out_avals)
    assert [i for i, pair in enumerate(zip(got, want, strict=True)) if pair[0] != pair[1]] == []


@pytest.mark.parametrize("row", [r for r in POSSIBLE if is_refused(r)], ids=str)
def test_the_others_are_refused_by_name(tmp_path, row):
    fun, args = golden([row])
    words = "mesh" if row.prim.name == "sharding_constraint" else row.prim.name
    with pytest.raises(ExportError, match=words):
        export.aot(export.export(fg.jit(fun), rule_order=0)(*args), tmp_path, name="ops")
