"""Every op's samples, in every dtype, through a file: the same program, and the same bits."""

import numpy as np
import pytest

import funcgrad as fg
from funcgrad import export
from funcgrad.errors import ExportError, FormatError
from funcgrad.export.program.vocabulary import op_name, op_named, primitives
from tests.op_checks import arrays, by_dtype, function, operands, typical
from tests.op_samples import PRIMITIVES, ROWS

PYTHON = ("pure_callback", "io_callback", "debug_callback")


@pytest.mark.sampled(2)
@by_dtype([row for row in ROWS if row.prim.name not in PYTHON])
def test_loaded_programs_give_the_same_bits(row, dtype):
    rng = np.random.default_rng(0)
    for case in row.cases if dtype == typical(row) else row.cases[:1]:
        args = arrays(operands(row, case, rng, dtype))
        f = fg.jit(function(row, case))
        own = f.trace(*args).jaxpr
        loaded = export.deserialize(export.export(f)(*args).serialize()).jaxpr
        if row.prim.name not in ("custom_vmap_call", "custom_vjp_tangent"):  # which show functions
            assert repr(loaded) == repr(own)
        # Op by op: what compiled programs give is the backends' to test.
        for g, w in zip(loaded(*args), own(*args), strict=True):
            g, w = np.asarray(g), np.asarray(w)
            assert (g.dtype, g.shape, g.tobytes()) == (w.dtype, w.shape, w.tobytes())


@pytest.mark.parametrize("row", [r for r in ROWS if r.prim.name in PYTHON], ids=str)
def test_python_code_is_refused_by_name_and_line(row):
    case = row.cases[0]
    args = arrays(operands(row, case, np.random.default_rng(0), np.dtype("float32")))
    with pytest.raises(ExportError, match=f"{row.prim.name} at .*op_samples_programs.py:.*Python"):
        export.export(fg.jit(function(row, case)))(*args)


def test_every_op_has_a_name_and_a_version():
    assert set(PRIMITIVES) <= set(primitives().values())
    for prim in PRIMITIVES:
        assert op_named(op_name(prim)) == (prim, 1)


@pytest.mark.parametrize(
    ("text", "words"),
    [("sin@2", "newer funcgrad"), ("sin", "no operation"), ("sin@x", "no operation"),
     ("os.system@1", "no operation"), ("", "no operation")],
)  # fmt: skip
def test_other_names_are_no_ops(text, words):
    with pytest.raises(FormatError, match=words):
        op_named(text)
