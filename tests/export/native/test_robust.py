"""C libraries under ThreadSanitizer, with a counter of allocations, and by an older header."""

import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

import funcgrad as fg
from funcgrad import export
from tests.export.native.test_library import CC, STRICT, X, built, check, network, outputs

GOLDEN = Path(__file__).parents[1] / "golden"
pytestmark = pytest.mark.skipif(CC is None, reason="needs a C compiler")


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    exported = export.export(fg.jit(network))(X)
    return export.aot(exported, tmp_path_factory.mktemp("lib"), name="net", kind="static")


def sanitized(folder, flag):
    """A C compiler that instruments what it compiles."""
    script = folder / "cc"
    script.write_text(f'#!/bin/sh\nexec {CC} {flag} "$@"\n')
    script.chmod(0o755)
    return str(script)


@pytest.mark.parametrize("flag", ["thread", "address,undefined"])
def test_what_joins_the_code_under_sanitizers(tmp_path, monkeypatch, flag):
    monkeypatch.setenv("CC", sanitized(tmp_path, f"-fsanitize={flag}"))
    flags = [f"-fsanitize={flag}", "-fno-sanitize-recover=all"]
    where = "beside" if "address" in flag else "inside"
    check(tmp_path, network, X, threads=8, kind="static", weights=where, flags=flags)


def test_nothing_is_allocated(tmp_path, library):
    program = tmp_path / "allocations"
    subprocess.run(
        [CC, *STRICT, "-fno-builtin", f"-I{library.header.parent}",
         str(Path(__file__).with_name("allocations.c")), str(library.library), "-lm", "-o",
         str(program)], check=True,
    )  # fmt: skip
    subprocess.run([program], check=True)


def test_an_older_header_works_with_a_newer_library(tmp_path, library):
    shutil.copyfile(GOLDEN / "net-1.h", tmp_path / "net.h")
    program = built(tmp_path, library, f"-I{tmp_path}")
    (found,) = outputs(program, [X], [y.aval for y in fg.tree.leaves(fg.eval_shape(network, X))])
    for got, wanted in zip(found, fg.tree.leaves(fg.jit(network)(X)), strict=True):
        np.testing.assert_array_equal(got, np.asarray(wanted))
