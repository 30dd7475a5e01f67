"""The samples of all ops in one C library a dtype: the bits of jit. What can't be in is listed."""

import ctypes
import re
import shutil

import numpy as np
import pytest

import funcgrad as fg
from funcgrad import export
from funcgrad.dtypes import ALL
from funcgrad.errors import ExportError
from tests.export.golden_files import golden
from tests.export.native.all_ops import ALONE, HELD, REFUSED
from tests.op_checks import typical
from tests.op_samples import ROWS

pytestmark = pytest.mark.skipif(shutil.which("gcc") is None, reason="needs a C compiler")


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
@pytest.mark.parametrize("dtype", ALL, ids=str)
def test_all_ops_in_one_library(tmp_path, dtype):
    fun, args = golden([(row, d) for row, d in HELD if d == dtype])
    f = fg.jit(fun)
    e = export.export(f, rule_order=0)(*args)
    library = export.aot(e, tmp_path, name="ops")
    flat = [np.asarray(x) for x in fg.tree.leaves(args)]
    want = [np.asarray(y).tobytes() for y in fg.tree.leaves(f(*args))]
    got = run(library, flat, e.out_avals)
    assert [i for i, pair in enumerate(zip(got, want, strict=True)) if pair[0] != pair[1]] == []


def refusal(chosen, folder):
    """The error of a library of samples."""
    fun, args = golden(chosen)
    with pytest.raises(ExportError) as error:
        export.aot(export.export(fg.jit(fun), rule_order=0)(*args), folder, name="ops")
    return str(error.value)


TOGETHER = [(r, d) for r, d in REFUSED if r.prim.name not in ALONE]


@pytest.mark.parametrize("dtype", [d for d in ALL if any(d == x for _, x in TOGETHER)], ids=str)
def test_the_others_are_refused_by_name(tmp_path, dtype):
    refused = [(r, d) for r, d in TOGETHER if d == dtype]
    text = refusal(refused, tmp_path)
    # Products of parts of rows are named by their steps.
    names = {row.prim.name for row, _ in refused if "ragged" not in row.prim.name}
    assert {name for name in names if not re.search(rf"\b{name}\b", text)} == set()


@pytest.mark.parametrize("row", [r for r in ROWS if r.prim.name in ALONE], ids=str)
def test_what_says_so_itself_is_refused_by_name(tmp_path, row):
    words = "mesh" if row.prim.name == "sharding_constraint" else row.prim.name
    assert words in refusal([(row, typical(row))], tmp_path)
