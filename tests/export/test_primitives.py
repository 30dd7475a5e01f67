"""Every op's samples, in every dtype, through a file: the same program, and the same bits."""

import hashlib
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import funcgrad as fg
from funcgrad import export, tree
from funcgrad.errors import ExportError, FormatError
from funcgrad.export.program.vocabulary import op_name, op_named, primitives
from tests.export.golden_files import PYTHON, golden
from tests.op_checks import arrays, by_dtype, function, operands, typical
from tests.op_samples import PRIMITIVES, ROWS

ROOT = Path(__file__).parents[2]
DTYPES = sorted({d for row in ROWS for d in row.dtypes}, key=str)


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


def every_op(dtype):
    """The first samples of all ops that have a dtype, as a function and its arguments."""
    chosen = [r for r in ROWS if dtype in r.dtypes and r.prim.name not in PYTHON]
    return golden([(row, dtype) for row in chosen])


def digests(folder):
    """Of what the files of a folder compute op by op, by dtype."""
    found = {}
    for dtype in DTYPES:
        outs = export.load(Path(folder, f"{dtype}.fg")).jaxpr(*tree.leaves(every_op(dtype)[1]))
        found[str(dtype)] = [hashlib.sha256(np.asarray(y).tobytes()).hexdigest() for y in outs]
    return found


@pytest.mark.long
def test_a_fresh_process_gives_the_same_bits(tmp_path):
    for dtype in DTYPES:
        fun, args = every_op(dtype)
        export.export(fg.jit(fun), rule_order=1)(*args).save(tmp_path / f"{dtype}.fg")
    code = (
        "import json, sys; from tests.export.test_primitives import digests\n"
        "print(json.dumps(digests(sys.argv[1])))"
    )
    run = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True,
                         text=True, cwd=ROOT, check=False)  # fmt: skip
    assert run.returncode == 0, run.stderr
    found = json.loads(run.stdout)
    for dtype in DTYPES:
        fun, args = every_op(dtype)
        outs = fg.jit(fun).trace(*args).jaxpr(*tree.leaves(args))
        own = [hashlib.sha256(np.asarray(y).tobytes()).hexdigest() for y in outs]
        assert found[str(dtype)] == own, dtype


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
